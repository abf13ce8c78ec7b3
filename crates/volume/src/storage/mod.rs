//! Volumes whose data outlive their pods: persistent volumes behind claims, and volumes of pods that a
//! driver or a server provides.
//!
//! Such a volume comes to a pod in steps, each of which can be repeated: it is attached to the node (by
//! a controller; the node waits), staged once per node, published once per pod, and the same way back.
//! [`Manager`] keeps the steps in order for all pods of the node; a [`StoragePlugin`] does them.

mod manager;
mod rebuild;
pub mod resolve;
mod state;
mod unstage;
mod usage;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume},
    storage::v1::{CSIDriver, TokenRequest, VolumeAttachment},
};

pub use manager::{Failure, Manager, Ready};
pub(crate) use rebuild::mounts_of_pod;
pub use state::Key;
pub use usage::Measured;

use crate::Mounter;

/// A volume of a pod, with the persistent volume that its claim is bound to.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The persistent volume's name, or the volume's name in the pod.
    pub name: String,
    /// The pod's volume.
    pub inline: Volume,
    /// What its claim is bound to.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The claim.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// A device instead of a file system.
    pub is_block: bool,
    /// No container of the pod may write to it.
    pub read_only: bool,
}

impl Spec {
    /// The mount options of the persistent volume.
    pub fn mount_options(&self) -> Vec<String> {
        let spec = self.volume.as_ref().and_then(|volume| volume.spec.as_ref());
        spec.and_then(|spec| spec.mount_options.clone())
            .unwrap_or_default()
    }

    /// The access modes of the persistent volume.
    pub fn access_modes(&self) -> Vec<String> {
        let spec = self.volume.as_ref().and_then(|volume| volume.spec.as_ref());
        spec.and_then(|spec| spec.access_modes.clone())
            .unwrap_or_default()
    }
}

/// Why a step failed, and what that says about the volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Not tried, because something is missing that may come: the volume is as it was before.
    #[error("{0}")]
    NotTried(String),
    /// Tried and not done.
    #[error("{0}")]
    Failed(String),
    /// It may have been done, or may still happen.
    #[error("{0}")]
    Uncertain(String),
}

impl From<crate::Error> for StepError {
    /// The node's own steps are done or not when they return; what is half done is found by the next
    /// try and by the way back.
    fn from(error: crate::Error) -> Self {
        Self::Uncertain(error.to_string())
    }
}

/// The outcome of a step.
pub type Step<T> = Result<T, StepError>;

/// What plugins need of the node and the API.
#[async_trait]
pub trait Host: Send + Sync {
    /// The node's name.
    fn node_name(&self) -> &str;
    /// The kubelet's directory.
    fn root_dir(&self) -> &Path;
    /// The directory of the node's own provisioner.
    fn local_path_root(&self) -> &Path;
    /// How to mount.
    fn mounter(&self) -> &dyn Mounter;
    /// The node service of a registered driver.
    fn driver(&self, name: &str) -> Option<Arc<csi::Node>>;
    /// What the API says about a driver.
    async fn csi_driver(&self, name: &str) -> Step<Option<Arc<CSIDriver>>>;
    /// The content of a secret.
    async fn secret(&self, namespace: &str, name: &str) -> Step<BTreeMap<String, String>>;
    /// An attachment of a volume to this node.
    async fn attachment(&self, name: &str) -> Step<Option<VolumeAttachment>>;
    /// Tokens of a pod's service account, as JSON by audience.
    async fn tokens(&self, pod: &Pod, requests: &[TokenRequest]) -> Step<String>;
    /// Whether the node's status shows a volume as in use: only then nobody detaches it.
    fn is_reported_in_use(&self, volume: &str) -> bool;
    /// Whether the node's status shows a volume as attached.
    fn is_attached(&self, volume: &str) -> bool;
}

/// A volume as it is published to a pod: what is known of it after a restart, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodMount {
    /// The pod.
    pub pod: String,
    /// The name of the [`Spec`].
    pub name: String,
    /// A device instead of a file system.
    pub is_block: bool,
}

impl PodMount {
    /// The place of this volume below the pod's directory: a directory, or a device's link.
    pub fn dir(&self, root: &Path, plugin: &str) -> PathBuf {
        let kind = if self.is_block {
            "volumeDevices"
        } else {
            "volumes"
        };
        let pod = root.join("pods").join(&self.pod);
        pod.join(kind)
            .join(plugin.replace('/', "~"))
            .join(&self.name)
    }
}

/// A volume as it is staged on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// As [`StoragePlugin::volume_name`] says.
    pub volume: String,
    /// The name of the [`Spec`].
    pub name: String,
    /// A device instead of a file system.
    pub is_block: bool,
}

