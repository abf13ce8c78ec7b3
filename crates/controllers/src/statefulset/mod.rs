//! StatefulSet: pods with a stable name, storage and order. A pod is never replaced before the old
//! one of its ordinal is gone.

mod claims;
mod decide;
mod pod;

use std::{fmt::Display, sync::Arc};

use client::Api;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus},
    core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec},
};
use kube::Resource;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Selector, Writer};

use crate::{
    claim,
    history::{self, History, Newest},
    members::{self, Facts},
    podcontrol,
    pods::is_active,
    selecting::keys_selecting,
    shared::{REST, Shared, controller_of},
};
use decide::{Step, View, decide};
use pod::ordinal;

/// The name in [`crate::ALL`].
pub const NAME: &str = "statefulset";
const ACCOUNT: &str = "statefulset-controller";
const WORKERS: usize = 16;
/// The label of a revision with its hash; pods have the revision's whole name.
const REVISION_HASH: &str = "controller.kubernetes.io/hash";

struct Sets {
    shared: Arc<Shared>,
    sets: Writer<StatefulSet>,
    pods: Writer<Pod>,
    claims: Writer<PersistentVolumeClaim>,
    revisions: Writer<ControllerRevision>,
    recorder: Recorder,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Sets {
        shared: shared.clone(),
        sets: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        claims: shared.writer(ACCOUNT),
        revisions: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, ACCOUNT),
    });
    let pods = controller.pods.cache();
    let (sets, lookup) = (controller.sets.cache().clone(), controller.clone());
    shared
        .controller(&controller)
        .watches(controller.sets.cache())
        .owns(
            &pods.only(|facts: &Facts| facts.concerns("StatefulSet")),
            "StatefulSet",
            move |pod| keys_selecting(&sets, pod),
        )
        .watches_with(controller.claims.cache(), move |event| {
            lookup.sets_of_claim(event)
        })
        .reads(controller.revisions.cache())
        .workers(WORKERS)
        .rest(REST)
        .start();
}

impl Controller for Sets {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(set) = self.sets.cache().get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        let Some(spec) = &set.spec else {
            return Ok(Action::Done);
        };
        let client = self.shared.client(ACCOUNT);
        let api = Api::namespaced(client.clone(), &key.namespace);
        let (revisions, selector) = (&self.revisions, &spec.selector);
        let history = History::read(&*set, &api, selector, revisions, REVISION_HASH).await?;
        let collisions = set
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let revision_api = Api::namespaced(client, &key.namespace);
        let template = &spec.template;
        let newest = history.sync(&*set, template, revisions, &revision_api, collisions);
        let newest = newest.await?;
        let pods = self.pods(&set, &api).await?;
        let (plan, current) = self.decide(&set, &newest, &pods);
        let outcome = self.act(&set, &plan.steps, plan.at_once).await;
        let status = StatefulSetStatus {
            collision_count: Some(newest.collisions.unwrap_or(0)),
            ..plan.status
        };
        self.write_status(&set, status).await?;
        outcome?;
        let live = history::revisions_of(&pods);
        let is_live = |revision: &ControllerRevision| {
            let name = revision.metadata.name.as_deref().unwrap_or_default();
            live.contains(name) || current.as_deref() == Some(name)
        };
        let limit = spec.revision_history_limit.unwrap_or(10);
        let expired = history.expired(&newest.revision, is_live, limit, false);
        history::delete(revisions, &expired).await?;
        Ok(plan.after.map_or(Action::Done, Action::After))
    }
}

impl Sets {
    /// The sets that may wait for a claim's deletion.
    fn sets_of_claim(&self, event: &client::Event<PersistentVolumeClaim>) -> Vec<Key> {
        let client::Event::Deleted(claim) = event else {
            return Vec::new();
        };
        let owners = claim.metadata.owner_references.iter().flatten();
        let pod = owners.into_iter().find(|owner| owner.kind == "Pod");
        let set = pod
            .and_then(|pod| pod.name.rsplit_once('-'))
            .map(|(set, _)| set);
        let namespace = claim.metadata.namespace.clone().unwrap_or_default();
        set.map(|set| Key::new(namespace, set))
            .into_iter()
            .collect()
    }

