//! The provisioner of the default StorageClass: a volume is a directory on the node that the
//! scheduler selected. The kubelet creates it at the first mount, and a pod on that node removes it
//! when the claim is gone and the reclaim policy is Delete (see [`cleaning`]). It writes as the
//! volume binder, whose role has exactly these permissions.
//!
//! Claims and volumes share one queue; keys of volumes have no namespace.

mod cleaning;
pub(crate) mod decide;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{Event, Informer};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{Api, Resource, api::ObjectMeta};
use parking_lot::Mutex;
use reconcile::{
    Action, Controller, Error, Key, Kind, Recorder, Writer,
    storage::{EXTERNAL_FINALIZER, SELECTED_NODE, annotation, claim_class, volume_name},
};
use stdx::Clock;

use crate::{
    pods::{ended_with, is_deleting, phase},
    shared::Shared,
};
use cleaning::{Failures, Site};
use decide::{
    DataNode, Deletion, Provision, is_ours, is_still_to_delete, is_to_delete, is_to_release,
    wants_to_grow,
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "local-path";
const ACCOUNT: &str = "persistent-volume-binder";
/// The provisioner's name in StorageClasses.
pub const PROVISIONER: &str = "mainstay.dev/local-path";
/// The annotation of nodes with the directory of their volumes. The kubelet sets it.
pub const NODE_ROOT: &str = "mainstay.dev/local-path-root";
const NAMESPACE: &str = "kube-system";

/// How often a pending deletion is checked.
const WAIT: Duration = Duration::from_secs(60);

/// The StorageClass of a new cluster.
pub fn class() -> StorageClass {
    let default = "storageclass.kubernetes.io/is-default-class";
    StorageClass {
        metadata: ObjectMeta {
            name: Some("local-path".to_owned()),
            annotations: Some(BTreeMap::from([(default.to_owned(), "true".to_owned())])),
            ..ObjectMeta::default()
        },
        provisioner: PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        allow_volume_expansion: Some(false),
        ..StorageClass::default()
    }
}

struct Provisioner {
    client: kube::Client,
    claims: Writer<PersistentVolumeClaim>,
    volumes: Writer<PersistentVolume>,
    pods: Writer<Pod>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    events: Recorder,
    clock: Arc<dyn Clock>,
    /// Guards only the failures.
    failures: Mutex<Failures>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Provisioner {
        client: shared.client(ACCOUNT),
        claims: shared.writer(ACCOUNT),
        volumes: shared.writer(ACCOUNT),
        pods: shared.writer(ACCOUNT),
        classes: shared.informer(),
        nodes: shared.informer(),
        events: shared.recorder(ACCOUNT, PROVISIONER),
        clock: shared.clock(),
        failures: Mutex::default(),
    });
    let waiting = {
        let volumes = controller.volumes.cache().clone();
        move || -> Vec<Key> {
            let volumes = volumes.list();
            let ours = volumes.iter().filter(|volume| is_to_delete(volume));
            ours.map(|volume| Key::from_object(&**volume)).collect()
        }
    };
    let waiting_for_pod = waiting.clone();
    shared
        .controller(&controller)
        .watches_with(controller.claims.cache(), |event| {
            let claim = event.object();
            let ours = is_ours(claim) || wants_to_grow(claim);
            ours.then(|| Key::from_object(&**claim))
                .into_iter()
                .collect()
        })
        .watches_with(controller.volumes.cache(), |event| {
            let volume = event.object();
            let was_to_delete = event.old().is_some_and(|old| is_to_delete(old));
            let ours = is_to_delete(volume) || is_to_release(volume) || was_to_delete;
            ours.then(|| Key::from_object(&**volume))
                .into_iter()
                .collect()
        })
        .watches_with(controller.pods.cache(), move |event| {
            let mut volumes = cleaning::volumes_of(event.object()).peekable();
            match event {
                // The next cleanup pod can start.
                Event::Deleted(_) if volumes.peek().is_some() => waiting_for_pod(),
                _ => volumes.map(|owner| Key::new("", &owner.name)).collect(),
            }
        })
        .watches_with(&controller.nodes, move |event| match event {
            Event::Deleted(_) => waiting(),
            _ => Vec::new(),
        })
        .reads(&controller.classes)
        .workers(4)
        .start();
}

impl Controller for Provisioner {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        if key.namespace.is_empty() {
            let volume = self.volumes.cache().get("", &key.name);
            return match volume {
                Some(volume) if is_to_delete(&volume) => self.delete(&volume).await,
                Some(volume) => self.keep(&volume).await,
                None => Ok(Action::Done),
            };
        }
        let claim = self.claims.cache().get(&key.namespace, &key.name);
        match claim {
            Some(claim) if is_ours(&claim) => self.provision(&claim).await,
            Some(claim) if wants_to_grow(&claim) => self.grow(&claim).await,
            _ => Ok(Action::Done),
        }
    }
}

