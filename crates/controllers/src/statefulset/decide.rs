//! The next steps of a StatefulSet, and what to say about it. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus},
    core::v1::Pod,
};

use crate::{
    history,
    pods::{available_in, is_available, is_deleting, is_ready, is_terminal, phase},
};

pub(super) struct View<'a> {
    pub(super) set: &'a StatefulSet,
    /// The name of the newest revision.
    pub(super) newest: &'a str,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) now: Timestamp,
}

#[derive(Debug)]
pub(super) enum Step {
    Create { ordinal: i32, revision: String },
    Delete(Arc<Pod>),
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) status: StatefulSetStatus,
    pub(super) after: Option<Duration>,
}

/// The ordinal in a pod's name, when the name is this set's.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let (name, number) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    (Some(name) == set.metadata.name.as_deref())
        .then(|| number.parse().ok())
        .flatten()
}

fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(history::HASH))
        .map(String::as_str)
        .unwrap_or_default()
}

struct Round<'a> {
    view: &'a View<'a>,
    spec: StatefulSetSpec,
    current: String,
    pods: BTreeMap<i32, Arc<Pod>>,
    first: i32,
    replicas: i32,
    ordered: bool,
}

pub(super) fn decide(view: &View) -> Plan {
    let spec = view.set.spec.clone().unwrap_or_default();
    let told = view.set.status.clone().unwrap_or_default().current_revision;
    let pods = view
        .pods
        .iter()
        .filter_map(|pod| Some((ordinal(view.set, pod)?, pod.clone())));
    let round = Round {
        view,
        current: told
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| view.newest.to_owned()),
        pods: pods.collect(),
        first: spec
            .ordinals
            .as_ref()
            .and_then(|ordinals| ordinals.start)
            .unwrap_or(0),
        replicas: spec.replicas.unwrap_or(1),
        ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        spec,
    };
    let mut plan = Plan {
        steps: round.steps(),
        ..Plan::default()
    };
    plan.status = round.status();
    let min_ready = round.spec.min_ready_seconds.unwrap_or(0);
    let waits = round
        .pods
        .values()
        .filter_map(|pod| available_in(pod, min_ready, view.now));
    plan.after = waits.filter(|wait| !wait.is_zero()).min();
    plan
}

