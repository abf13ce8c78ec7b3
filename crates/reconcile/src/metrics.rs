//! Queue metrics, under the names of client-go's workqueues.

use std::{
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;

type Labels = [(&'static str, &'static str); 1];

/// A queue whose keys are held by workers.
pub(crate) trait Working: Send + Sync {
    /// The times at which workers took the keys that they hold.
    fn since(&self) -> Vec<Instant>;
}

/// A queue with its name.
type Named = (&'static str, Weak<dyn Working>);
type Seconds = Family<Labels, Gauge<f64, AtomicU64>>;

/// The metrics of several queues. Clones share them.
#[derive(Clone)]
pub struct QueueMetrics {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    waited: Family<Labels, Histogram, fn() -> Histogram>,
    worked: Family<Labels, Histogram, fn() -> Histogram>,
    /// Guards the queues that have a name. Keys held by workers are counted when the metrics are read.
    queues: Arc<Mutex<Vec<Named>>>,
}

/// A histogram with upstream's buckets, from 10 nanoseconds to 1000 seconds.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(seconds),
            worked: Family::new_with_constructor(seconds),
            queues: Arc::default(),
        }
    }
}

impl QueueMetrics {
    /// The metrics in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut registry = Registry::default();
        let help = "Keys that wait in a queue";
        registry.register("workqueue_depth", help, self.depth.clone());
        let help = "Keys that were added to a queue";
        registry.register("workqueue_adds", help, self.adds.clone());
        let help = "Keys that failed and were added again";
        registry.register("workqueue_retries", help, self.retries.clone());
        let help = "How long a key waited in a queue";
        registry.register(
            "workqueue_queue_duration_seconds",
            help,
            self.waited.clone(),
        );
        let help = "How long it took to work on a key";
        registry.register("workqueue_work_duration_seconds", help, self.worked.clone());
        let (unfinished, longest) = self.running();
        let help = "How long the keys that are being worked on have been, together";
        registry.register("workqueue_unfinished_work_seconds", help, unfinished);
        let help = "How long the key that is being worked on the longest has been";
        registry.register("workqueue_longest_running_processor_seconds", help, longest);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &registry);
        text
    }

    /// The processing times of the keys that workers hold: their sum and the longest, by queue.
    fn running(&self) -> (Seconds, Seconds) {
        let (unfinished, longest) = (Seconds::default(), Seconds::default());
        let now = Instant::now();
        let mut queues = self.queues.lock();
        queues.retain(|(_, queue)| queue.strong_count() > 0);
        for (name, queue) in queues.iter() {
            let since = queue.upgrade().map(|queue| queue.since());
            let seconds = since.into_iter().flatten().map(|since| now - since);
            let seconds: Vec<f64> = seconds.map(|worked| worked.as_secs_f64()).collect();
            let labels = [("name", *name)];
            unfinished
                .get_or_create(&labels)
                .inc_by(seconds.iter().sum());
            let most = longest.get_or_create(&labels);
            most.set(seconds.into_iter().fold(most.get(), f64::max));
        }
        (unfinished, longest)
    }

    /// The metrics of one queue.
    pub(crate) fn meter(&self, name: &'static str, queue: Weak<dyn Working>) -> Meter {
        self.queues.lock().push((name, queue));
        let labels = [("name", name)];
        Meter {
            depth: self.depth.get_or_create(&labels).clone(),
            adds: self.adds.get_or_create(&labels).clone(),
            retries: self.retries.get_or_create(&labels).clone(),
            waited: self.waited.get_or_create(&labels).clone(),
            worked: self.worked.get_or_create(&labels).clone(),
        }
    }
}

/// Counts the operations of one queue.
pub(crate) struct Meter {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl Meter {
    pub(crate) fn added(&self) {
        self.adds.inc();
    }

    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    pub(crate) fn has(&self, ready: usize) {
        self.depth.set(i64::try_from(ready).unwrap_or(i64::MAX));
    }

    pub(crate) fn took(&self, waited: Duration) {
        self.waited.observe(waited.as_secs_f64());
    }

    pub(crate) fn finished(&self, worked: Duration) {
        self.worked.observe(worked.as_secs_f64());
    }
}
