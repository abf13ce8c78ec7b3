//! The proxy's health in kube-proxy's terms: whether it keeps up with changes, the local endpoints
//! of Services with policy Local, and its metrics. No sockets here.

use std::{collections::BTreeMap, fmt::Write, sync::Arc, time::Duration};

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::Clock;
use tokio::sync::watch;

use crate::ruleset::ServiceKey;

/// The proxy is unhealthy if changes wait longer than this.
const LATE: Duration = Duration::from_secs(60);
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";
/// The histogram's bounds: powers of two from a millisecond.
const BUCKETS: usize = 15;

/// The health check of a Service, which load balancers query at its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Ready endpoints on this node.
    pub local_endpoints: usize,
}

/// A response to a GET.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// 200 or 503.
    pub code: StatusCode,
    /// The JSON document.
    pub body: Value,
    /// The number of local endpoints, as a hint for load balancers.
    pub weight: Option<usize>,
}

/// Written by the proxy, shown by the servers.
pub struct Health {
    clock: Arc<dyn Clock>,
    /// Guards everything that is shown; held only briefly.
    state: Mutex<State>,
    /// The ports of health checks, for the servers that listen there.
    ports: watch::Sender<BTreeMap<u16, ServiceKey>>,
}

#[derive(Default)]
struct State {
    updated: Option<Timestamp>,
    pending_since: Option<Timestamp>,
    queued: Option<Timestamp>,
    eligible: bool,
    checks: BTreeMap<ServiceKey, Check>,
    figures: Figures,
}

