//! Whether a CronJob is due, whether its concurrency policy allows a new Job, and which old Jobs
//! are deleted. Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::{Timestamp, fmt::strtime, tz::TimeZone};
use k8s_openapi::api::{
    batch::v1::{CronJob, CronJobStatus, Job},
    core::v1::ObjectReference,
};
use machinery::cron::{self, Schedule};
use reconcile::Kind;

/// More missed times than this mean that the clock jumped, or the controller did not run for long.
const TOO_MANY: i64 = 100;
/// Slightly late is better than slightly early, since clocks differ.
const MARGIN: Duration = Duration::from_millis(100);

pub(super) struct View<'a> {
    pub(super) cron: &'a CronJob,
    /// All Jobs that it owns.
    pub(super) jobs: &'a [Arc<Job>],
    pub(super) now: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Finished Jobs beyond the history limits.
    pub(super) expired: Vec<Arc<Job>>,
    /// Running Jobs that the next one replaces.
    pub(super) replaced: Vec<Arc<Job>>,
    /// The scheduled time of the Job to create.
    pub(super) start: Option<Timestamp>,
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

/// The Job's name depends only on its scheduled time, so that creating it again is detected.
pub(super) fn job_name(cron: &CronJob, time: Timestamp) -> String {
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    format!("{name}-{}", time.as_second() / 60)
}

fn finished(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions
        .iter()
        .find(|c| (c.type_ == "Complete" || c.type_ == "Failed") && c.status == "True")?;
    Some(&end.type_)
}

pub(super) fn decide(view: &View) -> Plan {
    let mut plan = Plan {
        expired: expired(view),
        status: view.cron.status.clone().unwrap_or_default(),
        ..Plan::default()
    };
    plan.note_jobs(view);
    let spec = &view.cron.spec;
    if view.cron.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let zone = match zone(view.cron) {
        Ok(zone) => zone,
        Err(text) => {
            plan.warn("UnknownTimeZone", text);
            return plan;
        }
    };
    if spec.suspend == Some(true) {
        return plan;
    }
    if spec.schedule.contains("TZ") {
        plan.warn(
            "UnsupportedSchedule",
            format!(
                "CRON_TZ or TZ used in schedule \"{}\" is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                spec.schedule
            ),
        );
    }
    match Schedule::parse(&spec.schedule) {
        Ok(schedule) => {
            let times = Times {
                cron: view.cron,
                schedule,
                zone,
                now: view.now,
            };
            plan.schedule(view, &times);
        }
        Err(error) => {
            let text = format!("unparseable schedule: \"{}\" : {error}", spec.schedule);
            plan.warn("UnparseableSchedule", text);
        }
    }
    plan
}

/// The time zone of the schedule.
fn zone(cron: &CronJob) -> Result<TimeZone, String> {
    let Some(name) = cron.spec.time_zone.as_deref() else {
        return Ok(TimeZone::UTC);
    };
    cron::find_zone(name)
        .ok_or_else(|| format!("invalid timeZone: \"{name}\": unknown time zone {name}"))
}

/// The time until the first run of a changed schedule; `None` if it is invalid or never due.
pub(super) fn wait_for_next(cron: &CronJob, now: Timestamp) -> Option<Duration> {
    let times = Times {
        cron,
        schedule: Schedule::parse(&cron.spec.schedule).ok()?,
        zone: zone(cron).ok()?,
        now,
    };
    times.until_next(None)
}

impl Plan {
    fn warn(&mut self, reason: &'static str, text: String) {
        self.events.push((Kind::Warning, reason, text));
    }

    /// Removes finished and deleted Jobs from the list of active ones.
    fn note_jobs(&mut self, view: &View) {
        let mut active = self.status.active.take().unwrap_or_default();
        let known: HashSet<_> = active.iter().map(|known| known.uid.clone()).collect();
        let mut running = HashSet::new();
        let mut ended = HashSet::new();
        for job in view.jobs {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let uid = &job.metadata.uid;
            let listed = known.contains(uid);
            match finished(job) {
                Some(end) if listed => {
                    ended.insert(uid);
                    let text = format!("Saw completed job: {name}, condition: {end}");
                    self.events.push((Kind::Normal, "SawCompletedJob", text));
                }
                Some(_) => {}
                None if listed => drop(running.insert(uid)),
                None => {
                    let text =
                        format!("Saw a job that the controller did not create or forgot: {name}");
                    self.warn("UnexpectedJob", text);
                }
            }
            if finished(job) == Some("Complete") {
                let end = job.status.as_ref().and_then(|s| s.completion_time.clone());
                let last = self.status.last_successful_time.take();
                self.status.last_successful_time = last.max(end);
            }
        }
        let events = &mut self.events;
        active.retain(|known| {
            let exists = running.contains(&known.uid);
            if !exists && !ended.contains(&known.uid) {
                let name = known.name.as_deref().unwrap_or_default();
                let text = format!("Active job went missing: {name}");
                events.push((Kind::Normal, "MissingJob", text));
            }
            exists
        });
        self.status.active = Some(active).filter(|active| !active.is_empty());
    }

