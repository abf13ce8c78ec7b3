//! The seats of one priority level and the requests that wait for them. Pure: time and wakers are
//! passed in.
//!
//! While there are free seats and no request waits, a new one is dispatched. Otherwise it waits in
//! one of its flow's queues, and the queues are served fairly: each has a virtual start time that
//! advances by the work (seats times seconds) done for it, and the request with the earliest
//! virtual finish time is next. A queue that was idle starts at the current virtual time, so that
//! no flow accumulates unused time. The work of a request is estimated as [`USUAL`] for each seat
//! when it begins and corrected when it ends.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{demand::Demand, shuffle};

/// The expected duration of a request.
const USUAL: Duration = Duration::from_millis(3);
/// A client that takes longer than this to read a response holds no seat for it.
const SLOW: Duration = Duration::from_secs(1);

/// The queuing configuration of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queuing {
    pub(super) queues: usize,
    pub(super) hand_size: usize,
    pub(super) length_limit: usize,
}

/// The reason of a rejection, as in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No free seat, and the level has no queues.
    ConcurrencyLimit,
    QueueFull,
    /// The wait timed out, or the client left.
    TimeOut,
}

impl Refusal {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }
}

/// The outcome of an arrival.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Seated(OccupiedSeats),
    Waits(QueuePosition),
    Refused(Refusal),
}

/// The position of a request in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueuePosition {
    queue: usize,
    number: u64,
}

/// Seats in use; they must be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OccupiedSeats {
    slot: usize,
    number: u64,
}

/// A dispatched request.
#[derive(Debug)]
struct Seated {
    number: u64,
    seats: usize,
    since: Instant,
    /// Since when its response is being sent.
    sends_since: Option<Instant>,
    queue: Option<usize>,
}

/// Work in seats times microseconds.
type Work = i64;

fn work(seats: usize, lasts: Duration) -> Work {
    let micros = i64::try_from(lasts.as_micros()).unwrap_or(i64::MAX);
    micros.saturating_mul(i64::try_from(seats).unwrap_or(i64::MAX))
}

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    /// The virtual time at which its next request starts.
    start: Work,
    /// Seats of its dispatched requests.
    seats: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    number: u64,
    seats: usize,
    /// The virtual time of its arrival; it does not start earlier.
    came: Work,
    who: T,
}

/// A level's seats and queues; `T` wakes a waiting request.
#[derive(Debug)]
pub(super) struct Queues<T> {
    /// `None`: a request without a free seat is rejected.
    queuing: Option<Queuing>,
    limit: usize,
    /// By slot; free ones are `None`.
    seated: Vec<Option<Seated>>,
    free: Vec<usize>,
    in_use: usize,
    executing: usize,
    queues: Vec<Queue<T>>,
    waiting: usize,
    seats_waiting: usize,
    /// The virtual start time of the last dispatched request.
    virtual_time: Work,
    /// The last served queue.
    last: usize,
    numbers: u64,
    pub(super) demand: Demand,
}

/// State of a level, for the debug page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) active_queues: usize,
    pub(super) waiting: usize,
    pub(super) executing: usize,
}

/// State of a queue, for the debug page.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueCounts {
    pub(super) waiting: usize,
    pub(super) executing: usize,
    pub(super) seats_in_use: usize,
    pub(super) seats_waiting: usize,
    /// In seats times seconds.
    pub(super) next_start: f64,
    pub(super) work_waiting: f64,
}

