//! A work queue of keys: a key is queued once however often it is added, is never held by two workers,
//! and is queued again if it was added while a worker held it. Keys can be delayed, and a failing key is
//! delayed longer with every failure. A queue can also delay a key for a rest period after it was
//! processed, so that all changes in this period are reconciled together.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    fmt::Debug,
    hash::Hash,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::metrics::{Meter, QueueMetrics, Working};

/// The first retry delay; doubled up to the cap.
const FIRST_RETRY: Duration = Duration::from_millis(5);
pub(crate) const LAST_RETRY: Duration = Duration::from_secs(1000);
/// At this many entries of `State::resting`, those whose rest period is over are removed; later at twice as many as are left.
const RESTING: usize = 1024;
/// The maximum delay. Users can specify any number of seconds; without a maximum, the due time could overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A type of keys.
pub trait Item: Clone + Eq + Ord + Hash + Debug + Send + 'static {}
impl<T: Clone + Eq + Ord + Hash + Debug + Send + 'static> Item for T {}

struct State<T> {
    /// The ready keys, each with the time at which it was queued.
    ready: VecDeque<(T, Instant)>,
    /// Keys to process, in `ready` or held by a worker.
    dirty: HashSet<T>,
    /// The keys held by workers, with the time at which they were taken.
    held: HashMap<T, Instant>,
    delayed: BinaryHeap<Reverse<(Instant, T)>>,
    /// When each delayed key is due; heap entries that differ are stale.
    due: HashMap<T, Instant>,
    failures: HashMap<T, u32>,
    /// The end of the rest period of processed keys. Past entries are removed at `sweep_at` entries.
    resting: HashMap<T, Instant>,
    sweep_at: usize,
}

struct Shared<T> {
    /// Guards the keys; never held across an await.
    state: Mutex<State<T>>,
    changed: Notify,
    cap: Duration,
    /// How long a key is delayed after it was processed.
    rest: Duration,
    /// The metrics of the queue; set when the queue gets a name.
    meter: OnceLock<Meter>,
}

impl<T: Item> Working for Shared<T> {
    fn since(&self) -> Vec<Instant> {
        self.state.lock().held.values().copied().collect()
    }
}

impl<T> Shared<T> {
    /// Counts an operation if the queue has a name.
    fn count(&self, what: impl FnOnce(&Meter)) {
        if let Some(meter) = self.meter.get() {
            what(meter);
        }
    }
}

/// Clones share the queue.
pub struct Queue<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<T: Item> Default for Queue<T> {
    fn default() -> Self {
        Self::with_retry_cap(LAST_RETRY)
    }
}

/// A key held by a worker; dropping it returns the key.
pub struct ClaimedKey<T: Item> {
    queue: Queue<T>,
    key: T,
    since: Instant,
    rest: Duration,
}

impl<T: Item> ClaimedKey<T> {
    /// Makes the rest period of the key this long, if that of the queue is shorter.
    pub fn rest(&mut self, rest: Duration) {
        self.rest = self.rest.max(rest);
    }

    /// The key.
    pub fn key(&self) -> &T {
        &self.key
    }
}

impl<T: Item> Drop for ClaimedKey<T> {
    fn drop(&mut self) {
        let shared = &self.queue.shared;
        shared.count(|meter| meter.finished(self.since.elapsed()));
        let (mut state, now) = (shared.state.lock(), Instant::now());
        state.held.remove(&self.key);
        state.rest(&self.key, now, self.rest);
        if state.dirty.remove(&self.key) {
            state.push(self.key.clone(), now);
            shared.count(|meter| meter.has(state.ready.len()));
            shared.changed.notify_one();
        }
    }
}

impl<T: Item> Queue<T> {
    /// A queue with this maximum retry delay.
    pub fn with_retry_cap(cap: Duration) -> Self {
        Self::new(cap, Duration::ZERO)
    }

