//! Validates a KubeletConfiguration, field by field.

use std::time::Duration;

use super::{KubeletConfiguration, gates};
use crate::make::cgroups::Driver;

impl KubeletConfiguration {
    /// All errors, by field.
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
        found.extend(self.server_problems());
        found.extend(self.restart_and_pull_problems());
        found.extend(self.shutdown_problems());
        found.extend(self.limit_problems());
        found.extend(gates::problems(&self.feature_gates));
        found.extend(self.reservation_problems());
        if let Err(problem) = self.thresholds() {
            found.push(problem);
        }
        found
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
        found.extend(self.enforcement_problems());
        found
    }

    fn enforcement_problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let list = &self.enforce_node_allocatable;
        for (index, name) in list.iter().enumerate() {
            let cgroup = match name.as_str() {
                "pods" => None,
                "system-reserved" | "system-reserved-compressible" => {
                    Some(("systemReservedCgroup", &self.system_reserved_cgroup))
                }
                "kube-reserved" | "kube-reserved-compressible" => {
                    Some(("kubeReservedCgroup", &self.kube_reserved_cgroup))
                }
                "none" if list.len() > 1 => {
                    found.push(
                        "enforceNodeAllocatable may not contain additional enforcements when \"none\" is specified"
                            .into(),
                    );
                    None
                }
                "none" => None,
                _ => {
                    found.push(format!("enforceNodeAllocatable: {name:?} is not one of pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible and none"));
                    None
                }
            };
            if let Some((field, "")) = cgroup.map(|(field, path)| (field, path.as_str())) {
                found.push(format!(
                    "{field} must be specified when {name:?} is in enforceNodeAllocatable"
                ));
            }
            if list[..index].contains(name) {
                found.push(format!(
                    "enforceNodeAllocatable: {name:?} is specified twice"
                ));
            }
        }
        for name in ["system-reserved", "kube-reserved"] {
            if self.enforces(name) && self.enforces(&format!("{name}-compressible")) {
                found.push(format!("enforceNodeAllocatable: \"{name}\" and \"{name}-compressible\" cannot be specified together"));
            }
        }
        found
    }

    fn server_problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |ok: bool, message: String| {
            if !ok {
                found.push(message);
            }
        };
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
        found
    }

    fn shutdown_problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let (all, critical) = (
            self.shutdown_grace_period,
            self.shutdown_grace_period_critical_pods,
        );
        if critical > all {
            found.push(format!(
                "shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {all}"
            ));
        }
        for (name, period) in [
            ("shutdownGracePeriod", all),
            ("shutdownGracePeriodCriticalPods", critical),
        ] {
            if !period.0.is_zero() && period.0 < Duration::from_secs(1) {
                found.push(format!(
                    "{name} {period} must be either zero or otherwise >= 1 sec"
                ));
            }
        }
        let by_priority = !self.shutdown_grace_period_by_pod_priority.is_empty();
        if by_priority && !(all.0.is_zero() && critical.0.is_zero()) {
            found.push(
                "shutdownGracePeriodByPodPriority and shutdownGracePeriod cannot be specified at the same time"
                    .into(),
            );
        }
        found
    }

    fn limit_problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let period = self.cpu_cfs_quota_period.0;
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period) {
            found.push(format!(
                "cpuCFSQuotaPeriod {} must be between 1ms and 1sec, inclusive",
                self.cpu_cfs_quota_period
            ));
        }
        if Driver::named(&self.cgroup_driver).is_none() {
            found.push(format!(
                "cgroupDriver must be cgroupfs or systemd, not {:?}",
                self.cgroup_driver
            ));
        }
        if !(-1000..=1000).contains(&self.oom_score_adj) {
            found.push(format!(
                "oomScoreAdj {} must be between -1000 and 1000, inclusive",
                self.oom_score_adj
            ));
        }
        for (name, value) in [
            ("eventRecordQPS", i64::from(self.event_record_qps)),
            ("eventBurst", i64::from(self.event_burst)),
            ("maxOpenFiles", self.max_open_files),
        ] {
            if value < 0 {
                found.push(format!("{name} {value} must not be a negative number"));
            }
        }
        if !(1..=65_535).contains(&self.port) {
            found.push(format!(
                "port {} must be between 1 and 65535, inclusive",
                self.port
            ));
        }
        if self.address.parse::<std::net::IpAddr>().is_err() {
            found.push(format!(
                "address must be an address, not {:?}",
                self.address
            ));
        }
        for address in &self.cluster_dns {
            if address.parse::<std::net::IpAddr>().is_err() {
                found.push(format!("clusterDNS must be addresses, not {address:?}"));
            }
        }
        if self.node_status_max_images < -1 {
            found.push(format!(
                "nodeStatusMaxImages {} must be -1 or greater",
                self.node_status_max_images
            ));
        }
        let (oldest, youngest) = (self.image_maximum_gc_age.0, self.image_minimum_gc_age.0);
        if !oldest.is_zero() && oldest <= youngest {
            found.push(format!(
                "imageMaximumGCAge {} must be greater than imageMinimumGCAge {}",
                self.image_maximum_gc_age, self.image_minimum_gc_age
            ));
        }
        if self.container_log_monitor_interval.0 < Duration::from_secs(3) {
            found.push("containerLogMonitorInterval must be a positive time duration greater than or equal to 3s".into());
        }
        for endpoint in [
            &self.container_runtime_endpoint,
            &self.image_service_endpoint,
        ] {
            if !endpoint.is_empty() && endpoint.parse::<cri::Endpoint>().is_err() {
                found.push(format!(
                    "{endpoint:?} is not a runtime endpoint: expected unix:///path/to/socket"
                ));
            }
        }
        found
    }
}
