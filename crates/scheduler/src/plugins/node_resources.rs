//! A node must have free what the pod asks for; of several, the emptier is better.

use std::borrow::Cow;

use super::{BEST, Change, Plugin};
use crate::{
    candidates::Candidates,
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

/// The rule.
pub struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let wanted = &pod.requests;
        candidates.retain_with(self.name(), |slot| {
            let mut lack = Lack::default();
            lack.check(1, &cluster.count, slot, || "Too many pods".into());
            lack.check(wanted.cpu, &cluster.cpu, slot, || "Insufficient cpu".into());
            lack.check(wanted.memory, &cluster.memory, slot, || {
                "Insufficient memory".into()
            });
            lack.check(wanted.ephemeral, &cluster.ephemeral, slot, || {
                "Insufficient ephemeral-storage".into()
            });
            for (name, amount) in wanted.others.iter().filter(|(_, amount)| **amount > 0) {
                let reason = || format!("Insufficient {name}").into();
                match cluster.others.get(name) {
                    Some(column) => lack.check(*amount, column, slot, reason),
                    None => lack.never(reason()),
                }
            }
            (!lack.reasons.is_empty()).then_some((lack.reasons, !lack.hopeless))
        });
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        let part = |has: i64, used: i64| {
            if has > 0 {
                ((has - used) * BEST / has).max(0)
            } else {
                0
            }
        };
        let score = |slot: &Slot| {
            let (cpu, memory) = cluster.weights[*slot];
            let cpu = part(cluster.cpu.allocatable[*slot], cpu + pod.weights.cpu);
            let memory = part(
                cluster.memory.allocatable[*slot],
                memory + pod.weights.memory,
            );
            i64::midpoint(cpu, memory)
        };
        Some(nodes.iter().map(score).collect())
    }

    fn helped_by(&self, change: Change) -> bool {
        matches!(
            change,
            Change::NodeAdded | Change::NodeAllocatable | Change::PodGone | Change::PodUpdated
        )
    }
}

#[derive(Default)]
struct Lack {
    reasons: Vec<Cow<'static, str>>,
    /// The node would be too small even if it were empty.
    hopeless: bool,
}

impl Lack {
    fn check(
        &mut self,
        wanted: i64,
        column: &crate::cluster::Column,
        slot: Slot,
        reason: impl Fn() -> Cow<'static, str>,
    ) {
        if wanted > 0 && wanted > column.free(slot) {
            self.reasons.push(reason());
            self.hopeless |= wanted > column.allocatable[slot];
        }
    }

    fn never(&mut self, reason: Cow<'static, str>) {
        self.reasons.push(reason);
        self.hopeless = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn every_missing_resource_is_named_and_a_node_too_small_is_hopeless() {
        let mut cluster = samples::cluster(&[
            ("small", "1", "1Gi"),
            ("full", "4", "8Gi"),
            ("free", "4", "8Gi"),
        ]);
        cluster.put_pod("full", samples::pod("big", "3", "7Gi"));
        let pod = samples::pod("a", "2", "2Gi");
        let mut candidates = Candidates::all(&cluster);
        NodeResourcesFit.filter(&pod, &cluster, &mut candidates);
        assert_eq!(candidates.slots(), [2]);
        let resolvable: Vec<_> = candidates.rejected().iter().map(|r| r.resolvable).collect();
        assert_eq!(resolvable, [false, true]);
        assert_eq!(
            candidates.message(3),
            "0/3 nodes are available: 2 Insufficient cpu, 2 Insufficient memory."
        );
    }

    #[test]
    fn the_emptier_node_is_better() {
        let mut cluster = samples::cluster(&[("a", "4", "8Gi"), ("b", "4", "8Gi")]);
        cluster.put_pod("a", samples::pod("x", "2", "4Gi"));
        let scores = NodeResourcesFit
            .score(&samples::pod("p", "1", "2Gi"), &cluster, &[0, 1])
            .unwrap();
        assert_eq!(scores, [25, 75]);
    }
}