    /// A queue with this maximum retry delay, that delays a key for the rest period after it was processed.
    pub(crate) fn new(cap: Duration, rest: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            held: HashMap::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            resting: HashMap::new(),
            sweep_at: RESTING,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            cap,
            rest,
            meter: OnceLock::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Counts the queue's operations under this name from now on.
    pub fn measure(&self, name: &'static str, metrics: &QueueMetrics) {
        let shared = Arc::downgrade(&self.shared);
        self.shared
            .meter
            .get_or_init(|| metrics.meter(name, shared));
    }

    /// Adds a key now.
    pub fn add(&self, key: T) {
        let mut state = self.shared.state.lock();
        let pushed = state.push(key, Instant::now());
        if pushed != Pushed::Known {
            self.shared.count(Meter::added);
        }
        if matches!(pushed, Pushed::Ready | Pushed::Later) {
            self.shared.count(|meter| meter.has(state.ready.len()));
            self.shared.changed.notify_one();
        }
    }

    /// Adds a key after a delay; an earlier due time wins.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let due = Instant::now() + delay.min(LONGEST);
        if self.shared.state.lock().delay(key, due) {
            self.shared.changed.notify_one();
        }
    }

    /// Adds a key that failed, with a delay that grows with every failure.
    pub fn retry(&self, key: T) {
        let failures = {
            let mut state = self.shared.state.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            *failures += 1;
            *failures - 1
        };
        self.shared.count(Meter::retried);
        self.add_after(key, retry_delay(failures, self.shared.cap));
    }

    /// The key succeeded: resets its retry delay.
    pub fn forget(&self, key: &T) {
        self.shared.state.lock().failures.remove(key);
    }

    /// The number of failures since the last success.
    pub fn failures(&self, key: &T) -> u32 {
        self.shared
            .state
            .lock()
            .failures
            .get(key)
            .copied()
            .unwrap_or(0)
    }

    /// The number of ready keys.
    pub fn depth(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    /// Waits for the next key.
    pub async fn next(&self) -> ClaimedKey<T> {
        loop {
            let changed = self.shared.changed.notified();
            let now = Instant::now();
            let (key, more, due) = {
                let mut state = self.shared.state.lock();
                let taken = state.take(now);
                self.shared.count(|meter| meter.has(state.ready.len()));
                taken
            };
            if let Some((key, added)) = key {
                if more {
                    self.shared.changed.notify_one();
                }
                self.shared.count(|meter| meter.took(now - added));
                return ClaimedKey {
                    queue: self.clone(),
                    key,
                    since: now,
                    rest: self.shared.rest,
                };
            }
            match due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }
}

fn retry_delay(failures: u32, cap: Duration) -> Duration {
    let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
    FIRST_RETRY.saturating_mul(factor).min(cap)
}

/// The result of adding a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pushed {
    /// The key is already queued.
    Known,
    /// A worker holds the key: it is queued again when the worker returns it.
    Held,
    /// The key is in its rest period: it is queued when the period ends.
    Later,
    /// The key was queued: a worker must be woken.
    Ready,
}

impl<T: Item> State<T> {
    fn push(&mut self, key: T, now: Instant) -> Pushed {
        if let Some(until) = self.resting.get(&key).copied().filter(|until| *until > now) {
            return match self.delay(key, until) {
                true => Pushed::Later,
                false => Pushed::Known,
            };
        }
        if !self.dirty.insert(key.clone()) {
            return Pushed::Known;
        }
        if self.held.contains_key(&key) {
            return Pushed::Held;
        }
        self.ready.push_back((key, now));
        Pushed::Ready
    }

    /// Delays a key until `due`; returns whether that is earlier than its previous due time.
    fn delay(&mut self, key: T, due: Instant) -> bool {
        let is_earlier = self.due.get(&key).is_none_or(|known| due < *known);
        if is_earlier {
            self.due.insert(key.clone(), due);
            self.delayed.push(Reverse((due, key)));
        }
        is_earlier
    }

