//! The second half of a round: the status to write, and the pods to release after that.

use std::{collections::HashSet, sync::Arc};

use k8s_openapi::{
    api::{
        batch::v1::{JobCondition, JobStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use reconcile::Kind;

use super::{End, Round, Step, count};
use crate::{
    job::pod::{has_failed, index, is_tracked, uid},
    pods::{is_ready, phase},
};

/// The maximum number of pods in `uncountedTerminatedPods`.
const MOST_UNCOUNTED: usize = 500;

/// The result of a [`Step`].
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::job) struct Done {
    pub(in crate::job) created: usize,
    pub(in crate::job) deleted: usize,
    /// How many of the deleted pods were ready.
    pub(in crate::job) deleted_ready: usize,
}

impl Done {
    /// Records a deleted pod.
    pub(in crate::job) fn delete(&mut self, pod: &Pod) {
        self.deleted += 1;
        self.deleted_ready += usize::from(is_ready(pod));
    }
}

/// An event to record: its type, reason and message.
pub(in crate::job) type EventText = (Kind, String, String);

fn event(kind: Kind, reason: &str, message: &str) -> EventText {
    (kind, reason.to_owned(), message.to_owned())
}

/// The writes of the second half.
#[derive(Debug)]
pub(in crate::job) struct Conclusion {
    pub(in crate::job) status: JobStatus,
    /// Pods whose finalizer is removed after the status was written.
    pub(in crate::job) release: Vec<Arc<Pod>>,
    pub(in crate::job) events: Vec<EventText>,
}

fn positive(number: i32) -> Option<i32> {
    (number > 0).then_some(number)
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

impl Round<'_> {
    pub(in crate::job) fn conclude(mut self, done: Done) -> Conclusion {
        let mut events = Vec::new();
        let active = count(&self.active) + number(done.created) - number(done.deleted);
        self.terminating += number(done.deleted);
        match &self.step {
            // Some pods could not be deleted: the Job is not finished yet.
            Step::Stop(pods) if done.deleted < pods.len() => self.end = None,
            Step::Stop(_) => {}
            _ if self.is_complete(active) => {
                let message = "Reached expected number of succeeded pods";
                self.end = Some(End::success("CompletionsReached", message));
            }
            _ if self.job.metadata.deletion_timestamp.is_none() => {
                events.extend(self.note_suspension());
            }
            _ => {}
        }
        let ready = self.active.iter().filter(|pod| is_ready(pod)).count();
        self.status.active = positive(active);
        self.status.ready = Some(number(ready.saturating_sub(done.deleted_ready)));
        self.status.terminating = Some(self.terminating);
        let (release, is_all) = self.track();
        events.extend(self.finish(release.is_empty() && is_all));
        Conclusion {
            status: self.status,
            release,
            events,
        }
    }

    fn is_complete(&self, active: i32) -> bool {
        let enough = match self.spec.completions {
            Some(wanted) => self.succeeded >= wanted,
            None => self.succeeded > 0,
        };
        enough && active == 0
    }

    fn note_suspension(&mut self) -> Option<EventText> {
        if self.spec.suspend == Some(true) {
            let changed = self.set("Suspended", "True", "JobSuspended", "Job suspended");
            return changed.then(|| {
                self.status.start_time = None;
                event(Kind::Normal, "Suspended", "Job suspended")
            });
        }
        let changed = self.set("Suspended", "False", "JobResumed", "Job resumed");
        changed.then(|| {
            // activeDeadlineSeconds counts from the resume.
            self.status.start_time = Some(Time(self.now));
            event(Kind::Normal, "Resumed", "Job resumed")
        })
    }

    /// Counts released pods, lists further ones in the status, and returns those to release and
    /// whether these are all.
    fn track(&mut self) -> (Vec<Arc<Pod>>, bool) {
        self.count_released();
        let (mut release, mut is_all) = (Vec::new(), true);
        let mut noted = self.uncounted();
        for pod in self.pods.clone() {
            if !is_tracked(pod) || !self.may_release(pod) {
                continue;
            }
            release.push(Arc::clone(pod));
            noted += usize::from(self.note(pod));
            if noted >= MOST_UNCOUNTED {
                is_all = false;
                break;
            }
        }
        if self.indexes.is_some() {
            self.status.succeeded = positive(self.completed.len());
            let text = self.completed.to_string();
            self.status.completed_indexes = Some(text).filter(|text| !text.is_empty());
            self.status.failed_indexes = self.failed_indexes.as_ref().map(ToString::to_string);
        }
        (release, is_all)
    }

    /// The number of pods listed in the status.
    fn uncounted(&self) -> usize {
        let uncounted = self.status.uncounted_terminated_pods.iter();
        let lists = uncounted.flat_map(|uncounted| [&uncounted.succeeded, &uncounted.failed]);
        lists.flatten().map(Vec::len).sum()
    }

    /// Moves pods without the finalizer from the lists to the counts.
    fn count_released(&mut self) {
        let pods = self.pods.iter();
        let tracked: HashSet<&str> = pods
            .filter(|pod| is_tracked(pod))
            .map(|pod| uid(pod))
            .collect();
        let status = &mut self.status;
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        for (list, count) in [
            (&mut uncounted.succeeded, &mut status.succeeded),
            (&mut uncounted.failed, &mut status.failed),
        ] {
            let Some(uids) = list else { continue };
            let before = uids.len();
            uids.retain(|uid| tracked.contains(uid.as_str()));
            let released = number(before - uids.len());
            *count = positive(count.unwrap_or(0) + released);
            if uids.is_empty() {
                *list = None;
            }
        }
    }

    /// Whether the pod's finalizer may be removed.
    fn may_release(&self, pod: &Pod) -> bool {
        if self.job.metadata.deletion_timestamp.is_some()
            || self.end.is_some()
            || phase(pod) == "Succeeded"
        {
            return true;
        }
        let waits = || {
            let last = index(pod).and_then(|index| self.replaceable.get(&index));
            last.is_some_and(|last| uid(last) == uid(pod))
        };
        has_failed(&self.spec, pod) && !waits()
    }

    /// Lists a pod in the status if it counts and is not listed; returns whether it was added.
    fn note(&mut self, pod: &Arc<Pod>) -> bool {
        let uncounted = |list: &HashSet<String>| list.contains(uid(pod));
        let was_failure = uncounted(&self.uncounted_failed);
        if phase(pod) == "Succeeded" && !was_failure {
            if self.indexes.is_some() {
                // completedIndexes shows that it was counted; its uid is not needed.
                let index = index(pod).filter(|_| self.has_place(pod));
                return index.is_some_and(|index| !self.completed_before.contains(index));
            }
            return !uncounted(&self.uncounted_succeeded) && self.name(pod, true);
        }
        let ended_by_failure = self.end.as_ref().is_some_and(|end| !end.success);
        let counts = (has_failed(&self.spec, pod) || ended_by_failure)
            && !was_failure
            && self.has_place(pod)
            && self.verdict(pod).counts();
        counts && self.name(pod, false)
    }

    fn name(&mut self, pod: &Pod, succeeded: bool) -> bool {
        let uncounted = self
            .status
            .uncounted_terminated_pods
            .get_or_insert_default();
        let list = if succeeded {
            &mut uncounted.succeeded
        } else {
            &mut uncounted.failed
        };
        list.get_or_insert_default().push(uid(pod).to_owned());
        true
    }

    /// Sets SuccessCriteriaMet or FailureTarget and, when every pod is counted and gone, Complete
    /// or Failed.
    fn finish(&mut self, all_released: bool) -> Vec<EventText> {
        let Some(end) = self.end.take() else {
            return Vec::new();
        };
        let now = Time(self.now);
        let (interim, last) = if end.success {
            ("SuccessCriteriaMet", "Complete")
        } else {
            ("FailureTarget", "Failed")
        };
        if super::true_condition(&self.status, interim).is_none() {
            self.set(interim, "True", &end.reason, &end.message);
        }
        if !all_released || self.uncounted() > 0 || self.terminating > 0 {
            return Vec::new();
        }
        self.set(last, "True", &end.reason, &end.message);
        if !end.success {
            return vec![event(Kind::Warning, &end.reason, &end.message)];
        }
        self.status.completion_time = Some(now);
        let mut events = Vec::new();
        let succeeded = self.status.succeeded.unwrap_or(0);
        if self
            .spec
            .completions
            .is_some_and(|wanted| succeeded > wanted)
        {
            let text = "Too many succeeded pods running after completion count reached";
            events.push(event(Kind::Warning, "TooManySucceededPods", text));
        }
        events.push(event(Kind::Normal, "Completed", "Job completed"));
        events
    }

    /// Sets a condition; returns whether it changed. A new condition with status False is not
    /// added.
    fn set(&mut self, kind: &str, value: &str, reason: &str, text: &str) -> bool {
        let new = JobCondition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(text.to_owned()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        };
        let conditions = self.status.conditions.get_or_insert_default();
        let known = conditions.iter_mut().find(|known| known.type_ == kind);
        let same = |known: &JobCondition| {
            (&known.status, &known.reason, &known.message)
                == (&new.status, &new.reason, &new.message)
        };
        let changed = match known {
            Some(known) if same(known) => false,
            Some(known) => {
                *known = new;
                true
            }
            None if value == "False" => false,
            None => {
                conditions.push(new);
                true
            }
        };
        if conditions.is_empty() {
            self.status.conditions = None;
        }
        changed
    }
}
