//! What to do for a Job: which pods to count, delete and create, and when the Job is finished.
//! Pure.
//!
//! A round has two halves. [`Round::new`] evaluates the Job and chooses pods to delete or create;
//! [`Round::conclude`] takes the results and computes the status and the pods to release. An ended
//! pod is listed in the status before its finalizer is removed, and counted when the finalizer is
//! gone: a crash in between neither counts it twice nor loses it.

mod conclude;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobSpec, JobStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    backoff::{self, Backoff},
    failurepolicy::{self, Verdict},
    indexes::Indexes,
    pod::{
        earlier_failures, finished_at, has_failed, index, is_tracked, removal_order,
        replaces_only_failed, uid,
    },
    successpolicy,
    template::NewPod,
};
use crate::pods::{self, is_active, phase};

pub(super) use conclude::Done;

/// At most this many pods are created or deleted per round.
const BURST: usize = 500;

pub(super) struct View<'a> {
    pub(super) job: &'a Job,
    /// All pods that the Job owns.
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) backoff: Backoff,
    pub(super) now: Timestamp,
}

/// What to do with pods before the status is written.
#[derive(Debug, Default)]
pub(super) enum Step {
    #[default]
    Nothing,
    /// The Job is finished: delete the running pods. They are counted like others.
    Stop(Vec<Arc<Pod>>),
    /// Delete surplus pods without counting them.
    Remove(Vec<Arc<Pod>>),
    Create(Vec<NewPod>),
}

impl Step {
    /// As metrics name it.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::Nothing => "reconciling",
            Self::Stop(_) | Self::Remove(_) => "pods_deleted",
            Self::Create(_) => "pods_created",
        }
    }
}

/// How a Job ends, before its last pod is gone: the conditions SuccessCriteriaMet or FailureTarget
/// first, Complete or Failed when everything is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    success: bool,
    reason: String,
    message: String,
}

impl End {
    fn failure(reason: &str, message: &str) -> Self {
        Self {
            success: false,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    fn success(reason: &str, message: &str) -> Self {
        Self {
            success: true,
            ..Self::failure(reason, message)
        }
    }

    fn from_condition(condition: &JobCondition, success: bool) -> Self {
        Self {
            success,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        }
    }
}

/// A condition that is True.
pub(super) fn true_condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind && condition.status == "True")
}

/// Whether the Job is Complete or Failed.
pub(super) fn is_finished(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|status| {
        true_condition(status, "Complete")
            .or(true_condition(status, "Failed"))
            .is_some()
    })
}

fn count<T>(of: &[T]) -> i32 {
    i32::try_from(of.len()).unwrap_or(i32::MAX)
}

pub(super) struct Round<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: Vec<&'a Arc<Pod>>,
    now: Timestamp,
    /// The status to write.
    status: JobStatus,
    active: Vec<Arc<Pod>>,
    terminating: i32,
    /// Uids in `uncountedTerminatedPods` as read.
    uncounted_succeeded: HashSet<String>,
    uncounted_failed: HashSet<String>,
    /// The number of indexes of an Indexed Job.
    indexes: Option<i32>,
    completed_before: Indexes,
    completed: Indexes,
    /// Set if backoffLimitPerIndex is set.
    failed_indexes: Option<Indexes>,
    /// The last failed pod of each index without a new pod, which inherits the failure counts.
    replaceable: BTreeMap<i32, &'a Arc<Pod>>,
    succeeded: i32,
    failed: i32,
    end: Option<End>,
    pub(super) backoff: Backoff,
    pub(super) step: Step,
    pub(super) after: Option<Duration>,
}

impl<'a> Round<'a> {
    pub(super) fn new(view: &View<'a>) -> Self {
        let job = view.job;
        let mut round = Self::read(view);
        round.count_indexes();
        let (succeeded, failed) = round.newly_ended();
        round.backoff = view.backoff.after(&succeeded, &failed);
        round.count_pods(&succeeded, &failed);
        if round.status.start_time.is_none() && !round.is_suspended() {
            round.status.start_time = Some(Time(view.now));
        }
        round.end = round.known_end().or_else(|| round.reached_end());
        if round.end.is_some() {
            round.step = Step::Stop(round.active.clone());
        } else if job.metadata.deletion_timestamp.is_none() {
            round.step = round.manage();
        }
        round
    }

