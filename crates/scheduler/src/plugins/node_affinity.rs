//! Node selector and node affinity: required ones turn nodes away, preferred ones add up.

use reconcile::placement::{matches_node, matches_term};

use super::{Change, Plugin, normalise};
use crate::{
    candidates::Candidates,
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

/// The rule.
pub struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let spec = pod.spec();
        if spec.node_selector.is_none() && spec.affinity.is_none() {
            return;
        }
        candidates.retain(self.name(), false, |slot| {
            let fits = matches_node(spec, cluster.labels(slot), &cluster.names[slot]);
            (!fits).then_some("node(s) didn't match Pod's node affinity/selector")
        });
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        let affinity = pod.spec().affinity.as_ref()?.node_affinity.as_ref()?;
        let preferred = affinity
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()?;
        let score = |slot: &Slot| {
            let (labels, name) = (cluster.labels(*slot), &cluster.names[*slot]);
            let liked = preferred
                .iter()
                .filter(|p| matches_term(&p.preference, labels, name));
            liked.map(|preference| i64::from(preference.weight)).sum()
        };
        Some(normalise(nodes.iter().map(score).collect(), false))
    }

    fn weight(&self) -> i64 {
        2
    }

    fn helped_by(&self, change: Change) -> bool {
        matches!(
            change,
            Change::NodeAdded | Change::NodeLabels | Change::PodUpdated
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn a_node_selector_turns_away_nodes_without_its_labels() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
        cluster.put_node(samples::labelled("n2", &[("disk", "ssd")]));
        let pod = samples::pod_with("a", |spec| {
            spec.node_selector = Some([("disk".into(), "ssd".into())].into());
        });
        let mut candidates = Candidates::all(&cluster);
        NodeAffinity.filter(&pod, &cluster, &mut candidates);
        assert_eq!(candidates.slots(), [1]);
        assert_eq!(
            candidates.message(2),
            "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        );
    }
}
