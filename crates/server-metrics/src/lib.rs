//! `/metrics`: the API server's metrics, with upstream's names. Other parts of the server register
//! theirs in the registry that [`ServerMetrics::new`] is given.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod labels;
mod process;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use registry::{Labels, store_metrics::Storage};

use self::labels::{
    Answered, Build, Checked, CheckedAs, ClientRequest, ClientTime, Cluster, Deprecated, DryRun,
    Named, RequestKind, Stored, StoredBefore, Terminated, Timed, Watched,
};
pub use self::{
    access::{Access, AuthenticationResult, Decided},
    labels::RequestLabels,
};

/// The platform of this binary.
pub const PLATFORM: &str = if cfg!(target_arch = "x86_64") {
    "linux/amd64"
} else {
    "linux/arm64"
};

/// Upstream's buckets for the duration of requests, in seconds.
const DURATIONS: [f64; 24] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0,
];

/// Upstream's buckets for the duration of requests without waits, in seconds.
const INDICATORS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0,
];

/// Upstream's buckets for the duration of client requests, in seconds.
const CLIENT_SECONDS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];
const EVENT_SIZES: [f64; 8] = [
    1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0,
];

/// Counters whose names have no suffix.
const BARE: [&str; 4] = [
    "authentication_attempts",
    "authenticated_user_requests",
    "apiserver_admission_webhook_rejection_count",
    "apiserver_admission_webhook_fail_open_count",
];

/// Upstream's buckets for the size of responses, in bytes.
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// The media type of [`ServerMetrics::text`].
pub const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The metrics that a connection used last: most connections repeat the same kind of request, and
/// then need no lookup.
#[derive(Default)]
pub struct Recent(Mutex<Option<Box<Figures>>>);

struct Figures {
    answered: Answered,
    duration: Histogram,
    /// The same without the queue wait; not for dry runs.
    indicator: Option<Histogram>,
    size: Option<Histogram>,
    count: Counter,
}

impl Figures {
    fn are_for(&self, about: &RequestLabels, dry_run: bool, code: u16) -> bool {
        let answered = &self.answered;
        answered.code == code && answered.dry_run == DryRun(dry_run) && answered.about == *about
    }
}

/// The metrics, shared by all requests.
pub struct ServerMetrics {
    registry: Registry,
    /// Authentication and authorization.
    pub access: Access,
    /// Requests to the store.
    pub storage: Storage,
    indicators_of_requests: Family<RequestLabels, Histogram, fn() -> Histogram>,
    terminated: Family<Terminated, Counter>,
    unavailable: Family<Named, Gauge>,
    clients: Family<ClientRequest, Counter>,
    client_seconds: Family<ClientTime, Histogram, fn() -> Histogram>,
    event_sizes: Family<Watched, Histogram, fn() -> Histogram>,
    unsent: Gauge,
    size: Family<Cluster, Gauge>,
    requests: Family<Answered, Counter>,
    durations: Family<Timed, Histogram, fn() -> Histogram>,
    sizes: Family<RequestLabels, Histogram, fn() -> Histogram>,
    deprecated: Family<Deprecated, Gauge>,
    reading: Gauge,
    writing: Gauge,
    long_running: Family<RequestLabels, Gauge>,
    objects: Family<Stored, Gauge>,
    objects_before: Family<StoredBefore, Gauge>,
    /// Results of health checks, served at a separate path.
    indicators: Registry,
    checks: Family<Checked, Gauge>,
    checks_so_far: Family<CheckedAs, Counter>,
    watch_events: Family<Watched, Counter>,
    panics: Counter,
    audit_events: Counter,
    audit_errors: Counter,
}

