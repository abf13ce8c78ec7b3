//! Whether this node takes a pod at all: a pod bound by hand may not fit, and some kernel settings
//! are not for pods to change. A refused pod fails; its owner makes another.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity};
use volume::quantity;

use crate::pod::spec;

/// Settings that are a pod's own and cannot harm others.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Why a pod is refused: reason and message as in its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: String,
    pub message: String,
}

/// Decides about a pod beside the others that are here.
pub fn admit(
    pod: &Pod,
    others: &[&Pod],
    allocatable: &BTreeMap<String, Quantity>,
    node_labels: &BTreeMap<String, String>,
) -> Result<(), Refusal> {
    check_sysctls(pod)?;
    check_selector(pod, node_labels)?;
    match shortage(pod, others, allocatable) {
        Some(short) => Err(Refusal {
            reason: format!("OutOf{}", short.resource),
            message: format!(
                "Pod was rejected: Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
                short.resource, short.requested, short.used, short.capacity
            ),
        }),
        None => Ok(()),
    }
}

fn check_sysctls(pod: &Pod) -> Result<(), Refusal> {
    let context = spec::spec(pod).security_context.as_ref();
    let sysctls = context
        .into_iter()
        .flat_map(|context| context.sysctls.iter().flatten());
    for sysctl in sysctls {
        let name = sysctl.name.replace('/', ".");
        if !SAFE_SYSCTLS.contains(&name.as_str()) {
            let message = format!("forbidden sysctl: {:?} not allowlisted", sysctl.name);
            return Err(Refusal {
                reason: "SysctlForbidden".into(),
                message,
            });
        }
    }
    Ok(())
}

fn check_selector(pod: &Pod, labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let selector = spec::spec(pod).node_selector.iter().flatten();
    if selector
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
    {
        return Ok(());
    }
    let message = "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    Err(Refusal {
        reason: "NodeAffinity".into(),
        message: message.into(),
    })
}

/// The resource that does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    pub resource: &'static str,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

/// The first resource of which there is not enough for the pod beside the others.
pub fn shortage(
    pod: &Pod,
    others: &[&Pod],
    allocatable: &BTreeMap<String, Quantity>,
) -> Option<Shortage> {
    let amount = |resource: &str, quantity: &Quantity| {
        if resource == "cpu" {
            quantity::milli(quantity)
        } else {
            quantity::value(quantity)
        }
    };
    for resource in ["pods", "cpu", "memory", "ephemeral-storage"] {
        let of = |pod: &Pod| {
            if resource == "pods" {
                1
            } else {
                request(pod, resource)
            }
        };
        let capacity = allocatable
            .get(resource)
            .and_then(|quantity| amount(resource, quantity));
        let Some(capacity) = capacity else { continue };
        let used: i64 = others.iter().map(|pod| of(pod)).sum();
        let requested = of(pod);
        if requested > 0 && requested + used > capacity {
            return Some(Shortage {
                resource,
                requested,
                used,
                capacity,
            });
        }
    }
    None
}

/// What a pod asks for: its containers with its sidecars, or its largest init container.
pub fn request(pod: &Pod, resource: &str) -> i64 {
    let of = |container: &k8s_openapi::api::core::v1::Container| {
        let requests = container
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref());
        let found = requests.and_then(|requests| requests.get(resource));
        let parse = if resource == "cpu" {
            quantity::milli
        } else {
            quantity::value
        };
        found.and_then(parse).unwrap_or(0)
    };
    let mains: i64 = spec::spec(pod).containers.iter().map(of).sum();
    let (mut sidecars, mut peak) = (0, 0);
    for container in spec::init_containers(pod) {
        if spec::is_sidecar(container) {
            sidecars += of(container);
        } else {
            peak = peak.max(sidecars + of(container));
        }
    }
    (mains + sidecars).max(peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": spec})).unwrap()
    }

    fn asking(cpu: &str) -> Pod {
        pod(
            serde_json::json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}),
        )
    }

    fn allocatable() -> BTreeMap<String, Quantity> {
        let list = [("cpu", "2"), ("memory", "1Gi"), ("pods", "2")];
        list.map(|(name, text)| (name.to_owned(), Quantity(text.into())))
            .into()
    }

    #[test]
    fn a_pod_that_does_not_fit_is_refused_with_the_figures() {
        let labels = BTreeMap::new();
        let (small, large) = (asking("500m"), asking("1600m"));
        assert_eq!(
            admit(&small, &[&large], &allocatable(), &labels)
                .err()
                .map(|r| r.reason),
            Some("OutOfcpu".into())
        );
        let refusal = admit(&large, &[&small], &allocatable(), &labels).unwrap_err();
        assert_eq!(
            refusal.message,
            "Pod was rejected: Node didn't have enough resource: cpu, \
            requested: 1600, used: 500, capacity: 2000"
        );
        assert!(admit(&small, &[&small], &allocatable(), &labels).is_ok());
        let full = admit(&small, &[&small, &small], &allocatable(), &labels).unwrap_err();
        assert_eq!(full.reason, "OutOfpods");
    }

    #[test]
    fn unsafe_sysctls_and_other_nodes_pods_are_refused() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let with = |name: &str| {
            pod(serde_json::json!({"containers": [], "securityContext":
            {"sysctls": [{"name": name, "value": "1"}]}}))
        };
        let refuse = |pod: &Pod| {
            admit(pod, &[], &allocatable(), &labels)
                .err()
                .map(|r| r.reason)
        };
        assert_eq!(refuse(&with("kernel.shm_rmid_forced")), None);
        assert_eq!(
            refuse(&with("kernel.msgmax")),
            Some("SysctlForbidden".into())
        );
        let there =
            |zone: &str| pod(serde_json::json!({"containers": [], "nodeSelector": {"zone": zone}}));
        assert_eq!(refuse(&there("a")), None);
        assert_eq!(refuse(&there("b")), Some("NodeAffinity".into()));
    }
}
