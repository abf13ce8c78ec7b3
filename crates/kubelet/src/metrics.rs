//! The kubelet's counters and histograms, with upstream's names and buckets.

mod lives;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use parking_lot::Mutex;
use stdx::exposition::{Counter, Exposition, Family, Histogram};

use crate::{
    pod::spec::{self, Role},
    probe::{Answer, ProbeKind},
    volumes::VolumeMetrics,
};

use lives::LifeMetrics;

/// The default buckets of Prometheus.
const DEFAULT: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// From 5 ms, each 2.5 times the one before.
const RUNTIME: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
const STARTUP: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// Counts and durations of CRI calls.
struct Operations {
    count: Family<Counter>,
    errors: Family<Counter>,
    seconds: Family<Histogram>,
}

/// All metrics, shared by the kubelet's tasks.
pub struct Metrics {
    runtime: Arc<Operations>,
    pod_worker: Family<Histogram>,
    pod_worker_start: Family<Histogram>,
    pod_start: Family<Histogram>,
    cgroup_manager: Family<Histogram>,
    /// Those of volumes.
    pub(crate) volumes: VolumeMetrics,
    /// Those of whole pods, sandboxes and images.
    pub lives: LifeMetrics,
    started_pods: Family<Counter>,
    started_pods_errors: Family<Counter>,
    started_containers: Family<Counter>,
    started_containers_errors: Family<Counter>,
    terminated_containers: Family<Counter>,
    /// Hooks that were repeated without TLS.
    pub(crate) http_fallbacks: Family<Counter>,
    relist_duration: Family<Histogram>,
    relist_interval: Family<Histogram>,
    /// When containers were last listed.
    relisted: Mutex<Option<(Instant, Timestamp)>>,
    probes: Family<Counter>,
    probe_duration: Family<Histogram>,
    health_checks: Family<Counter>,
    /// The last result of each health check.
    last_health_checks: Mutex<BTreeMap<&'static str, bool>>,
}

fn seconds(labels: &'static [&'static str]) -> Family<Histogram> {
    Family::new(labels, || Histogram::new(DEFAULT))
}

fn counts(labels: &'static [&'static str]) -> Family<Counter> {
    Family::new(labels, Counter::default)
}

impl Default for Metrics {
    fn default() -> Self {
        const OPERATION: &[&str] = &["operation_type"];
        let runtime = Operations {
            count: counts(OPERATION),
            errors: counts(OPERATION),
            seconds: Family::new(OPERATION, || Histogram::new(RUNTIME)),
        };
        const PROBE: &[&str] = &[
            "probe_type",
            "result",
            "container",
            "pod",
            "namespace",
            "pod_uid",
        ];
        let metrics = Self {
            runtime: Arc::new(runtime),
            pod_worker: seconds(OPERATION),
            pod_worker_start: seconds(&[]),
            pod_start: Family::new(&[], || Histogram::new(STARTUP)),
            cgroup_manager: seconds(OPERATION),
            volumes: VolumeMetrics::default(),
            lives: LifeMetrics::default(),
            started_pods: counts(&[]),
            started_pods_errors: counts(&[]),
            started_containers: counts(&["container_type"]),
            started_containers_errors: counts(&["container_type", "code"]),
            terminated_containers: counts(&["container_type", "exit_code", "reason"]),
            http_fallbacks: counts(&[]),
            relist_duration: seconds(&[]),
            relist_interval: seconds(&[]),
            relisted: Mutex::default(),
            probes: counts(PROBE),
            health_checks: counts(&["name", "status", "type"]),
            last_health_checks: Mutex::default(),
            probe_duration: seconds(&["probe_type", "container", "pod", "namespace"]),
        };
        // Metrics without labels are exposed before they first change.
        for counter in [
            &metrics.started_pods,
            &metrics.started_pods_errors,
            &metrics.http_fallbacks,
        ] {
            counter.with(&[]);
        }
        for histogram in [&metrics.pod_start, &metrics.pod_worker_start] {
            histogram.with(&[]);
        }
        metrics
    }
}

impl Metrics {
    /// Counts the calls of a CRI client.
    pub fn count_calls(&self, calls: &cri::Calls) {
        let runtime = self.runtime.clone();
        calls.observe(Box::new(move |method, took, failed| {
            let operation = operation(method);
            let labels = [operation.as_str()];
            runtime.count.with(&labels).increment();
            runtime.seconds.with(&labels).took(took);
            if failed {
                runtime.errors.with(&labels).increment();
            }
        }));
    }

    /// A worker ran one iteration.
    pub fn worker_stepped(&self, operation: &str, took: Duration) {
        self.pod_worker.with(&[operation]).took(took);
    }

    /// A worker started this long after the kubelet first saw the pod.
    pub fn worker_began(&self, after: Duration) {
        self.pod_worker_start.with(&[]).took(after);
    }

    /// A pod runs, this long after the kubelet first saw it.
    pub fn pod_started(&self, after: Duration) {
        self.pod_start.with(&[]).took(after);
    }

