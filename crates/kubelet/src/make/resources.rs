//! Requests and limits as the kernel's numbers.

use cri::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Container, Pod};
use volume::quantity;

use crate::{
    admit,
    pod::spec::{self, QosClass},
};

const PERIOD: i64 = 100_000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA: i64 = 1_000;

/// The weight of a cpu request.
pub fn shares(milli: i64) -> i64 {
    if milli == 0 {
        MIN_SHARES
    } else {
        (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
    }
}

/// The quota of a cpu limit, per period.
pub fn quota(milli: i64) -> i64 {
    if milli == 0 {
        0
    } else {
        (milli.saturating_mul(PERIOD) / 1000).max(MIN_QUOTA)
    }
}

fn amount(container: &Container, list: &str, resource: &str) -> Option<i64> {
    let resources = container.resources.as_ref()?;
    let list = if list == "limits" {
        &resources.limits
    } else {
        &resources.requests
    };
    let quantity = list.as_ref()?.get(resource)?;
    if resource == "cpu" {
        quantity::milli(quantity)
    } else {
        quantity::value(quantity)
    }
}

/// What the pod says for all of its containers together.
fn amount_of_pod(pod: &Pod, list: &str, resource: &str) -> Option<i64> {
    let whole = Container {
        resources: spec::spec(pod).resources.clone(),
        ..Default::default()
    };
    amount(&whole, list, resource)
}

/// What a container gets. One without limits of its own is held to its pod's.
pub fn of_container(pod: &Pod, container: &Container, node_memory: i64) -> LinuxContainerResources {
    let limit = |resource| {
        let own = amount(container, "limits", resource).filter(|amount| *amount > 0);
        own.or_else(|| amount_of_pod(pod, "limits", resource))
            .unwrap_or(0)
    };
    let memory_limit = limit("memory");
    let limit = limit("cpu");
    let request = amount(container, "requests", "cpu").unwrap_or(limit);
    LinuxContainerResources {
        cpu_period: PERIOD,
        cpu_quota: quota(limit),
        cpu_shares: shares(request),
        memory_limit_in_bytes: memory_limit,
        oom_score_adj: oom_score(pod, container, node_memory),
        ..Default::default()
    }
}

/// The part of a container's resources that can change while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub memory: i64,
}

impl From<&LinuxContainerResources> for Bounds {
    fn from(resources: &LinuxContainerResources) -> Self {
        Self {
            cpu_shares: resources.cpu_shares,
            cpu_quota: resources.cpu_quota.max(0),
            memory: resources.memory_limit_in_bytes.max(0),
        }
    }
}

impl Bounds {
    /// What the spec asks for.
    pub fn wanted(pod: &Pod, container: &Container) -> Self {
        Self::from(&of_container(pod, container, 1))
    }

    /// The cpu request that these shares stand for, in thousandths.
    pub fn cpu_request(&self) -> i64 {
        (self.cpu_shares * 1000 + 1023) / 1024
    }

    /// The cpu limit that this quota stands for, in thousandths.
    pub fn cpu_limit(&self) -> i64 {
        self.cpu_quota.saturating_mul(1000) / PERIOD
    }
}

/// Who dies first when memory runs out: the less is requested, the earlier.
pub fn oom_score(pod: &Pod, container: &Container, node_memory: i64) -> i64 {
    const CRITICAL: i32 = 2_000_000_000;
    if spec::spec(pod)
        .priority
        .is_some_and(|priority| priority >= CRITICAL)
    {
        return -997;
    }
    match spec::qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = amount(container, "requests", "memory").unwrap_or(0);
            let score = 1000 - request.saturating_mul(1000) / node_memory.max(1);
            score.clamp(3, 999)
        }
    }
}

/// The bounds of the whole pod's cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodBounds {
    pub cpu_shares: i64,
    /// Per period of 100 ms.
    pub cpu_quota: Option<i64>,
    pub memory: Option<i64>,
}