/// Decrements a gauge when dropped.
pub struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl ServerMetrics {
    /// `registry` has the metrics of other parts already. `handshake_errors` counts TLS handshakes that
    /// failed, `stalled` connections closed because the client did not read.
    pub fn new(mut registry: Registry, handshake_errors: &Counter, stalled: &Counter) -> Self {
        let durations =
            Family::new_with_constructor((|| Histogram::new(DURATIONS)) as fn() -> Histogram);
        let sizes = Family::new_with_constructor((|| Histogram::new(SIZES)) as fn() -> Histogram);
        let in_flight = Family::<RequestKind, Gauge>::default();
        let kind = |request_kind| {
            in_flight
                .get_or_create(&RequestKind { request_kind })
                .clone()
        };
        let (reading, writing) = (kind("readOnly"), kind("mutating"));
        let mut metrics = Self {
            access: Access::registered(&mut registry),
            storage: Storage::registered(&mut registry),
            indicators_of_requests: Family::new_with_constructor(|| Histogram::new(INDICATORS)),
            terminated: Family::default(),
            unavailable: Family::default(),
            clients: Family::default(),
            client_seconds: Family::new_with_constructor(|| Histogram::new(CLIENT_SECONDS)),
            event_sizes: Family::new_with_constructor(|| Histogram::new(EVENT_SIZES)),
            unsent: Gauge::default(),
            registry,
            size: Family::default(),
            requests: Family::default(),
            durations,
            sizes,
            deprecated: Family::default(),
            reading,
            writing,
            long_running: Family::default(),
            objects: Family::default(),
            objects_before: Family::default(),
            indicators: Registry::default(),
            checks: Family::default(),
            checks_so_far: Family::default(),
            watch_events: Family::default(),
            panics: Counter::default(),
            audit_events: Counter::default(),
            audit_errors: Counter::default(),
        };
        metrics.register_requests(in_flight);
        metrics.register_storage();
        metrics.register_audit();
        metrics.register_connections(handshake_errors, stalled);
        metrics.register_components();
        metrics.register_health();
        metrics
    }

    fn register_requests(&mut self, in_flight: Family<RequestKind, Gauge>) {
        let registry = &mut self.registry;
        let about = "Requests answered";
        registry.register("apiserver_request", about, self.requests.clone());
        let about = "Response latency in seconds";
        let name = "apiserver_request_duration_seconds";
        registry.register(name, about, self.durations.clone());
        let about = "Response sizes of reads in bytes";
        registry.register("apiserver_response_sizes", about, self.sizes.clone());
        let about = "Deprecated APIs that were requested";
        let deprecated = self.deprecated.clone();
        registry.register("apiserver_requested_deprecated_apis", about, deprecated);
        let about = "Requests being executed, except long-running ones";
        registry.register("apiserver_current_inflight_requests", about, in_flight);
        let about = "Long-running requests being executed, such as watches";
        let long_running = self.long_running.clone();
        registry.register("apiserver_longrunning_requests", about, long_running);
        let about = "Requests whose handler panicked";
        registry.register("apiserver_request_panics", about, self.panics.clone());
        let about = "Response latency in seconds, without the wait in flow control queues";
        let indicators = self.indicators_of_requests.clone();
        registry.register("apiserver_request_sli_duration_seconds", about, indicators);
        let about = "Requests rejected in self-defense";
        let terminated = self.terminated.clone();
        registry.register("apiserver_request_terminations", about, terminated);
    }

    /// Stored objects and their events.
    fn register_storage(&mut self) {
        let registry = &mut self.registry;
        let about = "Objects stored";
        registry.register("apiserver_resource_objects", about, self.objects.clone());
        let about = "Objects stored; the older name of apiserver_resource_objects";
        let objects = self.objects_before.clone();
        registry.register("apiserver_storage_objects", about, objects);
        let about = "Size of the store on disk in bytes";
        registry.register("apiserver_storage_size_bytes", about, self.size.clone());
        let about = "Events sent to watchers";
        registry.register("apiserver_watch_events", about, self.watch_events.clone());
        let about = "Bytes of events sent to watchers";
        let sizes = self.event_sizes.clone();
        registry.register("apiserver_watch_events_sizes", about, sizes);
    }

    fn register_audit(&mut self) {
        let registry = &mut self.registry;
        let about = "Audit events written";
        registry.register("apiserver_audit_event", about, self.audit_events.clone());
        let about = "Audit events that were lost";
        registry.register("apiserver_audit_error", about, self.audit_errors.clone());
    }

    /// Connections of clients.
    fn register_connections(&mut self, handshake_errors: &Counter, stalled: &Counter) {
        let registry = &mut self.registry;
        let about = "TLS handshakes that failed";
        let errors = handshake_errors.clone();
        registry.register("apiserver_tls_handshake_errors", about, errors);
        let about = "Bytes of responses that clients have not read yet";
        let unsent = self.unsent.clone();
        registry.register("mainstay_apiserver_unsent_bytes", about, unsent);
        let about = "Connections closed because the client did not read";
        let stalled = stalled.clone();
        registry.register("mainstay_apiserver_stalled_clients", about, stalled);
    }

    /// This process, its components, and aggregated API servers.
    fn register_components(&mut self) {
        let registry = &mut self.registry;
        let about = "APIServices that are not available: 1";
        let unavailable = self.unavailable.clone();
        registry.register("aggregator_unavailable_apiservice", about, unavailable);
        let about = "Requests of the components of this process";
        registry.register("rest_client_requests", about, self.clients.clone());
        let about = "How long requests of components took";
        let name = "rest_client_request_duration_seconds";
        registry.register(name, about, self.client_seconds.clone());
        let build = Family::<Build, Gauge>::default();
        let own = stdx::Version::own();
        let this = Build {
            major: own.major,
            minor: own.minor,
            git_version: format!("{own}+mainstay"),
            platform: PLATFORM,
        };
        build.get_or_create(&this).set(1);
        let about = "The version of this program";
        registry.register("kubernetes_build_info", about, build);
    }

    /// Health checks, which are served at a path of their own.
    fn register_health(&mut self) {
        let indicators = &mut self.indicators;
        let about = "Last result of a health check: 1 is healthy";
        indicators.register("kubernetes_healthcheck", about, self.checks.clone());
        let about = "Health checks by result";
        let so_far = self.checks_so_far.clone();
        indicators.register("kubernetes_healthchecks", about, so_far);
    }

    /// Counts a request that the server terminated with 429 or 504.
    pub fn count_terminated(&self, about: RequestLabels, code: u16) {
        self.terminated
            .get_or_create(&Terminated { about, code })
            .inc();
    }

    /// Counts a request by a component of this process.
    pub fn record_client_request(&self, method: &http::Method, code: u16, took: Duration) {
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::POST => "POST",
            http::Method::PUT => "PUT",
            http::Method::PATCH => "PATCH",
            http::Method::DELETE => "DELETE",
            _ => "other",
        };
        let host = "in-process";
        let request = ClientRequest { code, host, method };
        self.clients.get_or_create(&request).inc();
        let time = ClientTime { host, verb: method };
        let seconds = self.client_seconds.get_or_create(&time);
        seconds.observe(took.as_secs_f64());
    }

    /// Sets the APIServices that are unavailable now.
    pub fn set_unavailable_services(&self, names: impl Iterator<Item = String>) {
        self.unavailable.clear();
        for name in names {
            self.unavailable.get_or_create(&Named { name }).set(1);
        }
    }

    /// Sets the response bytes that clients have not read yet.
    pub fn set_unsent_bytes(&self, bytes: usize) {
        self.unsent.set(bytes as i64);
    }

    /// Counts a request that is not long-running. `recent` is the connection's cache, `waited` the
    /// queue wait. Returns the histogram of response sizes, if this request has one.
    pub fn record_response(
        &self,
        recent: Option<&Recent>,
        about: RequestLabels,
        dry_run: bool,
        code: u16,
        took: Duration,
        waited: Duration,
    ) -> Option<Histogram> {
        let mut kept = recent.map(|recent| recent.0.lock());
        let known = kept.as_mut().and_then(|kept| kept.take());
        let figures = match known {
            Some(figures) if figures.are_for(&about, dry_run, code) => figures,
            _ => Box::new(self.figures(about, dry_run, code)),
        };
        figures.duration.observe(took.as_secs_f64());
        if let Some(indicator) = &figures.indicator {
            indicator.observe(took.saturating_sub(waited).as_secs_f64());
        }
        figures.count.inc();
        let size = figures.size.clone();
        if let Some(kept) = &mut kept {
            **kept = Some(figures);
        }
        size
    }

    fn figures(&self, about: RequestLabels, dry_run: bool, code: u16) -> Figures {
        let reads = matches!(about.verb, "GET" | "LIST");
        let size = reads.then(|| self.sizes.get_or_create(&about).clone());
        let answered = Answered::new(about.clone(), dry_run, code);
        let indicator =
            (!dry_run).then(|| self.indicators_of_requests.get_or_create(&about).clone());
        let timed = Timed {
            about,
            dry_run: answered.dry_run,
        };
        let duration = self.durations.get_or_create(&timed).clone();
        let count = self.requests.get_or_create(&answered).clone();
        Figures {
            answered,
            duration,
            indicator,
            size,
            count,
        }
    }

    /// Marks the use of a deprecated API.
    pub fn mark_deprecated(&self, about: &RequestLabels) {
        let labels = about.labels.as_deref();
        let [group, version, resource] = labels.map_or(Default::default(), |labels| {
            [&labels.group, &labels.version, &labels.resource].map(Arc::clone)
        });
        let deprecated = Deprecated {
            group,
            version,
            resource,
            subresource: about.subresource,
            removed_release: "",
        };
        self.deprecated.get_or_create(&deprecated).set(1);
    }

    /// Counts a request whose duration is not measured.
    pub fn count_request(&self, about: RequestLabels, dry_run: bool, code: u16) {
        let answered = Answered::new(about, dry_run, code);
        self.requests.get_or_create(&answered).inc();
    }

    /// Counts a request as in flight until the result is dropped.
    pub fn count_in_flight(&self, reads: bool) -> Counted {
        let gauge = if reads { &self.reading } else { &self.writing };
        let gauge = gauge.clone();
        gauge.inc();
        Counted(gauge)
    }

    /// Counts a long-running request as in flight until the result is dropped.
    pub fn count_long_running(&self, about: &RequestLabels) -> Counted {
        let gauge = self.long_running.get_or_create(about).clone();
        gauge.inc();
        Counted(gauge)
    }

    /// The counter and size histogram of a resource's watch events.
    pub fn watch_events(&self, labels: &Labels) -> (Counter, Histogram) {
        let about = Watched {
            group: labels.group.clone(),
            version: labels.version.clone(),
            resource: labels.resource.clone(),
        };
        let sizes = self.event_sizes.get_or_create(&about).clone();
        (self.watch_events.get_or_create(&about).clone(), sizes)
    }

    pub fn count_panic(&self) {
        self.panics.inc();
    }

    /// Sets the number of stored objects of a resource.
    pub fn set_stored_objects(&self, group: &str, resource: &str, count: usize) {
        let about = Stored {
            group: group.into(),
            resource: resource.into(),
        };
        self.objects.get_or_create(&about).set(count as i64);
        let resource = match group {
            "" => resource.to_owned(),
            group => format!("{resource}.{group}"),
        };
        let before = self
            .objects_before
            .get_or_create(&StoredBefore { resource });
        before.set(count as i64);
    }

    /// Sets the size of the data on disk, in bytes.
    pub fn set_store_size(&self, bytes: u64) {
        let cluster = Cluster {
            storage_cluster_id: "etcd-0",
        };
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.size.get_or_create(&cluster).set(bytes);
    }

    /// Counts a health check.
    pub fn record_health_check(&self, endpoint: &str, name: &str, is_good: bool) {
        let checked = Checked {
            name: name.to_owned(),
            r#type: endpoint.to_owned(),
        };
        self.checks.get_or_create(&checked).set(is_good.into());
        let Checked { name, r#type } = checked;
        let status = if is_good { "success" } else { "error" };
        let checked = CheckedAs {
            name,
            status,
            r#type,
        };
        self.checks_so_far.get_or_create(&checked).inc();
    }

    /// Sets how many audit events have been written and dropped.
    pub fn set_audit_events(&self, (written, lost): (u64, u64)) {
        for (counter, count) in [(&self.audit_events, written), (&self.audit_errors, lost)] {
            counter.inner().store(count, Ordering::Relaxed);
        }
    }

    /// All metrics as text.
    pub fn text(&self) -> String {
        let mut text = plain(&self.registry);
        process::write(&mut text);
        text
    }

    /// The results of health checks, as text.
    pub fn indicators(&self) -> String {
        plain(&self.indicators)
    }
}

