//! Deployment: one ReplicaSet per template, with pods moved from the old ones to the newest as the
//! strategy says. Old ReplicaSets are kept for rollbacks; conditions show the progress.
//!
//! `decide` computes the writes; this file carries them out.

mod decide;
mod progress;
mod revision;
mod scale;

use std::sync::Arc;

use client::Api;
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentStatus, ReplicaSet},
    core::v1::Pod,
};
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Selector, Writer};

use crate::{
    claim, podcontrol,
    pods::is_terminal,
    selecting::keys_selecting,
    shared::{OWNER, REST, Shared, controller_of},
};
use decide::{Plan, Resize, View, decide};

/// The name in [`crate::ALL`].
pub const NAME: &str = "deployment";
const ACCOUNT: &str = "deployment-controller";
const WORKERS: usize = 32;

struct Deployments {
    shared: Arc<Shared>,
    deployments: Writer<Deployment>,
    sets: Writer<ReplicaSet>,
    pods: client::Informer<Pod>,
    recorder: Recorder,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Deployments {
        shared: shared.clone(),
        deployments: shared.writer(ACCOUNT),
        sets: shared.writer(ACCOUNT),
        pods: shared.informer(),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
    });
    let (deployments, sets) = (
        controller.deployments.cache().clone(),
        controller.sets.cache().clone(),
    );
    let recreated = deployments.clone();
    shared
        .controller(&controller)
        .watches(controller.deployments.cache())
        .owns(controller.sets.cache(), "Deployment", move |set| {
            keys_selecting(&deployments, set)
        })
        // Recreate waits for the last old pod; other changes of pods show in the ReplicaSets.
        .watches_with(&controller.pods, move |event| {
            let client::Event::Deleted(pod) = event else {
                return Vec::new();
            };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let set = controller_of(&**pod).and_then(|owner| sets.get(namespace, &owner.name));
            let owner = set.as_ref().and_then(|set| controller_of(&**set));
            let owner = owner.and_then(|owner| recreated.get(namespace, &owner.name));
            let waiting = owner.filter(|deployment| recreates(deployment));
            waiting
                .iter()
                .map(|deployment| Key::from_object(&**deployment))
                .collect()
        })
        .workers(WORKERS)
        .rest(REST)
        .start();
}

impl Controller for Deployments {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(deployment) = self.deployments.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let selector =
            Selector::from_label_selector(deployment.spec.as_ref().map(|spec| &spec.selector));
        if selector.is_everything() {
            let text = "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder
                .event(&about(&deployment), Kind::Warning, "SelectingAll", text);
            return Ok(Action::Done);
        }
        let view = self.view(&deployment, &selector, key).await?;
        let plan = decide(&view);
        self.act(&view.deployment, plan).await
    }
}

/// Whether the strategy is Recreate: old pods must be gone before new ones are created.
fn recreates(deployment: &Deployment) -> bool {
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref());
    strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("Recreate"))
}

fn about(deployment: &Deployment) -> k8s_openapi::api::core::v1::ObjectReference {
    kube::Resource::object_ref(deployment, &())
}

impl Deployments {
    async fn view(
        &self,
        deployment: &Arc<Deployment>,
        selector: &Selector,
        key: &Key,
    ) -> Result<View, Error> {
        let cache = self.sets.cache();
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        let mut candidates = cache.by_index(OWNER, uid);
        candidates.extend(claim::selected_orphans(cache, &key.namespace, selector));
        let api = Api::namespaced(self.shared.client(ACCOUNT), &key.namespace);
        let sets =
            claim::claim(&**deployment, &api, selector, &self.sets, candidates, None).await?;
        let running = |set: &ReplicaSet| {
            let pods = self
                .pods
                .by_index(OWNER, set.metadata.uid.as_deref().unwrap_or_default());
            pods.iter().filter(|pod| !is_terminal(pod)).count()
        };
        let pods = match recreates(deployment) {
            true => sets.iter().map(|set| running(set)).collect(),
            false => Vec::new(),
        };
        let now = self.shared.now();
        Ok(View {
            deployment: (**deployment).clone(),
            sets,
            pods,
            now,
        })
    }

    async fn act(&self, deployment: &Deployment, plan: Plan) -> Result<Action, Error> {
        let mut status = plan.status;
        if let Some(set) = &plan.create
            && let Err(error) = self.create(deployment, set, &mut status).await
        {
            self.write_status(deployment, status).await?;
            return Err(error);
        }
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        for resize in plan.update {
            self.sets.update(namespace, &resize.set).await?;
            self.record_scaling(deployment, &resize);
        }
        for set in plan.delete {
            self.sets.delete(&set).await?;
        }
        let deployment = self.write_revision(deployment, plan.revision).await?;
        self.write_status(&deployment, status).await?;
        Ok(plan.after.map_or(Action::Done, Action::After))
    }

    /// Creates the newest ReplicaSet. If another template has its name, that is a hash collision:
    /// collisionCount changes the next name.
    async fn create(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        status: &mut DeploymentStatus,
    ) -> Result<(), Error> {
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        let name = set.metadata.name.clone().unwrap_or_default();
        let to = set
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(0);
        match self.sets.create(namespace, set).await {
            Ok(_) if to > 0 => {
                let text = format!("Scaled up replica set {name} from 0 to {to}");
                self.recorder
                    .event(&about(deployment), Kind::Normal, "ScalingReplicaSet", text);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if error.reason() == "AlreadyExists" => {
                let taken: Option<ReplicaSet> =
                    Api::namespaced(self.shared.client(ACCOUNT), namespace)
                        .get_opt(&name)
                        .await?;
                if taken.is_some_and(|taken| !decide::is_newest(deployment, &taken)) {
                    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
                }
                Err(error)
            }
            Err(error) if error.is_namespace_terminating() => Err(error),
            Err(error) => {
                let reason = podcontrol::message(&error);
                let text = format!("Failed to create new replica set \"{name}\": {reason}");
                progress::failed_to_create(deployment, status, &text, self.shared.now());
                let about = about(deployment);
                self.recorder
                    .event(&about, Kind::Warning, "ReplicaSetCreateError", text);
                Err(error)
            }
        }
    }

    fn record_scaling(&self, deployment: &Deployment, resize: &Resize) {
        let name = resize.set.metadata.name.as_deref().unwrap_or_default();
        let to = resize
            .set
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(0);
        let direction = match to.cmp(&resize.from) {
            std::cmp::Ordering::Less => "down",
            std::cmp::Ordering::Greater => "up",
            std::cmp::Ordering::Equal => return,
        };
        let text = format!(
            "Scaled {direction} replica set {name} from {} to {to}",
            resize.from
        );
        self.recorder
            .event(&about(deployment), Kind::Normal, "ScalingReplicaSet", text);
    }

    async fn write_revision(
        &self,
        deployment: &Deployment,
        revision: Option<String>,
    ) -> Result<Deployment, Error> {
        let Some(revision) = revision else {
            return Ok(deployment.clone());
        };
        let mut updated = deployment.clone();
        let annotations = updated.metadata.annotations.get_or_insert_default();
        annotations.insert(revision::REVISION.to_owned(), revision);
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        // The controller's role may update Deployments, but not patch them.
        self.deployments.update(namespace, &updated).await
    }

    async fn write_status(
        &self,
        deployment: &Deployment,
        status: DeploymentStatus,
    ) -> Result<(), Error> {
        if deployment.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = deployment.metadata.namespace.clone().unwrap_or_default();
        let updated = Deployment {
            status: Some(status),
            ..deployment.clone()
        };
        self.deployments.update_status(&namespace, &updated).await?;
        Ok(())
    }
}