    fn claim(&self, set: &StatefulSet, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        self.claims.cache().get(namespace, name)
    }

    async fn pods(
        &self,
        set: &StatefulSet,
        api: &Api<StatefulSet>,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let selector = Selector::from_label_selector(set.spec.as_ref().map(|spec| &spec.selector));
        let (cache, uid) = (self.pods.cache(), set.metadata.uid.as_deref());
        let mut candidates = members::candidates(cache, uid, namespace, &selector);
        candidates.retain(|pod| {
            controller_of(&**pod).is_some() || (ordinal(set, pod).is_some() && is_active(pod))
        });
        claim::claim(set, api, &selector, &self.pods, candidates, None).await
    }

    /// The plan, and the revision that an update replaces.
    fn decide(
        &self,
        set: &StatefulSet,
        newest: &Newest,
        pods: &[Arc<Pod>],
    ) -> (decide::Plan, Option<String>) {
        let status = set.status.as_ref();
        let current = status.and_then(|status| status.current_revision.clone());
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let exists = |name: &String| self.revisions.cache().get(namespace, name).is_some();
        let current = current.filter(exists);
        let has_stale_claim = |ordinal: i64| {
            let pod = pod::name(set, ordinal);
            let claims = claims::names(set, ordinal).into_iter();
            let mut claims = claims.filter_map(|(_, name)| self.claim(set, &name));
            claims.any(|claim| claims::is_stale(set, &pod, &claim))
        };
        let plan = decide(&View {
            set,
            newest: newest.revision.metadata.name.as_deref().unwrap_or_default(),
            current: current.as_deref(),
            pods,
            has_stale_claim: &has_stale_claim,
            now: self.shared.now(),
        });
        (plan, current)
    }

    async fn act(&self, set: &StatefulSet, steps: &[Step], at_once: bool) -> Result<(), Error> {
        if at_once {
            let create =
                |number: usize| async move { self.step(set, &steps[number]).await.map(|()| true) };
            return podcontrol::in_growing_batches(steps.len(), create).await.1;
        }
        for step in steps {
            self.step(set, step).await?;
        }
        Ok(())
    }

    async fn step(&self, set: &StatefulSet, step: &Step) -> Result<(), Error> {
        match step {
            Step::Create { ordinal, revision } => self.create(set, *ordinal, revision).await,
            Step::Delete(pod) => {
                let deleted = self.pods.delete(pod).await;
                self.record("Delete", set, pod, deleted)
            }
            Step::EnsureClaims(pod) => {
                let Some(ordinal) = ordinal(set, pod) else {
                    return Ok(());
                };
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                self.create_claims(set, ordinal, name).await?;
                self.own_claims(set, pod).await
            }
            Step::Correct(pod) => self.correct(set, pod).await,
        }
    }

    async fn create(&self, set: &StatefulSet, ordinal: i64, revision: &str) -> Result<(), Error> {
        let template = self.template(set, revision);
        let pod = pod::new(set, ordinal, revision, template.as_ref());
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        if let Err(error) = self.create_claims(set, ordinal, name).await {
            return self.record("Create", set, &pod, Err(error));
        }
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        match self.pods.create(namespace, &pod).await {
            Ok(created) => {
                self.own_claims(set, &created).await?;
                self.record("Create", set, &created, Ok(()))
            }
            Err(error) if error.is_namespace_terminating() => Ok(()),
            Err(error) if error.reason() == "AlreadyExists" => Err(error),
            Err(error) => self.record("Create", set, &pod, Err(error)),
        }
    }

