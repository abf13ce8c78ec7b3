//! Cluster events, with the objects before and after: queueing hints of plugins tell whether an
//! event could make a rejected pod schedulable.

use k8s_openapi::api::{
    resource::v1::ResourceClaim,
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass},
};

use crate::{
    cluster::{NodeInfo, Slot},
    pod::PodInfo,
};

/// The kind of an event: plugins list those that can matter to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described at the event of its name")]
pub enum EventKind {
    NodeAdded,
    NodeUpdated,
    NodeDeleted,
    PodAdded,
    PodUpdated,
    PodDeleted,
    OwnUpdate,
    Claim,
    Volume,
    Class,
    CsiNode,
    CsiDriver,
    Capacity,
    AttachmentDeleted,
    DeviceClaim,
    DeviceClass,
    Slice,
    Namespace,
}

/// A cluster event.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A node was added.
    NodeAdded(&'a NodeInfo),
    /// A node changed.
    NodeUpdated {
        /// Before.
        old: &'a NodeInfo,
        /// After.
        new: &'a NodeInfo,
    },
    /// A node was deleted.
    NodeDeleted(&'a NodeInfo),
    /// A pod was placed.
    PodAdded(&'a PodInfo),
    /// A placed pod changed.
    PodUpdated {
        /// Before.
        old: &'a PodInfo,
        /// After.
        new: &'a PodInfo,
    },
    /// A placed pod was deleted, with the node that it was on, if that is known.
    PodDeleted(&'a PodInfo, Option<Slot>),
    /// The pending pod itself changed; only its own hints are asked.
    OwnUpdate {
        /// Before.
        old: &'a PodInfo,
        /// After.
        new: &'a PodInfo,
    },
    /// A PersistentVolumeClaim was added or changed.
    Claim {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// Whether it was added.
        is_new: bool,
    },
    /// A PersistentVolume was added or changed.
    Volume,
    /// A StorageClass was added or changed.
    Class {
        /// Before.
        old: Option<&'a StorageClass>,
        /// After.
        new: &'a StorageClass,
    },
    /// A CSINode was added or changed.
    CsiNode {
        /// Before.
        old: Option<&'a CSINode>,
        /// After.
        new: &'a CSINode,
    },
    /// A CSIDriver changed.
    CsiDriver {
        /// Before.
        old: &'a CSIDriver,
        /// After.
        new: &'a CSIDriver,
    },
    /// A CSIStorageCapacity was added or changed.
    Capacity {
        /// Before.
        old: Option<&'a CSIStorageCapacity>,
        /// After.
        new: &'a CSIStorageCapacity,
    },
    /// A VolumeAttachment was deleted.
    AttachmentDeleted,
    /// A ResourceClaim was added or changed.
    DeviceClaim {
        /// Before.
        old: Option<&'a ResourceClaim>,
        /// After.
        new: &'a ResourceClaim,
    },
    /// A DeviceClass was added or changed.
    DeviceClass {
        /// Whether it was added.
        is_new: bool,
    },
    /// A ResourceSlice was added or changed.
    Slice {
        /// Whether it was added.
        is_new: bool,
    },
    /// The labels of a namespace changed.
    Namespace,
}

impl Event<'_> {
    /// What kind it is.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::NodeAdded(_) => EventKind::NodeAdded,
            Self::NodeUpdated { .. } => EventKind::NodeUpdated,
            Self::NodeDeleted(_) => EventKind::NodeDeleted,
            Self::PodAdded(_) => EventKind::PodAdded,
            Self::PodUpdated { .. } => EventKind::PodUpdated,
            Self::PodDeleted(..) => EventKind::PodDeleted,
            Self::OwnUpdate { .. } => EventKind::OwnUpdate,
            Self::Claim { .. } => EventKind::Claim,
            Self::Volume => EventKind::Volume,
            Self::Class { .. } => EventKind::Class,
            Self::CsiNode { .. } => EventKind::CsiNode,
            Self::CsiDriver { .. } => EventKind::CsiDriver,
            Self::Capacity { .. } => EventKind::Capacity,
            Self::AttachmentDeleted => EventKind::AttachmentDeleted,
            Self::DeviceClaim { .. } => EventKind::DeviceClaim,
            Self::DeviceClass { .. } => EventKind::DeviceClass,
            Self::Slice { .. } => EventKind::Slice,
            Self::Namespace => EventKind::Namespace,
        }
    }

    /// The name in upstream's metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NodeAdded(_) => "NodeAdd",
            Self::NodeUpdated { .. } => "NodeUpdate",
            Self::NodeDeleted(_) => "NodeDelete",
            Self::PodAdded(_) => "AssignedPodAdd",
            Self::PodUpdated { .. } => "AssignedPodUpdate",
            Self::PodDeleted(..) => "AssignedPodDelete",
            Self::OwnUpdate { .. } => "UnschedulablePodUpdate",
            Self::Claim { is_new: true, .. } => "PersistentVolumeClaimAdd",
            Self::Claim { .. } => "PersistentVolumeClaimUpdate",
            Self::Volume => "PersistentVolumeUpdate",
            Self::Class { old: None, .. } => "StorageClassAdd",
            Self::Class { .. } => "StorageClassUpdate",
            Self::CsiNode { old: None, .. } => "CSINodeAdd",
            Self::CsiNode { .. } => "CSINodeUpdate",
            Self::CsiDriver { .. } => "CSIDriverUpdate",
            Self::Capacity { old: None, .. } => "CSIStorageCapacityAdd",
            Self::Capacity { .. } => "CSIStorageCapacityUpdate",
            Self::AttachmentDeleted => "VolumeAttachmentDelete",
            Self::DeviceClaim { old: None, .. } => "ResourceClaimAdd",
            Self::DeviceClaim { .. } => "ResourceClaimUpdate",
            Self::DeviceClass { is_new: true } => "DeviceClassAdd",
            Self::DeviceClass { .. } => "DeviceClassUpdate",
            Self::Slice { is_new: true } => "ResourceSliceAdd",
            Self::Slice { .. } => "ResourceSliceUpdate",
            Self::Namespace => "NamespaceUpdate",
        }
    }
}
