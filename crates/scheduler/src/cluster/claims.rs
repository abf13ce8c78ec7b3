//! Claims of storage and of devices, and what they are bound to: as much as placement needs.

use std::collections::HashMap;

use k8s_openapi::api::{
    core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim},
    resource::v1::ResourceClaim,
    storage::v1::StorageClass,
};

/// Namespace and name.
type Key = (String, String);

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its volume, when it has one or wants one by name.
    pub volume: Option<String>,
    /// Whether the volume controller has bound it completely.
    pub bound: bool,
    /// Its volume is gone.
    pub lost: bool,
    /// It is being deleted.
    pub terminating: bool,
    /// Its storage class; none when it has an empty one.
    pub class: Option<String>,
    /// The uid of the pod that it was made for.
    pub owner: Option<String>,
    /// Only one pod at a time may use it.
    pub one_pod: bool,
}

impl Claim {
    fn new(claim: &PersistentVolumeClaim) -> Self {
        let (meta, spec) = (&claim.metadata, claim.spec.as_ref());
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
        let volume = spec.and_then(|spec| spec.volume_name.clone());
        let volume = volume.filter(|name| !name.is_empty());
        let status = claim.status.as_ref();
        let legacy = annotation("volume.beta.kubernetes.io/storage-class").cloned();
        let class = legacy.or_else(|| spec.and_then(|spec| spec.storage_class_name.clone()));
        let modes = spec.and_then(|spec| spec.access_modes.as_ref());
        let mut owners = meta.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        Self {
            bound: volume.is_some() && annotation("pv.kubernetes.io/bind-completed").is_some(),
            volume,
            lost: status.is_some_and(|status| status.phase.as_deref() == Some("Lost")),
            terminating: meta.deletion_timestamp.is_some(),
            class: class.filter(|name| !name.is_empty()),
            owner: owner.map(|owner| owner.uid.clone()),
            one_pod: modes.is_some_and(|modes| modes.iter().any(|m| m == "ReadWriteOncePod")),
        }
    }
}

/// A PersistentVolume.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// The nodes that can reach it, when not all can.
    pub node_terms: Option<Vec<NodeSelectorTerm>>,
    /// Zone and region labels.
    pub zones: Vec<(String, String)>,
}

/// The labels of volumes that say where they are.
pub const ZONE_LABELS: [&str; 4] = [
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

impl Volume {
    fn new(volume: &PersistentVolume) -> Self {
        let affinity = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.node_affinity.as_ref());
        let required = affinity.and_then(|affinity| affinity.required.as_ref());
        let labels = volume.metadata.labels.iter().flatten();
        let zones = labels.filter(|(key, _)| ZONE_LABELS.contains(&key.as_str()));
        Self {
            node_terms: required.map(|required| required.node_selector_terms.clone()),
            zones: zones
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    }
}

/// A ResourceClaim.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClaim {
    /// It is being deleted.
    pub terminating: bool,
    /// Whether devices were allocated.
    pub allocated: bool,
    /// The nodes that can reach them, when not all can.
    pub node_terms: Option<Vec<NodeSelectorTerm>>,
    /// Uids of the pods that may use it.
    pub reserved_for: Vec<String>,
    /// The uid of the pod that it was made for.
    pub owner: Option<String>,
}

/// How many consumers one ResourceClaim may have.
pub const MOST_CONSUMERS: usize = 256;

impl DeviceClaim {
    fn new(claim: &ResourceClaim) -> Self {
        let status = claim.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let selector = allocation.and_then(|allocation| allocation.node_selector.as_ref());
        let reserved = status
            .into_iter()
            .flat_map(|s| s.reserved_for.iter().flatten());
        let mut owners = claim.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        Self {
            terminating: claim.metadata.deletion_timestamp.is_some(),
            allocated: allocation.is_some(),
            node_terms: selector.map(|selector| selector.node_selector_terms.clone()),
            reserved_for: reserved.map(|consumer| consumer.uid.clone()).collect(),
            owner: owner.map(|owner| owner.uid.clone()),
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Claims {
    claims: HashMap<Key, Claim>,
    volumes: HashMap<String, Volume>,
    /// Whether a class waits for a pod before it binds.
    classes: HashMap<String, bool>,
    devices: HashMap<Key, DeviceClaim>,
}

fn key(namespace: &str, name: &str) -> Key {
    (namespace.to_owned(), name.to_owned())
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

    /// Whether a class binds only when a pod needs it; none when there is no such class.
    pub fn waits_for_consumer(&self, class: &str) -> Option<bool> {
        self.classes.get(class).copied()
    }

    /// A ResourceClaim by name.
    pub fn device(&self, namespace: &str, name: &str) -> Option<&DeviceClaim> {
        self.devices.get(&key(namespace, name))
    }

    /// The newest version of a claim.
    pub fn put_claim(
        &mut self,
        namespace: &str,
        name: &str,
        claim: Option<&PersistentVolumeClaim>,
    ) {
        match claim {
            Some(claim) => self.claims.insert(key(namespace, name), Claim::new(claim)),
            None => self.claims.remove(&key(namespace, name)),
        };
    }

    /// The newest version of a volume.
    pub fn put_volume(&mut self, name: &str, volume: Option<&PersistentVolume>) {
        match volume {
            Some(volume) => self.volumes.insert(name.to_owned(), Volume::new(volume)),
            None => self.volumes.remove(name),
        };
    }

    /// The newest version of a class.
    pub fn put_class(&mut self, name: &str, class: Option<&StorageClass>) {
        let waits = |class: &StorageClass| {
            class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        };
        match class {
            Some(class) => self.classes.insert(name.to_owned(), waits(class)),
            None => self.classes.remove(name),
        };
    }

    /// The newest version of a ResourceClaim.
    pub fn put_device(&mut self, namespace: &str, name: &str, claim: Option<&ResourceClaim>) {
        match claim {
            Some(claim) => self
                .devices
                .insert(key(namespace, name), DeviceClaim::new(claim)),
            None => self.devices.remove(&key(namespace, name)),
        };
    }
}
