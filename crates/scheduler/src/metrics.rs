//! The scheduler's metrics, under upstream's names.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

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

use crate::{framework::Point, queue::Depth};

type Labels = Vec<(&'static str, String)>;

/// The result of an attempt, as upstream names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// A node was found and the pod bound to it.
    Scheduled,
    /// No node was found.
    Unschedulable,
    /// An error occurred.
    Error,
}

impl Attempt {
    fn label(self) -> String {
        let label = match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        };
        label.to_owned()
    }
}

fn milliseconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Buckets from 0.1 ms.
fn tenths() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 12))
}

struct Inner {
    registry: Registry,
    attempts: Family<Labels, Counter>,
    attempt_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    algorithm_seconds: Histogram,
    sli_seconds: Family<Labels, Histogram, fn() -> Histogram>,
    attempts_of_pod: Histogram,
    preemptions: Counter,
    victims: Histogram,
    pending: Family<Labels, Gauge>,
    incoming: Family<Labels, Counter>,
    cache: Family<Labels, Gauge>,
    points: Family<Labels, Histogram, fn() -> Histogram>,
    unschedulable: Family<Labels, Gauge>,
    after_flush: Counter,
    handling_seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

/// Clones share the metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

impl Default for Metrics {
    fn default() -> Self {
        let sli = || Histogram::new(exponential_buckets(0.01, 2.0, 20));
        let mut inner = Inner {
            registry: Registry::default(),
            attempts: Family::default(),
            attempt_seconds: Family::new_with_constructor(milliseconds),
            algorithm_seconds: milliseconds(),
            sli_seconds: Family::new_with_constructor(sli),
            attempts_of_pod: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            preemptions: Counter::default(),
            victims: Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            pending: Family::default(),
            incoming: Family::default(),
            cache: Family::default(),
            points: Family::new_with_constructor(tenths),
            unschedulable: Family::default(),
            after_flush: Counter::default(),
            handling_seconds: Family::new_with_constructor(tenths),
        };
        register(&mut inner);
        register_details(&mut inner);
        Self(Arc::new(inner))
    }
}

fn register(inner: &mut Inner) {
    let registry = &mut inner.registry;
    let help = "Attempts to schedule pods, by the result";
    registry.register("scheduler_schedule_attempts", help, inner.attempts.clone());
    let help = "How long an attempt took with its binding";
    let metric = inner.attempt_seconds.clone();
    registry.register(
        "scheduler_scheduling_attempt_duration_seconds",
        help,
        metric,
    );
    let help = "How long it took to choose a node";
    let metric = inner.algorithm_seconds.clone();
    registry.register(
        "scheduler_scheduling_algorithm_duration_seconds",
        help,
        metric,
    );
    let help = "From a pod's first attempt to its binding";
    let metric = inner.sli_seconds.clone();
    registry.register(
        "scheduler_pod_scheduling_sli_duration_seconds",
        help,
        metric,
    );
    let help = "How many attempts it took to schedule a pod";
    let metric = inner.attempts_of_pod.clone();
    registry.register("scheduler_pod_scheduling_attempts", help, metric);
    let help = "Attempts to make room by preemption";
    registry.register(
        "scheduler_preemption_attempts",
        help,
        inner.preemptions.clone(),
    );
    let help = "Pods that were preempted for one";
    registry.register("scheduler_preemption_victims", help, inner.victims.clone());
    let help = "Waiting pods, by the queue that they are in";
    registry.register("scheduler_pending_pods", help, inner.pending.clone());
    let help = "Pods that came into a queue, by the event";
    registry.register(
        "scheduler_queue_incoming_pods",
        help,
        inner.incoming.clone(),
    );
    let help = "Nodes, pods and assumed pods that the scheduler knows";
    registry.register("scheduler_cache_size", help, inner.cache.clone());
}

fn register_details(inner: &mut Inner) {
    let registry = &mut inner.registry;
    let help = "How long all plugins of an extension point took";
    registry.register(
        "scheduler_framework_extension_point_duration_seconds",
        help,
        inner.points.clone(),
    );
    let help = "Pods that wait because of a plugin";
    let metric = inner.unschedulable.clone();
    registry.register("scheduler_unschedulable_pods", help, metric);
    let help = "Pods that were scheduled after nothing but time had passed";
    let metric = inner.after_flush.clone();
    registry.register("scheduler_pod_scheduled_after_flush", help, metric);
    let help = "How long it took to take an event in";
    let metric = inner.handling_seconds.clone();
    registry.register("scheduler_event_handling_duration_seconds", help, metric);
}

impl Metrics {
    /// The metrics in the text format of Prometheus.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.0.registry);
        text
    }

