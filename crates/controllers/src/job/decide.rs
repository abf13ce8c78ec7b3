//! What to do for a Job: whom to count, whom to stop, whom to start, and when it is over. Pure.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use reconcile::Kind;

use super::{INDEX, Told, indexes, is_held};
use crate::pods::{self, is_active, is_deleting, is_ready, phase};

const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LAST_PAUSE: Duration = Duration::from_secs(600);

pub(super) struct View<'a> {
    pub(super) job: &'a Job,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) now: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// One pod each; the index when the job has indexes.
    pub(super) create: Vec<Option<i32>>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// The uids whose count is written: they may go.
    pub(super) release: HashSet<String>,
    pub(super) status: JobStatus,
    pub(super) events: Vec<Told>,
    pub(super) after: Option<Duration>,
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

fn index(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

fn condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == kind && c.status == "True")
}

/// A pod that will not succeed any more. One that is being deleted counts unless the job waits for
/// its end.
fn has_failed(spec: &JobSpec, pod: &Pod) -> bool {
    let patient = spec.pod_replacement_policy.as_deref() == Some("Failed");
    phase(pod) == "Failed" || (is_deleting(pod) && phase(pod) != "Succeeded" && !patient)
}

struct Round<'a> {
    view: &'a View<'a>,
    spec: JobSpec,
    plan: Plan,
    active: Vec<Arc<Pod>>,
    indexed: bool,
    done: BTreeSet<i32>,
}

pub(super) fn decide(view: &View) -> Plan {
    let spec = view.job.spec.clone().unwrap_or_default();
    let status = view.job.status.clone().unwrap_or_default();
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let done = indexes::parse(status.completed_indexes.as_deref().unwrap_or_default());
    let active = view
        .pods
        .iter()
        .filter(|pod| is_active(pod))
        .cloned()
        .collect();
    let mut round = Round {
        view,
        spec,
        plan: Plan {
            status,
            ..Plan::default()
        },
        active,
        indexed,
        done,
    };
    round.count();
    let over =
        condition(&round.plan.status, "Complete").or(condition(&round.plan.status, "Failed"));
    if over.is_none() && view.job.metadata.deletion_timestamp.is_none() {
        round.live();
    } else {
        round.plan.delete = if over.is_some() {
            round.active.clone()
        } else {
            Vec::new()
        };
    }
    round.tell();
    round.plan
}

