//! A priority level at run time: its seats, and the requests that wait for them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    demand::DemandStats,
    queues::{
        Arrival, Counts, OccupiedSeats, QueueCounts, QueuePosition, Queues, Queuing, Refusal,
    },
    retry::RetryAfter,
    table::Schema,
};

/// How often a waiting request checks for seats held by idle requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A priority level.
pub(super) struct Level {
    pub(super) name: String,
    seats: Seats,
    /// Maximum seats of one request.
    widest: AtomicUsize,
    /// Guards the counts of rejected requests.
    retry: Mutex<RetryAfter>,
    totals: Totals,
}

/// Totals of requests so far.
#[derive(Default)]
struct Totals {
    rejected: AtomicU64,
    timed_out: AtomicU64,
}

enum Seats {
    Exempt {
        executing: AtomicUsize,
        /// The maximum since the last adjustment.
        most: AtomicUsize,
    },
    /// Guards seats and queues. No waiting request is woken while it is held.
    Limited(Box<Mutex<Queues<Waiter>>>),
}

/// A waiting request.
struct Waiter {
    schema: Arc<Schema>,
    seats: usize,
    since: Instant,
    grant: oneshot::Sender<Seat>,
}

/// Seats of a request; released when dropped.
pub struct Seat {
    schema: Arc<Schema>,
    seats: usize,
    sitting: OccupiedSeats,
    /// How much longer they are held after completion, for the work that the request causes.
    lingers: Duration,
}

/// What a request needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needs {
    pub(super) seats: usize,
    pub(super) lingers: Duration,
    /// Maximum wait.
    pub(super) patience: Duration,
    /// Maximum duration of a request.
    pub(super) longest: Duration,
}

/// State of a level, for the debug page.
pub(super) struct Dump {
    pub(super) counts: Counts,
    pub(super) rejected: u64,
    pub(super) timed_out: u64,
}

impl Level {
    pub(super) fn new(name: &str, is_exempt: bool) -> Self {
        let seats = if is_exempt {
            Seats::Exempt {
                executing: AtomicUsize::new(0),
                most: AtomicUsize::new(0),
            }
        } else {
            Seats::Limited(Box::new(Mutex::new(Queues::new(Instant::now()))))
        };
        Self {
            name: name.to_owned(),
            seats,
            widest: AtomicUsize::new(1),
            retry: Mutex::default(),
            totals: Totals::default(),
        }
    }

    pub(super) fn is_exempt(&self) -> bool {
        matches!(self.seats, Seats::Exempt { .. })
    }

    pub(super) fn widest(&self) -> usize {
        self.widest.load(Ordering::Relaxed)
    }

    pub(super) fn configure(&self, queuing: Option<Queuing>, limit: usize, widest: usize) {
        self.widest.store(widest, Ordering::Relaxed);
        self.with_queues(|queues| queues.configure(queuing, limit));
    }

    /// Changes seats or queues, and dispatches requests that can now run.
    fn with_queues<R>(&self, change: impl FnOnce(&mut Queues<Waiter>) -> R) -> Option<R> {
        let Seats::Limited(queues) = &self.seats else {
            return None;
        };
        let mut queues = queues.lock();
        let result = change(&mut queues);
        let mut served = Vec::new();
        while queues.is_somebodys_turn()
            && let Some(next) = queues.next(Instant::now())
        {
            served.push(next);
        }
        drop(queues);
        for (waiter, sitting) in served {
            waiter.serve(sitting);
        }
        Some(result)
    }

    /// The demand since the last call.
    pub(super) fn take_demand(&self, before: &DemandStats) -> DemandStats {
        match &self.seats {
            Seats::Exempt { executing, most } => {
                let now = executing.load(Ordering::Relaxed);
                let most = most.swap(now, Ordering::Relaxed);
                DemandStats { most, ..*before }
            }
            Seats::Limited(queues) => queues.lock().demand.take(Instant::now(), before),
        }
    }

    /// Releases the seats of idle requests: no request works longer than this.
    pub(super) fn take_from_idlers(&self, longest: Duration) {
        self.with_queues(|queues| queues.take_from_idlers(longest, Instant::now()));
    }

    pub(super) fn is_idle(&self) -> bool {
        match &self.seats {
            Seats::Exempt { executing, .. } => executing.load(Ordering::Relaxed) == 0,
            Seats::Limited(queues) => queues.lock().is_idle(),
        }
    }

    /// Begins an exempt request.
    pub(super) fn begin_exempt(&self) {
        if let Seats::Exempt { executing, most } = &self.seats {
            let now = 1 + executing.fetch_add(1, Ordering::Relaxed);
            if now > most.load(Ordering::Relaxed) {
                most.fetch_max(now, Ordering::Relaxed);
            }
        }
    }

