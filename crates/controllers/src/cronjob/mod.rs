//! CronJob: creates a Job at every scheduled time, and deletes finished ones beyond the history
//! limits.

mod decide;

use std::sync::Arc;

use client::Api;
use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::batch::v1::{CronJob, CronJobStatus, Job},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Resource,
    api::{ObjectMeta, PropagationPolicy},
};
use machinery::cron;
use reconcile::{Action, Controller, Error, Key, Kind, Queue, Recorder, Writer};

use crate::{
    podcontrol,
    shared::{OWNER, Shared, controller_of, controller_reference},
};
use decide::{Plan, View, decide};

/// The name in [`crate::ALL`].
pub const NAME: &str = "cronjob";
const ACCOUNT: &str = "cronjob-controller";
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

struct Crons {
    shared: Arc<Shared>,
    crons: Writer<CronJob>,
    jobs: Writer<Job>,
    recorder: Recorder,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Crons {
        shared: shared.clone(),
        crons: shared.writer(ACCOUNT),
        jobs: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
    });
    let queue = Queue::default();
    let (changed, later) = (controller.clone(), queue.clone());
    shared
        .controller(&controller)
        .queue(&queue)
        .watches_with(controller.crons.cache(), move |event| {
            changed.changed(event, &later)
        })
        .owns(controller.jobs.cache(), "CronJob", |_| Vec::new())
        .workers(5)
        .start();
}

impl Controller for Crons {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(cron) = self.crons.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        let jobs = self.jobs.cache().by_index(OWNER, uid);
        let mut plan = decide(&View {
            cron: &cron,
            jobs: &jobs,
            now: self.shared.now(),
        });
        let outcome = self.act(&cron, &mut plan).await;
        self.write_status(&cron, plan.status).await?;
        outcome?;
        Ok(plan.after.map_or(Action::Done, Action::After))
    }
}

impl Crons {
    /// A changed schedule takes effect at its next time; earlier times do not count as missed.
    fn changed(&self, event: &client::Event<CronJob>, queue: &Queue<Key>) -> Vec<Key> {
        let cron = event.object();
        let key = Key::from_object(&**cron);
        let timing = |cron: &CronJob| (cron.spec.schedule.clone(), cron.spec.time_zone.clone());
        if event.old().is_none_or(|old| timing(old) == timing(cron)) {
            return vec![key];
        }
        if cron::Schedule::parse(&cron.spec.schedule).is_err() {
            let text = format!("unparseable schedule for cronjob: {}", cron.spec.schedule);
            self.event(cron, Kind::Warning, "UnParseableCronJobSchedule", text);
            return Vec::new();
        }
        if let Some(wait) = decide::wait_for_next(cron, self.shared.now()) {
            queue.add_after(key, wait);
            return Vec::new();
        }
        // Never due: the reconciliation records why.
        vec![key]
    }

    fn event(&self, cron: &CronJob, kind: Kind, reason: &str, text: String) {
        self.recorder
            .event(&cron.object_ref(&()), kind, reason, text);
    }

    /// Deletes and creates Jobs, and updates the plan's status accordingly.
    async fn act(&self, cron: &CronJob, plan: &mut Plan) -> Result<(), Error> {
        for (kind, reason, text) in std::mem::take(&mut plan.events) {
            self.event(cron, kind, reason, text);
        }
        for job in &plan.expired {
            // A failed deletion does not prevent a new Job.
            if let Err(error) = self.delete(cron, job, &mut plan.status).await {
                tracing::warn!(job = job.metadata.name, %error, "cannot delete a finished job");
            }
        }
        for job in &plan.replaced {
            self.delete(cron, job, &mut plan.status).await?;
        }
        if let Some(time) = plan.start {
            self.create(cron, time, &mut plan.status).await?;
        }
        Ok(())
    }

