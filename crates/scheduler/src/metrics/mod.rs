//! The scheduler's metrics, under upstream's names.

mod devices;
mod profile;

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

pub(crate) use devices::Devices;
pub(crate) use profile::{Families, Meter};

use crate::queue::Depth;

type Labels = Vec<(&'static str, String)>;
type StaticLabels<const N: usize> = [(&'static str, &'static str); N];

/// The result of a scheduling attempt, named as upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// A node was found and the pod was bound to it.
    Scheduled,
    /// No node was found.
    Unschedulable,
    /// An error occurred.
    Error,
}

impl Attempt {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

/// Label values of the numbers of attempts that have their own series.
const ATTEMPTS: [&str; 15] = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14",
];

fn milliseconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// A histogram with buckets from 0.1 ms on.
fn tenths() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 12))
}

struct Inner {
    registry: Registry,
    profiles: Families,
    algorithm_seconds: Histogram,
    sli_seconds: Family<StaticLabels<1>, Histogram, fn() -> Histogram>,
    attempts_of_pod: Histogram,
    preemptions: Counter,
    victims: Histogram,
    pending: Family<StaticLabels<1>, Gauge>,
    incoming: Family<StaticLabels<2>, Counter>,
    cache: Family<StaticLabels<1>, Gauge>,
    unschedulable: Family<Labels, Gauge>,
    after_flush: Counter,
    handling_seconds: Family<StaticLabels<1>, Histogram, fn() -> Histogram>,
    permit_seconds: Family<StaticLabels<1>, Histogram, fn() -> Histogram>,
    in_flight: Family<StaticLabels<1>, Gauge>,
    tasks: Family<StaticLabels<1>, Gauge>,
    devices: Devices,
}

/// Clones share the metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

impl Default for Metrics {
    fn default() -> Self {
        let sli = || Histogram::new(exponential_buckets(0.01, 2.0, 20));
        let mut inner = Inner {
            registry: Registry::default(),
            profiles: Families::default(),
            algorithm_seconds: milliseconds(),
            sli_seconds: Family::new_with_constructor(sli),
            attempts_of_pod: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            preemptions: Counter::default(),
            victims: Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            pending: Family::default(),
            incoming: Family::default(),
            cache: Family::default(),
            unschedulable: Family::default(),
            after_flush: Counter::default(),
            handling_seconds: Family::new_with_constructor(tenths),
            permit_seconds: Family::new_with_constructor(milliseconds),
            in_flight: Family::default(),
            tasks: Family::default(),
            devices: Devices::default(),
        };
        register(&mut inner);
        register_details(&mut inner);
        Self(Arc::new(inner))
    }
}

fn register(inner: &mut Inner) {
    let registry = &mut inner.registry;
    let help = "Attempts to schedule pods, by the result";
    let metric = inner.profiles.attempts.clone();
    registry.register("scheduler_schedule_attempts", help, metric);
    let help = "How long an attempt took with its binding";
    let metric = inner.profiles.attempt_seconds.clone();
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
    let help = "Preemption attempts";
    registry.register(
        "scheduler_preemption_attempts",
        help,
        inner.preemptions.clone(),
    );
    let help = "Number of preemption victims";
    registry.register("scheduler_preemption_victims", help, inner.victims.clone());
    let help = "Pending pods by queue";
    registry.register("scheduler_pending_pods", help, inner.pending.clone());
    let help = "Pods added to a queue, by event";
    registry.register(
        "scheduler_queue_incoming_pods",
        help,
        inner.incoming.clone(),
    );
    let help = "Nodes, pods and assumed pods in the scheduler cache";
    registry.register("scheduler_cache_size", help, inner.cache.clone());
}

fn register_details(inner: &mut Inner) {
    let registry = &mut inner.registry;
    let help = "How long all plugins of an extension point took";
    registry.register(
        "scheduler_framework_extension_point_duration_seconds",
        help,
        inner.profiles.points.clone(),
    );
    let help = "Unschedulable pods by plugin";
    let metric = inner.unschedulable.clone();
    registry.register("scheduler_unschedulable_pods", help, metric);
    let help = "Pods scheduled after the periodic flush of unschedulable pods";
    let metric = inner.after_flush.clone();
    registry.register("scheduler_pod_scheduled_after_flush", help, metric);
    let help = "Duration of handling an event";
    let metric = inner.handling_seconds.clone();
    registry.register("scheduler_event_handling_duration_seconds", help, metric);
    let help = "Evaluations of a plugin, for a pod or for a node";
    let metric = inner.profiles.evaluations.clone();
    registry.register("scheduler_plugin_evaluation", help, metric);
    let help = "How long a plugin took at an extension point, for all evaluated nodes";
    let metric = inner.profiles.plugin_seconds.clone();
    registry.register("scheduler_plugin_execution_duration_seconds", help, metric);
    let help = "Duration of a queueing hint of a plugin";
    let metric = inner.profiles.hint_seconds.clone();
    registry.register(
        "scheduler_queueing_hint_execution_duration_seconds",
        help,
        metric,
    );
    let help = "Duration of Permit by result";
    let metric = inner.permit_seconds.clone();
    registry.register("scheduler_permit_wait_duration_seconds", help, metric);
    let help = "Pods taken from the queue and not bound yet";
    let metric = inner.in_flight.clone();
    registry.register("scheduler_inflight_events", help, metric);
    let help = "Running tasks, by operation";
    registry.register("scheduler_goroutines", help, inner.tasks.clone());
    inner.devices.register(registry);
}