impl Round<'_> {
    /// Moves ended pods from "to be counted" to the counts, once their finalizer is gone.
    fn count(&mut self) {
        let status = &mut self.plan.status;
        let waiting = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let held: HashSet<String> = self
            .view
            .pods
            .iter()
            .filter(|pod| is_held(pod))
            .map(|pod| uid(pod))
            .collect();
        let (mut succeeded, mut failed) = (
            waiting.succeeded.unwrap_or_default(),
            waiting.failed.unwrap_or_default(),
        );
        for (list, count) in [
            (&mut succeeded, &mut status.succeeded),
            (&mut failed, &mut status.failed),
        ] {
            let before = list.len();
            list.retain(|uid| held.contains(uid));
            let gone = i32::try_from(before - list.len()).unwrap_or(0);
            *count = Some(count.unwrap_or(0) + gone).filter(|count| *count > 0);
        }
        for pod in self.view.pods.iter().filter(|pod| is_held(pod)) {
            let uid = uid(pod);
            if succeeded.contains(&uid) || failed.contains(&uid) {
                continue;
            }
            if phase(pod) == "Succeeded" {
                let repeated = self.indexed && index(pod).is_none_or(|i| !self.done.insert(i));
                if repeated {
                    self.plan.release.insert(uid);
                } else {
                    succeeded.push(uid);
                }
            } else if phase(pod) == "Failed" {
                failed.push(uid);
            }
        }
        self.plan
            .release
            .extend(succeeded.iter().chain(&failed).cloned());
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
            succeeded: some(succeeded),
            failed: some(failed),
        });
    }

    fn uncounted(&self) -> (i32, i32) {
        let waiting = self
            .plan
            .status
            .uncounted_terminated_pods
            .clone()
            .unwrap_or_default();
        let length =
            |list: Option<Vec<String>>| i32::try_from(list.unwrap_or_default().len()).unwrap_or(0);
        (length(waiting.succeeded), length(waiting.failed))
    }

    fn succeeded(&self) -> i32 {
        if self.indexed {
            return i32::try_from(self.done.len()).unwrap_or(i32::MAX);
        }
        self.plan.status.succeeded.unwrap_or(0) + self.uncounted().0
    }

    fn failed(&self) -> i32 {
        let dying =
            self.view.pods.iter().filter(|pod| {
                is_held(pod) && has_failed(&self.spec, pod) && phase(pod) != "Failed"
            });
        let dying = i32::try_from(dying.count()).unwrap_or(0);
        self.plan.status.failed.unwrap_or(0) + self.uncounted().1 + dying
    }

    fn live(&mut self) {
        let suspended = self.spec.suspend == Some(true);
        if self.plan.status.start_time.is_none() && !suspended {
            self.plan.status.start_time = Some(Time(self.view.now));
        }
        if let Some((reason, text)) = self.failure() {
            self.plan.delete = self.active.clone();
            return self.finish("FailureTarget", "Failed", reason, text);
        }
        if self.is_complete() {
            self.plan.delete = self.active.clone();
            let text = "Reached expected number of succeeded pods".to_owned();
            return self.finish("SuccessCriteriaMet", "Complete", "CompletionsReached", text);
        }
        if suspended {
            self.plan.delete = self.active.clone();
            self.plan.status.start_time = None;
            self.suspend("True", "JobSuspended", "Job suspended");
        } else {
            if condition(&self.plan.status, "Suspended").is_some() {
                self.suspend("False", "JobResumed", "Job resumed");
            }
            self.manage();
        }
    }

    /// Why the job cannot succeed any more.
    fn failure(&mut self) -> Option<(&'static str, String)> {
        if let Some(known) = condition(&self.plan.status, "FailureTarget") {
            let text = known.message.clone().unwrap_or_default();
            let late = known.reason.as_deref() == Some("DeadlineExceeded");
            return Some((
                if late {
                    "DeadlineExceeded"
                } else {
                    "BackoffLimitExceeded"
                },
                text,
            ));
        }
        if self.failed() > self.spec.backoff_limit.unwrap_or(6) {
            let text = "Job has reached the specified backoff limit";
            return Some(("BackoffLimitExceeded", text.to_owned()));
        }
        let start = self.plan.status.start_time.as_ref()?.0;
        let seconds = u64::try_from(self.spec.active_deadline_seconds?).unwrap_or(0);
        let left = (start + Duration::from_secs(seconds)).duration_since(self.view.now);
        if left.is_positive() {
            self.look_after(Duration::try_from(left).unwrap_or_default());
            return None;
        }
        Some((
            "DeadlineExceeded",
            "Job was active longer than specified deadline".to_owned(),
        ))
    }

    fn is_complete(&self) -> bool {
        match self.spec.completions {
            Some(wanted) => self.succeeded() >= wanted,
            // A queue of work: one success says that there is nothing left; the others may end.
            None => self.succeeded() > 0 && self.active.is_empty(),
        }
    }

    /// First the verdict, and when everybody is counted and gone, the end.
    fn finish(&mut self, verdict: &str, end: &'static str, reason: &'static str, text: String) {
        let now = self.view.now;
        self.set(verdict, "True", reason, &text);
        let waiting = self
            .view
            .pods
            .iter()
            .any(|pod| is_held(pod) || !pods::is_terminal(pod));
        if waiting {
            return;
        }
        self.set(end, "True", reason, &text);
        if end == "Complete" {
            self.plan.status.completion_time = Some(Time(now));
            self.plan
                .events
                .push((Kind::Normal, "Completed", "Job completed".to_owned()));
        } else {
            self.plan.events.push((Kind::Warning, reason, text));
        }
    }

    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.plan.status.conditions.get_or_insert_default();
        if conditions
            .iter()
            .any(|c| c.type_ == kind && c.status == status)
        {
            return;
        }
        conditions.retain(|condition| condition.type_ != kind);
        conditions.push(JobCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(self.view.now)),
            last_transition_time: Some(Time(self.view.now)),
        });
    }

    fn suspend(&mut self, status: &str, reason: &'static str, text: &str) {
        let known = condition(&self.plan.status, "Suspended").is_some();
        if known != (status == "True") {
            self.set("Suspended", status, reason, text);
            let event = if status == "True" {
                "Suspended"
            } else {
                "Resumed"
            };
            self.plan
                .events
                .push((Kind::Normal, event, text.to_owned()));
        }
    }

    /// Brings the number of running pods to what is wanted.
    fn manage(&mut self) {
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0);
        let active = i32::try_from(self.active.len()).unwrap_or(i32::MAX);
        let wanted = match self.spec.completions {
            Some(completions) => parallelism.min((completions - self.succeeded()).max(0)),
            None if self.succeeded() > 0 => active.min(parallelism),
            None => parallelism,
        };
        if active > wanted {
            let mut least = self.active.clone();
            pods::deletion_order(&mut least, &self.active, self.view.now);
            least.truncate(usize::try_from(active - wanted).unwrap_or(0));
            self.plan.delete = least;
            return;
        }
        let missing = usize::try_from(wanted - active).unwrap_or(0);
        if missing == 0 {
            return;
        }
        if let Some(pause) = self.pause() {
            return self.look_after(pause);
        }
        self.plan.create = if self.indexed {
            let running: HashSet<i32> = self.active.iter().filter_map(|pod| index(pod)).collect();
            let all = 0..self.spec.completions.unwrap_or(0);
            let free = all.filter(|index| !running.contains(index) && !self.done.contains(index));
            free.take(missing).map(Some).collect()
        } else {
            vec![None; missing]
        };
    }

    /// How long to wait after the last failure: twice as long every time.
    fn pause(&self) -> Option<Duration> {
        let failed: Vec<_> = self
            .view
            .pods
            .iter()
            .filter(|pod| phase(pod) == "Failed")
            .collect();
        let last = failed.iter().filter_map(|pod| ended(pod)).max()?;
        let doublings = u32::try_from(failed.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let pause = FIRST_PAUSE.saturating_mul(factor).min(LAST_PAUSE);
        let left = Duration::try_from((last + pause).duration_since(self.view.now));
        left.ok().filter(|left| !left.is_zero())
    }

    fn look_after(&mut self, wait: Duration) {
        self.plan.after = Some(self.plan.after.map_or(wait, |known| known.min(wait)));
    }

    fn tell(&mut self) {
        let some = |count: usize| i32::try_from(count).ok().filter(|count| *count > 0);
        let stopping: HashSet<String> = self.plan.delete.iter().map(|pod| uid(pod)).collect();
        let left = self
            .active
            .iter()
            .filter(|pod| !stopping.contains(&uid(pod)));
        let ready = left.clone().filter(|pod| is_ready(pod)).count();
        let leaving = self
            .view
            .pods
            .iter()
            .filter(|pod| pods::is_terminating(pod))
            .count();
        let done = indexes::format(&self.done);
        let status = &mut self.plan.status;
        status.active = some(left.count() + self.plan.create.len());
        status.ready = Some(i32::try_from(ready).unwrap_or(0));
        status.terminating = Some(i32::try_from(leaving + stopping.len()).unwrap_or(0));
        if self.indexed {
            status.completed_indexes = Some(done).filter(|done| !done.is_empty());
        }
    }
}