    fn read(view: &View<'a>) -> Self {
        let spec = view.job.spec.clone().unwrap_or_default();
        let status = view.job.status.clone().unwrap_or_default();
        let indexed = spec.completion_mode.as_deref() == Some("Indexed");
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let mut pods: Vec<_> = view.pods.iter().collect();
        if indexed {
            // Indexes are counted in order.
            pods.sort_by_key(|pod| index(pod));
        }
        let active = pods.iter().filter(|pod| is_active(pod));
        let terminating = pods.iter().filter(|pod| pods::is_terminating(pod)).count();
        Self {
            job: view.job,
            now: view.now,
            active: active.map(|pod| Arc::clone(pod)).collect(),
            terminating: i32::try_from(terminating).unwrap_or(i32::MAX),
            uncounted_succeeded: uncounted.succeeded.into_iter().flatten().collect(),
            uncounted_failed: uncounted.failed.into_iter().flatten().collect(),
            indexes: indexed.then(|| spec.completions.unwrap_or(0)),
            completed_before: Indexes::default(),
            completed: Indexes::default(),
            failed_indexes: None,
            replaceable: BTreeMap::new(),
            succeeded: 0,
            failed: 0,
            end: None,
            backoff: view.backoff,
            step: Step::Nothing,
            after: None,
            spec,
            pods,
            status,
        }
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether the pod's index is valid for an Indexed Job; true for other Jobs.
    fn has_place(&self, pod: &Pod) -> bool {
        let range = |completions| index(pod).is_some_and(|index| index < completions);
        self.indexes.is_none_or(range)
    }

    fn verdict(&self, pod: &Pod) -> Verdict {
        failurepolicy::matching_action(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Pods that have succeeded and failed since the last status.
    fn newly_ended(&self) -> (Vec<&'a Arc<Pod>>, Vec<&'a Arc<Pod>>) {
        let tracked = self.pods.iter().copied();
        let tracked = tracked.filter(|pod| is_tracked(pod) && self.has_place(pod));
        let succeeded = tracked
            .clone()
            .filter(|pod| phase(pod) == "Succeeded")
            .filter(|pod| !self.uncounted_succeeded.contains(uid(pod)));
        let failed = tracked
            .filter(|pod| has_failed(&self.spec, pod))
            .filter(|pod| !self.uncounted_failed.contains(uid(pod)));
        (succeeded.collect(), failed.collect())
    }

    fn count_pods(&mut self, succeeded: &[&Arc<Pod>], failed: &[&Arc<Pod>]) {
        let counted = failed.iter().filter(|pod| self.verdict(pod).counts());
        let failed = i32::try_from(counted.count() + self.uncounted_failed.len());
        self.failed = self.status.failed.unwrap_or(0) + failed.unwrap_or(i32::MAX);
        self.succeeded = match self.indexes {
            Some(_) => self.completed.len(),
            None => {
                let uncounted = i32::try_from(self.uncounted_succeeded.len()).unwrap_or(0);
                self.status.succeeded.unwrap_or(0) + count(succeeded) + uncounted
            }
        };
    }

    /// Adds newly succeeded and failed indexes.
    fn count_indexes(&mut self) {
        let Some(completions) = self.indexes else {
            return;
        };
        let known = |text: &Option<String>| {
            Indexes::parse(text.as_deref().unwrap_or_default(), completions)
        };
        let tracked: Vec<_> = self
            .pods
            .iter()
            .copied()
            .filter(|pod| is_tracked(pod))
            .collect();
        let tracked = tracked.into_iter().filter(|pod| self.has_place(pod));
        let succeeded = tracked.clone().filter(|pod| phase(pod) == "Succeeded");
        let succeeded: Indexes = succeeded.filter_map(|pod| index(pod)).collect();
        let before = known(&self.status.completed_indexes);
        let completed = before.union(&succeeded);
        if let Some(limit) = self.spec.backoff_limit_per_index {
            let failed = tracked.clone().filter(|pod| self.fails_index(pod, limit));
            let failed: Indexes = failed.filter_map(|pod| index(pod)).collect();
            let failed = known(&self.status.failed_indexes).union(&failed);
            let over = completed.union(&failed);
            self.replaceable = self.replaceable(tracked.collect(), &over);
            self.failed_indexes = Some(failed);
        }
        (self.completed_before, self.completed) = (before, completed);
    }

    fn fails_index(&self, pod: &Pod, limit: i32) -> bool {
        if !has_failed(&self.spec, pod) {
            return false;
        }
        match self.verdict(pod) {
            Verdict::FailIndex => true,
            Verdict::Ignore => false,
            Verdict::Count | Verdict::FailJob(_) => earlier_failures(pod).0 >= limit,
        }
    }

    /// Failed pods whose index is retried and has no running pod.
    fn replaceable(
        &self,
        tracked: Vec<&'a Arc<Pod>>,
        over: &Indexes,
    ) -> BTreeMap<i32, &'a Arc<Pod>> {
        let running: HashSet<i32> = self.active.iter().filter_map(|pod| index(pod)).collect();
        let weight = |pod: &Pod| {
            let (counted, ignored) = earlier_failures(pod);
            counted.saturating_add(ignored)
        };
        let mut last: BTreeMap<i32, &'a Arc<Pod>> = BTreeMap::new();
        for pod in tracked
            .into_iter()
            .filter(|pod| has_failed(&self.spec, pod))
        {
            let Some(index) = index(pod) else { continue };
            if running.contains(&index) || over.contains(index) {
                continue;
            }
            let newer = last.get(&index).is_none_or(|known| {
                weight(known) <= weight(pod) && finished_at(known) <= finished_at(pod)
            });
            if newer {
                last.insert(index, pod);
            }
        }
        last
    }

    /// The end that an earlier round recorded in the status.
    fn known_end(&self) -> Option<End> {
        let met = true_condition(&self.status, "SuccessCriteriaMet");
        let met = met.map(|condition| End::from_condition(condition, true));
        met.or_else(|| {
            let target = true_condition(&self.status, "FailureTarget");
            target.map(|condition| End::from_condition(condition, false))
        })
    }

    /// Why the Job fails, or succeeds before all of its pods have.
    fn reached_end(&mut self) -> Option<End> {
        self.failed_by_policy()
            .or_else(|| self.failed_too_often())
            .or_else(|| self.missed_deadline())
            .or_else(|| self.failed_by_indexes())
            .or_else(|| {
                let policy = self.spec.success_policy.as_ref();
                let met = successpolicy::satisfied(policy, self.indexes?, &self.completed)?;
                Some(End::success("SuccessPolicy", &met))
            })
    }

    fn failed_by_policy(&self) -> Option<End> {
        let failed = self.pods.iter().filter(|pod| has_failed(&self.spec, pod));
        let message = failed
            .map(|pod| self.verdict(pod))
            .find_map(|verdict| match verdict {
                Verdict::FailJob(message) => Some(message),
                _ => None,
            });
        message.map(|message| End::failure("PodFailurePolicy", &message))
    }

    fn failed_too_often(&self) -> Option<End> {
        let per_index = self.spec.backoff_limit_per_index.is_some();
        let default = if per_index { i32::MAX } else { 6 };
        let limit = self.spec.backoff_limit.unwrap_or(default);
        let restarts = self.restarts();
        let restarted = restarts.is_some_and(|restarts| restarts >= i64::from(limit.max(1)));
        (self.failed > limit || restarted).then(|| {
            let message = "Job has reached the specified backoff limit";
            End::failure("BackoffLimitExceeded", message)
        })
    }

    /// The containers' restart count, for pods with restartPolicy OnFailure.
    fn restarts(&self) -> Option<i64> {
        let spec = self.spec.template.spec.as_ref()?;
        if spec.restart_policy.as_deref() != Some("OnFailure") {
            return None;
        }
        let live = self
            .pods
            .iter()
            .filter(|pod| matches!(phase(pod), "Running" | "Pending"));
        let statuses = live
            .filter_map(|pod| pod.status.as_ref())
            .flat_map(|status| {
                let inits = status.init_container_statuses.iter().flatten();
                inits.chain(status.container_statuses.iter().flatten())
            });
        Some(statuses.map(|status| i64::from(status.restart_count)).sum())
    }

    fn missed_deadline(&mut self) -> Option<End> {
        if self.is_suspended() {
            return None;
        }
        let start = self.status.start_time.as_ref()?.0;
        let seconds = u64::try_from(self.spec.active_deadline_seconds?).unwrap_or(0);
        let ends = start.checked_add(Duration::from_secs(seconds));
        let left = ends.unwrap_or(Timestamp::MAX).duration_since(self.now);
        if left.is_positive() {
            self.look_after(Duration::try_from(left).unwrap_or_default());
            return None;
        }
        let message = "Job was active longer than specified deadline";
        Some(End::failure("DeadlineExceeded", message))
    }

    fn failed_by_indexes(&self) -> Option<End> {
        let (failed, completions) = (self.failed_indexes.as_ref()?.len(), self.indexes?);
        if self
            .spec
            .max_failed_indexes
            .is_some_and(|most| failed > most)
        {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(End::failure("MaxFailedIndexesExceeded", message));
        }
        let all_over = failed > 0 && failed + self.completed.len() >= completions;
        all_over.then(|| End::failure("FailedIndexes", "Job has failed indexes"))
    }

    /// Chooses pods to create or delete to reach the desired number.
    fn manage(&mut self) -> Step {
        let active = count(&self.active);
        if self.is_suspended() {
            return Step::Remove(self.active.clone());
        }
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0);
        let wanted = match self.spec.completions {
            Some(completions) => parallelism.min((completions - self.succeeded).max(0)),
            // A work queue: after one success no new pods are created; the running ones may finish.
            None if self.succeeded > 0 => active,
            None => parallelism,
        };
        let surplus = self.surplus(usize::try_from(active - wanted).unwrap_or(0));
        if !surplus.is_empty() {
            return Step::Remove(surplus);
        }
        let waits_for = if replaces_only_failed(&self.spec) {
            self.terminating
        } else {
            0
        };
        let missing = usize::try_from(wanted - active - waits_for).unwrap_or(0);
        match missing.min(BURST) {
            0 => Step::Nothing,
            missing => self.fill(missing),
        }
    }

    /// At least `least` pods to delete, and all with an invalid or duplicate index.
    fn surplus(&self, least: usize) -> Vec<Arc<Pod>> {
        let mut left = self.active.clone();
        left.sort_by(|a, b| removal_order(a, b));
        let mut surplus = Vec::new();
        if self.indexes.is_some() {
            // The last pod in removal order keeps its index.
            let mut taken = HashSet::new();
            let mut keep = |pod: &Arc<Pod>| self.has_place(pod) && taken.insert(index(pod));
            left.reverse();
            (left, surplus) = left.into_iter().partition(&mut keep);
            left.reverse();
        }
        let more = least.saturating_sub(surplus.len());
        surplus.extend(left.into_iter().take(more));
        surplus.truncate(BURST);
        surplus
    }

    /// New pods, unless the backoff delays them.
    fn fill(&mut self, missing: usize) -> Step {
        let limited = self.failed_indexes.is_some();
        let wait = self.backoff.remaining(self.now);
        if !limited && !wait.is_zero() {
            self.look_after(wait);
            return Step::Nothing;
        }
        let Some(completions) = self.indexes else {
            return Step::Create(vec![NewPod::default(); missing]);
        };
        let free = self.taken().first_missing(missing, completions);
        if !limited {
            let new = free.into_iter().map(|index| NewPod {
                index: Some(index),
                failures: None,
            });
            return Step::Create(new.collect());
        }
        let wait = |index: &i32| {
            let failed = self.replaceable.get(index);
            failed.map_or(Duration::ZERO, |pod| {
                backoff::remaining_of_index(pod, self.now)
            })
        };
        let (ready, waiting): (Vec<i32>, Vec<i32>) =
            free.into_iter().partition(|index| wait(index).is_zero());
        let next = waiting.iter().map(wait).min();
        let new: Vec<_> = ready.into_iter().map(|index| self.retry(index)).collect();
        if let Some(next) = next {
            self.look_after(next);
        }
        if new.is_empty() {
            return Step::Nothing;
        }
        Step::Create(new)
    }

    /// Indexes that need no new pod.
    fn taken(&self) -> Indexes {
        let patient = replaces_only_failed(&self.spec);
        let leaving = self
            .pods
            .iter()
            .filter(|pod| patient && pods::is_terminating(pod));
        let held = self.active.iter().chain(leaving.map(|pod| &**pod));
        let held: Indexes = held.filter_map(|pod| index(pod)).collect();
        let taken = self.completed.union(&held);
        match &self.failed_indexes {
            Some(failed) => taken.union(failed),
            None => taken,
        }
    }

    /// The next pod of an index inherits its failure counts.
    fn retry(&self, index: i32) -> NewPod {
        let failures = self.replaceable.get(&index).map_or((0, 0), |pod| {
            let (counted, ignored) = earlier_failures(pod);
            if self.verdict(pod).counts() {
                (counted.saturating_add(1), ignored)
            } else {
                (counted, ignored.saturating_add(1))
            }
        });
        NewPod {
            index: Some(index),
            failures: Some(failures),
        }
    }

    fn look_after(&mut self, wait: Duration) {
        self.after = Some(self.after.map_or(wait, |known| known.min(wait)));
    }
}