    pub fn cgroup_managed<T>(&self, operation: &str, manage: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let outcome = manage();
        self.cgroup_manager.with(&[operation]).took(begun.elapsed());
        outcome
    }

    /// The creation of a sandbox succeeded or failed.
    pub fn sandbox_made(&self, succeeded: bool) {
        self.started_pods.with(&[]).increment();
        if !succeeded {
            self.started_pods_errors.with(&[]).increment();
        }
    }

    /// A container was started; `failure` is the reason if that failed.
    pub fn container_started(&self, role: Role, failure: Option<&str>) {
        let role = match role {
            Role::Init | Role::Sidecar => "init_container",
            Role::Ephemeral => "ephemeral_container",
            Role::Main => "container",
        };
        self.started_containers.with(&[role]).increment();
        if let Some(code) = failure {
            let errors = &self.started_containers_errors;
            errors.with(&[role, code]).increment();
        }
    }

    /// Counts the containers that terminated between two statuses of a pod.
    pub fn status_changes(&self, old: &PodStatus, new: &PodStatus) {
        let lists = [
            (
                "init_container",
                &old.init_container_statuses,
                &new.init_container_statuses,
            ),
            (
                "container",
                &old.container_statuses,
                &new.container_statuses,
            ),
            (
                "ephemeral_container",
                &old.ephemeral_container_statuses,
                &new.ephemeral_container_statuses,
            ),
        ];
        for (role, old, new) in lists {
            for status in new.iter().flatten() {
                let mut before = old.iter().flatten();
                let before = before.find(|before| before.name == status.name);
                let Some(end) = terminated(status) else {
                    continue;
                };
                if before.and_then(terminated).is_none() {
                    let (code, reason) = (end.exit_code.to_string(), end.reason.as_deref());
                    let labels = [role, &code, reason.unwrap_or_default()];
                    self.terminated_containers.with(&labels).increment();
                }
            }
        }
    }

    /// Containers were listed, beginning at these times.
    pub fn relisted(&self, begun: Instant, at: Timestamp) {
        self.relist_duration.with(&[]).took(begun.elapsed());
        let before = self.relisted.lock().replace((begun, at));
        if let Some((before, _)) = before {
            self.relist_interval.with(&[]).took(begun - before);
        }
    }

    /// A probe answered.
    pub fn probed(
        &self,
        pod: &Pod,
        container: &str,
        kind: ProbeKind,
        answer: &Answer,
        took: Duration,
    ) {
        let kind = kind.as_str();
        let (namespace, name, uid) = (spec::namespace(pod), spec::name(pod), spec::uid(pod));
        let result = match answer {
            Answer::Ok | Answer::Warning(_) => "successful",
            Answer::Failed(_) => "failed",
            Answer::Broken(_) => "unknown",
        };
        let labels = [kind, result, container, name, namespace, uid];
        self.probes.with(&labels).increment();
        if result != "failed" {
            let labels = [kind, container, name, namespace];
            self.probe_duration.with(&labels).took(took);
        }
    }

    /// A container's probe has ended; its metrics are removed.
    pub fn probe_ended(&self, pod: &Pod, container: &str, kind: ProbeKind) {
        let kind = kind.as_str();
        let (namespace, name, uid) = (spec::namespace(pod), spec::name(pod), spec::uid(pod));
        self.probes
            .forget(|values| *values[0] == *kind && *values[2] == *container && *values[5] == *uid);
        self.probe_duration.forget(|values| {
            values
                .iter()
                .map(|value| &**value)
                .eq([kind, container, name, namespace])
        });
    }

    /// Counts a health check.
    pub(crate) fn health_checked(&self, name: &'static str, is_healthy: bool) {
        let status = if is_healthy { "success" } else { "error" };
        let labels = [name, status, "healthz"];
        self.health_checks.with(&labels).increment();
        self.last_health_checks.lock().insert(name, is_healthy);
    }

    /// Writes the metrics of `/metrics/slis`.
    pub fn show_health_checks(&self, page: &mut Exposition) {
        let name = "kubernetes_healthcheck";
        page.family(
            name,
            "gauge",
            "Result of the last health check: 1 if it succeeded.",
        );
        for (check, is_healthy) in self.last_health_checks.lock().iter() {
            let labels = [("name", *check), ("type", "healthz")];
            page.sample(name, &labels, f64::from(u8::from(*is_healthy)), None);
        }
        let help = "Number of health checks by result.";
        page.counters("kubernetes_healthchecks_total", help, &self.health_checks);
    }

    /// Writes the metrics of `/metrics/probes`.
    pub fn show_probes(&self, page: &mut Exposition) {
        let help = "Cumulative number of probes of a container by result.";
        page.counters("prober_probe_total", help, &self.probes);
        let help = "Duration in seconds for a probe response.";
        page.histograms("prober_probe_duration_seconds", help, &self.probe_duration);
    }