/// When a pod's last container ended.
fn ended(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let finished = statuses.filter_map(|status| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        terminated.finished_at.as_ref().map(|time| time.0)
    });
    let deleted = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let told =
        pods::condition(pod, "Ready").and_then(|c| c.last_transition_time.as_ref().map(|t| t.0));
    finished.max().or(deleted).or(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{job::FINALIZER, pods::samples};
    use samples::at;

    fn job(change: impl FnOnce(&mut JobSpec)) -> Job {
        let mut spec = JobSpec {
            completions: Some(3),
            parallelism: Some(2),
            backoff_limit: Some(1),
            ..Default::default()
        };
        change(&mut spec);
        Job {
            spec: Some(spec),
            ..Default::default()
        }
    }

    fn pod(name: &str, phase: &str, held: bool) -> Arc<Pod> {
        let mut pod = samples::pod(name, None);
        pod.status.as_mut().unwrap().phase = Some(phase.into());
        pod.metadata.finalizers = held.then(|| vec![FINALIZER.to_owned()]);
        Arc::new(pod)
    }

    fn run(job: &mut Job, pods: &[Arc<Pod>]) -> Plan {
        let plan = decide(&View {
            job,
            pods,
            now: at(1000),
        });
        job.status = Some(plan.status.clone());
        plan
    }

    fn has(job: &Job, kind: &str) -> bool {
        condition(job.status.as_ref().unwrap(), kind).is_some()
    }

    #[test]
    fn as_many_run_at_once_as_wanted_until_all_have_succeeded() {
        let mut job = job(|_| {});
        assert_eq!(run(&mut job, &[]).create.len(), 2);
        let pods = [pod("a", "Succeeded", true), pod("b", "Running", true)];
        let plan = run(&mut job, &pods);
        assert_eq!(plan.create.len(), 1, "two are left to do and one runs");
        assert!(plan.release.contains("uid-a"));
        let pods = [
            pod("a", "Succeeded", false),
            pod("b", "Succeeded", true),
            pod("c", "Succeeded", true),
        ];
        assert!(run(&mut job, &pods).create.is_empty());
        assert!(
            has(&job, "SuccessCriteriaMet") && !has(&job, "Complete"),
            "two are not counted yet"
        );
        let pods = [pod("b", "Succeeded", false), pod("c", "Succeeded", false)];
        run(&mut job, &pods);
        assert!(has(&job, "Complete"));
        assert_eq!(job.status.unwrap().succeeded, Some(3));
    }

    #[test]
    fn every_end_is_counted_once_however_often_it_is_seen() {
        let mut job = job(|spec| spec.completions = Some(10));
        for _ in 0..3 {
            run(&mut job, &[pod("a", "Succeeded", true)]);
        }
        assert_eq!(job.status.as_ref().unwrap().succeeded, None);
        for _ in 0..3 {
            run(&mut job, &[pod("a", "Succeeded", false)]);
        }
        assert_eq!(job.status.as_ref().unwrap().succeeded, Some(1));
    }

    #[test]
    fn too_many_failures_end_the_job_and_stop_what_runs() {
        let mut job = job(|_| {});
        let pods = [
            pod("a", "Failed", true),
            pod("b", "Failed", true),
            pod("c", "Running", true),
        ];
        let plan = run(&mut job, &pods);
        assert_eq!(plan.delete.len(), 1);
        assert!(has(&job, "FailureTarget") && !has(&job, "Failed"));
        run(
            &mut job,
            &[pod("a", "Failed", false), pod("b", "Failed", false)],
        );
        assert!(has(&job, "Failed"));
        assert_eq!(job.status.unwrap().failed, Some(2));
    }

    #[test]
    fn indexes_are_given_once_each_and_again_only_after_failure() {
        let mut job = job(|spec| spec.completion_mode = Some("Indexed".into()));
        assert_eq!(run(&mut job, &[]).create, [Some(0), Some(1)]);
        let mut done = pod("a", "Succeeded", true);
        Arc::make_mut(&mut done).metadata.annotations = Some([(INDEX.into(), "0".into())].into());
        assert_eq!(run(&mut job, &[done]).create, [Some(1), Some(2)]);
        assert_eq!(job.status.unwrap().completed_indexes.as_deref(), Some("0"));
    }

    #[test]
    fn a_suspended_job_stops_its_pods_and_a_late_one_fails() {
        let mut suspended = job(|spec| spec.suspend = Some(true));
        assert_eq!(
            run(&mut suspended, &[pod("a", "Running", true)])
                .delete
                .len(),
            1
        );
        assert!(has(&suspended, "Suspended"));
        let mut late = job(|spec| spec.active_deadline_seconds = Some(10));
        late.status = Some(JobStatus {
            start_time: Some(Time(at(980))),
            ..Default::default()
        });
        run(&mut late, &[]);
        assert!(has(&late, "Failed"));
    }
}
