//! Making room: which less important pods would have to go so that a pod fits, and where that costs
//! least. The cluster is changed to try it, and put back.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    candidates::{Candidates, histogram},
    cluster::{Cluster, Slot},
    cycle::filter,
    pod::PodInfo,
};

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// A node and the pods that would have to go.
#[derive(Debug)]
pub struct Sacrifice {
    /// Where.
    pub slot: Slot,
    /// Who.
    pub victims: Vec<Arc<PodInfo>>,
}

/// The cheapest sacrifice, or why there is none.
pub fn find(
    pod: &PodInfo,
    cluster: &mut Cluster,
    turned_away: &Candidates,
) -> Result<Sacrifice, String> {
    let total = cluster.size();
    if pod.spec().preemption_policy.as_deref() == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.".into());
    }
    if let Some(nominated) = nominated(pod, cluster)
        && cluster.pods[nominated].values().any(|other| {
            other.priority < pod.priority && other.pod.metadata.deletion_timestamp.is_some()
        })
    {
        return Err("not eligible due to terminating pod on the nominated node.".into());
    }
    let mut reasons: HashMap<Slot, String> = HashMap::new();
    let mut found = Vec::new();
    for rejection in turned_away.rejected() {
        if !rejection.resolvable {
            reasons.insert(rejection.slot, NOT_HELPFUL.into());
            continue;
        }
        match on_node(pod, cluster, rejection.slot) {
            Ok(sacrifice) => found.push(sacrifice),
            Err(reason) => {
                reasons.insert(rejection.slot, reason);
            }
        }
    }
    found.into_iter().min_by_key(cost).ok_or_else(|| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in reasons.values() {
            *counts.entry(reason).or_default() += 1;
        }
        histogram(total, counts)
    })
}

fn nominated(pod: &PodInfo, cluster: &Cluster) -> Option<Slot> {
    let status = pod.pod.status.as_ref()?;
    cluster.slot(status.nominated_node_name.as_deref()?)
}

/// The least important victims, then the fewest in sum and number.
fn cost(sacrifice: &Sacrifice) -> (i32, i64, usize) {
    let priorities = sacrifice.victims.iter().map(|victim| victim.priority);
    let highest = priorities.clone().max().unwrap_or(i32::MIN);
    (
        highest,
        priorities.map(i64::from).sum(),
        sacrifice.victims.len(),
    )
}

/// Removes all less important pods of a node and gives back as many as possible, the more important
/// and older first.
fn on_node(pod: &PodInfo, cluster: &mut Cluster, slot: Slot) -> Result<Sacrifice, String> {
    let lesser = cluster.pods[slot]
        .values()
        .filter(|other| other.priority < pod.priority);
    let mut lesser: Vec<Arc<PodInfo>> = lesser.cloned().collect();
    if lesser.is_empty() {
        return Err(NO_VICTIMS.into());
    }
    let node = cluster.names[slot].clone();
    for victim in &lesser {
        cluster.remove_pod(&victim.uid);
    }
    let fits = |cluster: &Cluster| {
        let mut candidates = Candidates::only(vec![slot]);
        filter(pod, cluster, &mut candidates);
        candidates
    };
    let empty = fits(cluster);
    if empty.slots().is_empty() {
        for victim in lesser {
            cluster.put_pod(&node, victim);
        }
        let reason = empty
            .rejected()
            .first()
            .and_then(|rejection| rejection.reasons.first());
        return Err(reason.map_or_else(|| NOT_HELPFUL.to_owned(), ToString::to_string));
    }
    lesser.sort_by_key(|victim| (Reverse(victim.priority), victim.created));
    let mut victims = Vec::new();
    for candidate in lesser {
        cluster.put_pod(&node, candidate.clone());
        if fits(cluster).slots().is_empty() {
            cluster.remove_pod(&candidate.uid);
            victims.push(candidate);
        }
    }
    for victim in &victims {
        cluster.put_pod(&node, victim.clone());
    }
    Ok(Sacrifice { slot, victims })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cycle::{Choice, choose},
        samples,
    };

    fn pod(name: &str, cpu: &str, priority: i32) -> Arc<PodInfo> {
        samples::pod_asking(name, cpu, "1Mi", |spec| spec.priority = Some(priority))
    }

    fn sacrifice(cluster: &mut Cluster, pod: &PodInfo) -> Result<Vec<String>, String> {
        let Choice::Nothing(turned_away) = choose(pod, cluster) else {
            panic!("it fits")
        };
        let sacrifice = find(pod, cluster, &turned_away)?;
        Ok(sacrifice
            .victims
            .iter()
            .map(|victim| victim.name.clone())
            .collect())
    }

    #[test]
    fn only_as_many_go_as_must_and_the_least_important_ones() {
        let mut cluster = samples::cluster(&[("n1", "3", "1Gi")]);
        for (name, priority) in [("low", 1), ("middle", 5), ("high", 50)] {
            cluster.put_pod("n1", pod(name, "1", priority));
        }
        assert_eq!(
            sacrifice(&mut cluster, &pod("new", "1", 10)).unwrap(),
            ["low"]
        );
        assert_eq!(
            sacrifice(&mut cluster, &pod("new", "2", 10)).unwrap(),
            ["middle", "low"]
        );
        assert_eq!(cluster.count.used[0], 3, "trying changed nothing");
    }

    #[test]
    fn the_node_with_the_least_important_victims_is_chosen() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
        cluster.put_pod("n1", pod("five", "1", 5));
        cluster.put_pod("n2", pod("one", "1", 1));
        assert_eq!(
            sacrifice(&mut cluster, &pod("new", "1", 10)).unwrap(),
            ["one"]
        );
    }

    #[test]
    fn why_there_is_no_sacrifice_is_said_by_node() {
        let mut cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
        cluster.put_pod("n1", pod("equal", "1", 10));
        cluster.unschedulable[1] = true;
        let why = sacrifice(&mut cluster, &pod("new", "1", 10)).unwrap_err();
        assert_eq!(
            why,
            format!("0/2 nodes are available: 1 {NO_VICTIMS}, 1 {NOT_HELPFUL}.")
        );
    }
}
