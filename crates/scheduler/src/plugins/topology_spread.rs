//! Spreads pods over zones, nodes or whatever a label says, within a skew.
//!
//! Domains are counted over the nodes that the pod could be on at all (its node affinity, and its
//! tolerations when the constraint says so).

use reconcile::placement::{matches_node, untolerated};

use super::{BEST, Change, Plugin};
use crate::{
    candidates::Candidates,
    cluster::{ABSENT, Cluster, Slot, Topology},
    pod::{PodInfo, Spread},
};

const REASON: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

/// The rule.
pub struct PodTopologySpread;

/// How many counted pods each domain has; domains without eligible nodes have none.
fn counts(pod: &PodInfo, spread: &Spread, cluster: &Cluster, keys: &[&str]) -> Vec<Option<i64>> {
    let topology = cluster.topology(&spread.constraint.topology_key);
    let mut counts: Vec<Option<i64>> = vec![None; topology.size()];
    for slot in cluster.existing() {
        let domain = topology.at(slot);
        let complete = keys
            .iter()
            .all(|key| cluster.topology(key).at(slot) != ABSENT);
        if domain == ABSENT || !complete || !is_eligible(pod, spread, cluster, slot) {
            continue;
        }
        let matching = cluster.pods[slot].values().filter(|other| {
            other.namespace == pod.namespace
                && other.pod.metadata.deletion_timestamp.is_none()
                && spread.selector.matches(other.labels())
        });
        let count = i64::try_from(matching.count()).unwrap_or(i64::MAX);
        *counts[domain as usize].get_or_insert(0) += count;
    }
    counts
}

fn is_eligible(pod: &PodInfo, spread: &Spread, cluster: &Cluster, slot: Slot) -> bool {
    let constraint = &spread.constraint;
    let affinity = constraint.node_affinity_policy.as_deref() == Some("Ignore")
        || matches_node(pod.spec(), cluster.labels(slot), &cluster.names[slot]);
    let taints = constraint.node_taints_policy.as_deref() != Some("Honor") || {
        let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
        untolerated(
            &cluster.taints[slot],
            tolerations,
            &["NoSchedule", "NoExecute"],
        )
        .is_none()
    };
    affinity && taints
}

fn lowest(spread: &Spread, counts: &[Option<i64>]) -> i64 {
    let domains = counts.iter().flatten().count();
    let wanted = usize::try_from(spread.constraint.min_domains.unwrap_or(1)).unwrap_or(1);
    // Fewer domains than wanted: the missing ones count as empty.
    if domains < wanted {
        0
    } else {
        counts.iter().flatten().copied().min().unwrap_or(0)
    }
}

fn by(pod: &PodInfo, wish: &str) -> Vec<Spread> {
    let wanted = |spread: &&Spread| spread.constraint.when_unsatisfiable == wish;
    pod.spread.iter().filter(wanted).cloned().collect()
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let hard = by(pod, "DoNotSchedule");
        let keys: Vec<&str> = hard
            .iter()
            .map(|s| s.constraint.topology_key.as_str())
            .collect();
        for spread in &hard {
            let topology = cluster.topology(&spread.constraint.topology_key);
            let counts = counts(pod, spread, cluster, &keys);
            let lowest = lowest(spread, &counts);
            let own = i64::from(spread.selector.matches(pod.labels()));
            candidates.retain_with(self.name(), |slot| {
                let domain = topology.at(slot);
                if domain == ABSENT {
                    return Some((vec![NO_LABEL.into()], false));
                }
                let count = counts[domain as usize].unwrap_or(0);
                let skewed = count + own - lowest > i64::from(spread.constraint.max_skew);
                skewed.then(|| (vec![REASON.into()], true))
            });
        }
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        let soft = by(pod, "ScheduleAnyway");
        if soft.is_empty() {
            return None;
        }
        let mut crowd = vec![0.0_f64; nodes.len()];
        for spread in &soft {
            let topology = cluster.topology(&spread.constraint.topology_key);
            let counts = counts(pod, spread, cluster, &[]);
            let weight = domain_weight(topology, nodes);
            for (sum, slot) in crowd.iter_mut().zip(nodes) {
                let count = counts[topology.at(*slot) as usize].unwrap_or(0);
                *sum += count as f64 * weight + f64::from(spread.constraint.max_skew - 1);
            }
        }
        let (least, most) = crowd
            .iter()
            .fold((f64::MAX, 0.0_f64), |(least, most), sum| {
                (least.min(*sum), most.max(*sum))
            });
        let score = |sum: &f64| {
            if most == 0.0 {
                BEST
            } else {
                (BEST as f64 * (most + least - sum) / most) as i64
            }
        };
        Some(
            crowd
                .iter()
                .map(score)
                .map(|score| score.clamp(0, BEST))
                .collect(),
        )
    }

    fn weight(&self) -> i64 {
        2
    }

    fn helped_by(&self, change: Change) -> bool {
        !matches!(change, Change::NodeAllocatable)
    }
}

/// The more domains, the more one pod in one of them matters.
fn domain_weight(topology: &Topology, nodes: &[Slot]) -> f64 {
    let mut seen: Vec<u32> = nodes.iter().map(|slot| topology.at(*slot)).collect();
    seen.sort_unstable();
    seen.dedup();
    (seen.len() as f64 + 2.0).ln()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::TopologySpreadConstraint, apimachinery::pkg::apis::meta::v1::LabelSelector,
    };

    use super::*;
    use crate::samples;

    fn pod(name: &str, wish: &str) -> std::sync::Arc<PodInfo> {
        let constraint = TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "zone".into(),
            when_unsatisfiable: wish.into(),
            label_selector: Some(LabelSelector {
                match_labels: Some([("app".into(), "web".into())].into()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let spread = Some(vec![constraint]);
        samples::pod_labelled(name, &[("app", "web")], |spec| {
            spec.topology_spread_constraints = spread
        })
    }

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            cluster.put_node(samples::labelled(name, &[("zone", zone)]));
        }
        cluster.put_node(samples::labelled("none", &[]));
        cluster.put_pod("a1", pod("1", "DoNotSchedule"));
        cluster
    }

    #[test]
    fn the_crowded_zone_and_nodes_without_the_label_are_turned_away() {
        let (mut cluster, pod) = (cluster(), pod("2", "DoNotSchedule"));
        cluster.prepare(&pod);
        let mut candidates = Candidates::all(&cluster);
        PodTopologySpread.filter(&pod, &cluster, &mut candidates);
        assert_eq!(candidates.slots(), [2]);
        assert_eq!(
            candidates.message(4),
            format!("0/4 nodes are available: 1 {NO_LABEL}, 2 {REASON}.")
        );
    }

    #[test]
    fn a_wish_only_makes_the_crowded_zone_worse() {
        let (mut cluster, pod) = (cluster(), pod("2", "ScheduleAnyway"));
        cluster.prepare(&pod);
        let scores = PodTopologySpread.score(&pod, &cluster, &[0, 1, 2]).unwrap();
        assert!(scores[2] > scores[0], "{scores:?}");
        assert_eq!(scores[0], scores[1]);
    }
}