    pub(crate) fn chose(&self, took: Duration) {
        self.0.algorithm_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn attempted(&self, profile: &str, attempt: Attempt, took: Duration) {
        let labels = vec![("profile", profile.to_owned()), ("result", attempt.label())];
        self.0.attempts.get_or_create(&labels).inc();
        let seconds = self.0.attempt_seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn scheduled(&self, attempts: u32, since_first: Duration) {
        self.0.attempts_of_pod.observe(attempts.into());
        let label = if attempts >= 15 {
            "15+".to_owned()
        } else {
            attempts.to_string()
        };
        let seconds = self.0.sli_seconds.get_or_create(&vec![("attempts", label)]);
        seconds.observe(since_first.as_secs_f64());
    }

    /// An extension point was run for a pod.
    pub(crate) fn ran(&self, point: Point, profile: &str, success: bool, took: Duration) {
        let status = if success { "Success" } else { "Unschedulable" };
        let labels = vec![
            ("extension_point", format!("{point:?}")),
            ("status", status.to_owned()),
            ("profile", profile.to_owned()),
        ];
        let seconds = self.0.points.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }

    /// A pod was scheduled that was retried only because of its age.
    pub(crate) fn scheduled_after_flush(&self) {
        self.0.after_flush.inc();
    }

    /// An event was handled.
    pub(crate) fn handled(&self, event: &str, took: Duration) {
        let labels = vec![("event", event.to_owned())];
        let seconds = self.0.handling_seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }

    /// Sets the number of pending pods by profile and plugin.
    pub(crate) fn unschedulable(&self, counts: &BTreeMap<(&str, &'static str), usize>) {
        self.0.unschedulable.clear();
        for ((profile, plugin), count) in counts {
            let labels = vec![
                ("plugin", (*plugin).to_owned()),
                ("profile", (*profile).to_owned()),
            ];
            let gauge = self.0.unschedulable.get_or_create(&labels);
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn tried_preemption(&self, victims: Option<usize>) {
        self.0.preemptions.inc();
        if let Some(victims) = victims {
            self.0.victims.observe(victims as f64);
        }
    }

    pub(crate) fn incoming(&self, queue: &str, event: &str, pods: usize) {
        if pods > 0 {
            let labels = vec![("queue", queue.to_owned()), ("event", event.to_owned())];
            self.0.incoming.get_or_create(&labels).inc_by(pods as u64);
        }
    }

    pub(crate) fn sizes(&self, depth: Depth, nodes: usize, pods: usize, assumed: usize) {
        let set = |family: &Family<Labels, Gauge>, label, value: &str, size: usize| {
            let gauge = family.get_or_create(&vec![(label, value.to_owned())]);
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        };
        for (queue, size) in [
            ("active", depth.active),
            ("backoff", depth.backoff),
            ("unschedulable", depth.unschedulable),
            ("gated", depth.gated),
        ] {
            set(&self.0.pending, "queue", queue, size);
        }
        for (kind, size) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed)] {
            set(&self.0.cache, "type", kind, size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_upstreams_names_and_labels() {
        let metrics = Metrics::default();
        metrics.attempted(
            "default-scheduler",
            Attempt::Unschedulable,
            Duration::from_millis(3),
        );
        metrics.scheduled(20, Duration::from_secs(1));
        metrics.tried_preemption(Some(2));
        metrics.sizes(
            Depth {
                gated: 3,
                ..Depth::default()
            },
            5,
            7,
            1,
        );
        metrics.ran(Point::Filter, "own", false, Duration::from_millis(1));
        metrics.unschedulable(&[(("own", "NodePorts"), 4)].into());
        metrics.handled("NodeAdd", Duration::from_millis(1));
        metrics.scheduled_after_flush();
        let text = metrics.text();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"unschedulable\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"15+\"} 1",
            "scheduler_preemption_attempts_total 1",
            "scheduler_pending_pods{queue=\"gated\"} 3",
            "scheduler_cache_size{type=\"nodes\"} 5",
            "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Filter\",status=\"Unschedulable\",profile=\"own\"} 1",
            "scheduler_unschedulable_pods{plugin=\"NodePorts\",profile=\"own\"} 4",
            "scheduler_event_handling_duration_seconds_count{event=\"NodeAdd\"} 1",
            "scheduler_pod_scheduled_after_flush_total 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
