//! Whether a CronJob's time has come, what stands in its way, and which old jobs go. Pure.

use std::{sync::Arc, time::Duration};

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, CronJobStatus, Job},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use reconcile::Kind;

use super::schedule::Schedule;

/// More missed times than this are a clock that jumped, or a long sleep.
const TOO_MANY: usize = 100;

pub(super) struct View<'a> {
    pub(super) cron: &'a CronJob,
    pub(super) jobs: &'a [Arc<Job>],
    pub(super) schedule: &'a Schedule,
    pub(super) zone: TimeZone,
    pub(super) now: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) start: Option<Timestamp>,
    pub(super) delete: Vec<Arc<Job>>,
    pub(super) status: CronJobStatus,
    pub(super) events: Vec<(Kind, &'static str, String)>,
    pub(super) after: Option<Duration>,
}

pub(super) fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".into()),
        kind: Some("Job".into()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        ..Default::default()
    }
}

fn end(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions
        .iter()
        .find(|c| (c.type_ == "Complete" || c.type_ == "Failed") && c.status == "True")?;
    Some(&end.type_)
}

pub(super) fn decide(view: &View) -> Plan {
    let mut plan = Plan::default();
    let spec = view.cron.spec.clone();
    let before = view.cron.status.clone().unwrap_or_default();
    let completed = view.jobs.iter().filter(|job| end(job) == Some("Complete"));
    let last = completed
        .filter_map(|job| job.status.as_ref()?.completion_time.clone())
        .max();
    let running: Vec<_> = view.jobs.iter().filter(|job| end(job).is_none()).collect();
    plan.status = CronJobStatus {
        active: Some(running.iter().map(|job| reference(job)).collect::<Vec<_>>())
            .filter(|active: &Vec<_>| !active.is_empty()),
        last_schedule_time: before.last_schedule_time.clone(),
        last_successful_time: last.max(before.last_successful_time.clone()),
    };
    forget(view, &mut plan);
    if view.cron.metadata.deletion_timestamp.is_some() || spec.suspend == Some(true) {
        return plan;
    }
    let (due, next) = due(view, &mut plan);
    plan.after = next.map(|next| {
        // A little late is better than a little early.
        Duration::try_from(next.duration_since(view.now)).unwrap_or_default()
            + Duration::from_millis(50)
    });
    let Some(due) = due else { return plan };
    if let Some(seconds) = spec.starting_deadline_seconds {
        let deadline = due + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if deadline < view.now {
            let text = format!("Missed scheduled time to start a job: {due}");
            plan.events.push((Kind::Warning, "MissSchedule", text));
            return plan;
        }
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !running.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events
                .push((Kind::Normal, "JobAlreadyActive", text.to_owned()));
            return plan;
        }
        Some("Replace") => {
            plan.delete.extend(running.into_iter().cloned());
            plan.status.active = None;
        }
        _ => {}
    }
    plan.start = Some(due);
    plan.status.last_schedule_time = Some(Time(due));
    plan
}

/// The latest time that has come since the last job, and the first that has not.
fn due(view: &View, plan: &mut Plan) -> (Option<Timestamp>, Option<Timestamp>) {
    let created = view
        .cron
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0);
    let last = plan.status.last_schedule_time.as_ref().map(|time| time.0);
    let mut from = last.or(created).unwrap_or(view.now);
    let deadline = view.cron.spec.starting_deadline_seconds;
    if let Some(seconds) = deadline {
        let earliest = view.now - Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        from = from.max(earliest);
    }
    let (mut due, mut missed) = (None, 0);
    loop {
        let Some(next) = view.schedule.next(&from.to_zoned(view.zone.clone())) else {
            return (due, None);
        };
        let next = next.timestamp();
        if next > view.now {
            return (due, Some(next));
        }
        (due, from) = (Some(next), next);
        missed += 1;
        if missed == TOO_MANY + 1 {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            plan.events
                .push((Kind::Warning, "TooManyMissedTimes", text.to_owned()));
            // Long behind: begin again close to now, a day is enough for the last time of any rhythm
            // that could have been missed so often.
            from = from.max(view.now - Duration::from_secs(86_400));
        }
    }
}

