//! A cordoned node takes no new pods, except those that tolerate just that.

use k8s_openapi::api::core::v1::Taint;
use reconcile::placement::tolerates;

use super::{Change, Plugin};
use crate::{candidates::Candidates, cluster::Cluster, pod::PodInfo};

/// The rule.
pub struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Default::default()
        };
        let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
        if tolerations
            .iter()
            .any(|toleration| tolerates(toleration, &taint))
        {
            return;
        }
        candidates.retain(self.name(), false, |slot| {
            cluster.unschedulable[slot].then_some("node(s) were unschedulable")
        });
    }

    fn helped_by(&self, change: Change) -> bool {
        matches!(
            change,
            Change::NodeAdded | Change::NodeTaints | Change::PodUpdated
        )
    }
}