impl Metrics {
    /// The metrics in the Prometheus text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.0.registry);
        text
    }

    pub(crate) fn chose(&self, took: Duration) {
        self.0.algorithm_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn scheduled(&self, attempts: u32, since_first: Duration) {
        self.0.attempts_of_pod.observe(attempts.into());
        let label = usize::try_from(attempts).ok();
        let label = label.and_then(|attempts| ATTEMPTS.get(attempts).copied());
        let labels = [("attempts", label.unwrap_or("15+"))];
        let seconds = self.0.sli_seconds.get_or_create(&labels);
        seconds.observe(since_first.as_secs_f64());
    }

    /// The metrics of profiles.
    pub(crate) fn profiles(&self) -> &Families {
        &self.0.profiles
    }

    /// The Permit plugins were run for a pod.
    pub(crate) fn permitted(&self, is_allowed: bool, took: Duration) {
        let result = if is_allowed {
            "success"
        } else {
            "unschedulable"
        };
        let seconds = self.0.permit_seconds.get_or_create(&[("result", result)]);
        seconds.observe(took.as_secs_f64());
    }

    /// The gauge of the tasks that bind pods.
    pub(crate) fn binding_tasks(&self) -> Gauge {
        let tasks = self.0.tasks.get_or_create(&[("operation", "binding")]);
        tasks.clone()
    }

    /// A pod was scheduled whose last attempt was only due to its time in the unschedulable queue.
    pub(crate) fn scheduled_after_flush(&self) {
        self.0.after_flush.inc();
    }

    /// A cluster event was handled.
    pub(crate) fn handled(&self, event: &'static str, took: Duration) {
        let seconds = self.0.handling_seconds.get_or_create(&[("event", event)]);
        seconds.observe(took.as_secs_f64());
    }

    /// Sets the number of unschedulable pods by profile and plugin.
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

    /// The metrics of devices.
    pub(crate) fn devices(&self) -> &Devices {
        &self.0.devices
    }

    pub(crate) fn tried_preemption(&self, victims: Option<usize>) {
        self.0.preemptions.inc();
        if let Some(victims) = victims {
            self.0.victims.observe(victims as f64);
        }
    }

    pub(crate) fn incoming(&self, queue: &'static str, event: &'static str, pods: usize) {
        if pods > 0 {
            let labels = [("queue", queue), ("event", event)];
            self.0.incoming.get_or_create(&labels).inc_by(pods as u64);
        }
    }

    pub(crate) fn sizes(&self, depth: Depth, nodes: usize, pods: usize, assumed: usize) {
        let set = |family: &Family<StaticLabels<1>, Gauge>, label, value, size: usize| {
            let gauge = family.get_or_create(&[(label, value)]);
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
        set(&self.0.in_flight, "event", "PodPopped", assumed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::framework::{Point, profile::Profile};

    #[test]
    fn metrics_have_upstreams_names_and_labels() {
        let metrics = Metrics::default();
        let profile = Profile::default_scheduler();
        let meter = Meter::new(metrics.profiles(), &profile);
        meter.attempted(Attempt::Unschedulable, Duration::from_millis(3));
        meter.evaluated(Point::Filter, 0, 7);
        meter.plugin_took(Point::Filter, "NodeName", "Success", Instant::now());
        metrics.profiles().hints("NodePorts", "NodeAdd")[1].observe(0.1);
        metrics.permitted(false, Duration::from_millis(1));
        metrics.binding_tasks().inc();
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
        meter.ran(Point::Filter, false, Duration::from_millis(1));
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
            "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Filter\",status=\"Unschedulable\",profile=\"default-scheduler\"} 1",
            "scheduler_unschedulable_pods{plugin=\"NodePorts\",profile=\"own\"} 4",
            "scheduler_event_handling_duration_seconds_count{event=\"NodeAdd\"} 1",
            "scheduler_pod_scheduled_after_flush_total 1",
            "scheduler_plugin_execution_duration_seconds_count{plugin=\"NodeName\",extension_point=\"Filter\",status=\"Success\"} 1",
            "scheduler_queueing_hint_execution_duration_seconds_count{plugin=\"NodePorts\",event=\"NodeAdd\",hint=\"Queue\"} 1",
            "scheduler_permit_wait_duration_seconds_count{result=\"unschedulable\"} 1",
            "scheduler_inflight_events{event=\"PodPopped\"} 1",
            "scheduler_goroutines{operation=\"binding\"} 1",
            "extension_point=\"Filter\",profile=\"default-scheduler\"} 7",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