    /// The template of a revision, or the set's own.
    fn template(&self, set: &StatefulSet, revision: &str) -> Option<PodTemplateSpec> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let stored = self.revisions.cache().get(namespace, revision);
        let stored = stored.and_then(|stored| history::template(&stored));
        stored.or_else(|| set.spec.as_ref().map(|spec| spec.template.clone()))
    }

    /// Creates the claims of a pod. Existing ones stay as they are; one that is being deleted must
    /// be gone first.
    async fn create_claims(&self, set: &StatefulSet, ordinal: i64, pod: &str) -> Result<(), Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let set_name = set.metadata.name.as_deref().unwrap_or_default();
        for claim in claims::wanted(set, ordinal) {
            let name = claim.metadata.name.clone().unwrap_or_default();
            if let Some(known) = self.claim(set, &name) {
                if known.metadata.deletion_timestamp.is_some() {
                    return Err(Error::Invalid(format!("pvc {name} is being deleted")));
                }
                continue;
            }
            match self.claims.create(namespace, &claim).await {
                Ok(_) => {
                    let text =
                        format!("Create Claim {name} Pod {pod} in StatefulSet {set_name} success");
                    self.event(set, Kind::Normal, "SuccessfulCreate", text);
                }
                Err(error) if error.reason() == "AlreadyExists" => {}
                Err(error) => {
                    let why = podcontrol::message(&error);
                    let text = format!(
                        "Create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: {why}"
                    );
                    self.event(set, Kind::Warning, "FailedCreate", text);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Sets the claims' owners by the retention policy.
    async fn own_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let Some(ordinal) = ordinal(set, pod) else {
            return Ok(());
        };
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        for (_, name) in claims::names(set, ordinal) {
            let Some(claim) = self.claim(set, &name) else {
                continue;
            };
            let Some(owners) = claims::owners(set, pod, &claim) else {
                continue;
            };
            if claims::has_other_controller(set, pod, &claim) {
                let text = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a managing controller, the retention policy is ignored for this claim"
                );
                self.event(set, Kind::Warning, "ConflictingController", text);
            }
            let mut updated = (*claim).clone();
            updated.metadata.owner_references = Some(owners);
            self.claims.update(namespace, &updated).await?;
        }
        Ok(())
    }

    async fn correct(&self, set: &StatefulSet, pod: &Arc<Pod>) -> Result<(), Error> {
        self.own_claims(set, pod).await?;
        let Some(right) = pod::corrected(set, pod) else {
            return Ok(());
        };
        if let Some(ordinal) = ordinal(set, pod).filter(|ordinal| pod::is_wanted(set, *ordinal)) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            self.create_claims(set, ordinal, name).await?;
        }
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let updated = self.pods.update(namespace, &right).await.map(drop);
        self.record("Update", set, pod, updated)
    }

    fn event(&self, set: &StatefulSet, kind: Kind, reason: &str, text: String) {
        self.recorder
            .event(&set.object_ref(&()), kind, reason, text);
    }

    /// Records an event about a pod.
    fn record(
        &self,
        verb: impl Display,
        set: &StatefulSet,
        pod: &Pod,
        outcome: Result<(), Error>,
    ) -> Result<(), Error> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let set_name = set.metadata.name.as_deref().unwrap_or_default();
        let text = format!("{verb} Pod {name} in StatefulSet {set_name}");
        match &outcome {
            Ok(()) => {
                let text = format!("{text} successful");
                self.event(set, Kind::Normal, &format!("Successful{verb}"), text);
            }
            Err(error) => {
                let text = format!("{text} failed error: {}", podcontrol::message(error));
                self.event(set, Kind::Warning, &format!("Failed{verb}"), text);
            }
        }
        outcome
    }

    async fn write_status(
        &self,
        set: &StatefulSet,
        status: StatefulSetStatus,
    ) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let updated = StatefulSet {
            status: Some(status),
            ..set.clone()
        };
        self.sets.update_status(namespace, &updated).await?;
        Ok(())
    }
}
