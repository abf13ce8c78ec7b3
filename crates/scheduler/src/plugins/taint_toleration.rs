//! Taints keep pods away that do not tolerate them; those that only prefer to, count in the score.

use reconcile::placement::{tolerates, untolerated};

use super::{Change, Plugin, normalise};
use crate::{
    candidates::Candidates,
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

/// The rule.
pub struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
        candidates.retain(self.name(), false, |slot| {
            let taints = &cluster.taints[slot];
            untolerated(taints, tolerations, &["NoSchedule", "NoExecute"])
                .map(|_| "node(s) had untolerated taint(s)")
        });
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
        let count = |slot: &Slot| {
            let soft = cluster.taints[*slot]
                .iter()
                .filter(|taint| taint.effect == "PreferNoSchedule");
            let minded = soft.filter(|taint| !tolerations.iter().any(|t| tolerates(t, taint)));
            i64::try_from(minded.count()).unwrap_or(i64::MAX)
        };
        Some(normalise(nodes.iter().map(count).collect(), true))
    }

    fn weight(&self) -> i64 {
        3
    }

    fn helped_by(&self, change: Change) -> bool {
        matches!(
            change,
            Change::NodeAdded | Change::NodeTaints | Change::PodUpdated
        )
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Taint, Toleration};

    use super::*;
    use crate::samples;

    fn taint(effect: &str) -> Taint {
        Taint {
            key: "k".into(),
            effect: effect.into(),
            ..Default::default()
        }
    }

    #[test]
    fn hard_taints_turn_away_and_soft_ones_make_a_node_worse() {
        let mut cluster = samples::cluster(&[
            ("hard", "1", "1Gi"),
            ("soft", "1", "1Gi"),
            ("free", "1", "1Gi"),
        ]);
        cluster.taints[0] = vec![taint("NoSchedule")];
        cluster.taints[1] = vec![taint("PreferNoSchedule")];
        let pod = samples::pod("a", "0", "0");
        let mut candidates = Candidates::all(&cluster);
        TaintToleration.filter(&pod, &cluster, &mut candidates);
        assert_eq!(candidates.slots(), [1, 2]);
        assert_eq!(
            TaintToleration.score(&pod, &cluster, &[1, 2]),
            Some(vec![0, 100])
        );
        let all = Toleration {
            operator: Some("Exists".into()),
            ..Default::default()
        };
        let pod = samples::pod_with("b", |spec| spec.tolerations = Some(vec![all]));
        let mut candidates = Candidates::all(&cluster);
        TaintToleration.filter(&pod, &cluster, &mut candidates);
        assert_eq!(candidates.slots().len(), 3);
    }
}
