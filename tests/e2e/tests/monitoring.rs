//! Prometheus metrics: those that kube-prometheus' rules and Grafana's Kubernetes dashboards use
//! exist under upstream's names. Without those of programs that do not run here (node_*, kube_*,
//! go_*, grpc_*).

use e2e::{busybox_archive, ready_pods};
use serde_json::json;
use testkit::{Cluster, eventually};

/// Of the API server, with the scheduler and the controllers in the same process.
const CONTROL_PLANE: &[&str] = &[
    "apiserver_request_total",
    "apiserver_request_duration_seconds_bucket",
    "apiserver_request_sli_duration_seconds_bucket",
    "apiserver_current_inflight_requests",
    "apiserver_admission_controller_admission_duration_seconds_bucket",
    "apiserver_admission_step_admission_duration_seconds_bucket",
    "apiserver_storage_objects",
    "etcd_request_duration_seconds_bucket",
    "workqueue_adds_total",
    "workqueue_depth",
    "workqueue_queue_duration_seconds_bucket",
    "workqueue_work_duration_seconds_bucket",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds_bucket",
    "scheduler_schedule_attempts_total",
    "scheduler_scheduling_attempt_duration_seconds_bucket",
    "scheduler_scheduling_algorithm_duration_seconds_bucket",
    "scheduler_pod_scheduling_sli_duration_seconds_bucket",
    "scheduler_pending_pods",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
];

const KUBELET: &[&str] = &[
    "kubelet_node_name",
    "kubelet_running_pods",
    "kubelet_running_containers",
    "kubelet_runtime_operations_total",
    "kubelet_runtime_operations_duration_seconds_bucket",
    "kubelet_pod_start_duration_seconds_bucket",
    "kubelet_pod_start_duration_seconds_count",
    "kubelet_pod_worker_duration_seconds_bucket",
    "kubelet_pod_worker_duration_seconds_count",
    "kubelet_pod_worker_start_duration_seconds_bucket",
    "kubelet_cgroup_manager_duration_seconds_bucket",
    "kubelet_pleg_relist_duration_seconds_bucket",
    "kubelet_pleg_relist_interval_seconds_bucket",
    "kubelet_pleg_last_seen_seconds",
    "kubelet_started_pods_total",
    "kubelet_started_containers_total",
    "kubelet_certificate_manager_client_ttl_seconds",
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_certificate_manager_server_ttl_seconds",
    "kubelet_server_expiration_renew_errors",
    "kubelet_volume_stats_available_bytes",
    "kubelet_volume_stats_capacity_bytes",
    "kubelet_volume_stats_inodes",
    "kubelet_volume_stats_inodes_free",
    "kubelet_volume_stats_inodes_used",
    "storage_operation_duration_seconds_count",
    "storage_operation_duration_seconds_bucket",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds_bucket",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
    "kubernetes_build_info",
];

const CADVISOR: &[&str] = &[
    "container_cpu_usage_seconds_total",
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_memory_working_set_bytes",
    "container_memory_rss",
    "container_memory_cache",
    "container_memory_swap",
    "container_network_receive_bytes_total",
    "container_network_receive_packets_total",
    "container_network_receive_packets_dropped_total",
    "container_network_transmit_bytes_total",
    "container_network_transmit_packets_total",
    "container_network_transmit_packets_dropped_total",
    "container_start_time_seconds",
    "machine_memory_bytes",
    "machine_cpu_cores",
];

const RESOURCE: &[&str] = &[
    "node_cpu_usage_seconds_total",
    "node_memory_working_set_bytes",
    "container_cpu_usage_seconds_total",
    "container_memory_working_set_bytes",
    "container_start_time_seconds",
    "pod_cpu_usage_seconds_total",
    "pod_memory_working_set_bytes",
    "resource_scrape_error",
];

const PROBES: &[&str] = &["prober_probe_total", "prober_probe_duration_seconds_bucket"];

const PROXY: &[&str] = &[
    "kubeproxy_sync_proxy_rules_duration_seconds_bucket",
    "kubeproxy_sync_proxy_rules_duration_seconds_count",
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
];

const DNS: &[&str] = &[
    "coredns_dns_requests_total",
    "coredns_dns_responses_total",
    "coredns_dns_request_duration_seconds_bucket",
    "coredns_cache_hits_total",
    "coredns_cache_misses_total",
    "coredns_cache_entries",
];

/// The names without a sample in a page.
fn missing<'a>(page: &str, names: &[&'a str]) -> Vec<&'a str> {
    let is_there = |name: &str| {
        let mut lines = page.lines();
        lines.any(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
    };
    names
        .iter()
        .copied()
        .filter(|name| !is_there(name))
        .collect()
}

fn objects() -> String {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    });
    let container = json!({
        "name": "app", "image": "local.test/busybox:1", "imagePullPolicy": "Never",
        "command": ["/bin/busybox", "sh", "-c",
            "/bin/busybox nslookup kubernetes.default; exec /bin/busybox sleep 10000"],
        "resources": {"limits": {"cpu": "200m"}},
        "readinessProbe": {"exec": {"command": ["/bin/busybox", "true"]}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/scratch"}, {"name": "data", "mountPath": "/data"},
        ],
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "app", "labels": {"app": "app"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            ],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [claim, pod]}).to_string()
}

#[test]
fn the_metrics_that_rules_and_dashboards_read_are_there() {
    let cluster = Cluster::up();
    let archive = busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    let created = cluster.kubectl_stdin(&["create", "-f", "-"], &objects());
    created.success();
    ready_pods(&cluster, "app=app", 1);
    let raw = |path: &str| cluster.kubectl(&["get", "--raw", path]).success();
    let node = |path: &str| raw(&format!("/api/v1/nodes/one/proxy{path}"));
    let address = cluster.machine().address().to_owned();
    let fetch = |url: &str| cluster.machine().run("curl", &["-s", url]).success();
    // Some exist only after the second list of containers or the first volume statistics.
    eventually("all metrics", || {
        let pages = [
            ("the control plane", raw("/metrics"), CONTROL_PLANE),
            ("the kubelet", node("/metrics"), KUBELET),
            ("cadvisor", node("/metrics/cadvisor"), CADVISOR),
            ("resource", node("/metrics/resource"), RESOURCE),
            ("probes", node("/metrics/probes"), PROBES),
            ("the proxy", fetch("http://127.0.0.1:10249/metrics"), PROXY),
            ("DNS", fetch(&format!("http://{address}:9153/metrics")), DNS),
        ];
        let lacking: Vec<_> = pages
            .iter()
            .map(|(name, page, names)| (name, missing(page, names)))
            .filter(|(_, missing)| !missing.is_empty())
            .collect();
        match lacking.is_empty() {
            true => Ok(()),
            false => Err(format!("{lacking:?}")),
        }
    });
}