impl Round<'_> {
    fn wanted(&self) -> std::ops::Range<i32> {
        self.first..self.first + self.replicas
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.spec.min_ready_seconds.unwrap_or(0), self.view.now)
    }

    fn is_well(&self, pod: &Pod) -> bool {
        phase(pod) == "Running" && !is_deleting(pod) && self.is_available(pod)
    }

    fn partition(&self) -> i32 {
        let strategy = self.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    fn rolls(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    /// Below the partition, and where an update has not come yet, pods are made as they were.
    fn revision_for(&self, ordinal: i32) -> String {
        let current = self
            .pods
            .values()
            .filter(|pod| revision(pod) == self.current)
            .count();
        let current = i32::try_from(current).unwrap_or(0);
        let kept = self.rolls() && ordinal < self.first + self.partition();
        let waiting = !self.rolls() && ordinal < self.first + current;
        if kept || waiting {
            self.current.clone()
        } else {
            self.view.newest.to_owned()
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut all_well = true;
        for ordinal in self.wanted() {
            match self.pods.get(&ordinal) {
                None => {
                    steps.push(Step::Create {
                        ordinal,
                        revision: self.revision_for(ordinal),
                    });
                    all_well = false;
                }
                Some(pod) if is_terminal(pod) && !is_deleting(pod) => {
                    steps.push(Step::Delete(pod.clone()));
                    all_well = false;
                }
                Some(pod) => all_well &= self.is_well(pod),
            }
            if self.ordered && !all_well {
                return steps;
            }
        }
        let condemned = self
            .pods
            .iter()
            .rev()
            .filter(|(ordinal, _)| !self.wanted().contains(ordinal));
        // In order, only the first of the pods that are not well may go while it is not.
        let first_unwell = self.pods.values().find(|pod| !self.is_well(pod));
        for (_, pod) in condemned {
            let waits = self.ordered
                && !self.is_well(pod)
                && first_unwell.is_some_and(|first| !Arc::ptr_eq(first, pod));
            if !is_deleting(pod) && !waits {
                steps.push(Step::Delete(pod.clone()));
            }
            if self.ordered {
                return steps;
            }
        }
        if self.rolls() && steps.is_empty() {
            steps.extend(self.replace());
        }
        steps
    }

    /// The highest pod of an old revision, once all above it are well.
    fn replace(&self) -> Option<Step> {
        for ordinal in self
            .wanted()
            .rev()
            .take_while(|o| *o >= self.first + self.partition())
        {
            let pod = self.pods.get(&ordinal)?;
            if revision(pod) != self.view.newest && !is_deleting(pod) {
                return Some(Step::Delete(pod.clone()));
            }
            if !self.is_well(pod) {
                return None;
            }
        }
        None
    }

    fn status(&self) -> StatefulSetStatus {
        let before = self.view.set.status.clone().unwrap_or_default();
        let alive: Vec<_> = self.pods.values().filter(|pod| !is_terminal(pod)).collect();
        let count = |test: &dyn Fn(&Pod) -> bool| {
            let found = alive.iter().filter(|pod| test(pod)).count();
            i32::try_from(found).unwrap_or(i32::MAX)
        };
        let positive = |count: i32| (count > 0).then_some(count);
        let of = |name: &str| count(&|pod| revision(pod) == name && !is_deleting(pod));
        let ready = count(&|pod| phase(pod) == "Running" && is_ready(pod));
        let updated = of(self.view.newest);
        let finished = self.rolls()
            && updated == self.replicas
            && ready == self.replicas
            && count(&|_| true) == self.replicas;
        let current = if finished {
            self.view.newest.to_owned()
        } else {
            self.current.clone()
        };
        StatefulSetStatus {
            observed_generation: self.view.set.metadata.generation,
            replicas: count(&|_| true),
            ready_replicas: positive(ready),
            available_replicas: Some(count(&|pod| self.is_available(pod))),
            current_replicas: positive(of(&current)),
            updated_replicas: positive(updated),
            current_revision: Some(current),
            update_revision: Some(self.view.newest.to_owned()),
            collision_count: Some(before.collision_count.unwrap_or(0)),
            conditions: before.conditions,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSetUpdateStrategy};

    use super::*;
    use crate::pods::samples;

    fn set(replicas: i32, change: impl FnOnce(&mut StatefulSetSpec)) -> StatefulSet {
        let mut spec = StatefulSetSpec {
            replicas: Some(replicas),
            ..Default::default()
        };
        change(&mut spec);
        let mut set = StatefulSet {
            spec: Some(spec),
            ..Default::default()
        };
        set.metadata.name = Some("db".into());
        set.status = Some(StatefulSetStatus {
            current_revision: Some("old".into()),
            ..Default::default()
        });
        set
    }

    fn pod(ordinal: i32, revision: &str, ready: bool) -> Arc<Pod> {
        let mut pod = samples::pod(&format!("db-{ordinal}"), ready.then_some(1));
        pod.metadata.labels = Some([(history::HASH.into(), revision.into())].into());
        Arc::new(pod)
    }

    fn told(set: &StatefulSet, pods: &[Arc<Pod>]) -> Vec<String> {
        let plan = decide(&View {
            set,
            newest: "new",
            pods,
            now: samples::at(100),
        });
        let tell = |step: &Step| match step {
            Step::Create { ordinal, revision } => format!("+{ordinal} {revision}"),
            Step::Delete(pod) => format!("-{}", ordinal(set, pod).unwrap()),
        };
        plan.steps.iter().map(tell).collect()
    }

    #[test]
    fn pods_come_one_after_the_other_when_order_matters_and_together_when_not() {
        let ordered = set(3, |_| {});
        assert_eq!(told(&ordered, &[]), ["+0 new"]);
        assert!(told(&ordered, &[pod(0, "new", false)]).is_empty());
        assert_eq!(told(&ordered, &[pod(0, "new", true)]), ["+1 new"]);
        let parallel = set(3, |spec| {
            spec.pod_management_policy = Some("Parallel".into())
        });
        assert_eq!(
            told(&parallel, &[pod(1, "new", false)]),
            ["+0 new", "+2 new"]
        );
    }

    #[test]
    fn pods_go_from_the_top_one_at_a_time() {
        let pods = [
            pod(0, "new", true),
            pod(1, "new", true),
            pod(2, "new", true),
        ];
        assert_eq!(told(&set(1, |_| {}), &pods), ["-2"]);
        let unwell = [
            pod(0, "new", true),
            pod(1, "new", false),
            pod(2, "new", false),
        ];
        assert!(told(&set(0, |_| {}), &unwell).is_empty());
        assert_eq!(told(&set(0, |_| {}), &unwell[..2]), ["-1"]);
    }

    #[test]
    fn an_update_begins_at_the_top_waits_for_each_and_stops_at_the_partition() {
        let rolling = set(3, |_| {});
        let old = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "old", true),
        ];
        assert_eq!(told(&rolling, &old), ["-2"]);
        let unready = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "new", false),
        ];
        assert!(told(&rolling, &unready).is_empty());
        let half = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "new", true),
        ];
        assert_eq!(told(&rolling, &half), ["-1"]);
        let partition = RollingUpdateStatefulSetStrategy {
            partition: Some(2),
            ..Default::default()
        };
        let held = set(3, |spec| {
            spec.update_strategy = Some(StatefulSetUpdateStrategy {
                rolling_update: Some(partition),
                ..Default::default()
            });
        });
        assert!(told(&held, &half).is_empty());
        assert_eq!(
            told(&held, &half[1..]),
            ["+0 old"],
            "below the partition it stays as it was"
        );
    }

    #[test]
    fn the_update_is_over_when_all_pods_are_new_and_ready() {
        let set = set(2, |_| {});
        let pods = [pod(0, "new", true), pod(1, "new", true)];
        let view = View {
            set: &set,
            newest: "new",
            pods: &pods,
            now: samples::at(100),
        };
        assert_eq!(
            decide(&view).status.current_revision.as_deref(),
            Some("new")
        );
    }
}