impl Provisioner {
    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<Action, Error> {
        let class = self.classes.get("", claim_class(claim));
        let node = annotation(&claim.metadata, SELECTED_NODE);
        let node = node.and_then(|node| self.nodes.get("", node));
        match decide::provision(claim, class.as_deref(), node.as_deref()) {
            Provision::Wait => Ok(Action::Done),
            Provision::Make(volume) => self.make(claim, &volume).await,
            Provision::Refuse(why) => {
                self.failed(claim, &why);
                Err(Error::Invalid(why))
            }
            Provision::Reschedule(why) => {
                self.failed(claim, &why);
                let mut changed = claim.clone();
                let annotations = changed.metadata.annotations.get_or_insert_default();
                annotations.remove(SELECTED_NODE);
                let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
                self.claims.update(namespace, &changed).await?;
                Ok(Action::Done)
            }
        }
    }

    fn failed(&self, claim: &PersistentVolumeClaim, why: &str) {
        let class = claim_class(claim);
        let message = format!("failed to provision volume with StorageClass {class:?}: {why}");
        let about = claim.object_ref(&());
        self.events
            .event(&about, Kind::Warning, "ProvisioningFailed", message);
    }

    async fn make(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<Action, Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        if self.volumes.cache().get("", name).is_some() {
            return Ok(Action::Done);
        }
        let about = claim.object_ref(&());
        let key = Key::from_object(claim);
        let say = |reason: &str, message: String| {
            self.events.event(&about, Kind::Normal, reason, message);
        };
        say(
            "Provisioning",
            format!("External provisioner is provisioning volume for claim \"{key}\""),
        );
        match self.volumes.cluster_create(volume).await {
            Err(error) if error.reason() == "AlreadyExists" => {}
            Err(error) => {
                self.failed(claim, &error.to_string());
                return Err(error);
            }
            Ok(_) => say(
                "ProvisioningSucceeded",
                format!("Successfully provisioned volume {name}"),
            ),
        }
        Ok(Action::Done)
    }

    /// Sets the volume's capacity to its claim's request; the kubelet does the rest.
    async fn grow(&self, claim: &PersistentVolumeClaim) -> Result<Action, Error> {
        let name = volume_name(claim).unwrap_or_default();
        let Some(volume) = self.volumes.cache().get("", name) else {
            return Ok(Action::Done);
        };
        if let Some(resized) = decide::resized(&volume, claim) {
            self.volumes.cluster_update(&resized).await?;
            let message = "Waiting for the node to expand the volume";
            let about = claim.object_ref(&());
            self.events.event(&about, Kind::Normal, "Resizing", message);
        }
        Ok(Action::Done)
    }

    fn deletion(&self, volume: &PersistentVolume) -> Deletion {
        decide::deletion(volume, |place| match place {
            DataNode::Named(name) => self.nodes.get("", name),
            DataNode::OfHost(_) => self.nodes.list().into_iter().find(|node| place.is(node)),
        })
    }

    async fn delete(&self, volume: &PersistentVolume) -> Result<Action, Error> {
        match self.deletion(volume) {
            Deletion::Forget => self.forget(volume).await,
            Deletion::Clean(site) => self.clean(volume, &site).await,
            Deletion::Refuse(why) => {
                self.not_deleted(volume, &why);
                Err(Error::Invalid(why))
            }
        }
    }

    fn not_deleted(&self, volume: &PersistentVolume, why: &str) {
        let about = volume.object_ref(&());
        self.events
            .event(&about, Kind::Warning, "VolumeFailedDelete", why);
    }

    /// Runs a cleanup pod on the node until the data is removed, then deletes the volume.
    async fn clean(&self, volume: &PersistentVolume, site: &Site) -> Result<Action, Error> {
        let Some(pod) = self.pods.cache().get(NAMESPACE, &site.pod_name()) else {
            return self.start_cleaner(site).await;
        };
        if is_deleting(&pod) {
            return Ok(Action::After(WAIT));
        }
        match phase(&pod) {
            "Succeeded" if cleaning::is_for(&pod, volume) => {
                let name = volume.metadata.name.as_deref().unwrap_or_default();
                self.failures.lock().forget(name);
                self.forget(volume).await
            }
            // The others of its volumes are being deleted; the next pod waits for that.
            "Succeeded" if self.has_more_to_delete(&pod) => Ok(Action::After(WAIT)),
            "Succeeded" => {
                // A volume that stays, such as for another finalizer, would keep it.
                self.pods.delete(&pod).await?;
                self.start_cleaner(site).await
            }
            "Failed" => self.cleaner_failed(&pod, site).await,
            _ => Ok(Action::After(WAIT)),
        }
    }