    fn schedule(&mut self, view: &View, times: &Times) {
        let spec = &view.cron.spec;
        let deadline = spec.starting_deadline_seconds;
        let missed = match times.missed(deadline) {
            Ok(missed) => missed,
            Err(error) => {
                let text = format!("invalid schedule: {} : {error}", spec.schedule);
                return self.warn("InvalidSchedule", text);
            }
        };
        self.after = times.until_next(None);
        let Some(due) = missed.last else { return };
        if missed.count > TOO_MANY {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.warn("TooManyMissedTimes", text.to_owned());
        }
        let too_late = deadline.is_some_and(|seconds| {
            let latest = due.checked_add(span(seconds));
            latest.is_ok_and(|latest| latest < view.now)
        });
        if too_late {
            let time = due.to_zoned(TimeZone::UTC);
            let time = strtime::format("%a, %d %b %Y %H:%M:%S %z", &time);
            let text = format!(
                "Missed scheduled time to start a job: {}",
                time.unwrap_or_else(|_| due.to_string())
            );
            return self.warn("MissSchedule", text);
        }
        if self.is_done(view.cron, due) {
            return;
        }
        let active = self.status.active.iter().flatten();
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if self.status.active.is_some() => {
                let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.events
                    .push((Kind::Normal, "JobAlreadyActive", text.to_owned()));
                return;
            }
            Some("Replace") => {
                let jobs = view.jobs.iter();
                let jobs: HashMap<_, _> = jobs.map(|job| (&job.metadata.uid, job)).collect();
                let jobs = active.filter_map(|known| jobs.get(&known.uid).copied().cloned());
                self.replaced = jobs.collect();
            }
            _ => {}
        }
        self.start = Some(due);
        self.after = times.until_next(Some(due));
    }

    /// Whether a Job for this time was already created.
    fn is_done(&self, cron: &CronJob, due: Timestamp) -> bool {
        let name = job_name(cron, due);
        let mut active = self.status.active.iter().flatten();
        let last = self.status.last_schedule_time.as_ref().map(|last| last.0);
        active.any(|known| known.name.as_ref() == Some(&name)) || last == Some(due)
    }
}

fn span(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Missed scheduled times.
#[derive(Debug, Default, PartialEq, Eq)]
struct Missed {
    /// The latest one.
    last: Option<Timestamp>,
    /// Their number, estimated from the first two.
    count: i64,
}

struct Times<'a> {
    cron: &'a CronJob,
    schedule: Schedule,
    zone: TimeZone,
    now: Timestamp,
}

impl Times<'_> {
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.next(after, &self.zone)
    }

    /// The last scheduled time of a Job, or the CronJob's creation.
    fn last_done(&self) -> Timestamp {
        let status = self.cron.status.as_ref();
        let last = status.and_then(|status| status.last_schedule_time.as_ref());
        let created = self.cron.metadata.creation_timestamp.as_ref();
        last.or(created).map_or(self.now, |time| time.0)
    }

    /// The times missed since then; with a `deadline`, only those within it.
    fn missed(&self, deadline: Option<i64>) -> Result<Missed, String> {
        let mut from = self.last_done();
        if let Some(seconds) = deadline {
            from = from.max(self.now.checked_sub(span(seconds)).unwrap_or(from));
        }
        let never = || "time difference between two schedules is less than 1 second".to_owned();
        let first = self.next(from).ok_or_else(never)?;
        if self.now < first {
            return Ok(Missed::default());
        }
        let second = self.next(first).ok_or_else(never)?;
        if self.now < second {
            return Ok(Missed {
                last: Some(first),
                count: 1,
            });
        }
        let period = second.duration_since(first).as_secs();
        if period < 1 {
            return Err(never());
        }
        let count = self.now.duration_since(first).as_secs() / period + 1;
        // Starts one period before the estimated last time instead of walking through all of them,
        // so that irregular schedules and `@every` get exact times.
        let mut time = first + jiff::SignedDuration::from_secs((count - 2) * period);
        let mut last = None;
        while let Some(next) = self.next(time).filter(|next| *next <= self.now) {
            (time, last) = (next, Some(next));
        }
        Ok(Missed { last, count })
    }

    /// The time until the first run after `done`, or after the missed ones.
    fn until_next(&self, done: Option<Timestamp>) -> Option<Duration> {
        let from = done.unwrap_or_else(|| match self.missed(None) {
            Ok(Missed {
                last: None,
                count: 0,
            }) => self.last_done(),
            Ok(missed) => missed.last.unwrap_or(self.now),
            Err(_) => self.now,
        });
        let left = self.next(from)?.duration_since(self.now);
        Some(Duration::try_from(left).unwrap_or_default() + MARGIN)
    }
}