    /// Starts the rest period of a processed key.
    fn rest(&mut self, key: &T, now: Instant, rest: Duration) {
        if rest.is_zero() {
            return;
        }
        if self.resting.len() >= self.sweep_at {
            self.resting.retain(|_, until| *until > now);
            self.sweep_at = RESTING.max(2 * self.resting.len());
        }
        self.resting.insert(key.clone(), now + rest);
    }

    /// The next key, whether there are more, and when the next delayed key is due. If there are
    /// more, or one becomes due, another worker must be woken: a notification wakes only one.
    fn take(&mut self, now: Instant) -> (Option<(T, Instant)>, bool, Option<Instant>) {
        while let Some(Reverse((due, key))) = self.delayed.peek() {
            if *due > now {
                break;
            }
            let (due, key) = (*due, key.clone());
            self.delayed.pop();
            if self.due.get(&key) == Some(&due) {
                self.due.remove(&key);
                self.push(key, due);
            }
        }
        let key = self.ready.pop_front();
        if let Some((key, _)) = &key {
            self.dirty.remove(key);
            self.held.insert(key.clone(), now);
        }
        let due = self.delayed.peek().map(|Reverse((due, _))| *due);
        (key, !self.ready.is_empty() || due.is_some(), due)
    }
}

#[cfg(test)]
mod tests {
    use futures_poll::poll_once;

    use super::*;

    mod futures_poll {
        use std::{future::Future, pin::pin, task::Poll};

        /// The result of polling a future once.
        pub(super) async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
            let mut future = pin!(future);
            std::future::poll_fn(|context| match future.as_mut().poll(context) {
                Poll::Ready(value) => Poll::Ready(Some(value)),
                Poll::Pending => Poll::Ready(None),
            })
            .await
        }
    }

