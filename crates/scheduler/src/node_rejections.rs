//! Remembers why nodes were rejected by local filters for pods of one template, until the node changes: many pods that fit
//! nowhere cost the work of one.
//!
//! Only for attempts in which no node is feasible, whose reasons are needed; of few templates, since all nodes are in it.

use std::{collections::VecDeque, sync::Arc};

use crate::{
    cluster::{Cluster, Slot},
    cycle::Cycle,
    framework::candidates::{Candidates, Rejection},
    template::Template,
    verdicts::Verdicts,
};

/// The number of templates. The least recently used is forgotten.
const MAX_REMEMBERED: usize = 4;

#[derive(Debug)]
struct Remembered {
    key: (usize, u64),
    /// Held, so that its address is not reused.
    _template: Arc<Template>,
    epoch: u64,
    /// By slot: the node's generation then, and why it was rejected. 0 if it was never evaluated.
    nodes: Vec<(u32, Option<Rejection>)>,
}

/// The cache; the most recently used template first.
#[derive(Debug, Default)]
pub(crate) struct NodeRejections(VecDeque<Remembered>);

impl NodeRejections {
    /// The nodes that pass the local filters, and why the others do not, both in the given order.
    pub(crate) fn divide(
        &mut self,
        cycle: &Cycle<'_>,
        cluster: &Cluster,
        nodes: &[Slot],
    ) -> (Vec<Slot>, Vec<Rejection>) {
        let remembered = self.remembered(cycle, cluster);
        let is_stale = |slot: &&Slot| remembered.nodes[**slot].0 != cluster.generation(**slot);
        let stale: Vec<Slot> = nodes.iter().filter(is_stale).copied().collect();
        for slot in &stale {
            remembered.nodes[*slot] = (cluster.generation(*slot), None);
        }
        let mut candidates = Candidates::new(stale);
        cycle.filter_local(cluster, &mut candidates);
        for rejection in candidates.into_parts().1 {
            let slot = rejection.slot;
            remembered.nodes[slot].1 = Some(rejection);
        }
        let (mut passing, mut rejected) = (Vec::new(), Vec::with_capacity(nodes.len()));
        for slot in nodes {
            match &remembered.nodes[*slot].1 {
                Some(rejection) => rejected.push(rejection.clone()),
                None => passing.push(*slot),
            }
        }
        (passing, rejected)
    }

    /// What is remembered of the pod's template, which is now the most recently used.
    fn remembered(&mut self, cycle: &Cycle<'_>, cluster: &Cluster) -> &mut Remembered {
        let key = Verdicts::key(cycle);
        let known = self.0.iter().position(|remembered| remembered.key == key);
        let mut remembered = known
            .and_then(|at| self.0.remove(at))
            .unwrap_or_else(|| Remembered {
                key,
                _template: cycle.pod.template.clone(),
                epoch: cluster.epoch(),
                nodes: Vec::new(),
            });
        if remembered.epoch != cluster.epoch() {
            remembered.epoch = cluster.epoch();
            remembered.nodes.clear();
        }
        remembered.nodes.resize(cluster.names.len(), (0, None));
        self.0.truncate(MAX_REMEMBERED - 1);
        self.0.push_front(remembered);
        &mut self.0[0]
    }
}
