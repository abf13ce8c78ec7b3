//! Claims of storage and their volumes: as much as scheduling needs. The objects are
//! shared with the informers.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment},
};
use reconcile::storage::{
    SELECTED_NODE, annotation, claim_class, is_fully_bound, volume_class, volume_name,
};

/// Namespace and name.
pub type Key = (String, String);

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The claim itself.
    pub object: Arc<PersistentVolumeClaim>,
    /// The volume that it is bound to or requests by name.
    pub volume: Option<String>,
    /// Whether the volume controller has bound it completely.
    pub bound: bool,
    /// Whether its volume is gone.
    pub lost: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Its storage class; `None` if empty.
    pub class: Option<String>,
    /// The uid of its owner, if that is a pod.
    pub owner: Option<String>,
    /// Whether its access mode is ReadWriteOncePod.
    pub one_pod: bool,
    /// The selected node for provisioning.
    pub selected_node: Option<String>,
}

impl Claim {
    fn new(claim: &Arc<PersistentVolumeClaim>) -> Self {
        let (meta, spec) = (&claim.metadata, claim.spec.as_ref());
        let status = claim.status.as_ref();
        let modes = spec.and_then(|spec| spec.access_modes.as_ref());
        let mut owners = meta.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        let class = Some(claim_class(claim)).filter(|class| !class.is_empty());
        Self {
            bound: is_fully_bound(claim),
            volume: volume_name(claim).map(ToOwned::to_owned),
            lost: status.is_some_and(|status| status.phase.as_deref() == Some("Lost")),
            terminating: meta.deletion_timestamp.is_some(),
            class: class.map(ToOwned::to_owned),
            owner: owner.map(|owner| owner.uid.clone()),
            one_pod: modes.is_some_and(|modes| modes.iter().any(|m| m == "ReadWriteOncePod")),
            selected_node: annotation(meta, SELECTED_NODE).map(ToOwned::to_owned),
            object: claim.clone(),
        }
    }
}

/// A PersistentVolume.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// The volume itself.
    pub object: Arc<PersistentVolume>,
    /// Its zone and region labels.
    pub zones: Vec<(String, String)>,
}

/// The zone and region labels of volumes.
pub const ZONE_LABELS: [&str; 4] = [
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

impl Volume {
    fn new(volume: &Arc<PersistentVolume>) -> Self {
        let labels = volume.metadata.labels.iter().flatten();
        let zones = labels.filter(|(key, _)| ZONE_LABELS.contains(&key.as_str()));
        Self {
            object: volume.clone(),
            zones: zones
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    }
}

/// A VolumeAttachment of a CSI volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The driver.
    pub driver: String,
    /// The name of the volume.
    pub volume: String,
    node: String,
}

/// All claims, volumes and related objects.
#[derive(Debug, Default)]
pub struct Claims {
    claims: HashMap<Key, Claim>,
    volumes: HashMap<String, Volume>,
    /// Names of volumes by class.
    by_class: HashMap<String, BTreeSet<String>>,
    classes: HashMap<String, Arc<StorageClass>>,
    drivers: HashMap<String, Arc<CSIDriver>>,
    csi_nodes: HashMap<String, Arc<CSINode>>,
    capacities: HashMap<Key, Arc<CSIStorageCapacity>>,
    /// Attachments by name, and their names by node.
    attachments: HashMap<String, Attachment>,
    attached: HashMap<String, BTreeSet<String>>,
}

fn key(namespace: &str, name: &str) -> Key {
    (namespace.to_owned(), name.to_owned())
}

fn put<K: std::hash::Hash + Eq, V>(table: &mut HashMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => table.insert(key, value),
        None => table.remove(&key),
    };
}

