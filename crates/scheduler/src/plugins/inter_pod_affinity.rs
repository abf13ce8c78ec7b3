//! Pods that want to be near or far from others; and pods already placed that keep others away.

use std::collections::HashSet;

use super::{BEST, Change, Plugin};
use crate::{
    candidates::Candidates,
    cluster::{ABSENT, Cluster, Slot},
    pod::{PodInfo, Term},
};

const NEAR: &str = "node(s) didn't match pod affinity rules";
const FAR: &str = "node(s) didn't match pod anti-affinity rules";
const REPELLED: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// The rule.
pub struct InterPodAffinity;

/// The domains of a term's topology in which pods are that it speaks of.
fn domains(term: &Term, cluster: &Cluster) -> HashSet<u32> {
    let topology = cluster.topology(&term.topology_key);
    let existing = cluster.existing().into_iter();
    let matching = existing.filter(|slot| {
        topology.at(*slot) != ABSENT
            && cluster.pods[*slot]
                .values()
                .any(|other| term.matches(other, &cluster.namespaces))
    });
    matching.map(|slot| topology.at(slot)).collect()
}

impl InterPodAffinity {
    /// Placed pods that want this one far away.
    fn repelled(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let mut closed: Vec<(&str, u32)> = Vec::new();
        for (slot, other) in cluster.repelling() {
            for term in &other.anti_affinity {
                let domain = cluster.topology(&term.topology_key).at(slot);
                if domain != ABSENT && term.matches(pod, &cluster.namespaces) {
                    closed.push((&term.topology_key, domain));
                }
            }
        }
        closed.sort_unstable();
        closed.dedup();
        if closed.is_empty() {
            return;
        }
        candidates.retain(self.name(), true, |slot| {
            let inside = |(key, domain): &(&str, u32)| cluster.topology(key).at(slot) == *domain;
            closed.iter().any(inside).then_some(REPELLED)
        });
    }

    fn near(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        let found: Vec<HashSet<u32>> = pod
            .affinity
            .iter()
            .map(|term| domains(term, cluster))
            .collect();
        // The first of a group that wants to be near itself may go anywhere with the labels.
        let itself = |term: &Term| term.matches(pod, &cluster.namespaces);
        let first = found.iter().all(HashSet::is_empty) && pod.affinity.iter().all(itself);
        candidates.retain(self.name(), false, |slot| {
            let near = pod.affinity.iter().zip(&found).all(|(term, found)| {
                let domain = cluster.topology(&term.topology_key).at(slot);
                domain != ABSENT && (first || found.contains(&domain))
            });
            (!near).then_some(NEAR)
        });
    }

    fn far(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        for term in &pod.anti_affinity {
            let (found, topology) = (domains(term, cluster), cluster.topology(&term.topology_key));
            candidates.retain(self.name(), true, |slot| {
                found.contains(&topology.at(slot)).then_some(FAR)
            });
        }
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn filter(&self, pod: &PodInfo, cluster: &Cluster, candidates: &mut Candidates) {
        if !pod.affinity.is_empty() {
            self.near(pod, cluster, candidates);
        }
        self.far(pod, cluster, candidates);
        self.repelled(pod, cluster, candidates);
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Vec<i64>> {
        if pod.preferences.is_empty() {
            return None;
        }
        let mut sums = vec![0_i64; nodes.len()];
        for term in &pod.preferences {
            let topology = cluster.topology(&term.topology_key);
            let mut counts = vec![0_i64; topology.size()];
            for slot in cluster.existing() {
                let pods = cluster.pods[slot].values();
                let matching = pods.filter(|other| term.matches(other, &cluster.namespaces));
                counts[topology.at(slot) as usize] += i64::try_from(matching.count()).unwrap_or(0);
            }
            counts[ABSENT as usize] = 0;
            for (sum, slot) in sums.iter_mut().zip(nodes) {
                *sum += term.weight * counts[topology.at(*slot) as usize];
            }
        }
        let (least, most) = (sums.iter().min().copied()?, sums.iter().max().copied()?);
        let stretch = |sum: i64| {
            if most > least {
                BEST * (sum - least) / (most - least)
            } else {
                0
            }
        };
        Some(sums.into_iter().map(stretch).collect())
    }

    fn weight(&self) -> i64 {
        2
    }

    fn helped_by(&self, change: Change) -> bool {
        !matches!(change, Change::NodeAllocatable)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{Affinity, PodAffinity, PodAffinityTerm, PodAntiAffinity},
        apimachinery::pkg::apis::meta::v1::LabelSelector,
    };

    use super::*;
    use crate::samples;

    fn term(app: &str) -> PodAffinityTerm {
        PodAffinityTerm {
            label_selector: Some(LabelSelector {
                match_labels: Some([("app".into(), app.into())].into()),
                ..Default::default()
            }),
            topology_key: "zone".into(),
            ..Default::default()
        }
    }

    fn near(app: &str) -> Affinity {
        let required = Some(vec![term(app)]);
        let pod_affinity = PodAffinity {
            required_during_scheduling_ignored_during_execution: required,
            ..Default::default()
        };
        Affinity {
            pod_affinity: Some(pod_affinity),
            ..Default::default()
        }
    }

    fn far(app: &str) -> Affinity {
        let required = Some(vec![term(app)]);
        let pod_anti_affinity = PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: required,
            ..Default::default()
        };
        Affinity {
            pod_anti_affinity: Some(pod_anti_affinity),
            ..Default::default()
        }
    }

    fn left(
        app: &str,
        affinity: Option<Affinity>,
        placed: &[(&str, &str, Option<Affinity>)],
    ) -> Vec<Slot> {
        let mut cluster = Cluster::default();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            cluster.put_node(samples::labelled(name, &[("zone", zone)]));
        }
        for (node, app, affinity) in placed {
            let affinity = affinity.clone();
            let other =
                samples::pod_labelled(node, &[("app", app)], |spec| spec.affinity = affinity);
            cluster.put_pod(node, other);
        }
        let pod = samples::pod_labelled("new", &[("app", app)], |spec| spec.affinity = affinity);
        cluster.prepare(&pod);
        let mut candidates = Candidates::all(&cluster);
        InterPodAffinity.filter(&pod, &cluster, &mut candidates);
        candidates.slots().to_vec()
    }

    #[test]
    fn a_pod_goes_near_those_it_wants_and_far_from_those_it_does_not() {
        assert_eq!(left("web", Some(near("db")), &[("b1", "db", None)]), [2]);
        assert_eq!(left("web", Some(far("db")), &[("b1", "db", None)]), [0, 1]);
        assert!(left("web", Some(near("db")), &[]).is_empty());
    }

    #[test]
    fn the_first_of_a_group_that_wants_to_be_together_may_begin_anywhere() {
        assert_eq!(left("web", Some(near("web")), &[]), [0, 1, 2]);
        assert_eq!(
            left("web", Some(near("web")), &[("a1", "web", None)]),
            [0, 1]
        );
    }

    #[test]
    fn placed_pods_keep_away_whom_they_do_not_want() {
        assert_eq!(left("web", None, &[("a1", "db", Some(far("web")))]), [2]);
        assert_eq!(
            left("other", None, &[("a1", "db", Some(far("web")))]),
            [0, 1, 2]
        );
    }
}