    /// Ends an exempt request.
    pub(super) fn end_exempt(&self) {
        if let Seats::Exempt { executing, .. } = &self.seats {
            executing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts a rejection at this time and returns its Retry-After, in seconds.
    pub(super) fn turn_away(&self, second: i64) -> u32 {
        self.retry.lock().refuse(second)
    }

    fn count_refusal(&self, why: Refusal) {
        self.totals.rejected.fetch_add(1, Ordering::Relaxed);
        if why == Refusal::TimeOut {
            self.totals.timed_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn dump(&self) -> Dump {
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        let counts = match &self.seats {
            Seats::Exempt { executing, .. } => Counts {
                executing: executing.load(Ordering::Relaxed),
                ..Counts::default()
            },
            Seats::Limited(queues) => queues.lock().counts(),
        };
        Dump {
            counts,
            rejected: read(&self.totals.rejected),
            timed_out: read(&self.totals.timed_out),
        }
    }

    pub(super) fn dump_queues(&self) -> Vec<QueueCounts> {
        match &self.seats {
            Seats::Exempt { .. } => Vec::new(),
            Seats::Limited(queues) => queues.lock().queue_counts(),
        }
    }

    #[cfg(test)]
    pub(super) fn limit(&self) -> usize {
        match &self.seats {
            Seats::Exempt { .. } => 0,
            Seats::Limited(queues) => queues.lock().limit(),
        }
    }
}

impl Waiter {
    /// Dispatches the request.
    fn serve(self, sitting: OccupiedSeats) {
        let Self {
            schema,
            seats,
            since,
            grant,
        } = self;
        schema.figures.wait(-1, -(seats as i64));
        schema.figures.waits.observe(since.elapsed().as_secs_f64());
        // If the request is gone, the seats are released here.
        drop(grant.send(Seat::new(schema, seats, sitting)));
    }
}

/// A position in a queue until dropped.
struct QueueTicket<'a> {
    schema: &'a Schema,
    place: QueuePosition,
}

impl QueueTicket<'_> {
    /// Waits, and periodically releases the seats of idle requests.
    async fn wait(&self, granted: &mut oneshot::Receiver<Seat>, needs: Needs) -> Option<Seat> {
        let mut left = needs.patience;
        loop {
            let step = left.min(LOOK_EVERY);
            match tokio::time::timeout(step, &mut *granted).await {
                Ok(granted) => return granted.ok(),
                Err(_) if step == left => return None,
                Err(_) => self.schema.level.take_from_idlers(needs.longest),
            }
            left -= step;
        }
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let level = &self.schema.level;
        let left = level.with_queues(|queues| queues.leave(self.place, Instant::now()));
        if let Some(Some(waiter)) = left {
            let figures = &self.schema.figures;
            figures.wait(-1, -(waiter.seats as i64));
            figures.reject(Refusal::TimeOut, waiter.since.elapsed().as_secs_f64());
            level.count_refusal(Refusal::TimeOut);
        }
    }
}

impl Seat {
    fn new(schema: Arc<Schema>, seats: usize, sitting: OccupiedSeats) -> Self {
        let figures = &schema.figures;
        figures.dispatched.inc();
        figures.executing.inc();
        figures.executing_seats.inc_by(seats as i64);
        Self {
            schema,
            seats,
            sitting,
            lingers: Duration::ZERO,
        }
    }

    /// Waits for seats of a schema's level.
    pub(super) async fn take(
        schema: &Arc<Schema>,
        flow: impl FnOnce() -> u64,
        needs: Needs,
        now: Instant,
    ) -> Result<Self, Refusal> {
        let Needs { seats, lingers, .. } = needs;
        let mut hears = None;
        let arrival = schema.level.with_queues(|queues| {
            queues.arrive(seats, flow, now, || {
                let (grant, granted) = oneshot::channel();
                hears = Some(granted);
                schema.figures.wait(1, seats as i64);
                Waiter {
                    schema: schema.clone(),
                    seats,
                    since: now,
                    grant,
                }
            })
        });
        let mut seat = match (arrival, hears) {
            (Some(Arrival::Seated(sitting)), _) => {
                schema.figures.waits.observe(0.0);
                Self::new(schema.clone(), seats, sitting)
            }
            (Some(Arrival::Waits(place)), Some(mut granted)) => {
                let standing = QueueTicket { schema, place };
                let seat = standing.wait(&mut granted, needs).await;
                drop(standing);
                // The seat may have arrived as the wait ended.
                let seat = seat.or_else(|| granted.try_recv().ok());
                seat.ok_or(Refusal::TimeOut)?
            }
            (Some(Arrival::Refused(why)), _) => {
                schema.figures.reject(why, 0.0);
                schema.level.count_refusal(why);
                return Err(why);
            }
            // Exempt levels do not get here.
            _ => return Err(Refusal::ConcurrencyLimit),
        };
        seat.lingers = lingers;
        Ok(seat)
    }
}

impl Seat {
    /// The work is done; the seat is held while the response is read, if it is read soon.
    pub fn while_sending(self) -> Self {
        let level = &self.schema.level;
        level.with_queues(|queues| queues.send(self.sitting, Instant::now()));
        self
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.schema.figures.executing.dec();
        let (schema, seats, sitting) = (self.schema.clone(), self.seats, self.sitting);
        let give_back = move || {
            schema.figures.executing_seats.dec_by(seats as i64);
            let level = &schema.level;
            level.with_queues(|queues| queues.finish(sitting, Instant::now()));
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !self.lingers.is_zero() => {
                let lingers = self.lingers;
                runtime.spawn(async move {
                    tokio::time::sleep(lingers).await;
                    give_back();
                });
            }
            _ => give_back(),
        }
    }
}
