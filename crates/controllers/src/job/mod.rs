//! Job: pods that run to their end, as many at once and as many in all as wanted, tried again when
//! they fail. Every ended pod is counted exactly once: a finalizer holds it until its count is
//! written.

mod decide;
mod indexes;

use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
};
use kube::Api;
use reconcile::{Action, Controller, Error, Key, Kind, Queue, Recorder, Selector, Writer};
use serde_json::json;

use crate::{
    claim, podcontrol,
    shared::{OWNER, Shared, controller_of, orphans_of},
};
use decide::{Plan, View, decide};

/// As in the table of controllers.
pub const NAME: &str = "job";
const ACCOUNT: &str = "job-controller";
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

struct Jobs {
    shared: Arc<Shared>,
    jobs: Writer<Job>,
    pods: Writer<Pod>,
    recorder: Recorder,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Jobs {
        shared: shared.clone(),
        jobs: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        let jobs = controller.jobs.cache().clone();
        jobs.synced().await;
        controller.pods.cache().synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        reconcile::follow(context, &jobs, &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        reconcile::follow(context, controller.pods.cache(), &queue, move |event| {
            podcontrol::owner_keys(event, "Job", |pod| {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let matching = jobs.list_in(namespace).into_iter().filter(|job| {
                    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                    Selector::of(selector).matches(pod.metadata.labels.as_ref())
                });
                matching.map(|job| Key::of(&*job)).collect()
            })
        });
        reconcile::run(context, controller, queue, 5);
        std::future::pending::<()>().await;
    });
}

fn is_held(pod: &Pod) -> bool {
    pod.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == FINALIZER)
}

impl Controller for Jobs {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(job) = self.jobs.cache().get(&key.namespace, &key.name) else {
            return self.release_orphans(key).await;
        };
        let managed_by = job
            .spec
            .as_ref()
            .and_then(|spec| spec.managed_by.as_deref());
        if managed_by.is_some_and(|manager| manager != "kubernetes.io/job-controller") {
            return Ok(Action::Done);
        }
        let selector = Selector::of(job.spec.as_ref().and_then(|spec| spec.selector.as_ref()));
        let cache = self.pods.cache();
        let mut candidates = cache.by_index(OWNER, job.metadata.uid.as_deref().unwrap_or_default());
        candidates.extend(cache.by_index(OWNER, &orphans_of(&key.namespace)));
        let api = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let pods = claim::claim(&*job, &api, &selector, &self.pods, candidates).await?;
        let plan = decide(&View {
            job: &job,
            pods: &pods,
            now: self.shared.now(),
        });
        self.act(&job, &pods, plan).await
    }
}

impl Jobs {
    /// Deletes and creates, writes the counts, and only then lets the counted pods go.
    async fn act(&self, job: &Job, pods: &[Arc<Pod>], plan: Plan) -> Result<Action, Error> {
        let deletions = plan.delete.iter().map(|pod| self.delete(job, pod));
        let mut outcome = reconcile::all(join_all(deletions).await);
        if outcome.is_ok() {
            let created = podcontrol::in_growing_batches(plan.create.len(), |number| {
                let pod = self.pod(job, plan.create[number]);
                async move { podcontrol::create(&self.pods, &self.recorder, job, &pod).await }
            });
            outcome = created.await;
        }
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        if job.status.as_ref() != Some(&plan.status) {
            let updated = Job {
                status: Some(plan.status),
                ..job.clone()
            };
            self.jobs.update_status(namespace, &updated).await?;
        }
        for (kind, reason, text) in plan.events {
            self.recorder
                .event(&kube::Resource::object_ref(job, &()), kind, reason, text);
        }
        let counted = pods.iter().filter(|pod| {
            is_held(pod)
                && pod
                    .metadata
                    .uid
                    .as_ref()
                    .is_some_and(|uid| plan.release.contains(uid))
        });
        reconcile::all(join_all(counted.map(|pod| self.release(pod))).await)?;
        outcome?;
        Ok(plan.after.map_or(Action::Done, Action::After))
    }

    async fn delete(&self, job: &Job, pod: &Pod) -> Result<(), Error> {
        podcontrol::delete(&self.pods, &self.recorder, job, pod).await
    }

    /// Lets a pod go.
    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let mut left = pod.metadata.finalizers.clone().unwrap_or_default();
        left.retain(|finalizer| finalizer != FINALIZER);
        let patch = json!({"metadata": {
            "uid": pod.metadata.uid,
            "resourceVersion": pod.metadata.resource_version,
            "finalizers": left,
        }});
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match self.pods.patch(namespace, name, &patch).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Pods of a job that is gone are not counted by anybody any more.
    async fn release_orphans(&self, key: &Key) -> Result<Action, Error> {
        let pods = self
            .pods
            .cache()
            .list_in(&key.namespace)
            .into_iter()
            .filter(|pod| {
                let owner = controller_of(&**pod).filter(|owner| owner.kind == "Job");
                is_held(pod) && owner.is_some_and(|owner| owner.name == key.name)
            });
        for pod in pods {
            self.release(&pod).await?;
        }
        Ok(Action::Done)
    }

    fn pod(&self, job: &Job, index: Option<i32>) -> Pod {
        let template = job.spec.clone().unwrap_or_default().template;
        let mut pod = podcontrol::from_template(job, &template);
        pod.metadata
            .finalizers
            .get_or_insert_default()
            .push(FINALIZER.to_owned());
        let Some(index) = index else { return pod };
        let name = job.metadata.name.clone().unwrap_or_default();
        pod.metadata.generate_name = Some(format!("{name}-{index}-"));
        let number = index.to_string();
        pod.metadata
            .annotations
            .get_or_insert_default()
            .insert(INDEX.to_owned(), number.clone());
        pod.metadata
            .labels
            .get_or_insert_default()
            .insert(INDEX.to_owned(), number);
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{name}-{index}"));
        let field = ObjectFieldSelector {
            field_path: format!("metadata.labels['{INDEX}']"),
            ..Default::default()
        };
        let source = EnvVarSource {
            field_ref: Some(field),
            ..Default::default()
        };
        let variable = EnvVar {
            name: "JOB_COMPLETION_INDEX".into(),
            value_from: Some(source),
            ..Default::default()
        };
        let inits = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(inits) {
            let env = container.env.get_or_insert_default();
            if !env.iter().any(|known| known.name == variable.name) {
                env.push(variable.clone());
            }
        }
        pod
    }
}

/// What `decide` says to people.
type Told = (Kind, &'static str, String);