/// A publish step.
pub struct Publish<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The volume.
    pub spec: &'a Spec,
    /// Where it goes.
    pub mount: &'a PodMount,
    /// It may be there already: a failure must not take it away.
    pub may_be_used: bool,
    /// It is there already, and all was done that belongs to it.
    pub is_in_place: bool,
    /// Another pod of this node has the volume.
    pub is_shared: bool,
}

/// An expand step.
pub struct Expand<'a> {
    /// The volume.
    pub spec: &'a Spec,
    /// Where one pod has it.
    pub mount: &'a PodMount,
    /// The size that the volume has by now.
    pub bytes: i64,
}

/// How an expand step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expanded {
    /// The file system or device has the new size.
    Done,
    /// Nothing to do on nodes for such volumes.
    NotSupported,
    /// Not while the volume is in use; no reason to keep a pod from starting.
    InUse(String),
    /// Never, with this size.
    Infeasible(String),
}

/// How full a volume is; what its plugin does not know is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in all.
    pub capacity: Option<u64>,
    /// Bytes left.
    pub available: Option<u64>,
    /// Bytes taken.
    pub used: Option<u64>,
    /// Inodes in all.
    pub inodes: Option<u64>,
    /// Inodes left.
    pub inodes_free: Option<u64>,
    /// Inodes taken.
    pub inodes_used: Option<u64>,
}

/// The health of a volume, as its driver sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// It does not work as it should.
    pub is_abnormal: bool,
    /// For people.
    pub message: String,
}

/// What is known of a volume that a pod uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measure {
    /// How full it is.
    pub usage: Usage,
    /// How it is; absent where the driver does not say.
    pub condition: Option<Condition>,
}

impl From<Usage> for Measure {
    fn from(usage: Usage) -> Self {
        Self {
            usage,
            condition: None,
        }
    }
}

/// A kind of volume that comes in steps. Every step may be repeated, also after a restart of the node's
/// agent at any moment, and must find what it left then.
#[async_trait]
pub trait StoragePlugin: Send + Sync {
    /// As in directory names and events: `kubernetes.io/csi`.
    fn name(&self) -> &'static str;
    /// Whether this volume is of this kind.
    fn handles(&self, spec: &Spec) -> bool;
    /// The volume's name among all of this kind on the node. Volumes of the same name are staged once.
    fn volume_name(&self, spec: &Spec, pod: &str) -> String;
    /// Whether a controller attaches it to the node first.
    async fn is_attachable(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let _ = (spec, host);
        Ok(false)
    }
    /// Looks whether it is attached; an error says why it is not yet.
    async fn check_attached(&self, spec: &Spec, host: &dyn Host) -> Step<()> {
        let _ = (spec, host);
        Ok(())
    }
    /// Whether there is anything to stage.
    fn stages(&self, spec: &Spec) -> bool {
        let _ = spec;
        false
    }
    /// Brings the volume to the node.
    async fn stage(&self, spec: &Spec, pod: &Pod, host: &dyn Host) -> Step<()> {
        let _ = (spec, pod, host);
        Ok(())
    }
    /// Removes what a `stage` left that was refused, and that nothing was staged before.
    fn forget_stage(&self, staged: &Staged, host: &dyn Host) {
        let _ = (staged, host);
    }
    /// Brings the volume to a pod; returns the path or the device for its containers.
    async fn publish(&self, request: &Publish<'_>, host: &dyn Host) -> Step<PathBuf>;
    /// Whether a published volume is to be published again from time to time.
    async fn republishes(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let _ = (spec, host);
        Ok(false)
    }
    /// Undoes `publish`.
    async fn unpublish(&self, mount: &PodMount, host: &dyn Host) -> Step<()>;
    /// Undoes `stage`; no pod has the volume.
    async fn unstage(&self, staged: &Staged, host: &dyn Host) -> Step<()> {
        let _ = (staged, host);
        Ok(())
    }
    /// Makes what is on the node as large as the volume.
    async fn expand(&self, request: &Expand<'_>, host: &dyn Host) -> Step<Expanded> {
        let _ = (request, host);
        Ok(Expanded::NotSupported)
    }
    /// How full it is and whether it is well; nothing if that cannot be known.
    async fn stats(&self, mount: &PodMount, host: &dyn Host) -> Step<Option<Measure>> {
        let _ = (mount, host);
        Ok(None)
    }
    /// After a restart: the name of the volume that a pod has here.
    fn find_published(&self, mount: &PodMount, root: &Path) -> Option<String>;
    /// After a restart: everything of this kind that may be staged.
    fn find_staged(&self, root: &Path) -> Vec<Staged> {
        let _ = root;
        Vec::new()
    }
}
