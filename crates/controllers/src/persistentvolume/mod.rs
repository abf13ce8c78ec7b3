//! Binds PersistentVolumeClaims and PersistentVolumes to each other, assigns claims to their
//! provisioners and applies the reclaim policy of released volumes. Data is deleted by the volume's
//! provisioner; only hostPath and nfs volumes without one are emptied or removed here ([`reclaim`]).
//!
//! Claims and volumes share one queue; keys of volumes have no namespace.

mod claim;
mod decision;
pub(crate) mod metrics;
#[cfg(test)]
mod model;
mod reclaim;
mod recycle;
#[cfg(test)]
mod tests;
mod volume;

use std::{collections::HashMap, sync::Arc, time::Duration};

use client::{Event, Informer};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::Api;
use parking_lot::Mutex;
use reconcile::{
    Action, Controller, Error, Key, Recorder, Writer,
    storage::{claim_class, claim_ref, default_class, has_class, volume_class, volume_name},
};
use stdx::Clock;

use crate::{
    metrics::Metrics,
    pods::is_terminal,
    shared::{CLAIM, Shared, UNBOUND, candidate_key, claimed_key},
};
use decision::{Change, ClusterView, Decision};

/// The name in [`crate::ALL`].
pub const NAME: &str = "persistentvolume-binder";
const ACCOUNT: &str = "persistent-volume-binder";

/// How often pending objects are reconciled again, and their events repeated.
const RESYNC: Duration = Duration::from_secs(15);
/// The maximum number of writes per reconciliation.
const WRITES: usize = 8;

struct Binder {
    client: kube::Client,
    claims: Writer<PersistentVolumeClaim>,
    volumes: Writer<PersistentVolume>,
    classes: Informer<StorageClass>,
    pods: Writer<Pod>,
    events: Recorder,
    clock: Arc<dyn Clock>,
    /// By volume. Guards only the attempts.
    recycling: Mutex<HashMap<String, recycle::Attempt>>,
    operations: metrics::Operations,
    metrics: Metrics,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Binder {
        client: shared.client(ACCOUNT),
        claims: shared.writer(ACCOUNT),
        volumes: shared.writer(ACCOUNT),
        classes: shared.informer(),
        pods: shared.writer(ACCOUNT),
        events: shared.recorder(ACCOUNT, "persistentvolume-controller"),
        clock: shared.clock(),
        recycling: Mutex::default(),
        operations: metrics::Operations::default(),
        metrics: shared.metrics.clone(),
    });
    let (volumes, claims) = (
        controller.volumes.cache().clone(),
        controller.claims.cache().clone(),
    );
    shared
        .collectors
        .add(move |metrics| metrics::collect(metrics, &volumes, &claims));
    let (by_volume, by_class) = (
        controller.claims.cache().clone(),
        controller.claims.cache().clone(),
    );
    shared
        .controller(&controller)
        .watches_with(controller.claims.cache(), claim_event)
        .watches_with(controller.volumes.cache(), move |event| {
            volume_event(event, &by_volume)
        })
        .watches_with(&controller.classes, move |event| {
            class_event(event, &by_class)
        })
        .watches_with(controller.pods.cache(), |event| {
            let volume = recycle::volume_of(event.object());
            let key = volume.map(|name| Key::new("", name));
            key.into_iter().collect()
        })
        .workers(4)
        .start();
}

/// A claim's event enqueues the claim and the volume that it names or named.
fn claim_event(event: &Event<PersistentVolumeClaim>) -> Vec<Key> {
    let claim = event.object();
    let before = event.old().and_then(|old| volume_name(old));
    let volumes = before.into_iter().chain(volume_name(claim));
    let volumes = volumes.map(|name| Key::new("", name));
    volumes.chain([Key::from_object(&**claim)]).collect()
}

/// A volume's event enqueues the volume, the claim that it is bound to and, if it is available, the
/// claims that could bind it.
fn volume_event(
    event: &Event<PersistentVolume>,
    claims: &Informer<PersistentVolumeClaim>,
) -> Vec<Key> {
    let volume = event.object();
    let key = |volume: &PersistentVolume| {
        let reference = claim_ref(volume)?;
        let namespace = reference.namespace.clone().unwrap_or_default();
        Some(Key::new(namespace, reference.name.clone()?))
    };
    let before = event.old().and_then(|old| key(old));
    let mut keys: Vec<Key> = before.into_iter().chain(key(volume)).collect();
    keys.push(Key::from_object(&**volume));
    let is_gone = matches!(event, Event::Deleted(_));
    if claim_ref(volume).is_none() && !is_gone {
        let waiting = claims.by_index(UNBOUND, volume_class(volume));
        keys.extend(waiting.iter().map(|claim| Key::from_object(&**claim)));
    }
    keys
}

/// A class' event enqueues the unbound claims that name it; for a default class also those that
/// name none.
fn class_event(event: &Event<StorageClass>, claims: &Informer<PersistentVolumeClaim>) -> Vec<Key> {
    let name = event.object().metadata.name.as_deref().unwrap_or_default();
    let named = claims.by_index(UNBOUND, name).into_iter();
    let unnamed = claims.by_index(UNBOUND, "");
    let all = named.chain(unnamed);
    all.map(|claim| Key::from_object(&*claim)).collect()
}

