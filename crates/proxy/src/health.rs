//! The proxy's health in kube-proxy's terms: whether it keeps up with changes, and the local endpoints
//! of Services with policy Local. No sockets here.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::Clock;
use tokio::sync::watch;

use crate::{
    metrics::{Metrics, Sync},
    ruleset::ServiceKey,
};

/// The proxy is unhealthy if changes wait longer than this.
const LATE: Duration = Duration::from_secs(60);
const LEAVING: &str = "ToBeDeletedByClusterAutoscaler";

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
    /// The figures of `/metrics`.
    pub metrics: Metrics,
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
}

impl Health {
    /// Healthy until changes wait.
    pub fn new(clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self {
            clock,
            metrics,
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
        drop(state);
        self.metrics.queued(services, slices);
    }

    /// All changes are applied; it took this long.
    pub fn updated(&self, sync: Sync, took: Duration) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.updated = Some(now);
        state.pending_since = None;
        drop(state);
        self.metrics.synced(sync, took);
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
        let with_node = match path {
            "/healthz" => true,
            "/livez" => false,
            _ => return None,
        };
        let now = self.clock.now();
        let state = self.state.lock();
        let healthy = self.is_healthy(&state);
        let ok = healthy && (state.eligible || !with_node);
        let code = if ok {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        self.metrics.answered(!with_node, code.as_u16());
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
    pub fn page(&self) -> String {
        let (queued, updated) = {
            let state = self.state.lock();
            (state.queued, state.updated)
        };
        self.metrics.page(queued, updated)
    }
}

fn is_eligible(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let is_leaving = taints
        .into_iter()
        .flatten()
        .any(|taint| taint.key == LEAVING);
    node.metadata.deletion_timestamp.is_none() && !is_leaving
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::FakeClock;

    fn health() -> (Health, FakeClock) {
        let clock = FakeClock::at(Timestamp::UNIX_EPOCH);
        let metrics = Metrics::new([true, false]);
        (Health::new(Arc::new(clock.clone()), metrics), clock)
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
        health.updated(Sync::Partial, Duration::from_millis(3));
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
    fn answers_and_the_times_of_changes_are_in_the_metrics() {
        let (health, clock) = health();
        clock.advance(Duration::from_secs(5));
        health.queued(1, 0);
        clock.advance(Duration::from_secs(2));
        health.updated(Sync::Partial, Duration::from_millis(3));
        health.answer("/healthz");
        let page = health.page();
        for line in [
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} 5",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 7",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
    }
}
