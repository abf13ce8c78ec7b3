//! Persistent volumes, and inline volumes of CSI drivers and NFS servers.
//!
//! Such a volume is mounted in steps, each of which is idempotent: it is attached to the node (by a
//! controller; the node waits), staged once per node, published once per pod, and the reverse.
//! [`Manager`] keeps the steps in order for all pods of the node; a [`StoragePlugin`] does them.

mod manager;
mod observer;
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
pub use observer::Observer;
pub(crate) use rebuild::mounts_of_pod;
pub use state::Key;
use stdx::Blocking;
pub use usage::Measured;

use crate::Mounter;

/// The annotation with mount options from before `spec.mountOptions`.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// A volume of a pod, with the persistent volume that its claim is bound to.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The persistent volume's name, or the volume's name in the pod.
    pub name: String,
    /// The pod's volume.
    pub inline: Volume,
    /// The persistent volume that its claim is bound to.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The claim.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// Whether it is a block device.
    pub is_block: bool,
    /// Whether no container of the pod may write to it.
    pub read_only: bool,
}

impl Spec {
    /// The mount options of the persistent volume. Its deprecated annotation comes first, except for
    /// CSI drivers, which never had it.
    pub fn mount_options(&self) -> Vec<String> {
        let Some(volume) = &self.volume else {
            return Vec::new();
        };
        let spec = volume.spec.as_ref();
        let annotations = volume.metadata.annotations.as_ref();
        let annotated = annotations.and_then(|all| all.get(MOUNT_OPTIONS));
        if let Some(options) = annotated.filter(|_| spec.is_none_or(|spec| spec.csi.is_none())) {
            let options = options.split(',').filter(|option| !option.is_empty());
            return options.map(str::to_owned).collect();
        }
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

/// Why a step failed, and the state of the volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// Not tried, because a prerequisite is missing: the volume is unchanged.
    #[error("{0}")]
    NotTried(String),
    /// Tried, and certainly not done.
    #[error("{0}")]
    Failed(String),
    /// It may have been done, or may still happen.
    #[error("{0}")]
    Uncertain(String),
    /// Not attached: the node has reached its limit of volumes, and the pod cannot run here.
    #[error("{0}")]
    LimitReached(String),
}

impl From<crate::Error> for StepError {
    /// The node's own steps may fail halfway; the next attempt, or undoing it, handles what is
    /// left.
    fn from(error: crate::Error) -> Self {
        Self::Uncertain(error.to_string())
    }
}

/// The result of a step.
pub type Step<T> = Result<T, StepError>;

/// The node and the API for plugins.
#[async_trait]
pub trait Host: Send + Sync {
    /// The node's name.
    fn node_name(&self) -> &str;
    /// The kubelet's root directory.
    fn root_dir(&self) -> &Path;
    /// The root directory of the built-in provisioner.
    fn local_path_root(&self) -> &Path;
    /// The mounter.
    fn mounter(&self) -> &'static dyn Mounter;
    /// The threads for work on volumes; see [`run_blocking`].
    fn blocking(&self) -> &Blocking;
    /// The node service of a registered driver.
    fn driver(&self, name: &str) -> Option<Arc<csi::Node>>;
    /// The CSIDriver object of a driver.
    async fn csi_driver(&self, name: &str) -> Step<Option<Arc<CSIDriver>>>;
    /// The data of a Secret.
    async fn secret(&self, namespace: &str, name: &str) -> Step<BTreeMap<String, String>>;
    /// A VolumeAttachment of this node.
    async fn attachment(&self, name: &str) -> Step<Option<VolumeAttachment>>;
    /// Service account tokens of a pod, as JSON by audience.
    async fn tokens(&self, pod: &Pod, requests: &[TokenRequest]) -> Step<String>;
    /// Whether the node's status shows a volume as in use, so that it is not detached.
    fn is_reported_in_use(&self, volume: &str) -> bool;
    /// Whether the node's status shows a volume as attached.
    fn is_attached(&self, volume: &str) -> bool;
    /// A volume could not be attached because the node has reached its limit: the driver is asked
    /// for the current limit.
    fn limit_reached(&self, driver: &str);
}

/// Runs work that looks at a volume's files on a blocking thread. A call into a file system whose
/// server or driver hangs may never return; it must not hold up the volumes of others.
pub(crate) async fn run_blocking<T: Send + 'static>(
    host: &dyn Host,
    work: impl FnOnce() -> Step<T> + Send + 'static,
) -> Step<T> {
    let done = host.blocking().run(work).await;
    done.map_err(|error| StepError::Uncertain(error.to_string()))?
}

/// Held as long as a volume is measured, so that a volume that hangs is not measured again.
pub type Measuring = tokio::sync::OwnedMutexGuard<()>;

/// A volume published to a pod; also known after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodMount {
    /// The pod.
    pub pod: String,
    /// The name of the [`Spec`].
    pub name: String,
    /// Whether it is a block device.
    pub is_block: bool,
}

impl PodMount {
    /// The path of this volume below the pod's directory: a directory, or a link to a device.
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

/// A volume staged on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// The result of [`StoragePlugin::volume_name`].
    pub volume: String,
    /// The name of the [`Spec`].
    pub name: String,
    /// Whether it is a block device.
    pub is_block: bool,
}

