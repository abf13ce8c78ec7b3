//! KubeletConfiguration v1beta1: what a node may be told in a file, under upstream's names and with
//! upstream's defaults. [`load`] reads it.
//!
//! Only what takes effect is here. Other fields of upstream's type are known by name: they are
//! accepted with a warning ([`load::WITHOUT_EFFECT`]), and unknown ones are refused.

mod duration;
mod load;

use std::{collections::BTreeMap, time::Duration};

pub use duration::GoDuration;
use k8s_openapi::api::core::v1::Taint;
pub use load::{Loaded, load};
use serde::{Deserialize, Serialize};

use crate::eviction::thresholds::{self, Threshold};

/// Upstream's group and version.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Upstream's kind.
pub const KIND: &str = "KubeletConfiguration";

/// How many processes and threads a pod may have if nothing is said. Upstream's default is the whole
/// node; one pod that forks without end would then stop all others.
const POD_PIDS_LIMIT: i64 = 16_384;

/// A kubelet's settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeletConfiguration {
    pub kind: String,
    pub api_version: String,
    /// A directory with manifests of static pods; empty: none.
    pub static_pod_path: String,
    /// Where containers' logs are; empty: below the data directory.
    pub pod_logs_dir: String,
    pub healthz_port: i32,
    pub healthz_bind_address: String,
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
    pub volume_stats_agg_period: GoDuration,
    pub max_pods: i32,
    pub pods_per_core: i32,
    /// Processes and threads of one pod; -1: only the node's limit.
    pub pod_pids_limit: i64,
    /// The resolver configuration that pods inherit; empty: the machine's own.
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
    pub enforce_node_allocatable: Vec<String>,
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Containers that name no seccomp profile get the runtime's.
    pub seccomp_default: bool,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub serialize_image_pulls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel_image_pulls: Option<i32>,
    /// Pulls in a second; 0: as many as there are.
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    pub register_with_taints: Vec<Taint>,
    pub enable_system_log_handler: bool,
    pub local_storage_capacity_isolation: bool,
    pub feature_gates: BTreeMap<String, bool>,
}

/// How requests to the kubelet are authenticated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
pub struct Authentication {
    pub anonymous: Anonymous,
    pub webhook: AuthenticationWebhook,
}

/// Requests without credentials.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Anonymous {
    pub enabled: bool,
}

/// Bearer tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthenticationWebhook {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

impl Default for AuthenticationWebhook {
    fn default() -> Self {
        Self {
            enabled: true,
            cache_ttl: GoDuration::from_secs(120),
        }
    }
}

/// How long containers that crash wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CrashLoopBackOff {
    /// The longest delay between two restarts.
    pub max_container_restart_period: GoDuration,
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self {
            max_container_restart_period: GoDuration::from_secs(300),
        }
    }
}

/// How requests to the kubelet are authorized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Authorization {
    pub mode: String,
    pub webhook: AuthorizationWebhook,
}

impl Default for Authorization {
    fn default() -> Self {
        Self {
            mode: "Webhook".into(),
            webhook: AuthorizationWebhook::default(),
        }
    }
}

/// How long the API server's decisions count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

impl Default for AuthorizationWebhook {
    fn default() -> Self {
        Self {
            cache_authorized_ttl: GoDuration::from_secs(300),
            cache_unauthorized_ttl: GoDuration::from_secs(30),
        }
    }
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        let secs = GoDuration::from_secs;
        Self {
            kind: KIND.into(),
            api_version: API_VERSION.into(),
            static_pod_path: String::new(),
            pod_logs_dir: String::new(),
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".into(),
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            node_status_update_frequency: secs(10),
            node_status_report_frequency: secs(300),
            node_lease_duration_seconds: 40,
            node_status_max_images: 50,
            image_minimum_gc_age: secs(120),
            image_maximum_gc_age: secs(0),
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            volume_stats_agg_period: secs(60),
            max_pods: 110,
            pods_per_core: 0,
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
            enforce_node_allocatable: vec!["pods".into()],
            allowed_unsafe_sysctls: Vec::new(),
            seccomp_default: false,
            crash_loop_back_off: CrashLoopBackOff::default(),
            // Upstream's kubelet pulls one image after the other and few in a second; the runtime inside shares
            // what is under way.
            serialize_image_pulls: false,
            max_parallel_image_pulls: None,
            registry_pull_qps: 0,
            registry_burst: 10,
            register_with_taints: Vec::new(),
            enable_system_log_handler: true,
            local_storage_capacity_isolation: true,
            feature_gates: BTreeMap::new(),
        }
    }
}

