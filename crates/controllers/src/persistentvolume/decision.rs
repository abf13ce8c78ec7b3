//! What the binder reads of the cluster and what it does about it: one write at a time, so that
//! every decision is made on what the caches show after the write before.

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

/// On claims and volumes of provisioners that a CSI driver took over: the driver.
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// The cluster as the binder sees it.
pub(super) trait World {
    /// A volume by name.
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// The volumes that are bound to a claim of this name, reserved for it, or of the class and free.
    fn candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>>;
    /// A claim by name.
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    /// A class by name.
    fn class(&self, name: &str) -> Option<Arc<StorageClass>>;
    /// The default class.
    fn default_class(&self) -> Option<Arc<StorageClass>>;
    /// The names of pods that use the claim and have no node yet.
    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<String>;
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

/// Something to say about an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    /// The object.
    pub about: ObjectReference,
    /// Whether it is good news.
    pub kind: Kind,
    /// As upstream names it.
    pub reason: &'static str,
    /// In upstream's words.
    pub message: String,
}

impl Event {
    /// About an object.
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

/// What comes next for a claim or a volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Write this, say that once it is written, and look again.
    Write(Change, Option<Box<Event>>),
    /// Nothing is to be written. The events are repeated while nothing changes.
    Rest(Vec<Event>),
    /// The volume's claim seems to be gone: ask the API server before the volume is released.
    Confirm,
    /// The objects contradict each other.
    Fail(String),
}

impl Decision {
    /// Nothing to do and nothing to say.
    pub(super) const DONE: Self = Self::Rest(Vec::new());
}

/// The CSI driver that took over an in-tree provisioner.
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

/// Brings the annotation of the driver that took over in line with the provisioner; whether it
/// changed.
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