/// Finished Jobs beyond the history limits, the oldest first.
fn expired(view: &View) -> Vec<Arc<Job>> {
    let spec = &view.cron.spec;
    let limits = [
        ("Complete", spec.successful_jobs_history_limit),
        ("Failed", spec.failed_jobs_history_limit),
    ];
    let mut expired = Vec::new();
    for (end, limit) in limits {
        let Some(limit) = limit else { continue };
        let ended = view
            .jobs
            .iter()
            .filter(|job| finished(job) == Some(end) && job.metadata.deletion_timestamp.is_none());
        let mut ended: Vec<_> = ended.cloned().collect();
        ended.sort_by_key(|job| {
            let start = job.status.as_ref().and_then(|s| s.start_time.clone());
            (start.is_none(), start, job.metadata.name.clone())
        });
        let kept = usize::try_from(limit).unwrap_or(0);
        ended.truncate(ended.len().saturating_sub(kept));
        expired.extend(ended);
    }
    expired
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pods::samples::at;

    /// A CronJob created at 0, every ten minutes unless the spec says otherwise.
    fn cron(spec: Value, status: Value) -> CronJob {
        let mut spec = spec;
        if spec.get("schedule").is_none() {
            spec["schedule"] = json!("*/10 * * * *");
        }
        spec["jobTemplate"] = json!({});
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "creationTimestamp": at(0).to_string()},
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    fn job(name: &str, start: i64, end: Option<&str>) -> Arc<Job> {
        let ended = end.map(|end| json!({"type": end, "status": "True"}));
        let conditions: Vec<_> = ended.into_iter().collect();
        let completion = (end == Some("Complete")).then(|| at(start + 5).to_string());
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name},
                "status": {"startTime": at(start).to_string(), "conditions": conditions,
                           "completionTime": completion},
            }))
            .unwrap(),
        )
    }

    fn active(names: &[&str]) -> Value {
        let reference = |name: &&str| json!({"name": name, "namespace": "ns", "uid": name});
        json!({"active": names.iter().map(reference).collect::<Vec<_>>()})
    }

    fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: i64) -> Plan {
        decide(&View {
            cron,
            jobs,
            now: at(now),
        })
    }

    fn reasons(plan: &Plan) -> Vec<&'static str> {
        plan.events.iter().map(|(_, reason, _)| *reason).collect()
    }

    #[test]
    fn a_job_is_due_at_its_time_once() {
        let mut cron = cron(json!({}), json!({}));
        let early = plan(&cron, &[], 599);
        assert_eq!(early.start, None);
        assert_eq!(early.after, Some(Duration::from_millis(1100)));
        let due = plan(&cron, &[], 601);
        assert_eq!(due.start, Some(at(600)));
        assert_eq!(due.after, Some(Duration::from_millis(599_100)));
        cron.status.as_mut().unwrap().last_schedule_time =
            Some(serde_json::from_value(json!(at(600).to_string())).unwrap());
        let done = plan(&cron, &[], 605);
        assert_eq!(
            (done.start, done.after),
            (None, Some(Duration::from_millis(595_100)))
        );
    }

    #[test]
    fn every_counts_from_the_last_time() {
        let every = |status: Value| cron(json!({"schedule": "@every 1h"}), status);
        assert_eq!(plan(&every(json!({})), &[], 3599).start, None);
        assert_eq!(plan(&every(json!({})), &[], 3600).start, Some(at(3600)));
        let last = json!({"lastScheduleTime": at(5000).to_string()});
        let next = plan(&every(last.clone()), &[], 5001);
        assert_eq!(
            (next.start, next.after),
            (None, Some(Duration::from_millis(3_599_100)))
        );
        assert_eq!(plan(&every(last.clone()), &[], 8600).start, Some(at(8600)));
        assert_eq!(
            plan(&every(last), &[], 20_000).start,
            Some(at(19_400)),
            "only the latest"
        );
    }

    #[test]
    fn of_several_missed_times_only_the_last_is_made_up_for_and_only_before_its_deadline() {
        for (spec, now, expected, events) in [
            (json!({}), 6100, Some(6000), vec![]),
            (json!({}), 61_000, Some(60_600), vec!["TooManyMissedTimes"]),
            (json!({"startingDeadlineSeconds": 60}), 6100, None, vec![]),
            (
                json!({"startingDeadlineSeconds": 200}),
                6100,
                Some(6000),
                vec![],
            ),
            (json!({"startingDeadlineSeconds": 0}), 6000, None, vec![]),
            (
                json!({"startingDeadlineSeconds": i64::MAX}),
                6100,
                Some(6000),
                vec![],
            ),
            // An irregular schedule, on weekdays every four hours from six: times within the
            // estimated last period are found, those before a weekend are not.
            (
                json!({"schedule": "30 6-16/4 * * 1-5"}),
                129_600,
                Some(124_200),
                vec![],
            ),
            (
                json!({"schedule": "30 6-16/4 * * 1-5"}),
                345_600,
                None,
                vec![],
            ),
        ] {
            let plan = plan(&cron(spec.clone(), json!({})), &[], now);
            assert_eq!(plan.start, expected.map(at), "{spec}");
            assert_eq!(reasons(&plan), events, "{spec}");
        }
    }

    #[test]
    fn an_invalid_cron_job_gets_an_event_and_is_not_requeued() {
        for (spec, reason, text) in [
            (
                json!({"schedule": "59 23 31 2 *"}),
                "InvalidSchedule",
                "invalid schedule: 59 23 31 2 * : time difference between two schedules is less than 1 second",
            ),
            (
                json!({"schedule": "nonsense"}),
                "UnparseableSchedule",
                "unparseable schedule: \"nonsense\" : expected exactly 5 fields, found 1: [nonsense]",
            ),
            (
                json!({"timeZone": "Nowhere"}),
                "UnknownTimeZone",
                "invalid timeZone: \"Nowhere\": unknown time zone Nowhere",
            ),
        ] {
            let plan = plan(&cron(spec.clone(), json!({})), &[], 5000);
            assert_eq!(plan.events, [(Kind::Warning, reason, text.to_owned())]);
            assert_eq!((plan.start, plan.after), (None, None), "{spec}");
        }
        assert_eq!(
            plan(&cron(json!({"suspend": true}), json!({})), &[], 5000).after,
            None
        );
    }

    #[test]
    fn a_running_job_forbids_or_is_replaced_by_the_next() {
        let running = [job("a", 1, None)];
        let cron = |policy: &str| cron(json!({ "concurrencyPolicy": policy }), active(&["a"]));
        assert!(plan(&cron("Allow"), &running, 600).start.is_some());
        let forbidden = plan(&cron("Forbid"), &running, 600);
        assert_eq!(
            (forbidden.start, reasons(&forbidden)),
            (None, vec!["JobAlreadyActive"])
        );
        let replaced = plan(&cron("Replace"), &running, 600);
        assert_eq!(
            (replaced.start.is_some(), replaced.replaced.len()),
            (true, 1)
        );
    }

    #[test]
    fn a_time_whose_job_exists_is_not_done_again() {
        let exists = cron(json!({}), active(&["c-10"]));
        assert_eq!(plan(&exists, &[job("c-10", 600, None)], 605).start, None);
    }

    #[test]
    fn finished_and_deleted_jobs_are_removed_from_the_active_list() {
        let cron = cron(json!({}), active(&["done", "gone", "runs"]));
        let jobs = [
            job("done", 100, Some("Complete")),
            job("runs", 1, None),
            job("foreign", 1, None),
        ];
        let plan = plan(&cron, &jobs, 10);
        let left: Vec<_> = plan
            .status
            .active
            .iter()
            .flatten()
            .map(|a| a.name.clone().unwrap())
            .collect();
        assert_eq!(left, ["runs"]);
        assert_eq!(
            reasons(&plan),
            ["SawCompletedJob", "UnexpectedJob", "MissingJob"]
        );
        assert_eq!(
            plan.status.last_successful_time.map(|time| time.0),
            Some(at(105))
        );
    }

    #[test]
    fn active_jobs_are_replaced_in_their_order() {
        let cron = cron(
            json!({"concurrencyPolicy": "Replace"}),
            active(&["b", "a", "gone"]),
        );
        let running = [job("a", 1, None), job("b", 1, None)];
        let plan = plan(&cron, &running, 600);
        let names = plan.replaced.iter().map(|job| job.metadata.name.as_deref());
        assert_eq!(names.collect::<Vec<_>>(), [Some("b"), Some("a")]);
    }

    #[test]
    fn only_the_newest_ended_jobs_are_kept() {
        let jobs: Vec<_> = (0..5)
            .map(|n| job(&format!("j{n}"), 10 - n, Some("Complete")))
            .collect();
        let names = |limits: Value| -> Vec<String> {
            let plan = plan(&cron(limits, json!({})), &jobs, 10);
            plan.expired
                .iter()
                .map(|job| job.metadata.name.clone().unwrap())
                .collect()
        };
        assert_eq!(
            names(json!({"successfulJobsHistoryLimit": 3})),
            ["j4", "j3"]
        );
        assert_eq!(names(json!({"failedJobsHistoryLimit": 0})), [""; 0]);
        assert_eq!(names(json!({})), [""; 0]);
    }
}