/// Upstream's thresholds where the file names none.
pub const DEFAULT_EVICTION_HARD: &[(&str, &str)] = &[
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

impl KubeletConfiguration {
    /// Fills in what depends on other fields.
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
        self
    }

    /// Everything that is wrong with it, by field.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |ok: bool, message: String| {
            if !ok {
                found.push(message);
            }
        };
        let percent = 0..=100;
        let (high, low) = (
            self.image_gc_high_threshold_percent,
            self.image_gc_low_threshold_percent,
        );
        check(
            percent.contains(&high),
            format!("imageGCHighThresholdPercent must be between 0 and 100, not {high}"),
        );
        check(
            percent.contains(&low) && low < high,
            format!(
                "imageGCLowThresholdPercent must be less than imageGCHighThresholdPercent, not {low}"
            ),
        );
        check(
            self.container_log_max_files > 1,
            format!(
                "containerLogMaxFiles must be greater than 1, not {}",
                self.container_log_max_files
            ),
        );
        check(
            self.log_max_bytes().is_some_and(|bytes| bytes > 0),
            format!(
                "containerLogMaxSize must be a positive quantity, not {:?}",
                self.container_log_max_size
            ),
        );
        check(self.max_pods >= 0, "maxPods must not be negative".into());
        check(
            self.pods_per_core >= 0,
            "podsPerCore must not be negative".into(),
        );
        check(
            self.pod_pids_limit != 0,
            "podPidsLimit must not be zero: no process could start".into(),
        );
        check(
            self.node_lease_duration_seconds > 0,
            "nodeLeaseDurationSeconds must be greater than 0".into(),
        );
        check(
            (0..=65_535).contains(&self.healthz_port),
            format!("healthzPort must be a port, not {}", self.healthz_port),
        );
        check(
            self.healthz_bind_address
                .parse::<std::net::IpAddr>()
                .is_ok(),
            format!(
                "healthzBindAddress must be an address, not {:?}",
                self.healthz_bind_address
            ),
        );
        check(
            !self.authentication.anonymous.enabled,
            "authentication.anonymous.enabled: anonymous requests are always refused".into(),
        );
        check(
            self.authorization.mode == "Webhook",
            format!(
                "authorization.mode must be Webhook, not {:?}",
                self.authorization.mode
            ),
        );
        found.extend(self.restart_and_pull_problems());
        found.extend(self.reservation_problems());
        if let Err(problem) = self.thresholds() {
            found.push(problem);
        }
        found
    }

    /// The longest delay between two restarts of a container.
    pub fn longest_restart_delay(&self) -> Duration {
        self.crash_loop_back_off.max_container_restart_period.0
    }

    fn restart_and_pull_problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let longest = self.longest_restart_delay();
        if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&longest) {
            found.push(format!(
                "crashLoopBackOff.maxContainerRestartPeriod must be between 1s and 300s, not {}",
                self.crash_loop_back_off.max_container_restart_period
            ));
        }
        if let Some(pulls) = self.max_parallel_image_pulls {
            if pulls < 1 {
                found.push(format!(
                    "maxParallelImagePulls must be greater than 0, not {pulls}"
                ));
            }
            if self.serialize_image_pulls && pulls > 1 {
                found.push(
                    "maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls is false"
                        .into(),
                );
            }
        }
        for (name, value) in [
            ("registryPullQPS", self.registry_pull_qps),
            ("registryBurst", self.registry_burst),
        ] {
            if value < 0 {
                found.push(format!("{name} must not be negative, but {value}"));
            }
        }
        found
    }

    fn reservation_problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (field, list) in [
            ("systemReserved", &self.system_reserved),
            ("kubeReserved", &self.kube_reserved),
        ] {
            for (resource, amount) in list {
                let known =
                    ["cpu", "memory", "ephemeral-storage", "pid"].contains(&resource.as_str());
                let good = amount
                    .parse::<machinery::quantity::Quantity>()
                    .is_ok_and(|quantity| !quantity.is_negative());
                if !known || !good {
                    found.push(format!(
                        "{field}[{resource}]: {amount:?} is not a reservation"
                    ));
                }
            }
        }
        for name in &self.enforce_node_allocatable {
            if !matches!(name.as_str(), "pods" | "none") {
                found.push(format!(
                    "enforceNodeAllocatable: {name:?} is not supported, only pods and none"
                ));
            }
        }
        found
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

    /// The size at which a log is set aside.
    pub fn log_max_bytes(&self) -> Option<u64> {
        let quantity: machinery::quantity::Quantity = self.container_log_max_size.parse().ok()?;
        u64::try_from(quantity.value()).ok()
    }

    /// What is kept back of a resource, in its own unit.
    pub fn reserved(&self, resource: &str) -> machinery::quantity::Quantity {
        let of = |list: &BTreeMap<String, String>| {
            list.get(resource)
                .and_then(|amount| amount.parse().ok())
                .unwrap_or(machinery::quantity::Quantity::ZERO)
        };
        of(&self.system_reserved).plus(of(&self.kube_reserved))
    }

    /// How many pods fit, given the machine's processors.
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
    fn nonsense_is_named_by_field() {
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
}