    /// Whether a volume of a cleanup pod is still to be deleted.
    fn has_more_to_delete(&self, pod: &Pod) -> bool {
        let mut volumes = cleaning::volumes_of(pod);
        volumes.any(|owner| {
            let volume = self.volumes.cache().get("", &owner.name);
            volume.is_some_and(|volume| {
                volume.metadata.uid.as_ref() == Some(&owner.uid) && is_to_delete(&volume)
            })
        })
    }

    /// A volume that is not to be deleted, or no longer: a cleanup pod that has not ended, such as on a node that is
    /// away, must not remove its data.
    async fn keep(&self, volume: &PersistentVolume) -> Result<Action, Error> {
        if let Deletion::Clean(site) = self.deletion(volume) {
            let pod = self.pods.cache().get(NAMESPACE, &site.pod_name());
            if let Some(pod) = pod.filter(|pod| cleaning::will_remove(pod, volume)) {
                self.pods.delete(&pod).await?;
            }
        }
        match is_to_release(volume) {
            true => self.release(volume).await,
            false => Ok(Action::Done),
        }
    }

    async fn start_cleaner(&self, site: &Site) -> Result<Action, Error> {
        if let Some(left) = self.failures.lock().wait(site, self.clock.now()) {
            return Ok(Action::After(left));
        }
        let volumes = self.volumes.cache().list();
        let is_there = |volume: &&PersistentVolume| {
            is_to_delete(volume) && self.deletion(volume) == Deletion::Clean(site.clone())
        };
        let there = volumes.iter().map(AsRef::as_ref).filter(is_there).collect();
        let batch = self.failures.lock().batch(there);
        let batch = self.confirmed(batch).await?;
        if batch.is_empty() {
            return Ok(Action::Done);
        }
        let created = self
            .pods
            .create(NAMESPACE, &cleaning::cleaner(&batch, site))
            .await;
        match created {
            Err(error) if error.reason() == "AlreadyExists" => Ok(Action::After(WAIT)),
            other => other.map(|_| Action::After(WAIT)),
        }
    }

    /// The volumes that the API server, too, has as to be deleted: the cache may lag behind.
    async fn confirmed<'a>(
        &self,
        volumes: Vec<&'a PersistentVolume>,
    ) -> Result<Vec<&'a PersistentVolume>, Error> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let current = volumes.iter().map(|volume| {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            api.get_opt(name)
        });
        let current = futures::future::try_join_all(current).await?;
        let both = volumes.into_iter().zip(&current);
        let confirmed =
            both.filter(|(volume, current)| is_still_to_delete(volume, current.as_ref()));
        Ok(confirmed.map(|(volume, _)| volume).collect())
    }

    /// Records events about the failures and deletes the pod, so that the next one can start.
    async fn cleaner_failed(&self, pod: &Pod, site: &Site) -> Result<Action, Error> {
        let complaints = cleaning::complaints(pod);
        let failed: Vec<&str> = complaints.iter().map(|(name, _)| *name).collect();
        let now = self.clock.now();
        if self.failures.lock().record(site, pod, &failed, now) {
            let said = ended_with(pod);
            for owner in cleaning::volumes_of(pod) {
                let own = complaints.iter().find(|(name, _)| *name == owner.name);
                let why = match own {
                    Some((_, why)) => why.as_str(),
                    // The other volumes were cleaned up, or will be by the next pod.
                    None if !complaints.is_empty() => continue,
                    None => said.trim(),
                };
                if let Some(volume) = self.volumes.cache().get("", &owner.name) {
                    let why = format!("the pod that removes the data failed: {why}");
                    self.not_deleted(&volume, &why);
                }
            }
        }
        match self.pods.delete(pod).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => {
                let left = self.failures.lock().wait(site, now);
                Ok(Action::After(left.unwrap_or(WAIT)))
            }
        }
    }

    /// Deletes the volume's object. It owns the cleanup pod, which is deleted with it.
    async fn forget(&self, volume: &PersistentVolume) -> Result<Action, Error> {
        self.volumes.cluster_delete(volume).await?;
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        match self.volumes.cache().get("", name) {
            Some(left) => self.release(&left).await,
            None => Ok(Action::Done),
        }
    }

    /// Removes the provisioner's finalizer.
    async fn release(&self, volume: &PersistentVolume) -> Result<Action, Error> {
        let mut free = volume.clone();
        let finalizers = free.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|finalizer| finalizer != EXTERNAL_FINALIZER);
        match self.volumes.cluster_update(&free).await {
            Err(error) if error.is_not_found() => Ok(Action::Done),
            other => other.map(|_| Action::Done),
        }
    }
}
