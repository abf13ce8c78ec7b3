//! Queue metrics, under the names of client-go's workqueues.

use std::time::Duration;

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

type Labels = [(&'static str, &'static str); 1];

/// The metrics of several queues. Clones share them.
#[derive(Clone)]
pub struct QueueMetrics {
    depth: Family<Labels, Gauge>,
    adds: Family<Labels, Counter>,
    retries: Family<Labels, Counter>,
    waited: Family<Labels, Histogram, fn() -> Histogram>,
    worked: Family<Labels, Histogram, fn() -> Histogram>,
}

/// Upstream's buckets, from ten nanoseconds to a thousand seconds.
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
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &registry);
        text
    }

    /// The metrics of one queue.
    pub(crate) fn meter(&self, name: &'static str) -> Meter {
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