/// Old jobs beyond those that shall be kept, oldest first.
fn forget(view: &View, plan: &mut Plan) {
    let spec = view.cron.spec.clone();
    let limits = [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    for (kind, limit) in limits {
        let ended = view
            .jobs
            .iter()
            .filter(|job| end(job) == Some(kind) && job.metadata.deletion_timestamp.is_none());
        let mut ended: Vec<_> = ended.cloned().collect();
        ended.sort_by_key(|job| {
            (
                job.metadata.creation_timestamp.clone(),
                job.metadata.name.clone(),
            )
        });
        let surplus = ended
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or(0));
        plan.delete.extend(ended.into_iter().take(surplus));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::{CronJobSpec, JobCondition, JobStatus};

    use super::*;
    use crate::pods::samples::at;

    fn cron(change: impl FnOnce(&mut CronJobSpec)) -> CronJob {
        let mut spec = CronJobSpec::default();
        change(&mut spec);
        let mut cron = CronJob {
            spec,
            ..Default::default()
        };
        cron.metadata.creation_timestamp = Some(Time(at(0)));
        cron
    }

    fn job(name: &str, created: i64, end: Option<&str>) -> Arc<Job> {
        let mut job = Job::default();
        job.metadata.name = Some(name.into());
        job.metadata.creation_timestamp = Some(Time(at(created)));
        let condition = end.map(|end| JobCondition {
            type_: end.into(),
            status: "True".into(),
            ..Default::default()
        });
        let conditions = condition.map(|condition| vec![condition]);
        job.status = Some(JobStatus {
            conditions,
            ..Default::default()
        });
        Arc::new(job)
    }

    fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: i64) -> Plan {
        let schedule = &Schedule::parse("*/10 * * * *").unwrap();
        decide(&View {
            cron,
            jobs,
            schedule,
            zone: TimeZone::UTC,
            now: at(now),
        })
    }

    #[test]
    fn a_job_starts_when_its_time_has_come_and_only_once() {
        let mut cron = cron(|_| {});
        let early = plan(&cron, &[], 599);
        assert_eq!(
            (early.start, early.after),
            (None, Some(Duration::from_millis(1050)))
        );
        let due = plan(&cron, &[], 600);
        assert_eq!(due.start, Some(at(600)));
        cron.status = Some(due.status);
        assert_eq!(plan(&cron, &[], 605).start, None);
    }

    #[test]
    fn of_several_missed_times_only_the_last_is_made_up_for() {
        assert_eq!(plan(&cron(|_| {}), &[], 6100).start, Some(at(6000)));
        let late = cron(|spec| spec.starting_deadline_seconds = Some(60));
        assert_eq!(plan(&late, &[], 6100).start, None);
    }

    #[test]
    fn a_running_job_forbids_or_is_replaced_by_the_next() {
        let running = [job("a", 1, None)];
        let policy = |name: &str| cron(|spec| spec.concurrency_policy = Some(name.into()));
        assert!(plan(&policy("Allow"), &running, 600).start.is_some());
        assert!(plan(&policy("Forbid"), &running, 600).start.is_none());
        let replaced = plan(&policy("Replace"), &running, 600);
        assert_eq!((replaced.start.is_some(), replaced.delete.len()), (true, 1));
    }

    #[test]
    fn only_the_newest_ended_jobs_are_kept() {
        let jobs: Vec<_> = (0..5)
            .map(|n| job(&format!("j{n}"), n, Some("Complete")))
            .collect();
        let gone = plan(&cron(|spec| spec.suspend = Some(true)), &jobs, 10).delete;
        let names: Vec<_> = gone
            .iter()
            .map(|job| job.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(names, ["j0", "j1"]);
    }
}
