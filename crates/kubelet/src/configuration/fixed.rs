//! Fields of upstream's type that have only one value here: any other value would have no effect
//! and is rejected. Fields without effect in upstream's kubelet on Linux are accepted with any
//! value.

use serde_json::{Value, json};

/// The values that a field accepts.
enum Accepts {
    /// Only the value that is in effect anyway.
    Only(fn() -> Vec<Value>),
    /// Any value: the field has no effect in upstream's kubelet on Linux, or concerns only its
    /// implementation.
    Any,
}

use Accepts::{Any, Only};

const UNSUPPORTED: &str = "is not supported by this node";

/// Name, accepted values, and why others are rejected.
const FIELDS: &[(&str, Accepts, &str)] = &[
    (
        "cgroupsPerQOS",
        Only(yes),
        "pods always have cgroups by class",
    ),
    (
        "configMapAndSecretChangeDetectionStrategy",
        Only(|| words(&["Watch"])),
        "objects are watched",
    ),
    ("containerLogMaxWorkers", Any, ""),
    ("contentType", Any, ""),
    ("cpuManagerPolicy", Only(|| words(&["none"])), UNSUPPORTED),
    ("cpuManagerPolicyOptions", Only(nothing), UNSUPPORTED),
    ("cpuManagerReconcilePeriod", Any, ""),
    (
        "enableContentionProfiling",
        Only(no),
        "there is no Go profile",
    ),
    (
        "enableControllerAttachDetach",
        Only(yes),
        "the controller attaches volumes",
    ),
    ("enableDebugFlagsHandler", Any, ""),
    ("enableProfilingHandler", Any, ""),
    // Files and pods are watched, not polled.
    ("fileCheckFrequency", Any, ""),
    ("hairpinMode", Any, ""),
    ("httpCheckFrequency", Any, ""),
    (
        "imagePullCredentialsVerificationPolicy",
        Only(|| words(&["NeverVerifyPreloadedImages"])),
        UNSUPPORTED,
    ),
    ("iptablesDropBit", Any, ""),
    ("iptablesMasqueradeBit", Any, ""),
    // Kernel notifications are always used, beside frequent polling.
    ("kernelMemcgNotification", Any, ""),
    ("kubeAPIBurst", Any, ""),
    ("kubeAPIQPS", Any, ""),
    ("kubeletCgroups", Only(nothing), UNSUPPORTED),
    ("logging", Only(logging), "logs are text"),
    ("makeIPTablesUtilChains", Any, ""),
    (
        "memoryManagerPolicy",
        Only(|| words(&["None"])),
        UNSUPPORTED,
    ),
    (
        "memoryReservationPolicy",
        Only(|| words(&["None"])),
        UNSUPPORTED,
    ),
    // Has an effect only with the feature gate MemoryQoS, which is off.
    ("memoryThrottlingFactor", Any, ""),
    ("memorySwap", Only(swap), UNSUPPORTED),
    // Only for a standalone kubelet.
    ("podCIDR", Any, ""),
    (
        "preloadedImagesVerificationAllowlist",
        Only(nothing),
        UNSUPPORTED,
    ),
    (
        "qosReserved",
        Only(nothing),
        "requires the feature gate QOSReserved",
    ),
    (
        "readOnlyPort",
        Only(|| vec![json!(0)]),
        "requests without credentials are always refused",
    ),
    ("reservedMemory", Only(nothing), UNSUPPORTED),
    ("reservedSystemCPUs", Only(nothing), UNSUPPORTED),
    (
        "rotateCertificates",
        Only(yes),
        "certificates are always rotated",
    ),
    (
        "runOnce",
        Only(no),
        "has been deprecated and should not be set",
    ),
    (
        "serverTLSBootstrap",
        Only(yes),
        "the serving certificate is always the cluster's",
    ),
    (
        "showHiddenMetricsForVersion",
        Only(nothing),
        "there are no hidden metrics",
    ),
    ("staticPodURL", Only(nothing), UNSUPPORTED),
    ("staticPodURLHeader", Only(nothing), UNSUPPORTED),
    ("syncFrequency", Any, ""),
    ("systemCgroups", Only(nothing), UNSUPPORTED),
    (
        "tlsCertFile",
        Only(nothing),
        "the serving certificate is always the cluster's",
    ),
    ("tlsCipherSuites", Only(nothing), UNSUPPORTED),
    ("tlsCurvePreferences", Only(nothing), UNSUPPORTED),
    (
        "tlsMinVersion",
        Only(|| words(&["", "VersionTLS12"])),
        UNSUPPORTED,
    ),
    (
        "tlsPrivateKeyFile",
        Only(nothing),
        "the serving certificate is always the cluster's",
    ),
    (
        "topologyManagerPolicy",
        Only(|| words(&["none"])),
        UNSUPPORTED,
    ),
    ("topologyManagerPolicyOptions", Only(nothing), UNSUPPORTED),
    (
        "topologyManagerScope",
        Only(|| words(&["container"])),
        UNSUPPORTED,
    ),
    ("tracing", Only(nothing), UNSUPPORTED),
    ("userNamespaces", Only(nothing), UNSUPPORTED),
    (
        "volumePluginDir",
        Only(|| words(&["", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"])),
        "FlexVolume is not supported by this node",
    ),
    // How often volumes are measured depends on how long it takes.
    ("volumeStatsAggPeriod", Any, ""),
];

fn words(words: &[&str]) -> Vec<Value> {
    words.iter().map(|word| json!(word)).collect()
}

fn yes() -> Vec<Value> {
    vec![json!(true)]
}

fn no() -> Vec<Value> {
    vec![json!(false)]
}

/// The empty value of every type.
fn nothing() -> Vec<Value> {
    vec![json!(""), json!([]), json!({})]
}

fn swap() -> Vec<Value> {
    vec![
        json!({}),
        json!({"swapBehavior": ""}),
        json!({"swapBehavior": "NoSwap"}),
    ]
}

/// The values that kubeadm writes, and the default.
fn logging() -> Vec<Value> {
    let json_options = json!({"json": {"infoBufferSize": "0"}});
    vec![
        json!({}),
        json!({"format": "text"}),
        json!({"flushFrequency": 0, "options": json_options, "verbosity": 0}),
        json!({"flushFrequency": 0, "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}}, "verbosity": 0}),
    ]
}

/// The field names, for suggestions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FIELDS.iter().map(|(name, _, _)| *name)
}

/// `None` if it is not one of these fields; an error if its value is not accepted.
pub(super) fn check(name: &str, value: &Value) -> Option<Result<(), String>> {
    let (_, accepts, why) = FIELDS.iter().find(|(known, _, _)| *known == name)?;
    let fits = match accepts {
        Any => true,
        Only(values) => value.is_null() || values().contains(value),
    };
    Some(if fits {
        Ok(())
    } else {
        Err(format!("{name} cannot be {value}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_refused_unless_they_hold_anyway() {
        let of = |name: &str, value: Value| check(name, &value).unwrap();
        for (name, value) in [
            ("cpuManagerPolicy", json!("none")),
            ("reservedSystemCPUs", json!("")),
            ("hairpinMode", json!("hairpin-veth")),
            ("memorySwap", json!({})),
            (
                "logging",
                json!({"flushFrequency": 0, "options": {"json": {"infoBufferSize": "0"}}, "verbosity": 0}),
            ),
        ] {
            assert_eq!(of(name, value), Ok(()), "{name}");
        }
        for (name, value, expected) in [
            (
                "cpuManagerPolicy",
                json!("static"),
                "\"static\": is not supported by this node",
            ),
            ("readOnlyPort", json!(10255), "without credentials"),
            (
                "memorySwap",
                json!({"swapBehavior": "LimitedSwap"}),
                "not supported",
            ),
        ] {
            let reported = of(name, value).unwrap_err();
            assert!(
                reported.starts_with(name) && reported.contains(expected),
                "{reported}"
            );
        }
        assert!(check("maxPods", &json!(1)).is_none());
    }
}
