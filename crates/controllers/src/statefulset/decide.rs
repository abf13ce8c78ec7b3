//! The next steps of a StatefulSet, and its status. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetStatus},
    core::v1::Pod,
};

use super::pod::{ordinal, range, revision};
use crate::{
    intorpercent::scaled,
    pods::{available_in, is_available, is_deleting, is_ready, is_terminal, phase},
};

/// At most this many pods are created per reconciliation.
const BURST: usize = 500;

pub(super) struct View<'a> {
    pub(super) set: &'a StatefulSet,
    /// The name of the newest revision.
    pub(super) newest: &'a str,
    /// The name of the revision that an update replaces, if it still exists.
    pub(super) current: Option<&'a str>,
    pub(super) pods: &'a [Arc<Pod>],
    /// Whether a claim of the ordinal will be deleted with its last pod.
    pub(super) has_stale_claim: &'a dyn Fn(i64) -> bool,
    pub(super) now: Timestamp,
}

#[derive(Debug)]
pub(super) enum Step {
    Create {
        ordinal: i64,
        revision: String,
    },
    Delete(Arc<Pod>),
    /// Create missing claims of a pending pod.
    EnsureClaims(Arc<Pod>),
    /// Correct labels, volumes and the owners of claims.
    Correct(Arc<Pod>),
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In order, unless podManagementPolicy is Parallel.
    pub(super) steps: Vec<Step>,
    pub(super) at_once: bool,
    pub(super) status: StatefulSetStatus,
    pub(super) after: Option<Duration>,
}

struct Round<'a> {
    view: &'a View<'a>,
    spec: StatefulSetSpec,
    current: &'a str,
    pods: BTreeMap<i64, Arc<Pod>>,
    first: i64,
    replicas: i32,
    ordered: bool,
    steps: Vec<Step>,
    /// How many pods were deleted because of an old revision.
    replaced: i32,
}

pub(super) fn decide(view: &View) -> Plan {
    let spec = view.set.spec.clone().unwrap_or_default();
    let pods = view
        .pods
        .iter()
        .filter_map(|pod| Some((ordinal(view.set, pod)?, pod.clone())));
    let (first, replicas) = range(view.set);
    let mut round = Round {
        view,
        current: view.current.unwrap_or(view.newest),
        pods: pods.collect(),
        first,
        replicas,
        ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        spec,
        steps: Vec::new(),
        replaced: 0,
    };
    if view.set.metadata.deletion_timestamp.is_none() {
        round.plan();
    }
    let status = round.status();
    let min_ready = round.spec.min_ready_seconds.unwrap_or(0);
    let waits = round
        .pods
        .values()
        .filter_map(|pod| available_in(pod, min_ready, view.now));
    let after = waits.filter(|wait| !wait.is_zero()).min();
    Plan {
        steps: round.steps,
        at_once: !round.ordered,
        status,
        after,
    }
}

