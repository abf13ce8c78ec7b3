//! `/metrics`: what the server does, under the names that Kubernetes' dashboards know.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::registry::Labels;

/// Upstream's buckets for the duration of requests, in seconds.
const DURATIONS: [f64; 24] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0,
];

/// What a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct About {
    pub(crate) verb: &'static str,
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) resource: Arc<str>,
    pub(crate) subresource: Arc<str>,
    pub(crate) scope: &'static str,
    pub(crate) component: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    #[prometheus(flatten)]
    about: About,
    dry_run: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestKind {
    request_kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Stored {
    group: Arc<str>,
    resource: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Watched {
    group: Arc<str>,
    version: Arc<str>,
    resource: Arc<str>,
}

/// The figures, shared by all requests.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Family<About, Histogram, fn() -> Histogram>,
    in_flight: Family<RequestKind, Gauge>,
    long_running: Family<About, Gauge>,
    objects: Family<Stored, Gauge>,
    watch_events: Family<Watched, Counter>,
    panics: Counter,
    audit_events: Gauge,
    audit_errors: Gauge,
}

/// Counts a gauge down when a request ends, however it ends.
pub(crate) struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let durations =
            Family::new_with_constructor((|| Histogram::new(DURATIONS)) as fn() -> Histogram);
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            durations,
            in_flight: Family::default(),
            long_running: Family::default(),
            objects: Family::default(),
            watch_events: Family::default(),
            panics: Counter::default(),
            audit_events: Gauge::default(),
            audit_errors: Gauge::default(),
        };
        let (registry, m) = (&mut metrics.registry, &metrics.requests);
        registry.register("apiserver_request", "Requests answered", m.clone());
        let about = "Seconds until an answer began";
        registry.register(
            "apiserver_request_duration_seconds",
            about,
            metrics.durations.clone(),
        );
        let about = "Requests at work now, without long ones";
        registry.register(
            "apiserver_current_inflight_requests",
            about,
            metrics.in_flight.clone(),
        );
        let about = "Watches and other long requests at work now";
        registry.register(
            "apiserver_longrunning_requests",
            about,
            metrics.long_running.clone(),
        );
        // The first of the names is what upstream had before.
        for name in ["apiserver_storage_objects", "apiserver_resource_objects"] {
            registry.register(name, "Objects stored", metrics.objects.clone());
        }
        let about = "Events sent to watchers";
        registry.register(
            "apiserver_watch_events",
            about,
            metrics.watch_events.clone(),
        );
        let about = "Requests whose handler panicked";
        registry.register("apiserver_request_panics", about, metrics.panics.clone());
        let about = "Audit events written";
        let (events, errors) = (metrics.audit_events.clone(), metrics.audit_errors.clone());
        let registry = &mut metrics.registry;
        registry.register("apiserver_audit_event_total", about, events);
        let about = "Audit events that were lost";
        registry.register("apiserver_audit_error_total", about, errors);
        metrics
    }

    /// A short request is answered.
    pub(crate) fn answered(&self, about: About, dry_run: bool, code: u16, took: Duration) {
        self.durations
            .get_or_create(&about)
            .observe(took.as_secs_f64());
        self.count(about, dry_run, code);
    }

    /// A request is answered whose duration says nothing.
    pub(crate) fn count(&self, about: About, dry_run: bool, code: u16) {
        let dry_run = if dry_run { "All" } else { "" };
        self.requests
            .get_or_create(&Answered {
                about,
                dry_run,
                code,
            })
            .inc();
    }

    /// A short request is at work until the result is dropped.
    pub(crate) fn at_work(&self, reads: bool) -> Counted {
        let request_kind = if reads { "readOnly" } else { "mutating" };
        let gauge = self
            .in_flight
            .get_or_create(&RequestKind { request_kind })
            .clone();
        gauge.inc();
        Counted(gauge)
    }

    /// A long request is at work until the result is dropped.
    pub(crate) fn long(&self, about: &About) -> Counted {
        let gauge = self.long_running.get_or_create(about).clone();
        gauge.inc();
        Counted(gauge)
    }

    /// Counts the events that watchers of a resource are sent.
    pub(crate) fn watch_events(&self, labels: &Labels) -> Counter {
        let about = Watched {
            group: labels.group.clone(),
            version: labels.version.clone(),
            resource: labels.resource.clone(),
        };
        self.watch_events.get_or_create(&about).clone()
    }

    pub(crate) fn panicked(&self) {
        self.panics.inc();
    }

    /// How many objects of a resource there are.
    pub(crate) fn stored(&self, group: &str, resource: &str, count: usize) {
        let about = Stored {
            group: group.into(),
            resource: resource.into(),
        };
        self.objects.get_or_create(&about).set(count as i64);
    }

    /// How many audit events have been written and lost.
    pub(crate) fn audited(&self, (written, lost): (u64, u64)) {
        self.audit_events
            .set(i64::try_from(written).unwrap_or(i64::MAX));
        self.audit_errors
            .set(i64::try_from(lost).unwrap_or(i64::MAX));
    }

    /// All figures as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}
