//! A KubeletConfiguration that changed while the kubelet runs: some fields take effect at once, the
//! others at the next start.

use serde_json::Value;

use super::KubeletConfiguration;

/// Fields that take effect at the next start.
const AT_START: &[&str] = &[
    "address",
    "authentication",
    "authorization",
    "cgroupDriver",
    "cgroupRoot",
    "clusterDNS",
    "clusterDomain",
    "containerRuntimeEndpoint",
    "enableServer",
    "eventBurst",
    "eventRecordQPS",
    "failCgroupV1",
    "failSwapOn",
    "featureGates",
    "healthzBindAddress",
    "healthzPort",
    "imageServiceEndpoint",
    "maxOpenFiles",
    "oomScoreAdj",
    "podLogsDir",
    "port",
    "protectKernelDefaults",
    "providerID",
    "registerNode",
    "registerWithTaints",
    "resolvConf",
    "runtimeRequestTimeout",
    "staticPodPath",
];

/// The effect of a changed file on a running kubelet.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The configuration from now on.
    pub effective: KubeletConfiguration,
    /// Fields that changed and are in effect.
    pub changed: Vec<String>,
    /// Fields that changed and need a restart.
    pub waiting: Vec<String>,
}

/// Merges the fields that can change now into the current configuration.
pub fn reload(current: &KubeletConfiguration, wanted: &KubeletConfiguration) -> Change {
    let map = |configuration: &KubeletConfiguration| {
        serde_json::to_value(configuration).unwrap_or_default()
    };
    let (old, mut new) = (map(current), map(wanted));
    let (mut changed, mut waiting) = (Vec::new(), Vec::new());
    if let (Value::Object(old), Value::Object(new)) = (&old, &mut new) {
        let mut names: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
        names.sort();
        names.dedup();
        names.retain(|name| old.get(name) != new.get(name));
        for name in names {
            if AT_START.contains(&name.as_str()) {
                match old.get(&name) {
                    Some(value) => new.insert(name.clone(), value.clone()),
                    None => new.remove(&name),
                };
                waiting.push(name);
            } else {
                changed.push(name);
            }
        }
    }
    Change {
        effective: serde_json::from_value(new).unwrap_or_else(|_| current.clone()),
        changed,
        waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloadable_fields_take_effect_and_others_wait_for_a_restart() {
        let current = KubeletConfiguration {
            max_parallel_image_pulls: Some(2),
            ..KubeletConfiguration::default().complete()
        };
        let wanted = KubeletConfiguration {
            max_pods: 5,
            port: 1,
            max_parallel_image_pulls: None,
            eviction_hard: [("memory.available".to_owned(), "1Gi".to_owned())].into(),
            ..current.clone()
        };
        let change = reload(&current, &wanted);
        assert_eq!(
            change.changed,
            ["evictionHard", "maxParallelImagePulls", "maxPods"]
        );
        assert_eq!(change.waiting, ["port"]);
        let expected = KubeletConfiguration {
            port: current.port,
            ..wanted
        };
        assert_eq!(change.effective, expected);
        assert!(reload(&current, &current).changed.is_empty());
    }

    #[test]
    fn every_name_is_a_field() {
        let all = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        for name in AT_START {
            assert!(all.get(name).is_some(), "{name}");
        }
    }
}