    async fn delete(
        &self,
        cron: &CronJob,
        job: &Job,
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        let policy = PropagationPolicy::Background;
        if let Err(error) = self.jobs.delete_with(job, policy).await {
            let text = format!("Deleted job: {}", podcontrol::message(&error));
            self.event(cron, Kind::Warning, "FailedDelete", text);
            return Err(error);
        }
        if let Some(active) = &mut status.active {
            active.retain(|known| known.uid != job.metadata.uid);
        }
        status.active = status.active.take().filter(|active| !active.is_empty());
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let text = format!("Deleted job {name}");
        self.event(cron, Kind::Normal, "SuccessfulDelete", text);
        Ok(())
    }

    async fn create(
        &self,
        cron: &CronJob,
        time: Timestamp,
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
        let job = job(cron, time);
        let made = match self.jobs.create(namespace, &job).await {
            Ok(made) => {
                let name = made.metadata.name.as_deref().unwrap_or_default();
                let skew = self.shared.now().duration_since(time).unsigned_abs();
                self.shared.metrics.cronjob_skew.took([], skew);
                let text = format!("Created job {name}");
                self.event(cron, Kind::Normal, "SuccessfulCreate", text);
                made
            }
            // Created by an earlier attempt whose status write failed, or by another owner.
            Err(error) if error.reason() == "AlreadyExists" => {
                let name = job.metadata.name.unwrap_or_default();
                let api: Api<Job> = Api::namespaced(self.shared.client(ACCOUNT), namespace);
                let found = api.get_opt(&name).await?.filter(|found| {
                    controller_of(found).map(|owner| &owner.uid) == cron.metadata.uid.as_ref()
                });
                let Some(found) = found else { return Ok(()) };
                found
            }
            Err(error) if error.is_namespace_terminating() => return Ok(()),
            Err(error) => {
                let text = format!("Error creating job: {}", podcontrol::message(&error));
                self.event(cron, Kind::Warning, "FailedCreate", text);
                return Err(error);
            }
        };
        let active = status.active.get_or_insert_default();
        if !active.iter().any(|known| known.uid == made.metadata.uid) {
            active.push(decide::reference(&made));
        }
        status.last_schedule_time = Some(Time(time));
        Ok(())
    }

    async fn write_status(&self, cron: &CronJob, status: CronJobStatus) -> Result<(), Error> {
        if cron.status.clone().unwrap_or_default() == status {
            return Ok(());
        }
        let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
        let updated = CronJob {
            status: Some(status),
            ..cron.clone()
        };
        self.crons.update_status(namespace, &updated).await?;
        Ok(())
    }
}

/// The name is derived from the scheduled time, so that two attempts create one Job.
fn job(cron: &CronJob, time: Timestamp) -> Job {
    let template = &cron.spec.job_template;
    let meta = template.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), scheduled_time(cron, time));
    Job {
        metadata: ObjectMeta {
            name: Some(decide::job_name(cron, time)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// The scheduled time as RFC 3339 in the CronJob's time zone.
fn scheduled_time(cron: &CronJob, time: Timestamp) -> String {
    let zone = cron.spec.time_zone.as_deref().and_then(cron::find_zone);
    let zone = zone.unwrap_or(TimeZone::UTC);
    let offset = zone.to_offset(time);
    if offset.is_zero() {
        return time.to_string();
    }
    time.display_with_offset(offset).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::samples::at;

    #[test]
    fn a_job_has_its_scheduled_time_in_name_and_annotation() {
        for (zone, expected) in [
            (None, "2026-07-01T10:00:00Z"),
            (Some("UTC"), "2026-07-01T10:00:00Z"),
            (Some("Europe/Berlin"), "2026-07-01T12:00:00+02:00"),
        ] {
            let cron: CronJob = serde_json::from_value(json!({
                "metadata": {"name": "c", "uid": "u"},
                "spec": {"schedule": "@hourly", "timeZone": zone, "jobTemplate": {
                    "metadata": {"labels": {"a": "b"}},
                }},
            }))
            .unwrap();
            let time = at(1_782_900_000);
            let job = job(&cron, time);
            assert_eq!(job.metadata.name.as_deref(), Some("c-29715000"));
            assert_eq!(job.metadata.labels.unwrap()["a"], "b");
            assert_eq!(job.metadata.annotations.unwrap()[SCHEDULED], expected);
        }
    }
}