impl Round<'_> {
    fn wanted(&self) -> std::ops::Range<i64> {
        self.first..self.first + i64::from(self.replicas.max(0))
    }

    /// The existing pods of wanted ordinals. A set may want two billion: they must not be counted one by one.
    fn kept(&self) -> impl DoubleEndedIterator<Item = (&i64, &Arc<Pod>)> {
        self.pods.range(self.wanted())
    }

    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.view.now)
    }

    fn is_unavailable(&self, pod: Option<&Arc<Pod>>) -> bool {
        pod.is_none_or(|pod| !self.is_available(pod) || is_deleting(pod))
    }

    fn is_well(&self, pod: &Pod) -> bool {
        phase(pod) == "Running" && self.is_available(pod)
    }

    fn rolling(&self) -> Option<&RollingUpdateStatefulSetStrategy> {
        let strategy = self.spec.update_strategy.as_ref()?;
        strategy.rolling_update.as_ref()
    }

    fn rolls(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    /// Pods below the partition get the current revision; without a partition, ordinals that the
    /// update has not reached.
    fn revision_for(&self, ordinal: i64) -> &str {
        let known = self.view.set.status.as_ref();
        let unreached = || known.and_then(|known| known.current_replicas).unwrap_or(0);
        let kept = match self.rolling() {
            Some(rolling) => rolling.partition.unwrap_or(0),
            None if self.rolls() => unreached(),
            None => 0,
        };
        if ordinal < self.first + i64::from(kept) {
            self.current
        } else {
            self.view.newest
        }
    }

    fn plan(&mut self) {
        if self.keep_wanted() && self.remove_unwanted() && self.rolls() {
            self.replace_old();
        }
    }

    /// Steps for the wanted ordinals; returns whether the next phase may follow.
    fn keep_wanted(&mut self) -> bool {
        if !self.ordered {
            self.keep_in_parallel();
            return true;
        }
        for ordinal in self.wanted() {
            let Some(pod) = self.pods.get(&ordinal).cloned() else {
                self.create(ordinal);
                return false;
            };
            if !self.keep(pod) {
                return false;
            }
        }
        true
    }

    fn keep_in_parallel(&mut self) {
        let kept: Vec<_> = self.kept().map(|(_, pod)| pod.clone()).collect();
        for pod in kept {
            self.keep(pod);
        }
        let missing = self.wanted();
        let missing = missing.filter(|ordinal| !self.pods.contains_key(ordinal));
        for ordinal in missing.take(BURST).collect::<Vec<_>>() {
            self.create(ordinal);
        }
    }

    fn create(&mut self, ordinal: i64) {
        // A stale claim is deleted first; its deletion comes as an event.
        if !(self.view.has_stale_claim)(ordinal) {
            let revision = self.revision_for(ordinal).to_owned();
            self.steps.push(Step::Create { ordinal, revision });
        }
    }

    fn keep(&mut self, pod: Arc<Pod>) -> bool {
        if is_terminal(&pod) {
            // Created again when it is gone, whatever its exit code.
            if !is_deleting(&pod) {
                self.steps.push(Step::Delete(pod));
            }
            return false;
        }
        if phase(&pod) == "Pending" {
            self.steps.push(Step::EnsureClaims(pod.clone()));
        }
        let well = self.is_well(&pod) && !is_deleting(&pod);
        if well || !self.ordered {
            self.steps.push(Step::Correct(pod));
        }
        well
    }

    /// Steps for pods beyond the wanted ordinals, the highest first; returns whether none is left.
    fn remove_unwanted(&mut self) -> bool {
        let unwell = |pod: &&Arc<Pod>| self.is_unavailable(Some(pod));
        let first_wanted = self.kept().map(|(_, pod)| pod).find(unwell);
        let unwanted = || {
            self.pods
                .iter()
                .filter(|(ordinal, _)| !self.wanted().contains(ordinal))
        };
        let first_unwell = first_wanted.or_else(|| unwanted().map(|(_, pod)| pod).find(unwell));
        let first_unwell = first_unwell.cloned();
        let unwanted: Vec<_> = unwanted().rev().map(|(_, pod)| pod.clone()).collect();
        self.steps
            .extend(unwanted.iter().cloned().map(Step::Correct));
        for pod in unwanted {
            let is_first = first_unwell
                .as_ref()
                .is_some_and(|first| Arc::ptr_eq(first, &pod));
            let waits = self.ordered && !self.is_well(&pod) && !is_first;
            if !is_deleting(&pod) && !waits {
                self.steps.push(Step::Delete(pod));
            }
            if self.ordered {
                return false;
            }
        }
        true
    }

    fn replace_old(&mut self) {
        let partition = self
            .rolling()
            .and_then(|rolling| rolling.partition)
            .unwrap_or(0);
        let lowest = self.first + i64::from(partition);
        let most = self
            .rolling()
            .and_then(|rolling| rolling.max_unavailable.clone());
        let ordinals = self.wanted().rev().take_while(|ordinal| *ordinal >= lowest);
        let Some(most) = most else {
            for ordinal in ordinals {
                let pod = self.pods.get(&ordinal).cloned();
                if let Some(pod) = pod.clone().filter(|pod| self.is_old(pod)) {
                    return self.replace(pod);
                }
                if self.is_unavailable(pod.as_ref()) {
                    return;
                }
            }
            return;
        };
        let most = scaled(Some(&most), self.replicas, false).max(1);
        let available = self
            .kept()
            .filter(|(_, pod)| !self.is_unavailable(Some(pod)));
        let available = i32::try_from(available.count()).unwrap_or(i32::MAX);
        let missing = self.replicas.max(0) - available;
        let old = self.kept().rev().filter(|(ordinal, _)| **ordinal >= lowest);
        let old = old.filter(|(_, pod)| self.is_old(pod));
        let room = usize::try_from(most - missing).unwrap_or(0);
        let old: Vec<_> = old.take(room).map(|(_, pod)| pod.clone()).collect();
        for pod in old {
            self.replace(pod);
        }
    }

    /// Whether the update has to replace a pod. Failed pods are replaced in any case.
    fn is_old(&self, pod: &Pod) -> bool {
        revision(pod) != self.view.newest && !is_deleting(pod) && !is_terminal(pod)
    }

    fn replace(&mut self, pod: Arc<Pod>) {
        self.replaced += i32::from(revision(&pod) == self.current);
        self.steps.push(Step::Delete(pod));
    }

    fn status(&self) -> StatefulSetStatus {
        let count = |test: &dyn Fn(&Pod) -> bool| {
            let found = self.pods.values().filter(|pod| test(pod)).count();
            i32::try_from(found).unwrap_or(i32::MAX)
        };
        let positive = |count: i32| (count > 0).then_some(count);
        let of = |name: &str| count(&|pod| revision(pod) == name && !is_deleting(pod));
        let is_ready = |pod: &Pod| phase(pod) == "Running" && is_ready(pod);
        let (all, ready) = (count(&|_| true), count(&is_ready));
        let updated = of(self.view.newest);
        let is_over = self.rolls() && [updated, ready, all].iter().all(|n| *n == self.replicas);
        let (current, current_replicas) = if is_over {
            (self.view.newest, updated)
        } else {
            (self.current, of(self.current) - self.replaced)
        };
        let before = self.view.set.status.as_ref();
        StatefulSetStatus {
            observed_generation: self.view.set.metadata.generation,
            replicas: all,
            ready_replicas: positive(ready),
            available_replicas: Some(count(&|pod| is_ready(pod) && self.is_available(pod))),
            current_replicas: positive(current_replicas),
            updated_replicas: positive(updated),
            current_revision: Some(current.to_owned()),
            update_revision: Some(self.view.newest.to_owned()),
            collision_count: before.and_then(|before| before.collision_count),
            conditions: before.and_then(|before| before.conditions.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{history, pods::samples::at};

    fn set(replicas: i32, spec: Value) -> StatefulSet {
        let mut all = json!({"replicas": replicas, "selector": {}, "template": {}});
        for (key, value) in spec.as_object().unwrap() {
            all[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": "db"}, "spec": all})).unwrap()
    }

    /// `ordinal revision [ready|Failed|Succeeded|Pending|deleted|young]`.
    fn pod(text: &str) -> Arc<Pod> {
        let words: Vec<&str> = text.split(' ').collect();
        let has = |word: &str| words[2..].contains(&word);
        let phases = ["Failed", "Succeeded", "Pending"];
        let phase = phases
            .into_iter()
            .find(|phase| has(phase))
            .unwrap_or("Running");
        let since = if has("young") { 95 } else { 1 };
        let ready = json!([{"type": "Ready", "status": "True",
            "lastTransitionTime": at(since).to_string()}]);
        let pod = json!({
            "metadata": {
                "name": format!("db-{}", words[0]), "labels": {(history::HASH): words[1]},
                "deletionTimestamp": has("deleted").then(|| at(1).to_string()),
            },
            "status": {"phase": phase,
                "conditions": if has("ready") || has("young") { ready } else { json!([]) }},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn plan(set: &StatefulSet, pods: &[&str], stale: i64) -> Plan {
        let pods: Vec<_> = pods.iter().map(|text| pod(text)).collect();
        decide(&View {
            set,
            newest: "new",
            current: Some("old"),
            pods: &pods,
            has_stale_claim: &|ordinal| ordinal == stale,
            now: at(100),
        })
    }

    /// `+ordinal revision` and `-ordinal` for created and deleted pods.
    fn changes(set: &StatefulSet, pods: &[&str]) -> String {
        let name = |pod: &Pod| pod.metadata.name.clone().unwrap().replace("db-", "");
        let text = plan(set, pods, 99)
            .steps
            .into_iter()
            .filter_map(|step| match step {
                Step::Create { ordinal, revision } => Some(format!("+{ordinal} {revision}")),
                Step::Delete(pod) => Some(format!("-{}", name(&pod))),
                Step::EnsureClaims(_) | Step::Correct(_) => None,
            });
        text.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn pods_are_created_in_order_when_the_previous_is_ready_or_in_parallel() {
        let ordered = set(3, json!({}));
        let parallel = set(3, json!({"podManagementPolicy": "Parallel"}));
        let patient = set(3, json!({"minReadySeconds": 10}));
        let shifted = set(2, json!({"ordinals": {"start": 5}}));
        let last = set(
            2,
            json!({"ordinals": {"start": i32::MAX}, "podManagementPolicy": "Parallel"}),
        );
        for (set, pods, expected) in [
            (&ordered, &[][..], "+0 new"),
            (&ordered, &["0 new"], ""),
            (&ordered, &["0 new ready"], "+1 new"),
            (&ordered, &["0 new ready deleted"], ""),
            (&ordered, &["1 new ready"], "+0 new"),
            (&ordered, &["0 new Failed", "1 new ready"], "-0"),
            (&ordered, &["0 new Succeeded"], "-0"),
            (&ordered, &["0 new Failed deleted"], ""),
            (&patient, &["0 new young"], ""),
            (&patient, &["0 new ready"], "+1 new"),
            (&parallel, &[], "+0 new, +1 new, +2 new"),
            (&parallel, &["1 new"], "+0 new, +2 new"),
            (&parallel, &["0 new Failed", "1 new"], "-0, +2 new"),
            (&shifted, &[], "+5 new"),
            (&last, &[], "+2147483647 new, +2147483648 new"),
            (
                &shifted,
                &["5 new ready", "6 new ready", "0 new ready"],
                "-0",
            ),
        ] {
            assert_eq!(changes(set, pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn pods_are_deleted_from_the_highest_ordinal_or_in_parallel() {
        let (one, none) = (set(1, json!({})), set(0, json!({})));
        let parallel = set(0, json!({"podManagementPolicy": "Parallel"}));
        for (set, pods, expected) in [
            (
                &one,
                &["0 new ready", "1 new ready", "2 new ready"][..],
                "-2",
            ),
            (
                &one,
                &["0 new ready", "1 new ready", "2 new ready deleted"],
                "",
            ),
            (&one, &["0 new", "1 new ready"], ""),
            // The first unhealthy pod may be deleted; others wait for it.
            (&none, &["0 new ready", "1 new", "2 new"], ""),
            (&none, &["0 new ready", "1 new"], "-1"),
            (&none, &["0 new ready", "1 new", "2 new ready"], "-2"),
            (&parallel, &["0 new", "1 new ready", "2 new"], "-2, -1, -0"),
        ] {
            assert_eq!(changes(set, pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn an_update_begins_at_the_top_waits_for_each_and_stops_at_the_partition() {
        let strategy = |strategy: Value| set(3, json!({ "updateStrategy": strategy }));
        let plain = strategy(json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
        let held = strategy(json!({"rollingUpdate": {"partition": 2}}));
        let on_delete = strategy(json!({"type": "OnDelete"}));
        for (set, pods, expected) in [
            (
                &plain,
                &["0 old ready", "1 old ready", "2 old ready"][..],
                "-2",
            ),
            (
                &plain,
                &["0 old ready", "1 old ready", "2 old ready deleted"],
                "",
            ),
            (&plain, &["0 old ready", "1 old ready"], "+2 new"),
            (&plain, &["0 old ready", "1 old ready", "2 new"], ""),
            (&plain, &["0 old ready", "1 old ready", "2 new ready"], "-1"),
            (&plain, &["0 new ready", "1 new ready", "2 new ready"], ""),
            (&held, &["0 old ready", "1 old ready", "2 old ready"], "-2"),
            (&held, &["0 old ready", "1 old ready", "2 new ready"], ""),
            (&held, &["1 old ready", "2 new ready"], "+0 old"),
            (&held, &["0 old ready", "1 old ready"], "+2 new"),
            (
                &on_delete,
                &["0 old ready", "1 old ready", "2 old ready"],
                "",
            ),
            (&on_delete, &["1 old ready", "2 old ready"], "+0 new"),
        ] {
            assert_eq!(changes(set, pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn in_parallel_an_update_goes_on_while_pods_come_and_stops_at_one_that_is_not_available() {
        let parallel = set(3, json!({"podManagementPolicy": "Parallel"}));
        for (pods, expected) in [
            (&["0 old ready", "2 old ready"][..], "+1 new, -2"),
            (&["0 old ready", "1 old", "2 new ready"], "-1"),
            (&["0 old ready", "1 old ready", "2 new"], ""),
        ] {
            assert_eq!(changes(&parallel, pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn max_unavailable_lets_several_be_replaced_at_once() {
        let set = |most: Value, policy: &str| {
            set(
                4,
                json!({"podManagementPolicy": policy, "updateStrategy": {"rollingUpdate": {
                "partition": 1, "maxUnavailable": most}}}),
            )
        };
        let all = ["0 old ready", "1 old ready", "2 old ready", "3 old ready"];
        assert_eq!(changes(&set(json!(2), "OrderedReady"), &all), "-3, -2");
        assert_eq!(changes(&set(json!(9), "OrderedReady"), &all), "-3, -2, -1");
        assert_eq!(changes(&set(json!("50%"), "OrderedReady"), &all), "-3, -2");
        assert_eq!(
            changes(&set(json!("10%"), "OrderedReady"), &all),
            "-3",
            "at least one"
        );
        let some = ["0 old ready", "1 old ready", "2 new", "3 new ready"];
        assert_eq!(changes(&set(json!(2), "Parallel"), &some), "-1");
        assert_eq!(changes(&set(json!(1), "Parallel"), &some), "");
    }

    #[test]
    fn a_set_of_two_billion_pods_is_decided_about_at_once_and_created_in_parts() {
        for (policy, expected) in [("Parallel", BURST), ("OrderedReady", 1)] {
            let spec = json!({"podManagementPolicy": policy, "ordinals": {"start": 7},
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}});
            let huge = set(i32::MAX, spec);
            let steps = plan(&huge, &["7 old ready", "9 new ready"], 0).steps;
            let created: Vec<i64> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Create { ordinal, .. } => Some(*ordinal),
                    _ => None,
                })
                .collect();
            assert_eq!(created.len(), expected, "{policy}");
            assert_eq!(created[0], 8);
        }
        let parallel = set(i32::MAX, json!({"podManagementPolicy": "Parallel"}));
        let last = i64::from(i32::MAX) - 1;
        let pods = [format!("{last} old Failed"), format!("{} new", last + 1)];
        let changes = changes(&parallel, &[&pods[0], &pods[1]]);
        assert!(
            changes.starts_with(&format!("-{last}, +0 new")),
            "{changes}"
        );
        assert!(changes.ends_with(&format!("-{}", last + 1)), "{changes}");
    }

    #[test]
    fn a_pod_waits_until_the_claim_of_its_predecessor_is_deleted() {
        let parallel = set(2, json!({"podManagementPolicy": "Parallel"}));
        let steps = plan(&parallel, &[], 0).steps;
        assert!(
            matches!(steps[..], [Step::Create { ordinal: 1, .. }]),
            "{steps:?}"
        );
        assert!(plan(&set(2, json!({})), &[], 0).steps.is_empty());
    }

    #[test]
    fn a_set_being_deleted_only_updates_its_status() {
        let mut leaving = set(2, json!({}));
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!(at(1).to_string())).unwrap());
        let plan = plan(&leaving, &["0 new ready"], 99);
        assert!(plan.steps.is_empty());
        assert_eq!(plan.status.replicas, 1);
    }

    #[test]
    fn the_status_counts_pods_and_ends_the_update_when_all_are_new_and_ready() {
        let status = |pods: &[&str]| {
            let status = plan(&set(2, json!({})), pods, 99).status;
            (
                status.replicas,
                status.ready_replicas,
                status.current_replicas,
                status.updated_replicas,
                status.current_revision.unwrap(),
            )
        };
        let (old, new) = ("old".to_owned(), "new".to_owned());
        for (pods, expected) in [
            (
                &["0 new ready", "1 new ready"][..],
                (2, Some(2), Some(2), Some(2), new),
            ),
            (
                &["0 new ready", "1 new"],
                (2, Some(1), None, Some(2), old.clone()),
            ),
            (
                &["0 old ready", "1 new"],
                (2, Some(1), Some(1), Some(1), old.clone()),
            ),
            // The pod that is being replaced no longer counts as current.
            (
                &["0 old ready", "1 old ready"],
                (2, Some(2), Some(1), None, old.clone()),
            ),
            (
                &["0 old ready", "1 new Failed"],
                (2, Some(1), Some(1), Some(1), old.clone()),
            ),
            (&["0 old ready deleted"], (1, Some(1), None, None, old)),
        ] {
            assert_eq!(status(pods), expected, "{pods:?}");
        }
    }
}