impl<T> Queues<T> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            queuing: None,
            limit: 0,
            seated: Vec::new(),
            free: Vec::new(),
            in_use: 0,
            executing: 0,
            queues: Vec::new(),
            waiting: 0,
            seats_waiting: 0,
            virtual_time: 0,
            last: 0,
            numbers: 0,
            demand: Demand::new(now),
        }
    }

    /// Changes the configuration. Surplus queues are drained.
    pub(super) fn configure(&mut self, queuing: Option<Queuing>, limit: usize) {
        self.queuing = queuing;
        self.limit = limit;
        let wanted = queuing.map_or(0, |queuing| queuing.queues);
        while self.queues.len() < wanted {
            self.queues.push(Queue {
                waiting: VecDeque::new(),
                start: 0,
                seats: 0,
            });
        }
        self.drop_unwanted();
    }

    fn drop_unwanted(&mut self) {
        let wanted = self.queuing.map_or(0, |queuing| queuing.queues);
        while self.queues.len() > wanted
            && let Some(Queue {
                waiting, seats: 0, ..
            }) = self.queues.last()
            && waiting.is_empty()
        {
            self.queues.pop();
        }
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }

    /// A request arrives that needs this many seats. `who` is called if it has to wait; then
    /// [`Queues::next`] may dispatch it at once.
    pub(super) fn arrive(
        &mut self,
        seats: usize,
        flow: impl FnOnce() -> u64,
        now: Instant,
        who: impl FnOnce() -> T,
    ) -> Arrival {
        let Some(queuing) = self.queuing else {
            if !self.fits(seats) {
                return Arrival::Refused(Refusal::ConcurrencyLimit);
            }
            return Arrival::Seated(self.seat(seats, None, now));
        };
        if self.waiting == 0 && self.in_use < self.limit && self.fits(seats) {
            return Arrival::Seated(self.seat(seats, None, now));
        }
        let queue = self.shortest(flow(), queuing);
        let line = &mut self.queues[queue];
        if line.waiting.len() >= queuing.length_limit {
            return Arrival::Refused(Refusal::QueueFull);
        }
        if line.waiting.is_empty() {
            line.start = line.start.max(self.virtual_time);
        }
        let number = self.numbers;
        line.waiting.push_back(Waiting {
            number,
            seats,
            came: self.virtual_time,
            who: who(),
        });
        self.numbers += 1;
        self.waiting += 1;
        self.seats_waiting += seats;
        self.note_demand(now);
        Arrival::Waits(QueuePosition { queue, number })
    }

    /// The queue with the least work in a flow's hand.
    fn shortest(&self, flow: u64, queuing: Queuing) -> usize {
        let hand = shuffle::deal(flow, queuing.queues, queuing.hand_size);
        // Starts at a rotating position, so that equally short queues take turns.
        let first = (self.numbers % hand.len().max(1) as u64) as usize;
        let (before, after) = hand.split_at(first);
        let queue = after.iter().chain(before).copied();
        queue
            .min_by_key(|queue| self.queues[*queue].seats_waiting())
            .unwrap_or_default()
    }

    /// Whether this many seats are free. A request that needs more than the limit is dispatched
    /// when nothing else runs.
    fn fits(&self, seats: usize) -> bool {
        if seats > self.limit {
            self.executing == 0
        } else {
            self.in_use + seats <= self.limit
        }
    }

    fn seat(&mut self, seats: usize, queue: Option<usize>, now: Instant) -> OccupiedSeats {
        let number = self.numbers;
        self.numbers += 1;
        self.in_use += seats;
        self.executing += 1;
        self.note_demand(now);
        let seated = Some(Seated {
            number,
            seats,
            since: now,
            sends_since: None,
            queue,
        });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.seated[slot] = seated;
                slot
            }
            None => {
                self.seated.push(seated);
                self.seated.len() - 1
            }
        };
        OccupiedSeats { slot, number }
    }

    fn note_demand(&mut self, now: Instant) {
        self.demand.record(self.in_use + self.seats_waiting, now);
    }

    /// Whether a request waits and a seat is free.
    pub(super) fn is_somebodys_turn(&self) -> bool {
        self.waiting > 0 && self.in_use < self.limit
    }

    /// Dispatches the next waiting request, if it fits.
    pub(super) fn next(&mut self, now: Instant) -> Option<(T, OccupiedSeats)> {
        if !self.is_somebodys_turn() {
            return None;
        }
        let count = self.queues.len();
        let turns = (1..=count).map(|step| (self.last + step) % count);
        let (_, chosen) = turns
            .filter_map(|queue| Some((self.queues[queue].finish()?, queue)))
            .min_by_key(|(finish, _)| *finish)?;
        let head = self.queues[chosen].waiting.front()?;
        if !self.fits(head.seats) {
            return None;
        }
        let Waiting { seats, who, .. } = self.queues[chosen].waiting.pop_front()?;
        let line = &mut self.queues[chosen];
        line.seats += seats;
        self.virtual_time = self.virtual_time.max(line.start);
        line.start += work(seats, USUAL);
        line.bound();
        self.last = chosen;
        self.waiting -= 1;
        self.seats_waiting -= seats;
        Some((who, self.seat(seats, Some(chosen), now)))
    }

    /// A request stops waiting; `None` if it was dispatched before.
    pub(super) fn leave(&mut self, place: QueuePosition, now: Instant) -> Option<T> {
        let line = self.queues.get_mut(place.queue)?;
        let number = |waiting: &Waiting<T>| waiting.number == place.number;
        let position = line.waiting.iter().position(number)?;
        let left = line.waiting.remove(position)?;
        line.bound();
        self.waiting -= 1;
        self.seats_waiting -= left.seats;
        self.note_demand(now);
        self.drop_unwanted();
        Some(left.who)
    }

    /// Releases seats.
    pub(super) fn finish(&mut self, sitting: OccupiedSeats, now: Instant) {
        let slot = self.seated.get_mut(sitting.slot);
        let mine = |seated: &mut Seated| seated.number == sitting.number;
        let Some(seated) = slot.and_then(|slot| slot.take_if(mine)) else {
            return;
        };
        self.free.push(sitting.slot);
        self.in_use -= seated.seats;
        self.executing -= 1;
        if let Some(queue) = seated.queue {
            let line = &mut self.queues[queue];
            line.seats -= seated.seats;
            let took = now.saturating_duration_since(seated.since);
            line.start += work(seated.seats, took) - work(seated.seats, USUAL);
            line.bound();
            self.drop_unwanted();
        }
        self.note_demand(now);
    }

    /// From now on the client decides when the seats are released.
    pub(super) fn send(&mut self, sitting: OccupiedSeats, now: Instant) {
        if let Some(Some(seated)) = self.seated.get_mut(sitting.slot)
            && seated.number == sitting.number
        {
            seated.sends_since = Some(now);
        }
    }

    /// Releases the seats of requests that exceed the maximum duration, or whose clients read
    /// slowly: they do no work.
    pub(super) fn take_from_idlers(&mut self, longest: Duration, now: Instant) {
        let is_idle = |seated: &&Seated| {
            let passed = |since: Instant| now.saturating_duration_since(since);
            let sends = seated.sends_since.map(passed);
            passed(seated.since) > longest || sends.is_some_and(|sends| sends > SLOW)
        };
        let idle = |(slot, seated): (usize, &Option<Seated>)| {
            let number = seated.as_ref().filter(is_idle)?.number;
            Some(OccupiedSeats { slot, number })
        };
        let idlers: Vec<OccupiedSeats> = self.seated.iter().enumerate().filter_map(idle).collect();
        for idler in idlers {
            self.finish(idler, now);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let active = self.queues.iter().filter(|queue| !queue.waiting.is_empty());
        Counts {
            active_queues: active.count(),
            waiting: self.waiting,
            executing: self.executing,
        }
    }

    pub(super) fn queue_counts(&self) -> Vec<QueueCounts> {
        let mut executing = vec![0; self.queues.len()];
        for queue in self
            .seated
            .iter()
            .flatten()
            .filter_map(|seated| seated.queue)
        {
            executing[queue] += 1;
        }
        let seconds = |work: Work| work as f64 / 1e6;
        let queues = self.queues.iter().zip(executing);
        let counts = queues.map(|(queue, executing)| QueueCounts {
            waiting: queue.waiting.len(),
            executing,
            seats_in_use: queue.seats,
            seats_waiting: queue.seats_waiting(),
            next_start: seconds(queue.start),
            work_waiting: seconds(work(queue.seats_waiting(), USUAL)),
        });
        counts.collect()
    }
}

