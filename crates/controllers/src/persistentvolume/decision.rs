//! What the binder reads and writes: one write at a time, so that every decision sees the result of
//! the previous write in the cache.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{Resource, api::ObjectMeta};
use reconcile::{
    Kind,
    storage::{
        BETA_STORAGE_PROVISIONER, PROVISIONED_BY, STORAGE_PROVISIONER, annotate, annotation,
    },
};

/// The annotation of claims and volumes of migrated provisioners: the CSI driver.
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// The cluster as the binder sees it.
pub(super) trait ClusterView {
    /// A volume by name.
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// The volumes that are bound to a claim of this name, reserved for it, or available in its
    /// class.
    fn candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>>;
    /// A claim by name.
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    /// A class by name.
    fn class(&self, name: &str) -> Option<Arc<StorageClass>>;
    /// The default class.
    fn default_class(&self) -> Option<Arc<StorageClass>>;
    /// The names of pods that use the claim and are not scheduled.
    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<String>;
    /// The pods, as namespace/name, that use a claim of this name and have not ended.
    fn active_pods(&self, namespace: &str, claim: &str) -> Vec<String>;
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// A claim's metadata and spec.
    Claim(Box<PersistentVolumeClaim>),
    /// A claim's status.
    ClaimStatus(Box<PersistentVolumeClaim>),
    /// A volume's metadata and spec.
    Volume(Box<PersistentVolume>),
    /// A volume's status.
    VolumeStatus(Box<PersistentVolume>),
}

/// An event to record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    /// The object.
    pub about: ObjectReference,
    /// Normal or Warning.
    pub kind: Kind,
    /// Upstream's reason.
    pub reason: &'static str,
    /// Upstream's message.
    pub message: String,
}

impl Event {
    /// An event about an object.
    pub(super) fn new<K: Resource<DynamicType = ()>>(
        object: &K,
        kind: Kind,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            about: object.object_ref(&()),
            kind,
            reason,
            message: message.into(),
        }
    }
}

/// The next step for a claim or a volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Write this, then record the event, and decide again.
    Write(Change, Option<Box<Event>>),
    /// Nothing to write. The events are repeated while nothing changes.
    Rest(Vec<Event>),
    /// The volume's claim seems to be gone: read it from the API server before the volume is
    /// released.
    Confirm,
    /// The volume is released: empty it with a pod, then make it available again.
    Recycle(Box<PersistentVolume>),
    /// The volume is released: remove its directory on this machine, then delete it.
    RemoveHostPath(Box<PersistentVolume>),
    /// The objects are inconsistent.
    Fail(String),
}

impl Decision {
    /// Nothing to write and no event.
    pub(super) const DONE: Self = Self::Rest(Vec::new());
}

/// The CSI driver of a migrated in-tree provisioner.
pub(super) fn migrated(provisioner: &str) -> Option<&'static str> {
    Some(match provisioner {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        _ => return None,
    })
}

/// Updates the migration annotation to match the provisioner; returns whether it changed.
pub(super) fn mark_migrated(meta: &mut ObjectMeta) -> bool {
    let keys = [
        PROVISIONED_BY,
        STORAGE_PROVISIONER,
        BETA_STORAGE_PROVISIONER,
    ];
    let provisioner = keys.iter().find_map(|key| annotation(meta, key));
    let Some(provisioner) = provisioner else {
        return false;
    };
    match (migrated(provisioner), annotation(meta, MIGRATED_TO)) {
        (Some(driver), marked) if marked != Some(driver) => {
            annotate(meta, MIGRATED_TO, driver);
            true
        }
        (None, Some(_)) => {
            meta.annotations.get_or_insert_default().remove(MIGRATED_TO);
            true
        }
        _ => false,
    }
}
