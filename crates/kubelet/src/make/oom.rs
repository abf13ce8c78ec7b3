//! `oom_score_adj` of containers: the less memory a container requests, the earlier the OOM killer
//! picks it.

use k8s_openapi::api::core::v1::{Container, Pod};
use reconcile::pod_resources::{Field, from_spec};

use super::resources::{amount, amount_of_pod};
use crate::{
    admit,
    pod::spec::{self, QosClass},
};

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;
/// The priority class of pods that the node needs.
const NODE_CRITICAL: &str = "system-node-critical";

/// `oom_score_adj` of a container.
pub fn score(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    let class = spec::spec(pod).priority_class_name.as_deref();
    if class == Some(NODE_CRITICAL) && spec::is_critical(pod) {
        return GUARANTEED;
    }
    match spec::qos_class(pod) {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable(pod, container, node_memory),
    }
}

fn burstable(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    let request = |container: &Container| amount(container, "requests", "memory").unwrap_or(0);
    let mut counted = request(container);
    let sidecar = |other: &Container| other.name == container.name && spec::is_sidecar(other);
    if spec::init_containers(pod).iter().any(sidecar) {
        // A sidecar's score is at most that of the container with the smallest request.
        let mains = spec::spec(pod).containers.iter().map(request);
        counted = counted.max(mains.min().unwrap_or(0));
    }
    let counted = counted.saturating_add(unassigned(pod));
    let score = BEST_EFFORT - counted.saturating_mul(1000) / node_memory.max(1);
    score.clamp(BEST_EFFORT + GUARANTEED, BEST_EFFORT - 1)
}

/// Each container's share of the pod-level memory request beyond the containers' requests.
fn unassigned(pod: &Pod) -> i64 {
    let Some(whole) = amount_of_pod(pod, "requests", "memory").filter(|whole| *whole > 0) else {
        return 0;
    };
    let containers = spec::init_containers(pod).len() + spec::spec(pod).containers.len();
    let requested = from_spec(Field::Requests, pod).containers_total();
    let rest = whole.saturating_sub(admit::units(&requested, "memory"));
    rest / i64::try_from(containers).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_follow_class_requests_and_priority() {
        let memory = |amount: &str| serde_json::json!({"requests": {"memory": amount}});
        let plain = |name: &str, amount: &str| serde_json::json!({"name": name, "resources": memory(amount)});
        let sidecar = serde_json::json!({"name": "a", "restartPolicy": "Always"});
        let cases = [
            (serde_json::json!({"containers": [{"name": "a"}]}), 1000),
            (serde_json::json!({"containers": [plain("a", "1Gi")]}), 750),
            (serde_json::json!({"containers": [plain("a", "1")]}), 999),
            (serde_json::json!({"containers": [plain("a", "9Gi")]}), 3),
            // Two containers share the pod-level request beyond their own.
            (
                serde_json::json!({"resources": memory("3Gi"), "containers": [plain("a", "1Gi"), {"name": "b"}]}),
                500,
            ),
            // A sidecar counts like the container with the smallest request.
            (
                serde_json::json!({"initContainers": [sidecar], "containers": [plain("b", "1Gi"), plain("c", "2Gi")]}),
                750,
            ),
            (
                serde_json::json!({"priority": 2_000_001_000, "priorityClassName": "system-node-critical",
                "containers": [{"name": "a"}]}),
                -997,
            ),
            (
                serde_json::json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical",
                "containers": [{"name": "a"}]}),
                1000,
            ),
        ];
        for (spec, expected) in cases {
            let pod = serde_json::json!({ "spec": spec });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let (_, container) = spec::find(&pod, "a").unwrap();
            assert_eq!(score(&pod, &container, 4 << 30), expected, "{spec}");
        }
    }
}
