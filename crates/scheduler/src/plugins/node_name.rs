//! A pod that names its node goes there or nowhere.

use super::{Change, Plugin};
use crate::{candidates::Candidates, cluster::Cluster, pod::PodInfo};

/// The rule.
pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let wanted = pod
            .spec()
            .node_name
            .as_deref()
            .filter(|name| !name.is_empty());
        let Some(wanted) = wanted else { return };
        candidates.retain(self.name(), false, |slot| {
            let other = &*cluster.names[slot] != wanted;
            other.then_some("node(s) didn't match the requested node name")
        });
    }

    fn helped_by(&self, change: Change) -> bool {
        matches!(change, Change::NodeAdded)
    }
}
