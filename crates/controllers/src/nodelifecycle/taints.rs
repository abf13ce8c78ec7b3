//! The taints that follow from a node's conditions. Pure.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use reconcile::condition;

use super::health::{conditions, ready};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// The taints of a node as they are.
pub(super) fn current(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
    taints.unwrap_or_default()
}

/// The NoSchedule taints that follow from conditions and `spec.unschedulable`, and the taints of
/// other writers. NoExecute taints are not added here, since their rate is limited
/// ([`super::zones`]); but an existing one follows the condition at once: it is removed when the
/// node is ready, and changes between not-ready and unreachable.
pub(super) fn desired(node: &Node, now: Timestamp) -> Vec<Taint> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    let key = match ready(node).map(|ready| ready.status.as_str()) {
        Some("True") => None,
        Some("Unknown") => Some(UNREACHABLE),
        // A new node without conditions: no new pods, but no eviction.
        Some(_) | None => Some(NOT_READY),
    };
    if let Some(key) = key {
        wanted.push((key, "NoSchedule"));
        if ready(node).is_some() && is_evicting(node) {
            wanted.push((key, "NoExecute"));
        }
    }
    for (kind, key) in PRESSURES {
        if condition::find(conditions(node), kind).is_some_and(|known| known.status == "True") {
            wanted.push((key, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    replace(node, is_ours, &wanted, now)
}

/// The taints with NoExecute for a node that is not ready; `None` if it has it, or is ready.
pub(super) fn with_eviction(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let key = match ready(node)?.status.as_str() {
        "True" => return None,
        "Unknown" => UNREACHABLE,
        _ => NOT_READY,
    };
    let taints = replace(node, is_eviction, &[(key, "NoExecute")], now);
    (taints != current(node)).then_some(taints)
}

/// The taints without this controller's NoExecute taints; `None` if there is none.
pub(super) fn without_eviction(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    is_evicting(node).then(|| replace(node, is_eviction, &[], now))
}

/// Whether the node has a NoExecute taint because it is not ready.
pub(super) fn is_evicting(node: &Node) -> bool {
    current(node).iter().any(is_eviction)
}

fn is_eviction(taint: &Taint) -> bool {
    taint.effect == "NoExecute" && (taint.key == NOT_READY || taint.key == UNREACHABLE)
}

fn is_ours(taint: &Taint) -> bool {
    let by_condition = [NOT_READY, UNREACHABLE, UNSCHEDULABLE].contains(&taint.key.as_str())
        || PRESSURES.iter().any(|(_, key)| *key == taint.key);
    is_eviction(taint) || (by_condition && taint.effect == "NoSchedule")
}

fn replace(
    node: &Node,
    is_ours: impl Fn(&Taint) -> bool,
    wanted: &[(&str, &str)],
    now: Timestamp,
) -> Vec<Taint> {
    let is =
        |taint: &Taint, (key, effect): (&str, &str)| taint.key == key && taint.effect == effect;
    let mut taints = current(node);
    taints.retain(|taint| !is_ours(taint) || wanted.iter().any(|wanted| is(taint, *wanted)));
    for (key, effect) in wanted.iter().copied() {
        if !taints.iter().any(|taint| is(taint, (key, effect))) {
            taints.push(Taint {
                key: key.into(),
                effect: effect.into(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{nodelifecycle::samples::node, pods::samples::at};

    fn shown(taints: &[Taint]) -> Vec<String> {
        let short = |key: &str| key.trim_start_matches("node.kubernetes.io/").to_owned();
        let shown = taints.iter();
        shown
            .map(|taint| format!("{}:{}", short(&taint.key), taint.effect))
            .collect()
    }

    #[test]
    fn conditions_become_taints_and_the_taints_of_others_stay() {
        let desired = |node: &Node| shown(&desired(node, at(1)));
        let own = ("gpu", "NoSchedule");
        let well = node(
            &[("Ready", "True")],
            &[own, (NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
        );
        assert_eq!(desired(&well), ["gpu:NoSchedule"]);
        let sick = node(&[("Ready", "False"), ("DiskPressure", "True")], &[own]);
        assert_eq!(
            desired(&sick),
            [
                "gpu:NoSchedule",
                "not-ready:NoSchedule",
                "disk-pressure:NoSchedule"
            ]
        );
        assert_eq!(desired(&node(&[], &[])), ["not-ready:NoSchedule"]);
        let foreign = node(
            &[("Ready", "True")],
            &[("node.kubernetes.io/disk-pressure", "NoExecute")],
        );
        assert_eq!(desired(&foreign), ["disk-pressure:NoExecute"]);
    }

    #[test]
    fn a_taint_that_evicts_follows_the_condition_at_once_and_is_added_only_when_asked_for() {
        let lost = node(&[("Ready", "Unknown")], &[(NOT_READY, "NoExecute")]);
        assert_eq!(
            shown(&desired(&lost, at(1))),
            ["unreachable:NoSchedule", "unreachable:NoExecute"]
        );
        let fresh = node(&[("Ready", "Unknown")], &[]);
        assert_eq!(shown(&desired(&fresh, at(1))), ["unreachable:NoSchedule"]);
        let tainted = with_eviction(&fresh, at(1)).unwrap();
        assert_eq!(shown(&tainted), ["unreachable:NoExecute"]);
        assert!(with_eviction(&node(&[("Ready", "True")], &[]), at(1)).is_none());
        let done = node(&[("Ready", "False")], &[(NOT_READY, "NoExecute")]);
        assert!(with_eviction(&done, at(1)).is_none());
        assert!(without_eviction(&done, at(1)).unwrap().is_empty());
        assert!(without_eviction(&fresh, at(1)).is_none());
    }
}