impl<T> Queue<T> {
    fn seats_waiting(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.seats).sum()
    }

    /// The virtual finish time of its next request.
    fn finish(&self) -> Option<Work> {
        let head = self.waiting.front()?;
        Some(self.start + work(head.seats, USUAL))
    }

    /// No request starts before it arrives.
    fn bound(&mut self) {
        if let Some(head) = self.waiting.front() {
            self.start = self.start.max(head.came);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A level with named requests, on a manual clock.
    struct Hall {
        queues: Queues<&'static str>,
        now: Instant,
        seated: Vec<(&'static str, OccupiedSeats)>,
    }

    impl Hall {
        fn new(limit: usize, queuing: Option<Queuing>) -> Self {
            let now = Instant::now();
            let mut queues = Queues::new(now);
            queues.configure(queuing, limit);
            Self {
                queues,
                now,
                seated: Vec::new(),
            }
        }

        fn arrive(&mut self, who: &'static str, flow: u64, seats: usize) -> Arrival {
            let arrival = self.queues.arrive(seats, || flow, self.now, || who);
            if let Arrival::Seated(sitting) = arrival {
                self.seated.push((who, sitting));
            }
            self.serve();
            arrival
        }

        fn serve(&mut self) {
            while let Some((who, sitting)) = self.queues.next(self.now) {
                self.seated.push((who, sitting));
            }
        }

        /// The longest running request ends after a while.
        fn finish_after(&mut self, lasts: Duration) -> &'static str {
            let (who, sitting) = self.seated.remove(0);
            self.now += lasts;
            self.queues.finish(sitting, self.now);
            self.serve();
            who
        }

        fn names(&self) -> Vec<&'static str> {
            self.seated.iter().map(|(who, _)| *who).collect()
        }
    }

    fn one_queue_each(length_limit: usize) -> Option<Queuing> {
        Some(Queuing {
            queues: 8,
            hand_size: 1,
            length_limit,
        })
    }

    #[test]
    fn without_queues_a_request_without_a_free_seat_is_refused() {
        let mut hall = Hall::new(2, None);
        assert!(matches!(hall.arrive("a", 0, 1), Arrival::Seated(_)));
        let refused = Arrival::Refused(Refusal::ConcurrencyLimit);
        assert_eq!(hall.arrive("wide", 0, 2), refused);
        assert!(matches!(hall.arrive("b", 0, 1), Arrival::Seated(_)));
        assert_eq!(hall.arrive("c", 0, 1), refused);
        hall.finish_after(MS);
        assert!(matches!(hall.arrive("c", 0, 1), Arrival::Seated(_)));
    }

    #[test]
    fn a_full_queue_refuses_and_other_flows_still_wait() {
        let mut hall = Hall::new(1, one_queue_each(2));
        assert!(matches!(hall.arrive("a", 0, 1), Arrival::Seated(_)));
        assert!(matches!(hall.arrive("a", 0, 1), Arrival::Waits(_)));
        assert!(matches!(hall.arrive("a", 0, 1), Arrival::Waits(_)));
        assert_eq!(hall.arrive("a", 0, 1), Arrival::Refused(Refusal::QueueFull));
        assert!(matches!(hall.arrive("b", 1, 1), Arrival::Waits(_)));
        hall.finish_after(MS);
        hall.finish_after(MS);
        assert!(matches!(hall.arrive("a", 0, 1), Arrival::Waits(_)));
    }

    #[test]
    fn a_queue_is_full_also_while_free_seats_are_too_few_for_its_head() {
        let mut hall = Hall::new(3, one_queue_each(1));
        assert!(matches!(hall.arrive("a", 0, 2), Arrival::Seated(_)));
        assert!(matches!(hall.arrive("a", 0, 2), Arrival::Waits(_)));
        assert_eq!(hall.arrive("a", 0, 2), Arrival::Refused(Refusal::QueueFull));
        hall.arrive("eve", 1, 1);
        assert_eq!(hall.names(), ["a", "eve"], "who needs less is not held up");
    }

    #[test]
    fn a_flow_spreads_over_its_hand() {
        let queuing = Queuing {
            queues: 16,
            hand_size: 4,
            length_limit: 2,
        };
        let mut hall = Hall::new(1, Some(queuing));
        hall.arrive("a", 77, 1);
        for _ in 0..4 * 2 {
            assert!(matches!(hall.arrive("a", 77, 1), Arrival::Waits(_)));
        }
        let full = hall.arrive("a", 77, 1);
        assert_eq!(full, Arrival::Refused(Refusal::QueueFull));
        let hand = shuffle::deal(77, 16, 4);
        for (index, queue) in hall.queues.queue_counts().iter().enumerate() {
            let expected = if hand.contains(&index) { 2 } else { 0 };
            assert_eq!(queue.waiting, expected, "{index}");
        }
    }

    #[test]
    fn a_flood_does_not_delay_later_requests_of_other_flows() {
        let mut hall = Hall::new(4, one_queue_each(50));
        for _ in 0..50 {
            hall.arrive("flood", 0, 1);
        }
        for _ in 0..10 {
            hall.arrive("eve", 1, 1);
            hall.finish_after(3 * MS);
            hall.finish_after(3 * MS);
            let last_two = &hall.names()[2..];
            assert!(
                last_two.contains(&"eve"),
                "one of two is hers: {last_two:?}"
            );
        }
    }

    #[test]
    fn backlogged_flows_get_the_same_work_whatever_their_requests_need() {
        let mut hall = Hall::new(6, one_queue_each(400));
        let flows = [
            ("narrow", 0, 1, 3 * MS),
            ("wide", 1, 3, 3 * MS),
            ("slow", 2, 1, 9 * MS),
        ];
        for _ in 0..400 {
            for (name, flow, seats, _) in flows {
                hall.arrive(name, flow, seats);
            }
        }
        // By virtual time: each request ends after its own duration.
        let mut ends: Vec<(Instant, &str, OccupiedSeats)> = Vec::new();
        let mut done: BTreeMap<&str, f64> = BTreeMap::new();
        for _ in 0..600 {
            for (name, sitting) in std::mem::take(&mut hall.seated) {
                let (_, _, _, lasts) = flows.iter().find(|flow| flow.0 == name).unwrap();
                ends.push((hall.now + *lasts, name, sitting));
            }
            ends.sort_by_key(|(end, _, _)| std::cmp::Reverse(*end));
            let (end, name, sitting) = ends.pop().unwrap();
            let (_, _, seats, lasts) = flows.iter().find(|flow| flow.0 == name).unwrap();
            *done.entry(name).or_default() += *seats as f64 * lasts.as_secs_f64();
            hall.now = end;
            hall.queues.finish(sitting, end);
            hall.serve();
        }
        let (least, most) = (
            done.values().copied().fold(f64::MAX, f64::min),
            done.values().copied().fold(0.0, f64::max),
        );
        assert!(most < 1.1 * least, "{done:?}");
    }

    #[test]
    fn a_request_wider_than_the_level_runs_alone() {
        let mut hall = Hall::new(3, one_queue_each(50));
        hall.arrive("a", 0, 1);
        assert!(matches!(hall.arrive("huge", 1, 5), Arrival::Waits(_)));
        assert!(
            matches!(hall.arrive("b", 2, 1), Arrival::Waits(_)),
            "it waits behind"
        );
        assert_eq!(hall.names(), ["a", "b"], "but its turn comes first");
        hall.finish_after(MS);
        assert_eq!(hall.names(), ["b"]);
        hall.finish_after(MS);
        assert_eq!(hall.names(), ["huge"]);
    }

    #[test]
    fn a_cancelled_request_frees_its_place_in_the_queue() {
        let mut hall = Hall::new(1, one_queue_each(1));
        hall.arrive("a", 0, 1);
        let Arrival::Waits(place) = hall.arrive("b", 0, 1) else {
            panic!("it waits")
        };
        assert_eq!(hall.queues.leave(place, hall.now), Some("b"));
        assert_eq!(hall.queues.leave(place, hall.now), None, "only once");
        assert!(matches!(hall.arrive("c", 0, 1), Arrival::Waits(_)));
        hall.finish_after(MS);
        assert_eq!(hall.names(), ["c"]);
        hall.finish_after(MS);
        assert!(hall.queues.is_idle());
    }

    #[test]
    fn seats_of_clients_that_do_not_read_are_reused() {
        let mut hall = Hall::new(2, one_queue_each(2));
        for who in ["idler", "worker"] {
            hall.arrive(who, 0, 1);
        }
        hall.queues.send(hall.seated[0].1, hall.now);
        hall.arrive("eve", 1, 1);
        hall.arrive("bob", 2, 1);
        let longest = 60_000 * MS;
        let pass = |hall: &mut Hall, time: Duration| {
            hall.now += time;
            hall.queues.take_from_idlers(longest, hall.now);
            hall.serve();
            hall.names().len()
        };
        assert_eq!(pass(&mut hall, SLOW), 2);
        assert_eq!(pass(&mut hall, MS), 3, "the idler's");
        assert_eq!(pass(&mut hall, 2 * SLOW), 3);
        assert_eq!(
            pass(&mut hall, longest),
            4,
            "who works too long does not work"
        );
        assert_eq!(hall.queues.counts().executing, 1, "and the one before it");
        assert_eq!(hall.finish_after(MS), "idler");
        assert_eq!(hall.finish_after(MS), "worker");
        assert_eq!(
            hall.queues.counts().executing,
            1,
            "they had nothing to give back"
        );
    }

    #[test]
    fn a_new_configuration_holds_for_new_requests_and_keeps_waiting_ones() {
        let mut hall = Hall::new(1, one_queue_each(5));
        hall.arrive("a", 7, 1);
        hall.arrive("b", 7, 1);
        let fewer = Queuing {
            queues: 2,
            hand_size: 1,
            length_limit: 1,
        };
        hall.queues.configure(Some(fewer), 1);
        assert!(matches!(hall.arrive("c", 1, 1), Arrival::Waits(_)));
        assert_eq!(hall.arrive("d", 1, 1), Arrival::Refused(Refusal::QueueFull));
        assert_eq!(
            hall.queues.queue_counts().len(),
            8,
            "those behind are not empty yet"
        );
        hall.finish_after(MS);
        hall.finish_after(MS);
        hall.finish_after(MS);
        assert!(hall.queues.is_idle());
        assert_eq!(hall.queues.queue_counts().len(), 2);
        hall.queues.configure(None, 2);
        assert_eq!(hall.queues.queue_counts().len(), 0);
        hall.arrive("e", 0, 1);
        hall.arrive("f", 0, 1);
        assert_eq!(hall.names(), ["e", "f"]);
    }
}
