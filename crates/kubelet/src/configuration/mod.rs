//! KubeletConfiguration v1beta1, with upstream's field names and defaults. [`load`] reads it.
//!
//! Only fields with an effect are here. Other fields of upstream's type are accepted only with the
//! value that is in effect anyway ([`fixed`]); unknown fields are rejected.

mod duration;
mod fixed;
mod gates;
mod load;
mod machine;
mod parts;
mod reload;
mod validate;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

pub use duration::GoDuration;
use k8s_openapi::api::core::v1::Taint;
pub use load::{Loaded, Sources, load};
pub use machine::check as check_machine;
pub use parts::*;
pub use reload::{Change, reload};
use serde::{Deserialize, Serialize};

use crate::{
    eviction::thresholds::{self, Threshold},
    make::resources::CfsQuota,
};

/// Upstream's apiVersion.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Upstream's kind.
pub const KIND: &str = "KubeletConfiguration";

/// The default limit of processes and threads per pod. Upstream's default is no limit; a fork bomb
/// in one pod would then stop all others.
const POD_PIDS_LIMIT: i64 = 16_384;

/// A kubelet's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeletConfiguration {
    pub kind: String,
    pub api_version: String,
    /// Whether the kubelet serves its API at all.
    pub enable_server: bool,
    /// A directory of static pod manifests; empty: none.
    pub static_pod_path: String,
    /// The address on which the kubelet serves.
    pub address: String,
    pub port: i32,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub register_node: bool,
    /// The directory of containers' logs; empty: below the data directory.
    pub pod_logs_dir: String,
    pub healthz_port: i32,
    pub healthz_bind_address: String,
    /// `oom_score_adj` of this process.
    pub oom_score_adj: i32,
    /// The limit of open files of this process; 0: unchanged.
    pub max_open_files: i64,
    /// The cluster domain; empty: the cluster's default.
    pub cluster_domain: String,
    /// DNS servers; empty: the cluster's.
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    /// Whether exec, attach, port-forward, logs and the like are served.
    pub enable_debugging_handlers: bool,
    pub streaming_connection_idle_timeout: GoDuration,
    /// Events per second; 0: unlimited.
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    pub event_burst: i32,
    pub authentication: Authentication,
    pub authorization: Authorization,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    pub node_status_max_images: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub max_pods: i32,
    pub pods_per_core: i32,
    /// Whether cpu limits are enforced (CFS quota), and the period.
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    /// The cgroup of all pods; empty: one made for this cluster.
    pub cgroup_root: String,
    /// `cgroupfs` or `systemd`: of the built-in runtime, and of others that do not report theirs.
    pub cgroup_driver: String,
    /// Empty: the built-in runtime.
    pub container_runtime_endpoint: String,
    /// Empty: the runtime's endpoint.
    pub image_service_endpoint: String,
    /// The timeout of calls to the runtime.
    pub runtime_request_timeout: GoDuration,
    /// Whether the kubelet refuses to start with swap on, with cgroup v1, or with sysctls other
    /// than Kubernetes expects.
    pub fail_swap_on: bool,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    pub protect_kernel_defaults: bool,
    /// Whether only the largest process of a container is killed when its memory ends; unset: with cgroup v1 only.
    #[serde(
        rename = "singleProcessOOMKill",
        skip_serializing_if = "Option::is_none"
    )]
    pub single_process_oom_kill: Option<bool>,
    /// The limit of processes and threads per pod; -1: only the node's limit.
    pub pod_pids_limit: i64,
    /// The resolv.conf that pods inherit; empty: the machine's.
    pub resolv_conf: String,
    pub eviction_hard: BTreeMap<String, String>,
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: GoDuration,
    pub eviction_max_pod_grace_period: i32,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub merge_default_eviction_settings: bool,
    pub container_log_max_size: String,
    pub container_log_max_files: i32,
    pub container_log_monitor_interval: GoDuration,
    pub system_reserved: BTreeMap<String, String>,
    pub kube_reserved: BTreeMap<String, String>,
    pub system_reserved_cgroup: String,
    pub kube_reserved_cgroup: String,
    pub enforce_node_allocatable: Vec<String>,
    /// How long a node shutdown waits for the pods; 0: not at all.
    pub shutdown_grace_period: GoDuration,
    /// The part of `shutdownGracePeriod` that is kept for critical pods.
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Whether containers without a seccomp profile get RuntimeDefault.
    pub seccomp_default: bool,
    pub crash_loop_back_off: CrashLoopBackOff,
    /// Off by default, and pulls are not limited; upstream's kubelet pulls images one at a time and limits pulls per second.
    pub serialize_image_pulls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel_image_pulls: Option<i32>,
    /// Image pulls per second; 0: unlimited.
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    pub register_with_taints: Vec<Taint>,
    pub enable_system_log_handler: bool,
    pub enable_system_log_query: bool,
    pub local_storage_capacity_isolation: bool,
    pub feature_gates: BTreeMap<String, bool>,
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        let secs = GoDuration::from_secs;
        Self {
            kind: KIND.into(),
            api_version: API_VERSION.into(),
            enable_server: true,
            static_pod_path: String::new(),
            address: "0.0.0.0".into(),
            port: 10250,
            provider_id: String::new(),
            register_node: true,
            pod_logs_dir: String::new(),
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".into(),
            oom_score_adj: -999,
            max_open_files: 0,
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            enable_debugging_handlers: true,
            streaming_connection_idle_timeout: secs(4 * 3600),
            event_record_qps: 50,
            event_burst: 100,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            // The default of the report frequency depends on the update frequency.
            node_status_update_frequency: secs(0),
            node_status_report_frequency: secs(0),
            node_lease_duration_seconds: 40,
            node_status_max_images: 50,
            image_minimum_gc_age: secs(120),
            image_maximum_gc_age: secs(0),
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            max_pods: 110,
            pods_per_core: 0,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: GoDuration(Duration::from_millis(100)),
            cgroup_root: String::new(),
            cgroup_driver: "cgroupfs".into(),
            container_runtime_endpoint: String::new(),
            image_service_endpoint: String::new(),
            runtime_request_timeout: secs(120),
            // Upstream's kubelet refuses to start with either by default.
            fail_swap_on: false,
            fail_cgroup_v1: false,
            protect_kernel_defaults: false,
            single_process_oom_kill: None,
            pod_pids_limit: POD_PIDS_LIMIT,
            resolv_conf: String::new(),
            eviction_hard: BTreeMap::new(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_pressure_transition_period: secs(300),
            eviction_max_pod_grace_period: 0,
            eviction_minimum_reclaim: BTreeMap::new(),
            merge_default_eviction_settings: false,
            container_log_max_size: "10Mi".into(),
            container_log_max_files: 5,
            container_log_monitor_interval: secs(10),
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            system_reserved_cgroup: String::new(),
            kube_reserved_cgroup: String::new(),
            enforce_node_allocatable: vec!["pods".into()],
            shutdown_grace_period: secs(0),
            shutdown_grace_period_critical_pods: secs(0),
            shutdown_grace_period_by_pod_priority: Vec::new(),
            allowed_unsafe_sysctls: Vec::new(),
            seccomp_default: false,
            crash_loop_back_off: CrashLoopBackOff::default(),
            serialize_image_pulls: false,
            max_parallel_image_pulls: None,
            registry_pull_qps: 0,
            registry_burst: 10,
            register_with_taints: Vec::new(),
            enable_system_log_handler: true,
            enable_system_log_query: false,
            local_storage_capacity_isolation: true,
            feature_gates: BTreeMap::new(),
        }
    }
}

