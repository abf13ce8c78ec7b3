//! Where a pod's containers live among the cgroups: below its class, so that classes can be weighed
//! against each other.

use k8s_openapi::api::core::v1::Pod;

use crate::pod::spec::{self, QosClass};

/// The parent of everything, below the cluster's root.
pub fn kubepods(root: &str) -> String {
    format!("{}/kubepods", root.trim_end_matches('/'))
}

/// A class's cgroup.
pub fn class(root: &str, class: QosClass) -> String {
    match class {
        QosClass::Guaranteed => kubepods(root),
        QosClass::Burstable => format!("{}/burstable", kubepods(root)),
        QosClass::BestEffort => format!("{}/besteffort", kubepods(root)),
    }
}

/// A pod's cgroup; none without a root.
pub fn pod(root: &str, pod: &Pod) -> String {
    if root.is_empty() {
        return String::new();
    }
    pod_of_class(root, spec::qos_class(pod), spec::uid(pod))
}

/// The cgroup of a pod of this class.
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