impl Claims {
    /// A claim by name.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.claims.get(&key(namespace, name))
    }

    /// A volume by name.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.get(name)
    }

    /// The volumes of a class, by name.
    pub fn volumes_of(&self, class: &str) -> impl Iterator<Item = &PersistentVolume> {
        let names = self.by_class.get(class).into_iter().flatten();
        names.filter_map(|name| Some(&*self.volumes.get(name)?.object))
    }

    /// A class by name.
    pub fn class(&self, name: &str) -> Option<&StorageClass> {
        self.classes.get(name).map(AsRef::as_ref)
    }

    /// Whether a class has WaitForFirstConsumer; `None` if it does not exist.
    pub fn waits_for_consumer(&self, class: &str) -> Option<bool> {
        self.class(class)
            .map(reconcile::storage::waits_for_consumer)
    }

    /// A CSI driver by name.
    pub fn driver(&self, name: &str) -> Option<&CSIDriver> {
        self.drivers.get(name).map(AsRef::as_ref)
    }

    /// The CSINode of a node.
    pub fn csi_node(&self, node: &str) -> Option<&CSINode> {
        self.csi_nodes.get(node).map(AsRef::as_ref)
    }

    /// All CSIStorageCapacity objects.
    pub fn capacities(&self) -> impl Iterator<Item = &CSIStorageCapacity> {
        self.capacities.values().map(AsRef::as_ref)
    }

    /// The attachments of a node.
    pub fn attached_to(&self, node: &str) -> impl Iterator<Item = &Attachment> {
        let names = self.attached.get(node).into_iter().flatten();
        names.filter_map(|name| self.attachments.get(name))
    }

    /// Stores a claim, or removes it with `None`.
    pub fn put_claim(
        &mut self,
        namespace: &str,
        name: &str,
        claim: Option<&Arc<PersistentVolumeClaim>>,
    ) {
        put(
            &mut self.claims,
            key(namespace, name),
            claim.map(Claim::new),
        );
    }

    /// Stores a volume, or removes it with `None`.
    pub fn put_volume(&mut self, name: &str, volume: Option<&Arc<PersistentVolume>>) {
        if let Some(old) = self.volumes.get(name) {
            let class = volume_class(&old.object);
            if let Some(names) = self.by_class.get_mut(class) {
                names.remove(name);
                if names.is_empty() {
                    self.by_class.remove(class);
                }
            }
        }
        if let Some(volume) = volume {
            let names = self.by_class.entry(volume_class(volume).to_owned());
            names.or_default().insert(name.to_owned());
        }
        put(&mut self.volumes, name.to_owned(), volume.map(Volume::new));
    }

    /// Stores a class, or removes it with `None`.
    pub fn put_class(&mut self, name: &str, class: Option<&Arc<StorageClass>>) {
        put(&mut self.classes, name.to_owned(), class.cloned());
    }

    /// Stores a CSIDriver, or removes it with `None`.
    pub fn put_driver(&mut self, name: &str, driver: Option<&Arc<CSIDriver>>) {
        put(&mut self.drivers, name.to_owned(), driver.cloned());
    }

    /// Stores a CSINode, or removes it with `None`.
    pub fn put_csi_node(&mut self, name: &str, node: Option<&Arc<CSINode>>) {
        put(&mut self.csi_nodes, name.to_owned(), node.cloned());
    }

    /// Stores a CSIStorageCapacity, or removes it with `None`.
    pub fn put_capacity(
        &mut self,
        namespace: &str,
        name: &str,
        capacity: Option<&Arc<CSIStorageCapacity>>,
    ) {
        put(
            &mut self.capacities,
            key(namespace, name),
            capacity.cloned(),
        );
    }

    /// Stores an attachment, or removes it with `None`.
    pub fn put_attachment(&mut self, name: &str, attachment: Option<&VolumeAttachment>) {
        if let Some(old) = self.attachments.remove(name)
            && let Some(names) = self.attached.get_mut(&old.node)
        {
            names.remove(name);
            if names.is_empty() {
                self.attached.remove(&old.node);
            }
        }
        let Some(spec) = attachment.map(|attachment| &attachment.spec) else {
            return;
        };
        let Some(volume) = spec.source.persistent_volume_name.clone() else {
            return;
        };
        let names = self.attached.entry(spec.node_name.clone());
        names.or_default().insert(name.to_owned());
        let attachment = Attachment {
            driver: spec.attacher.clone(),
            volume,
            node: spec.node_name.clone(),
        };
        self.attachments.insert(name.to_owned(), attachment);
    }
}