fn plain(registry: &Registry) -> String {
    let mut open = String::new();
    // Writing to a string cannot fail.
    let _ = text::encode(&mut open, registry);
    plain_text(&open)
}

/// Converts OpenMetrics to Prometheus' text format, where every line of a counter has its suffix.
pub fn plain_text(open: &str) -> String {
    let mut out = String::with_capacity(open.len());
    let mut lines = open.lines().peekable();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("# HELP ").and_then(|rest| {
            let (name, about) = rest.split_once(' ')?;
            let counts = lines.peek()?.ends_with(" counter");
            counts.then_some((name, about))
        });
        let is_bare = BARE.iter().find(|bare| {
            let rest = line.strip_prefix(**bare);
            rest.is_some_and(|rest| rest.starts_with("_total"))
        });
        if let Some((name, about)) = name {
            let suffix = if BARE.contains(&name) { "" } else { "_total" };
            out += &format!("# HELP {name}{suffix} {about}\n# TYPE {name}{suffix} counter\n");
            lines.next();
        } else if let Some(bare) = is_bare {
            out += bare;
            out += &line[bare.len() + "_total".len()..];
            out.push('\n');
        } else if line != "# EOF" {
            out += line;
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_suffix_in_every_line() {
        let metrics = ServerMetrics::new(
            Registry::default(),
            &Counter::default(),
            &Counter::default(),
        );
        metrics.record_health_check("livez", "ping", true);
        metrics.set_stored_objects("apps", "deployments", 2);
        let text = metrics.indicators();
        assert!(text.contains("# TYPE kubernetes_healthchecks_total counter\n"));
        assert!(text.contains(
            "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"livez\"} 1\n"
        ));
        let text = metrics.text();
        assert!(text.contains("apiserver_storage_objects{resource=\"deployments.apps\"} 2\n"));
        assert!(text.contains("# TYPE authentication_attempts counter\n"));
        assert!(text.contains("\nauthentication_attempts{result=\"success\"} 0\n"));
        let expected = "apiserver_resource_objects{group=\"apps\",resource=\"deployments\"} 2\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
        assert!(!text.contains("# EOF"));
    }
}
