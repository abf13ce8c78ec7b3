//! Choosing a node for one pod: filter, compare, pick. Pure but for the dice between equals.

use rand::Rng;

use crate::{
    candidates::Candidates,
    cluster::{Cluster, Slot},
    plugins::ALL,
    pod::PodInfo,
};

/// What came of a try.
#[derive(Debug)]
pub enum Choice {
    /// This node.
    Node(Slot),
    /// None, and why.
    Nothing(Candidates),
}

/// Tries all nodes.
pub fn choose(pod: &PodInfo, cluster: &mut Cluster) -> Choice {
    cluster.prepare(pod);
    let mut candidates = Candidates::all(cluster);
    filter(pod, cluster, &mut candidates);
    match candidates.slots() {
        [] => Choice::Nothing(candidates),
        [only] => Choice::Node(*only),
        several => Choice::Node(best(pod, cluster, several)),
    }
}

/// Asks every plugin in turn; stops when nothing is left.
pub fn filter(pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
    for plugin in ALL {
        if candidates.slots().is_empty() {
            return;
        }
        plugin.filter(pod, cluster, candidates);
    }
}

fn best(pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Slot {
    let mut totals = vec![0_i64; nodes.len()];
    for plugin in ALL {
        let Some(scores) = plugin.score(pod, cluster, nodes) else {
            continue;
        };
        for (total, score) in totals.iter_mut().zip(scores) {
            *total += score * plugin.weight();
        }
    }
    let highest = totals.iter().max().copied().unwrap_or(0);
    let equals: Vec<Slot> = nodes
        .iter()
        .zip(&totals)
        .filter(|(_, total)| **total == highest)
        .map(|(slot, _)| *slot)
        .collect();
    equals[rand::rng().random_range(0..equals.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_emptiest_node_that_fits_is_chosen() {
        let mut cluster = samples::cluster(&[
            ("small", "1", "1Gi"),
            ("busy", "8", "16Gi"),
            ("idle", "8", "16Gi"),
        ]);
        cluster.put_pod("busy", samples::pod("x", "4", "8Gi"));
        let choice = choose(&samples::pod("a", "2", "4Gi"), &mut cluster);
        assert!(matches!(choice, Choice::Node(2)), "{choice:?}");
    }

    #[test]
    fn why_nothing_fits_is_kept_by_node_and_plugin() {
        let mut cluster = samples::cluster(&[("small", "1", "1Gi"), ("closed", "8", "16Gi")]);
        cluster.unschedulable[1] = true;
        let Choice::Nothing(candidates) = choose(&samples::pod("a", "2", "1Gi"), &mut cluster)
        else {
            panic!("a node was found");
        };
        let why: Vec<_> = candidates
            .rejected()
            .iter()
            .map(|r| (r.slot, r.plugin))
            .collect();
        assert_eq!(why, [(1, "NodeUnschedulable"), (0, "NodeResourcesFit")]);
        assert_eq!(
            candidates.message(2),
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."
        );
    }

    /// Not a promise but a tripwire: something quadratic would show here.
    #[test]
    fn two_hundred_pods_find_their_nodes_among_five_thousand_in_a_few_seconds() {
        let mut cluster = crate::cluster::Cluster::default();
        for number in 0..5000 {
            cluster.put_node(samples::node(&format!("n{number}"), "32", "64Gi"));
        }
        let begun = std::time::Instant::now();
        for number in 0..200 {
            let pod = samples::pod(&format!("p{number}"), "500m", "1Gi");
            let Choice::Node(slot) = choose(&pod, &mut cluster) else {
                panic!("there is room");
            };
            let node = cluster.names[slot].clone();
            cluster.put_pod(&node, pod);
        }
        let took = begun.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }
}