/// A publish step.
pub struct Publish<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The volume.
    pub spec: &'a Spec,
    /// The target.
    pub mount: &'a PodMount,
    /// Whether it may already be published: a failure must not remove it.
    pub may_be_used: bool,
    /// Whether it is already published completely.
    pub is_in_place: bool,
    /// Whether another pod of this node uses the volume.
    pub is_shared: bool,
}

/// An expand step.
pub struct Expand<'a> {
    /// The volume.
    pub spec: &'a Spec,
    /// One pod's mount of it.
    pub mount: &'a PodMount,
    /// The new size of the volume.
    pub bytes: i64,
}

/// The result of an expand step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expanded {
    /// The file system or device has the new size.
    Done,
    /// Such volumes need no expansion on nodes.
    NotSupported,
    /// Not possible while the volume is in use; the pod can start.
    InUse(String),
    /// Not possible with this size.
    Infeasible(String),
}

/// A volume's usage; unknown values are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Total bytes.
    pub capacity: Option<u64>,
    /// Available bytes.
    pub available: Option<u64>,
    /// Used bytes.
    pub used: Option<u64>,
    /// Total inodes.
    pub inodes: Option<u64>,
    /// Free inodes.
    pub inodes_free: Option<u64>,
    /// Used inodes.
    pub inodes_used: Option<u64>,
}

/// The health of a volume as its driver reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// Whether it is abnormal.
    pub is_abnormal: bool,
    /// The driver's message.
    pub message: String,
}

/// Statistics of a volume in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measure {
    /// Its usage.
    pub usage: Usage,
    /// Its health; absent if the driver does not report it.
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

/// A plugin of volumes that are mounted in steps. Every step is idempotent, also after a restart of
/// the kubelet at any point, and must handle what it left then.
#[async_trait]
pub trait StoragePlugin: Send + Sync {
    /// The name in directories and events: `kubernetes.io/csi`.
    fn name(&self) -> &'static str;
    /// Whether the plugin handles this volume.
    fn handles(&self, spec: &Spec) -> bool;
    /// Whether such volumes can have mount options; a volume that has some is not mounted otherwise.
    fn supports_mount_options(&self) -> bool {
        true
    }
    /// The unique name of the volume in this plugin and node. Volumes of the same name are staged
    /// once.
    fn volume_name(&self, spec: &Spec, pod: &str) -> String;
    /// Whether a controller must attach it.
    async fn is_attachable(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let _ = (spec, host);
        Ok(false)
    }
    /// Fails with the reason if it is not attached yet.
    async fn check_attached(&self, spec: &Spec, host: &dyn Host) -> Step<()> {
        let _ = (spec, host);
        Ok(())
    }
    /// Whether it is not attached because the node has reached its limit of volumes.
    async fn is_limit_reached(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let _ = (spec, host);
        Ok(false)
    }
    /// Whether there is anything to stage.
    async fn stages(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let _ = (spec, host);
        Ok(false)
    }
    /// Stages the volume on the node.
    async fn stage(&self, spec: &Spec, pod: &Pod, host: &dyn Host) -> Step<()> {
        let _ = (spec, pod, host);
        Ok(())
    }
    /// Cleans up after a failed `stage`, if nothing was staged before. Fails if something is staged
    /// all the same.
    async fn forget_stage(&self, staged: &Staged, host: &dyn Host) -> Step<()> {
        let _ = (staged, host);
        Ok(())
    }
    /// Publishes the volume to a pod; returns the path or the device for its containers.
    async fn publish(&self, request: &Publish<'_>, host: &dyn Host) -> Step<PathBuf>;
    /// Whether a published volume is republished periodically.
    async fn republishes(&self, spec: &Spec, host: &dyn Host) -> Step<bool> {
        let _ = (spec, host);
        Ok(false)
    }
    /// Undoes `publish`.
    async fn unpublish(&self, mount: &PodMount, host: &dyn Host) -> Step<()>;
    /// Undoes `stage`, when no pod uses the volume.
    async fn unstage(&self, staged: &Staged, host: &dyn Host) -> Step<()> {
        let _ = (staged, host);
        Ok(())
    }
    /// Expands the volume on the node.
    async fn expand(&self, request: &Expand<'_>, host: &dyn Host) -> Step<Expanded> {
        let _ = (request, host);
        Ok(Expanded::NotSupported)
    }
    /// The volume's statistics; `None` if unknown. A blocking thread that measures the volume holds
    /// `measuring`.
    async fn stats(
        &self,
        mount: &PodMount,
        host: &dyn Host,
        measuring: Measuring,
    ) -> Step<Option<Measure>> {
        let _ = (mount, host, measuring);
        Ok(None)
    }
    /// After a restart: the name of a pod's volume.
    fn find_published(&self, mount: &PodMount, root: &Path) -> Option<String>;
    /// After a restart: every volume of this plugin that may be staged.
    fn find_staged(&self, root: &Path) -> Vec<Staged> {
        let _ = root;
        Vec::new()
    }
}
