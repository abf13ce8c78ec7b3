//! The rules that nodes are chosen by, one file each. A plugin may take nodes away, compare those
//! that are left, and say which changes could help a pod that it turned away.

pub mod balanced_allocation;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources;
pub mod node_unschedulable;
pub mod taint_toleration;
pub mod topology_spread;

use crate::{
    candidates::Candidates,
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

/// The best score that a plugin can give.
pub const BEST: i64 = 100;

/// Something that happened and that may make room for a waiting pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A node came.
    NodeAdded,
    /// A node can hold more.
    NodeAllocatable,
    /// A node's labels changed.
    NodeLabels,
    /// A node's taints or cordon changed.
    NodeTaints,
    /// A pod left its node, or asks for less.
    PodGone,
    /// A pod was placed, or a placed pod's labels changed.
    PodPlaced,
    /// The waiting pod itself, or a namespace, changed.
    PodUpdated,
}

/// A rule.
pub trait Plugin: Send + Sync {
    /// As in diagnoses.
    fn name(&self) -> &'static str;

    /// Takes away the candidates that cannot hold the pod.
    fn filter(&self, _pod: &PodInfo, _cluster: &Cluster, _candidates: &mut Candidates) {}

    /// Adds scores from 0 to [`BEST`] for the nodes; whoever has no opinion adds nothing.
    fn score(&self, _pod: &PodInfo, _cluster: &Cluster, _nodes: &[Slot]) -> Option<Vec<i64>> {
        None
    }

    /// How much its scores count.
    fn weight(&self) -> i64 {
        1
    }

    /// Whether a change could help a pod that this plugin turned away.
    fn helped_by(&self, change: Change) -> bool;
}

/// Every rule, in the order in which they are asked: cheap ones and those that turn away most first.
pub static ALL: &[&dyn Plugin] = &[
    &node_unschedulable::NodeUnschedulable,
    &node_name::NodeName,
    &taint_toleration::TaintToleration,
    &node_affinity::NodeAffinity,
    &node_ports::NodePorts,
    &node_resources::NodeResourcesFit,
    &topology_spread::PodTopologySpread,
    &inter_pod_affinity::InterPodAffinity,
    &balanced_allocation::BalancedAllocation,
    &image_locality::ImageLocality,
];

/// Stretches scores so that the highest becomes [`BEST`]; `reverse` makes few the best.
pub(crate) fn normalise(mut scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let highest = scores.iter().copied().max().unwrap_or(0);
    for score in &mut scores {
        let stretched = if highest > 0 {
            *score * BEST / highest
        } else {
            0
        };
        *score = if reverse { BEST - stretched } else { stretched };
    }
    scores
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::samples;

    #[test]
    fn every_plugin_has_its_own_name_and_takes_nothing_from_a_pod_that_asks_for_nothing() {
        let names: BTreeSet<_> = ALL.iter().map(|plugin| plugin.name()).collect();
        assert_eq!(names.len(), ALL.len());
        let cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
        let pod = samples::pod("a", "0", "0");
        for plugin in ALL {
            let mut candidates = Candidates::all(&cluster);
            plugin.filter(&pod, &cluster, &mut candidates);
            assert_eq!(candidates.slots().len(), 2, "{}", plugin.name());
            let scores = plugin
                .score(&pod, &cluster, candidates.slots())
                .unwrap_or_default();
            let fair = scores.iter().all(|score| (0..=BEST).contains(score));
            assert!(fair, "{}: {scores:?}", plugin.name());
        }
    }
}