/// Upstream's default thresholds.
pub const DEFAULT_EVICTION_HARD: &[(&str, &str)] = &[
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

impl KubeletConfiguration {
    /// Fills in defaults that depend on other fields.
    pub fn complete(mut self) -> Self {
        let none = self.eviction_hard.is_empty();
        if none || self.merge_default_eviction_settings {
            for (signal, value) in DEFAULT_EVICTION_HARD {
                self.eviction_hard
                    .entry((*signal).to_owned())
                    .or_insert_with(|| (*value).to_owned());
            }
        }
        if self.pod_pids_limit < 0 {
            self.pod_pids_limit = -1;
        }
        self.fill_in_zeros();
        self
    }

    /// Replaces zero by the default in fields where zero has no meaning.
    fn fill_in_zeros(&mut self) {
        if self.node_status_report_frequency.0.is_zero() {
            self.node_status_report_frequency = match self.node_status_update_frequency {
                GoDuration(Duration::ZERO) => GoDuration::from_secs(300),
                looked => looked,
            };
        }
        let usual = Self::default();
        let (webhook, decisions) = (
            &mut self.authentication.webhook,
            &mut self.authorization.webhook,
        );
        let durations = [
            (
                &mut self.node_status_update_frequency,
                GoDuration::from_secs(10),
            ),
            (&mut self.image_minimum_gc_age, usual.image_minimum_gc_age),
            (
                &mut self.eviction_pressure_transition_period,
                usual.eviction_pressure_transition_period,
            ),
            (
                &mut self.runtime_request_timeout,
                usual.runtime_request_timeout,
            ),
            (
                &mut self.streaming_connection_idle_timeout,
                usual.streaming_connection_idle_timeout,
            ),
            (
                &mut webhook.cache_ttl,
                usual.authentication.webhook.cache_ttl,
            ),
            (
                &mut decisions.cache_authorized_ttl,
                usual.authorization.webhook.cache_authorized_ttl,
            ),
            (
                &mut decisions.cache_unauthorized_ttl,
                usual.authorization.webhook.cache_unauthorized_ttl,
            ),
        ];
        for (value, usual) in durations {
            if value.0.is_zero() {
                *value = usual;
            }
        }
        let numbers = [
            (&mut self.port, usual.port),
            (&mut self.event_burst, usual.event_burst),
            (&mut self.registry_burst, usual.registry_burst),
            (&mut self.max_pods, usual.max_pods),
            (
                &mut self.node_lease_duration_seconds,
                usual.node_lease_duration_seconds,
            ),
        ];
        for (value, usual) in numbers {
            if *value == 0 {
                *value = usual;
            }
        }
        let texts = [
            (&mut self.address, usual.address),
            (&mut self.healthz_bind_address, usual.healthz_bind_address),
            (
                &mut self.container_log_max_size,
                usual.container_log_max_size,
            ),
            (&mut self.authorization.mode, usual.authorization.mode),
            (&mut self.cgroup_driver, usual.cgroup_driver),
        ];
        for (value, usual) in texts {
            if value.is_empty() {
                *value = usual;
            }
        }
    }

    /// Whether `enforceNodeAllocatable` contains `name`, such as `pods` or `system-reserved`.
    pub fn enforces(&self, name: &str) -> bool {
        let mut all = self.enforce_node_allocatable.iter();
        all.any(|enforced| enforced == name)
    }

    /// The CRI socket for images, if it is another than the runtime's.
    pub fn image_socket(&self) -> Option<PathBuf> {
        let endpoint: cri::Endpoint = self.image_service_endpoint.parse().ok()?;
        Some(endpoint.path().to_owned())
    }

    /// The CFS quota settings.
    pub fn cfs_quota(&self) -> CfsQuota {
        CfsQuota {
            enforced: self.cpu_cfs_quota,
            period: i64::try_from(self.cpu_cfs_quota_period.0.as_micros()).unwrap_or(100_000),
        }
    }

    /// The maximum delay between two restarts of a container.
    pub fn longest_restart_delay(&self) -> Duration {
        self.crash_loop_back_off.max_container_restart_period.0
    }

    /// The thresholds at which pods are evicted.
    pub fn thresholds(&self) -> Result<Vec<Threshold>, String> {
        thresholds::parse(
            &self.eviction_hard,
            &self.eviction_soft,
            &self.eviction_soft_grace_period,
            &self.eviction_minimum_reclaim,
        )
    }

    /// The size at which a log is rotated.
    pub fn log_max_bytes(&self) -> Option<u64> {
        let quantity: machinery::quantity::Quantity = self.container_log_max_size.parse().ok()?;
        u64::try_from(quantity.value()).ok()
    }

    /// The sum of system and Kubernetes reservations of a resource.
    pub fn reserved(&self, resource: &str) -> machinery::quantity::Quantity {
        let of = |list: &BTreeMap<String, String>| {
            list.get(resource)
                .and_then(|amount| amount.parse().ok())
                .unwrap_or(machinery::quantity::Quantity::ZERO)
        };
        of(&self.system_reserved).plus(of(&self.kube_reserved))
    }

    /// The maximum number of pods on a machine with this many CPUs.
    pub fn pod_capacity(&self, cpus: usize) -> u32 {
        let max = u32::try_from(self.max_pods).unwrap_or(0);
        match u32::try_from(self.pods_per_core) {
            Ok(0) | Err(_) => max,
            Ok(per_core) => max.min(per_core.saturating_mul(u32::try_from(cpus).unwrap_or(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_have_upstreams_thresholds() {
        let config = KubeletConfiguration::default().complete();
        assert_eq!(config.problems(), [""; 0]);
        assert_eq!(config.eviction_hard["memory.available"], "100Mi");
        assert_eq!(config.eviction_hard.len(), 5);
        let mut one = KubeletConfiguration {
            eviction_hard: [("memory.available".to_owned(), "1Gi".to_owned())].into(),
            ..Default::default()
        };
        assert_eq!(one.clone().complete().eviction_hard.len(), 1);
        one.merge_default_eviction_settings = true;
        let merged = one.complete();
        assert_eq!(merged.eviction_hard.len(), 5);
        assert_eq!(merged.eviction_hard["memory.available"], "1Gi");
    }

    #[test]
    fn invalid_configuration_values_are_reported_with_their_field() {
        let config = KubeletConfiguration {
            container_log_max_files: 1,
            image_gc_low_threshold_percent: 90,
            eviction_soft: [("memory.available".to_owned(), "1Gi".to_owned())].into(),
            kube_reserved: [("cpus".to_owned(), "1".to_owned())].into(),
            ..KubeletConfiguration::default()
        };
        let problems = config.problems().join("\n");
        for field in [
            "containerLogMaxFiles",
            "imageGCLow",
            "kubeReserved[cpus]",
            "memory.available",
        ] {
            assert!(problems.contains(field), "{field} in {problems}");
        }
    }

    #[test]
    fn pods_are_limited_by_processors_too() {
        let config = KubeletConfiguration {
            pods_per_core: 10,
            ..KubeletConfiguration::default()
        };
        assert_eq!(config.pod_capacity(2), 20);
        assert_eq!(config.pod_capacity(100), 110);
    }

    #[test]
    fn zero_values_mean_the_default() {
        let zeros = KubeletConfiguration {
            max_pods: 0,
            port: 0,
            image_minimum_gc_age: GoDuration::default(),
            eviction_pressure_transition_period: GoDuration::default(),
            ..KubeletConfiguration::default()
        };
        let complete = KubeletConfiguration::default().complete();
        assert_eq!(zeros.complete(), complete);
        assert_eq!(
            complete.node_status_report_frequency,
            GoDuration::from_secs(300)
        );
        let often = KubeletConfiguration {
            node_status_update_frequency: GoDuration::from_secs(4),
            ..KubeletConfiguration::default()
        };
        assert_eq!(
            often.complete().node_status_report_frequency,
            GoDuration::from_secs(4)
        );
    }

    #[test]
    fn enforcements_need_their_cgroups_and_exclude_each_other() {
        let of = |names: &[&str], cgroup: &str| {
            let config = KubeletConfiguration {
                enforce_node_allocatable: names.iter().map(ToString::to_string).collect(),
                kube_reserved_cgroup: cgroup.to_owned(),
                ..KubeletConfiguration::default().complete()
            };
            config.problems().join("; ")
        };
        assert_eq!(of(&["pods", "kube-reserved"], "/kube"), "");
        for (names, cgroup, expected) in [
            (
                &["pods", "kube-reserved"][..],
                "",
                "kubeReservedCgroup must be",
            ),
            (
                &["kube-reserved", "kube-reserved-compressible"],
                "/k",
                "together",
            ),
            (&["none", "pods"], "", "additional"),
            (&["pods", "pods"], "", "twice"),
            (&["nodes"], "", "is not one of"),
        ] {
            let reported = of(names, cgroup);
            assert!(reported.contains(expected), "{names:?}: {reported}");
        }
    }
}
