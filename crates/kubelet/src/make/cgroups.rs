//! The paths of pods' cgroups: each is below its QoS class, so that classes can be weighted against
//! each other.

use k8s_openapi::api::core::v1::Pod;

use crate::pod::spec::{self, QosClass};

/// The parent of all pods' cgroups.
pub fn kubepods(root: &str) -> String {
    format!("{}/kubepods", root.trim_end_matches('/'))
}

/// The cgroup of a QoS class.
pub fn class(root: &str, class: QosClass) -> String {
    match class {
        QosClass::Guaranteed => kubepods(root),
        QosClass::Burstable => format!("{}/burstable", kubepods(root)),
        QosClass::BestEffort => format!("{}/besteffort", kubepods(root)),
    }
}

/// A pod's cgroup; empty without a cgroup root.
pub fn pod(root: &str, pod: &Pod) -> String {
    if root.is_empty() {
        return String::new();
    }
    pod_of_class(root, spec::qos_class(pod), spec::uid(pod))
}

/// The cgroup of a pod of this QoS class.
pub fn pod_of_class(root: &str, of: QosClass, uid: &str) -> String {
    format!("{}/pod{uid}", class(root, of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_lives_below_its_class() {
        let made: Pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": "u1"},
            "spec": {"containers": [{"name": "a"}]}}))
        .unwrap();
        assert_eq!(
            pod("/mainstay-1", &made),
            "/mainstay-1/kubepods/besteffort/podu1"
        );
    }
}