impl ClusterView for Binder {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.cache().get("", name)
    }

    fn candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
        let meta = &claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let volumes = self.volumes.cache();
        let mut found = volumes.by_index(CLAIM, &claimed_key(namespace, name));
        found.extend(volumes.by_index(CLAIM, &candidate_key(claim_class(claim))));
        found
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.cache().get(namespace, name)
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get("", name)
    }

    fn default_class(&self) -> Option<Arc<StorageClass>> {
        let classes = self.classes.list();
        let default = default_class(classes.iter().map(AsRef::as_ref))?;
        self.classes.get("", default.metadata.name.as_deref()?)
    }

    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<String> {
        let meta = &claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let pods = self.pods.cache();
        let pods = pods.by_index(CLAIM, &claimed_key(namespace, name));
        let has_node = |pod: &Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node.is_some_and(|node| !node.is_empty())
        };
        let waiting = pods
            .iter()
            .filter(|pod| !is_terminal(pod) && !has_node(pod));
        let mut names: Vec<String> = waiting
            .filter_map(|pod| pod.metadata.name.clone())
            .collect();
        names.sort();
        names
    }

    fn active_pods(&self, namespace: &str, claim: &str) -> Vec<String> {
        let pods = self.pods.cache();
        let pods = pods.by_index(CLAIM, &claimed_key(namespace, claim));
        let active = pods.iter().filter(|pod| !is_terminal(pod));
        let mut names: Vec<String> = active
            .filter_map(|pod| Some(format!("{namespace}/{}", pod.metadata.name.as_ref()?)))
            .collect();
        names.sort();
        names
    }
}

impl Binder {
    fn decide(&self, key: &Key, is_confirmed: bool) -> Decision {
        if key.namespace.is_empty() {
            let volume = self.volume(&key.name);
            let seen = volume.as_deref();
            self.operations.observe_volume(key, seen, &self.metrics);
            let Some(volume) = volume else {
                self.recycling.lock().remove(&key.name);
                return Decision::DONE;
            };
            return volume::decide(&volume, self, is_confirmed);
        }
        let claim = self.claim(&key.namespace, &key.name);
        let seen = claim.as_deref();
        self.operations.observe_claim(key, seen, &self.metrics);
        claim.map_or(Decision::DONE, |claim| claim::decide(&claim, self))
    }

    /// Whether the claim is gone from the API server, too: the cache may lack a claim that a
    /// provisioner or the scheduler has already seen.
    async fn is_claim_gone(&self, volume: &str) -> Result<bool, Error> {
        let Some(volume) = self.volume(volume) else {
            return Ok(false);
        };
        let Some(reference) = claim_ref(&volume) else {
            return Ok(false);
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = api.get_opt(name).await?;
        Ok(claim.is_none_or(|claim| claim.metadata.uid != reference.uid))
    }

    async fn write(&self, change: Change) -> Result<(), Error> {
        match change {
            Change::Claim(claim) => {
                let namespace = claim.metadata.namespace.clone().unwrap_or_default();
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                let before = self.claim(&namespace, name);
                let is_new_class =
                    has_class(&claim) && before.is_some_and(|before| !has_class(&before));
                let written = self.claims.update(&namespace, &claim).await;
                if is_new_class {
                    self.metrics.classes_assigned.add([], 1);
                    let failures = usize::from(written.is_err());
                    self.metrics.classes_not_assigned.add([], failures);
                }
                written?;
            }
            Change::ClaimStatus(claim) => {
                let namespace = claim.metadata.namespace.clone().unwrap_or_default();
                self.claims.update_status(&namespace, &claim).await?;
            }
            Change::Volume(volume) => {
                self.volumes.cluster_update(&volume).await?;
            }
            Change::VolumeStatus(volume) => {
                self.volumes.cluster_update_status(&volume).await?;
            }
        }
        Ok(())
    }

    fn record(&self, events: impl IntoIterator<Item = decision::Event>) {
        for event in events {
            self.events
                .event(&event.about, event.kind, event.reason, event.message);
        }
    }
}

impl Controller for Binder {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let mut is_confirmed = false;
        for _ in 0..WRITES {
            let decision = self.decide(key, is_confirmed);
            if key.namespace.is_empty() && matches!(decision, Decision::Rest(_)) {
                self.stop_recycler(key).await?;
            }
            match decision {
                Decision::Write(change, event) => {
                    self.write(change).await?;
                    self.record(event.map(|event| *event));
                }
                Decision::Rest(events) if events.is_empty() => return Ok(Action::Done),
                Decision::Rest(events) => {
                    self.record(events);
                    return Ok(Action::After(RESYNC));
                }
                Decision::Confirm => {
                    if !self.is_claim_gone(&key.name).await? {
                        return Ok(Action::After(Duration::from_secs(1)));
                    }
                    is_confirmed = true;
                }
                Decision::Recycle(volume) => return self.recycle(&volume).await,
                Decision::RemoveHostPath(volume) => return self.remove_host_path(&volume).await,
                Decision::Fail(why) => return Err(Error::Invalid(why)),
            }
        }
        Ok(Action::After(Duration::ZERO))
    }
}