#[derive(Default)]
struct Figures {
    buckets: [u64; BUCKETS],
    count: u64,
    seconds: f64,
    failures: u64,
    service_changes: u64,
    endpoint_changes: u64,
    /// Responses by path and code.
    answers: BTreeMap<(&'static str, u16), u64>,
}

impl Health {
    /// Healthy until changes wait.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            ports: watch::Sender::default(),
        }
    }

    /// Changes of Services and of EndpointSlices arrived and are not applied yet.
    pub fn queued(&self, services: usize, slices: usize) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.queued = Some(now);
        state.pending_since.get_or_insert(now);
        state.figures.service_changes += services as u64;
        state.figures.endpoint_changes += slices as u64;
    }

    /// All changes are applied; it took this long.
    pub fn updated(&self, took: Duration) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.updated = Some(now);
        state.pending_since = None;
        let figures = &mut state.figures;
        figures.count += 1;
        figures.seconds += took.as_secs_f64();
        let bucket = (0..BUCKETS).find(|bucket| took <= bound(*bucket));
        if let Some(bucket) = bucket {
            figures.buckets[bucket] += 1;
        }
    }

    /// A batch was rejected.
    pub fn failed(&self) {
        self.state.lock().figures.failures += 1;
    }

    /// Updates whether this node accepts new connections of load balancers.
    pub fn set_node(&self, node: Option<&Node>) {
        self.state.lock().eligible = node.is_some_and(is_eligible);
    }

    /// Sets or removes the health check of a Service.
    pub fn set_check(&self, key: &ServiceKey, check: Option<Check>) {
        let ports = {
            let mut state = self.state.lock();
            match check {
                Some(check) => state.checks.insert(key.clone(), check),
                None => state.checks.remove(key),
            };
            let ports = state
                .checks
                .iter()
                .map(|(key, check)| (check.port, key.clone()));
            ports.collect::<BTreeMap<_, _>>()
        };
        self.ports.send_if_modified(|known| {
            let changed = *known != ports;
            *known = ports;
            changed
        });
    }

    /// Watches the ports of health checks.
    pub fn ports(&self) -> watch::Receiver<BTreeMap<u16, ServiceKey>> {
        self.ports.subscribe()
    }

    fn is_healthy(&self, state: &State) -> bool {
        let now = self.clock.now();
        state.pending_since.is_none_or(|since| since + LATE > now)
    }

    /// `/healthz` also depends on the node, `/livez` only on the proxy.
    pub fn answer(&self, path: &str) -> Option<Answer> {
        let (path, with_node) = match path {
            "/healthz" => ("healthz", true),
            "/livez" => ("livez", false),
            _ => return None,
        };
        let now = self.clock.now();
        let mut state = self.state.lock();
        let healthy = self.is_healthy(&state);
        let ok = healthy && (state.eligible || !with_node);
        let code = if ok {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        *state
            .figures
            .answers
            .entry((path, code.as_u16()))
            .or_default() += 1;
        let updated = if ok { Some(now) } else { state.updated };
        let mut body = json!({
            "lastUpdated": updated.unwrap_or_default().to_string(),
            "currentTime": now.to_string(),
            "healthy": healthy,
        });
        if with_node {
            body["nodeEligible"] = state.eligible.into();
        }
        Some(Answer {
            code,
            body,
            weight: None,
        })
    }

    /// The response of a Service's health check; `None` if it has none.
    pub fn check(&self, key: &ServiceKey) -> Option<Answer> {
        let state = self.state.lock();
        let healthy = self.is_healthy(&state);
        let count = state.checks.get(key)?.local_endpoints;
        let code = match count > 0 && healthy {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let body = json!({
            "service": {"namespace": key.0, "name": key.1},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        });
        Some(Answer {
            code,
            body,
            weight: Some(count),
        })
    }

    /// The metrics page.
    pub fn metrics(&self) -> String {
        let state = self.state.lock();
        let figures = &state.figures;
        let mut page = Page::default();
        page.histogram(figures);
        let seconds = |time: Option<Timestamp>| {
            time.map_or(0.0, |time| time.as_millisecond() as f64 / 1000.0)
        };
        let gauges = [
            (
                "last_timestamp_seconds",
                "The last time proxy rules were synced",
                state.updated,
            ),
            (
                "last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
                state.queued,
            ),
        ];
        for (name, help, time) in gauges {
            page.single(
                &format!("sync_proxy_rules_{name}"),
                "gauge",
                help,
                seconds(time),
            );
        }
        let counters = [
            (
                "nftables_sync_failures_total",
                "Batches that nftables refused",
                figures.failures,
            ),
            (
                "service_changes_total",
                "Changes of Services",
                figures.service_changes,
            ),
            (
                "endpoint_changes_total",
                "Changes of endpoints",
                figures.endpoint_changes,
            ),
        ];
        for (name, help, value) in counters {
            page.single(
                &format!("sync_proxy_rules_{name}"),
                "counter",
                help,
                value as f64,
            );
        }
        for path in ["healthz", "livez"] {
            let name = format!("proxy_{path}_total");
            page.family(&name, "counter", "Answers by HTTP status");
            let of_path = figures.answers.iter().filter(|((of, _), _)| *of == path);
            for ((_, code), count) in of_path {
                page.sample(&name, &format!("{{code=\"{code}\"}}"), *count as f64);
            }
        }
        page.text
    }
}

fn bound(bucket: usize) -> Duration {
    Duration::from_millis(1 << bucket)
}

fn is_eligible(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_leaving = taints
        .into_iter()
        .flatten()
        .any(|taint| taint.key == LEAVING);
    node.metadata.deletion_timestamp.is_none() && !is_leaving
}

/// A metrics page of kube-proxy's subsystem.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.text,
            "# HELP kubeproxy_{name} {help}\n# TYPE kubeproxy_{name} {kind}"
        );
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.text, "kubeproxy_{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, figures: &Figures) {
        let name = "sync_proxy_rules_duration_seconds";
        self.family(
            name,
            "histogram",
            "How long it took to bring rules up to date",
        );
        let mut below = 0;
        for (bucket, count) in figures.buckets.iter().enumerate() {
            below += count;
            let bound = bound(bucket).as_secs_f64();
            let labels = format!("{{le=\"{bound}\"}}");
            self.sample(&format!("{name}_bucket"), &labels, below as f64);
        }
        self.sample(
            &format!("{name}_bucket"),
            "{le=\"+Inf\"}",
            figures.count as f64,
        );
        self.sample(&format!("{name}_sum"), "", figures.seconds);
        self.sample(&format!("{name}_count"), "", figures.count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::FakeClock;

    fn health() -> (Health, FakeClock) {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        (Health::new(Arc::new(clock.clone())), clock)
    }

    fn node(spec: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec})).unwrap()
    }

    fn code(answer: Option<Answer>) -> u16 {
        answer.unwrap().code.as_u16()
    }

    #[test]
    fn a_proxy_whose_changes_wait_too_long_is_not_healthy() {
        let (health, clock) = health();
        health.set_node(Some(&node(json!({}))));
        assert_eq!(code(health.answer("/healthz")), 200);
        health.queued(1, 0);
        clock.advance(LATE / 2);
        assert_eq!(code(health.answer("/livez")), 200);
        health.queued(1, 0);
        clock.advance(LATE / 2);
        assert_eq!(code(health.answer("/livez")), 503);
        assert_eq!(code(health.answer("/healthz")), 503);
        health.updated(Duration::from_millis(3));
        assert_eq!(code(health.answer("/livez")), 200);
        assert_eq!(health.answer("/other"), None);
    }

    #[test]
    fn a_node_that_leaves_is_alive_and_not_healthy() {
        let (health, _) = health();
        for node in [
            None,
            Some(node(
                json!({"taints": [{"key": LEAVING, "effect": "NoSchedule"}]}),
            )),
        ] {
            health.set_node(node.as_ref());
            let answer = health.answer("/healthz").unwrap();
            assert_eq!(answer.code, 503);
            assert_eq!(answer.body["nodeEligible"], false);
            assert_eq!(answer.body["healthy"], true);
            assert_eq!(code(health.answer("/livez")), 200);
        }
    }

    #[test]
    fn a_check_counts_the_endpoints_of_this_node() {
        let (health, _) = health();
        let key = ("d".to_owned(), "web".to_owned());
        assert_eq!(health.check(&key), None);
        for (count, expected) in [(0, 503), (2, 200)] {
            let check = Check {
                port: 31000,
                local_endpoints: count,
            };
            health.set_check(&key, Some(check));
            let answer = health.check(&key).unwrap();
            assert_eq!(
                (answer.code.as_u16(), answer.weight),
                (expected, Some(count))
            );
            assert_eq!(answer.body["localEndpoints"], count);
            assert_eq!(answer.body["service"]["name"], "web");
        }
        assert_eq!(
            *health.ports().borrow(),
            BTreeMap::from([(31000, key.clone())])
        );
        health.set_check(&key, None);
        assert!(health.ports().borrow().is_empty());
    }

    #[test]
    fn metrics_are_cumulative_under_kube_proxys_names() {
        let (health, _) = health();
        health.queued(2, 3);
        health.updated(Duration::from_millis(3));
        health.updated(Duration::from_secs(60));
        health.answer("/livez");
        let page = health.metrics();
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.004\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"+Inf\"} 2",
            "kubeproxy_sync_proxy_rules_duration_seconds_count 2",
            "kubeproxy_sync_proxy_rules_service_changes_total 2",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 3",
            "kubeproxy_proxy_livez_total{code=\"200\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
    }
}
