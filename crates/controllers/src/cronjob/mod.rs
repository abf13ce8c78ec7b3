//! CronJob: a Job at every time of its schedule, and only as many old ones as shall be kept.

mod decide;
mod schedule;

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::api::{ObjectMeta, PropagationPolicy};
use reconcile::{Action, Controller, Error, Key, Kind, Queue, Recorder, Writer};

use crate::{
    podcontrol,
    shared::{OWNER, Shared, controller_of, controller_reference},
};
use decide::{Plan, View, decide};

/// As in the table of controllers.
pub const NAME: &str = "cronjob";
const ACCOUNT: &str = "cronjob-controller";
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

struct Crons {
    shared: Arc<Shared>,
    crons: Writer<CronJob>,
    jobs: Writer<Job>,
    recorder: Recorder,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Crons {
        shared: shared.clone(),
        crons: shared.writer(ACCOUNT),
        jobs: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        controller.crons.cache().synced().await;
        controller.jobs.cache().synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        reconcile::follow(context, controller.crons.cache(), &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        reconcile::follow(context, controller.jobs.cache(), &queue, |event| {
            let job = event.object();
            let owner = controller_of(&**job).filter(|owner| owner.kind == "CronJob");
            let namespace = job.metadata.namespace.clone().unwrap_or_default();
            owner
                .map(|owner| Key::new(namespace, owner.name.clone()))
                .into_iter()
                .collect()
        });
        reconcile::run(context, controller, queue, 5);
        std::future::pending::<()>().await;
    });
}

impl Controller for Crons {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(cron) = self.crons.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let spec = cron.spec.clone();
        let about = kube::Resource::object_ref(&*cron, &());
        let schedule = match schedule::Schedule::parse(&spec.schedule) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule: {} : {error}", spec.schedule);
                self.recorder
                    .event(&about, Kind::Warning, "UnparseableSchedule", text);
                return Ok(Action::Done);
            }
        };
        let zone = match spec.time_zone.as_deref().map(TimeZone::get) {
            None => TimeZone::UTC,
            Some(Ok(zone)) => zone,
            Some(Err(error)) => {
                let name = spec.time_zone.as_deref().unwrap_or_default();
                let text = format!("invalid timeZone: \"{name}\": {error}");
                self.recorder
                    .event(&about, Kind::Warning, "UnknownTimeZone", text);
                return Ok(Action::Done);
            }
        };
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        let jobs = self.jobs.cache().by_index(OWNER, uid);
        let now = self.shared.now();
        let plan = decide(&View {
            cron: &cron,
            jobs: &jobs,
            schedule: &schedule,
            zone,
            now,
        });
        self.act(&cron, plan).await
    }
}

impl Crons {
    async fn act(&self, cron: &CronJob, plan: Plan) -> Result<Action, Error> {
        let about = kube::Resource::object_ref(cron, &());
        for (kind, reason, text) in plan.events {
            self.recorder.event(&about, kind, reason, text);
        }
        for job in plan.delete {
            let name = job.metadata.name.clone().unwrap_or_default();
            self.jobs
                .delete_with(&job, PropagationPolicy::Background)
                .await?;
            let text = format!("Deleted job {name}");
            self.recorder
                .event(&about, Kind::Normal, "SuccessfulDelete", text);
        }
        let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
        let mut status = plan.status;
        if let Some(time) = plan.start {
            let job = job(cron, time);
            match self.jobs.create(namespace, &job).await {
                Ok(created) => {
                    let name = created.metadata.name.clone().unwrap_or_default();
                    let text = format!("Created job {name}");
                    self.recorder
                        .event(&about, Kind::Normal, "SuccessfulCreate", text);
                    status
                        .active
                        .get_or_insert_default()
                        .push(decide::reference(&created));
                }
                // It was made before, and the status not written.
                Err(error) if error.reason() == "AlreadyExists" => {}
                Err(error) if error.is_namespace_terminating() => return Ok(Action::Done),
                Err(error) => {
                    let text = format!("Error creating job: {}", podcontrol::message(&error));
                    self.recorder
                        .event(&about, Kind::Warning, "FailedCreate", text);
                    return Err(error);
                }
            }
        }
        if cron.status.as_ref() != Some(&status) {
            let updated = CronJob {
                status: Some(status),
                ..cron.clone()
            };
            self.crons.update_status(namespace, &updated).await?;
        }
        Ok(plan.after.map_or(Action::Done, Action::After))
    }
}

/// The name comes from the time: two tries for one time make one job.
fn job(cron: &CronJob, time: Timestamp) -> Job {
    let template = cron.spec.clone().job_template;
    let meta = template.metadata.unwrap_or_default();
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), time.to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", time.as_second() / 60)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            ..Default::default()
        },
        spec: template.spec,
        status: None,
    }
}