    /// Writes the metrics of `/metrics`.
    pub fn show(&self, page: &mut Exposition) {
        let runtime = &self.runtime;
        let help = "Calls of the runtime by operation.";
        page.counters("kubelet_runtime_operations_total", help, &runtime.count);
        let help = "Calls of the runtime that failed.";
        page.counters(
            "kubelet_runtime_operations_errors_total",
            help,
            &runtime.errors,
        );
        for (name, help, family) in [
            (
                "kubelet_runtime_operations_duration_seconds",
                "How long calls of the runtime took.",
                &runtime.seconds,
            ),
            (
                "kubelet_pod_worker_duration_seconds",
                "Duration of one sync of a pod.",
                &self.pod_worker,
            ),
            (
                "kubelet_pod_worker_start_duration_seconds",
                "From seeing a pod to the start of its worker.",
                &self.pod_worker_start,
            ),
            (
                "kubelet_pod_start_duration_seconds",
                "From seeing a pod for the first time to it running.",
                &self.pod_start,
            ),
            (
                "kubelet_cgroup_manager_duration_seconds",
                "How long operations on cgroups took.",
                &self.cgroup_manager,
            ),
            (
                "kubelet_pleg_relist_duration_seconds",
                "How long it took to list containers.",
                &self.relist_duration,
            ),
            (
                "kubelet_pleg_relist_interval_seconds",
                "The time between two lists of containers.",
                &self.relist_interval,
            ),
        ] {
            page.histograms(name, help, family);
        }
        if let Some((_, at)) = *self.relisted.lock() {
            let name = "kubelet_pleg_last_seen_seconds";
            page.family(name, "gauge", "When containers were last listed.");
            page.sample(name, &[], at.as_second() as f64, None);
        }
        self.show_starts(page);
        self.lives.show(page);
        self.volumes.show(page);
    }

    fn show_starts(&self, page: &mut Exposition) {
        for (name, help, family) in [
            (
                "kubelet_started_pods_total",
                "Pods that were started.",
                &self.started_pods,
            ),
            (
                "kubelet_started_pods_errors_total",
                "Pods that could not be started.",
                &self.started_pods_errors,
            ),
            (
                "kubelet_started_containers_total",
                "Containers that were started.",
                &self.started_containers,
            ),
            (
                "kubelet_started_containers_errors_total",
                "Containers that could not be started.",
                &self.started_containers_errors,
            ),
            (
                "kubelet_terminated_containers_total",
                "Containers that have ended.",
                &self.terminated_containers,
            ),
            (
                "kubelet_lifecycle_handler_http_fallbacks_total",
                "HTTPS requests of hooks that succeeded in plain HTTP.",
                &self.http_fallbacks,
            ),
        ] {
            page.counters(name, help, family);
        }
    }
}

/// Upstream's operation name of a CRI method.
fn operation(method: &str) -> String {
    if method == "UpdateContainerResources" {
        return "update_container".to_owned();
    }
    let mut name = String::with_capacity(method.len() + 4);
    for letter in method.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name.replace("pod_sandbox", "podsandbox")
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_called_as_upstream_calls_them() {
        for (method, expected) in [
            ("RunPodSandbox", "run_podsandbox"),
            ("ListPodSandbox", "list_podsandbox"),
            ("PodSandboxStatus", "podsandbox_status"),
            ("CreateContainer", "create_container"),
            ("ImageFsInfo", "image_fs_info"),
            ("UpdateContainerResources", "update_container"),
            ("Version", "version"),
        ] {
            assert_eq!(operation(method), expected);
        }
    }

    #[test]
    fn a_containers_end_is_counted_once() {
        let metrics = Metrics::default();
        let status = |state: serde_json::Value| -> PodStatus {
            serde_json::from_value(serde_json::json!({"containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]}))
            .unwrap()
        };
        let ended = status(serde_json::json!({"terminated": {"exitCode": 139, "reason": "Error"}}));
        metrics.status_changes(&status(serde_json::json!({"running": {}})), &ended);
        metrics.status_changes(&ended, &ended);
        let line = "kubelet_terminated_containers_total{container_type=\"container\",exit_code=\"139\",reason=\"Error\"} 1";
        let mut page = Exposition::default();
        metrics.show_starts(&mut page);
        let page = page.finish();
        assert!(page.contains(line), "{page}");
    }

    #[test]
    fn probes_are_counted_by_result_until_they_end() {
        let metrics = Metrics::default();
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.namespace = Some("a".to_owned());
        pod.metadata.uid = Some("u".to_owned());
        let took = Duration::from_millis(3);
        for answer in [Answer::Ok, Answer::Failed("no".to_owned()), Answer::Ok] {
            metrics.probed(&pod, "c", ProbeKind::Liveness, &answer, took);
        }
        let shown = || {
            let mut page = Exposition::default();
            metrics.show_probes(&mut page);
            page.finish()
        };
        let expected = r#"prober_probe_total{probe_type="Liveness",result="successful",container="c",pod="p",namespace="a",pod_uid="u"} 2"#;
        assert!(shown().contains(expected), "{}", shown());
        assert!(shown().contains("prober_probe_duration_seconds_count"));
        metrics.probe_ended(&pod, "c", ProbeKind::Liveness);
        assert!(!shown().contains("namespace="), "{}", shown());
    }
}