    #[tokio::test]
    async fn a_key_waits_once_however_often_it_is_added() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        let held = queue.next().await;
        assert_eq!(*held.key(), "a");
        assert!(poll_once(queue.next()).await.is_none());
    }

    #[tokio::test]
    async fn a_key_added_while_a_worker_has_it_comes_again_after_the_worker_is_done() {
        let queue = Queue::default();
        queue.add("a");
        let held = queue.next().await;
        queue.add("a");
        assert!(
            poll_once(queue.next()).await.is_none(),
            "two workers on one key"
        );
        drop(held);
        assert_eq!(*queue.next().await.key(), "a");
    }

    #[tokio::test]
    async fn delayed_keys_come_in_the_order_of_their_time_and_the_earliest_wish_counts() {
        let queue = Queue::default();
        queue.add_after("slow", Duration::from_secs(3600));
        queue.add_after("quick", Duration::from_millis(2));
        queue.add_after("slow", Duration::from_millis(20));
        queue.add_after("slow", Duration::from_millis(40));
        assert_eq!(*queue.next().await.key(), "quick");
        assert_eq!(*queue.next().await.key(), "slow");
        let mut state = queue.shared.state.lock();
        let (key, ..) = state.take(Instant::now() + Duration::from_secs(7200));
        assert_eq!(key, None, "the later wishes are stale");
    }

    #[test]
    fn a_failing_key_waits_twice_as_long_every_time_up_to_the_cap() {
        let cap = Duration::from_millis(30);
        let waits: Vec<_> = (0..5)
            .map(|failures| retry_delay(failures, cap).as_millis())
            .collect();
        assert_eq!(waits, [5, 10, 20, 30, 30]);
        assert_eq!(retry_delay(200, cap), cap);
    }

    #[tokio::test]
    async fn a_key_that_was_worked_on_rests_and_then_comes_once() {
        let rest = Duration::from_secs(3600);
        let queue = Queue::new(LAST_RETRY, rest);
        queue.add("a");
        let held = queue.next().await;
        queue.add("a");
        drop(held);
        queue.add("a");
        queue.add("b");
        assert_eq!(*queue.next().await.key(), "b", "others do not wait");
        assert!(poll_once(queue.next()).await.is_none());
        let mut state = queue.shared.state.lock();
        let (key, more, _) = state.take(Instant::now() + 2 * rest);
        assert_eq!((key.map(|(key, _)| key), more), (Some("a"), false));
    }

    #[tokio::test]
    async fn a_worker_may_let_a_key_rest_longer_but_not_shorter() {
        let queue = Queue::new(LAST_RETRY, Duration::from_secs(60));
        for (asked, expected) in [(3600, 3600), (1, 60)] {
            queue.add("a");
            let mut held = queue.next().await;
            held.rest(Duration::from_secs(asked));
            drop(held);
            queue.add("a");
            let mut state = queue.shared.state.lock();
            let now = Instant::now();
            let early = state.take(now + Duration::from_secs(expected - 30));
            assert_eq!(early.0, None, "{asked}");
            let late = state.take(now + Duration::from_secs(expected));
            assert_eq!(late.0.map(|(key, _)| key), Some("a"), "{asked}");
            state.held.clear();
            state.resting.clear();
        }
    }

    #[tokio::test]
    async fn success_forgets_failures() {
        let queue = Queue::default();
        queue.retry("a");
        assert_eq!(*queue.next().await.key(), "a");
        assert_eq!(queue.failures(&"a"), 1);
        queue.forget(&"a");
        assert_eq!(queue.failures(&"a"), 0);
    }

    #[tokio::test]
    async fn every_waiting_worker_is_woken_when_several_keys_come_at_once() {
        let queue = Queue::default();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { *queue.next().await.key() })
            })
            .collect();
        tokio::task::yield_now().await;
        for key in [1, 2, 3] {
            queue.add(key);
        }
        let mut seen = Vec::new();
        for worker in workers {
            let key = tokio::time::timeout(Duration::from_secs(10), worker).await;
            seen.push(key.expect("a worker slept on").unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_queue_with_a_name_is_counted_under_upstreams_names() {
        let (metrics, queue) = (QueueMetrics::default(), Queue::default());
        queue.measure("deployment", &metrics);
        queue.add("a");
        queue.add("a");
        queue.add("b");
        let held = queue.next().await;
        queue.retry("a");
        drop(held);
        let text = metrics.text();
        for line in [
            r#"workqueue_depth{name="deployment"} 1"#,
            r#"workqueue_adds_total{name="deployment"} 2"#,
            r#"workqueue_retries_total{name="deployment"} 1"#,
            r#"workqueue_queue_duration_seconds_count{name="deployment"} 1"#,
            r#"workqueue_work_duration_seconds_count{name="deployment"} 1"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[tokio::test]
    async fn keys_that_are_being_worked_on_are_counted_until_they_are_given_back() {
        let (metrics, queue) = (QueueMetrics::default(), Queue::default());
        queue.measure("job", &metrics);
        let value = |metric: &str| {
            let (text, begin) = (metrics.text(), format!("{metric}{{name=\"job\"}} "));
            let line = text.lines().find_map(|line| line.strip_prefix(&begin));
            line.and_then(|value| value.parse::<f64>().ok()).unwrap()
        };
        assert_eq!(value("workqueue_unfinished_work_seconds"), 0.0);
        queue.add("a");
        queue.add("b");
        let held = (queue.next().await, queue.next().await);
        while value("workqueue_longest_running_processor_seconds") == 0.0 {
            tokio::task::yield_now().await;
        }
        let longest = value("workqueue_longest_running_processor_seconds");
        assert!(value("workqueue_unfinished_work_seconds") >= longest);
        drop(held);
        assert_eq!(value("workqueue_unfinished_work_seconds"), 0.0);
        assert_eq!(value("workqueue_longest_running_processor_seconds"), 0.0);
    }

    #[tokio::test]
    async fn a_delay_beyond_all_times_is_a_long_one() {
        let queue = Queue::default();
        queue.add_after("a", Duration::MAX);
        assert!(poll_once(queue.next()).await.is_none());
    }
}
