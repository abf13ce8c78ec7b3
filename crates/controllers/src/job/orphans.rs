//! Removes the tracking finalizer from pods that no Job will count: their Job is gone or finished,
//! or they have no controller.

use std::sync::Arc;

use client::Informer;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use reconcile::{Action, Controller, Error, Key, Writer};

use super::{counted, decide::is_finished, is_foreign, pod::is_tracked, release};
use crate::{
    members::Facts,
    shared::{OWNER, Shared, controller_of},
};

struct Orphans {
    jobs: Informer<Job>,
    pods: Writer<Pod>,
}

/// Starts the controller.
pub(super) fn start(shared: &Shared, jobs: Informer<Job>, pods: Writer<Pod>) {
    let controller = Arc::new(Orphans { jobs, pods });
    let (lookup, cache) = (controller.jobs.clone(), controller.pods.cache().clone());
    let metrics = shared.metrics.clone();
    shared
        .controller(&controller)
        .watches_with(
            &controller.pods.cache().only(Facts::is_tracked),
            move |event| {
                counted::finalizer_changed(&metrics, event);
                let pod = event.object();
                let is_orphan = is_tracked(pod) && is_orphan(pod, |pod| job_of(&lookup, pod));
                is_orphan
                    .then(|| Key::from_object(&**pod))
                    .into_iter()
                    .collect()
            },
        )
        .watches_with(&controller.jobs, move |event| {
            let job = event.object();
            let over = matches!(event, client::Event::Deleted(_)) || is_finished(job);
            let uid = job.metadata.uid.as_deref().unwrap_or_default();
            let pods = if over {
                cache.by_index(OWNER, uid)
            } else {
                Vec::new()
            };
            let tracked = pods.iter().filter(|pod| is_tracked(pod));
            tracked.map(|pod| Key::from_object(&**pod)).collect()
        })
        .start();
}

/// The existing Job that controls a pod.
fn job_of(jobs: &Informer<Job>, pod: &Pod) -> Option<Arc<Job>> {
    let owner = controller_of(pod)?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let job = jobs.get(namespace, &owner.name)?;
    (job.metadata.uid.as_ref() == Some(&owner.uid)).then_some(job)
}

/// Whether no Job will count the pod.
fn is_orphan<J: std::ops::Deref<Target = Job>>(pod: &Pod, job: impl Fn(&Pod) -> Option<J>) -> bool {
    match controller_of(pod) {
        None => true,
        Some(owner) if owner.kind != "Job" || owner.api_version != "batch/v1" => false,
        Some(_) => job(pod).is_none_or(|job| !is_foreign(&job) && is_finished(&job)),
    }
}

impl Controller for Orphans {
    fn name(&self) -> &'static str {
        "job-orphans"
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let pod = self.pods.cache().get(&key.namespace, &key.name);
        if let Some(pod) = pod.filter(|pod| is_orphan(pod, |pod| job_of(&self.jobs, pod))) {
            release(&self.pods, &pod).await?;
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pods_that_no_job_will_count_are_orphans() {
        let job = |manager: &str, condition: &str| -> Job {
            serde_json::from_value(json!({
                "spec": {"managedBy": manager, "template": {}},
                "status": {"conditions": [{"type": condition, "status": "True"}]},
            }))
            .unwrap()
        };
        let ours = "kubernetes.io/job-controller";
        let pod = |kind: Option<&str>| -> Pod {
            let owner = kind.map(|kind| {
                json!({"apiVersion": "batch/v1", "kind": kind, "name": "j", "uid": "u", "controller": true})
            });
            let owners: Vec<_> = owner.into_iter().collect();
            serde_json::from_value(json!({"metadata": {"ownerReferences": owners}})).unwrap()
        };
        for (kind, job, expected) in [
            (None, None, true),
            (Some("Job"), None, true),
            (Some("Other"), None, false),
            (Some("Job"), Some(job(ours, "Complete")), true),
            (Some("Job"), Some(job(ours, "Failed")), true),
            (Some("Job"), Some(job(ours, "FailureTarget")), false),
            (
                Some("Job"),
                Some(job("example.com/other", "Complete")),
                false,
            ),
        ] {
            let seen = is_orphan(&pod(kind), |_| job.as_ref());
            assert_eq!(seen, expected, "{kind:?} {job:?}");
        }
    }
}
