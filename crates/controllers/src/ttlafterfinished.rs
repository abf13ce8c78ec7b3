//! Deletes finished Jobs after their ttlSecondsAfterFinished.

use std::{sync::Arc, time::Duration};

use client::Api;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::api::PropagationPolicy;
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "ttl-after-finished";
const ACCOUNT: &str = "ttl-after-finished-controller";

struct Expiry {
    shared: Arc<Shared>,
    jobs: Writer<Job>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Expiry {
        shared: shared.clone(),
        jobs: shared.writer(ACCOUNT),
    });
    shared
        .controller(&controller)
        .watches(controller.jobs.cache())
        .workers(2)
        .start();
}

/// When the Job expires; `None` if it has not finished or has no `ttlSecondsAfterFinished`.
fn expires(job: &Job) -> Option<Timestamp> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let mut conditions = job.status.as_ref()?.conditions.iter().flatten();
    let end = conditions
        .find(|c| (c.type_ == "Complete" || c.type_ == "Failed") && c.status == "True")?;
    let ended = end.last_transition_time.as_ref()?.0;
    Some(ended + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The time until the Job expires.
fn time_left(job: &Job, now: Timestamp) -> Option<Duration> {
    let left = expires(job)?.duration_since(now);
    Some(Duration::try_from(left).unwrap_or_default())
}

/// The time since the Job expired.
fn late(job: &Job, now: Timestamp) -> Option<Duration> {
    let late = now.duration_since(expires(job)?);
    Some(Duration::try_from(late).unwrap_or_default())
}

impl Controller for Expiry {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(job) = self.jobs.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        if job.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        match time_left(&job, self.shared.now()) {
            None => Ok(Action::Done),
            Some(left) if !left.is_zero() => Ok(Action::After(left)),
            Some(_) => self.delete(key).await,
        }
    }
}

impl Expiry {
    /// Reads the Job from the API server first: its TTL may have been raised since the cache was
    /// updated.
    async fn delete(&self, key: &Key) -> Result<Action, Error> {
        let api: Api<Job> = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let Some(job) = api.get_opt(&key.name).await? else {
            return Ok(Action::Done);
        };
        match time_left(&job, self.shared.now()) {
            None => {}
            Some(left) if !left.is_zero() => return Ok(Action::After(left)),
            Some(_) => {
                let policy = PropagationPolicy::Foreground;
                self.jobs.delete_with(&job, policy).await?;
                let late = late(&job, self.shared.now()).unwrap_or_default();
                self.shared.metrics.expired_jobs.took([], late);
            }
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::batch::v1::{JobCondition, JobSpec, JobStatus},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::pods::samples::at;

    #[test]
    fn only_finished_jobs_with_a_ttl_expire() {
        let mut job = Job::default();
        assert_eq!(time_left(&job, at(0)), None);
        job.spec = Some(JobSpec {
            ttl_seconds_after_finished: Some(60),
            ..Default::default()
        });
        assert_eq!(time_left(&job, at(0)), None);
        let end = JobCondition {
            type_: "Complete".into(),
            status: "True".into(),
            last_transition_time: Some(Time(at(100))),
            ..Default::default()
        };
        job.status = Some(JobStatus {
            conditions: Some(vec![end]),
            ..Default::default()
        });
        assert_eq!(time_left(&job, at(130)), Some(Duration::from_secs(30)));
        assert_eq!(time_left(&job, at(500)), Some(Duration::ZERO));
    }
}