/// What the pod says itself, or the sums of its containers; then a bound exists only when every
/// container has one. Init containers count by their maximum, sidecars with everything after them.
pub fn of_pod(pod: &Pod) -> PodBounds {
    let total = |list: &str, resource: &str| -> (i64, bool) {
        if let Some(own) = amount_of_pod(pod, list, resource) {
            return (own, true);
        }
        let mut complete = true;
        let mut of = |container: &Container| {
            let found = amount(container, list, resource).filter(|amount| *amount > 0);
            complete &= found.is_some();
            found.unwrap_or(0)
        };
        let mains = admit::sum(spec::spec(pod).containers.iter().map(&mut of));
        let (mut sidecars, mut peak) = (0i64, 0);
        for container in spec::init_containers(pod) {
            let own = of(container);
            if spec::is_sidecar(container) {
                sidecars = sidecars.saturating_add(own);
            } else {
                peak = peak.max(sidecars.saturating_add(own));
            }
        }
        (mains.saturating_add(sidecars).max(peak), complete)
    };
    let (request, _) = total("requests", "cpu");
    let bound = |resource| match total("limits", resource) {
        (sum, true) if sum > 0 => Some(sum),
        _ => None,
    };
    PodBounds {
        cpu_shares: shares(request),
        cpu_quota: bound("cpu").map(quota),
        memory: bound("memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(resources: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": {"containers": [
            {"name": "a", "resources": resources}]}}))
        .unwrap()
    }

    #[test]
    fn requests_become_shares_and_limits_become_quotas() {
        let pod = pod(
            serde_json::json!({"requests": {"cpu": "250m", "memory": "1Gi"},
            "limits": {"cpu": "500m", "memory": "2Gi"}}),
        );
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let made = of_container(&pod, container, 4 << 30);
        assert_eq!(
            (made.cpu_shares, made.cpu_quota, made.cpu_period),
            (256, 50_000, 100_000)
        );
        assert_eq!(made.memory_limit_in_bytes, 2 << 30);
        assert_eq!(made.oom_score_adj, 750);
        let bounds = PodBounds {
            cpu_shares: 256,
            cpu_quota: Some(50_000),
            memory: Some(2 << 30),
        };
        assert_eq!(of_pod(&pod), bounds);
    }

    #[test]
    fn what_the_pod_says_itself_holds_for_it_and_for_containers_without_limits() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [{"name": "a", "resources": {"limits": {"memory": "64Mi"}}}, {"name": "b"}]}}))
        .unwrap();
        let bounds = PodBounds {
            cpu_shares: 1024,
            cpu_quota: Some(200_000),
            memory: Some(1 << 30),
        };
        assert_eq!(of_pod(&pod), bounds);
        let of = |index: usize| {
            let container = &pod.spec.as_ref().unwrap().containers[index];
            let made = of_container(&pod, container, 1 << 33);
            (made.cpu_quota, made.memory_limit_in_bytes)
        };
        assert_eq!(of(0), (200_000, 64 << 20));
        assert_eq!(of(1), (200_000, 1 << 30));
    }

    #[test]
    fn a_limit_alone_is_also_the_request_and_nothing_is_the_least() {
        let pod1 = pod(serde_json::json!({"limits": {"cpu": "2"}}));
        let made = of_container(&pod1, &pod1.spec.as_ref().unwrap().containers[0], 1);
        assert_eq!(made.cpu_shares, 2048);
        let pod2 = pod(serde_json::json!({}));
        let made = of_container(&pod2, &pod2.spec.as_ref().unwrap().containers[0], 1);
        assert_eq!(
            (made.cpu_shares, made.cpu_quota, made.oom_score_adj),
            (2, 0, 1000)
        );
        assert_eq!(
            of_pod(&pod2),
            PodBounds {
                cpu_shares: 2,
                cpu_quota: None,
                memory: None
            }
        );
    }

    #[test]
    fn amounts_beyond_every_machine_do_not_overflow() {
        let half = (i64::MAX / 2 + (1 << 40)).to_string();
        let giant = serde_json::json!({"cpu": half, "memory": half});
        let resources = serde_json::json!({"requests": giant, "limits": giant});
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [
            {"name": "a", "resources": resources}, {"name": "b", "resources": resources}]}}))
        .unwrap();
        let bounds = of_pod(&pod);
        assert_eq!(
            (bounds.cpu_shares, bounds.memory),
            (MAX_SHARES, Some(i64::MAX))
        );
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let made = of_container(&pod, container, 1 << 30);
        assert!(made.cpu_quota > 0 && made.memory_limit_in_bytes > 0);
        assert_eq!(admit::request(&pod, "memory"), i64::MAX);
        assert!(Bounds::from(&made).cpu_limit() > 0);
    }
}
