//! Prefers nodes whose CPU and memory would be used in equal parts: none runs out long before the
//! other.

use super::{BEST, Change, Plugin};
use crate::{
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

/// The rule.
pub struct BalancedAllocation;

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        // A pod that asks for nothing cannot unbalance anything.
        if pod.requests.cpu == 0 && pod.requests.memory == 0 {
            return None;
        }
        let part = |has: i64, used: i64| {
            if has > 0 {
                (used as f64 / has as f64).min(1.0)
            } else {
                1.0
            }
        };
        let score = |slot: &Slot| {
            let (cpu, memory) = (&cluster.cpu, &cluster.memory);
            let cpu = part(cpu.allocatable[*slot], cpu.used[*slot] + pod.requests.cpu);
            let memory = part(
                memory.allocatable[*slot],
                memory.used[*slot] + pod.requests.memory,
            );
            let deviation = (cpu - memory).abs() / 2.0;
            // Between 0 and BEST by construction.
            ((1.0 - deviation) * BEST as f64) as i64
        };
        Some(nodes.iter().map(score).collect())
    }

    fn helped_by(&self, _: Change) -> bool {
        false
    }
}
