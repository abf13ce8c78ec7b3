//! Finds the volumes for a pod's claims on a node. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::CSIStorageCapacity,
};
use reconcile::{
    Selector,
    storage::{NO_PROVISIONER, Node, find_match, is_allowed_topology, reaches, requested},
};

use crate::{
    cluster::{
        Cluster, NodeInfo,
        claims::{Claims, Key},
    },
    in_tree,
};

/// The node cannot access a bound volume.
pub(super) const NO_NODE: &str = "node(s) didn't match PersistentVolume's node affinity";
/// There is no matching volume, and the claim cannot be provisioned for the node.
pub(super) const NO_MATCH: &str = "node(s) didn't find available persistent volumes to bind";
/// The driver has too little capacity for the node.
pub(super) const NO_SPACE: &str = "node(s) did not have enough free storage";
/// A claim is bound to a volume that does not exist.
pub(super) const GONE: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// What a pod's claims need on a node.
#[derive(Debug, Default)]
pub(super) struct ClaimRequirements {
    /// Bound volumes.
    pub bound: Vec<Arc<PersistentVolume>>,
    /// Whether a claim is bound to a volume that does not exist.
    pub volume_gone: bool,
    /// Claims to bind, the smallest first.
    pub unbound: Vec<Unbound>,
}

/// A claim to bind.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unbound {
    /// Namespace and name.
    pub key: Key,
    /// The claim.
    pub claim: Arc<PersistentVolumeClaim>,
    /// Its class.
    pub class: String,
    /// The previously selected node.
    pub selected_node: Option<String>,
}

/// The volumes for claims on a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeVolumes {
    /// Claims, and the volumes to bind them to.
    pub bindings: Vec<(Unbound, String)>,
    /// Claims to provision.
    pub provisions: Vec<Unbound>,
}

impl NodeVolumes {
    /// Whether nothing has to be bound.
    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }
}

/// Volumes and nodes reserved by pods that are being bound, before the API shows them.
#[derive(Debug, Default)]
pub(super) struct ReservedVolumes {
    /// Volumes, with their claims and the number of pods.
    volumes: HashMap<String, (Key, usize)>,
    /// Claims with their selected nodes and the number of pods.
    nodes: HashMap<Key, (String, usize)>,
}

impl ReservedVolumes {
    /// Reserves what was found for a pod.
    pub(super) fn take(&mut self, found: &NodeVolumes, node: &str) {
        for (claim, volume) in &found.bindings {
            let entry = self.volumes.entry(volume.clone());
            entry.or_insert_with(|| (claim.key.clone(), 0)).1 += 1;
        }
        for claim in &found.provisions {
            let entry = self.nodes.entry(claim.key.clone());
            entry.or_insert_with(|| (node.to_owned(), 0)).1 += 1;
        }
    }

    /// Releases a pod's reservations.
    pub(super) fn give_back(&mut self, found: &NodeVolumes) {
        for (_, volume) in &found.bindings {
            if let Some((_, pods)) = self.volumes.get_mut(volume) {
                *pods -= 1;
                if *pods == 0 {
                    self.volumes.remove(volume);
                }
            }
        }
        for claim in &found.provisions {
            if let Some((_, pods)) = self.nodes.get_mut(&claim.key) {
                *pods -= 1;
                if *pods == 0 {
                    self.nodes.remove(&claim.key);
                }
            }
        }
    }

    fn volume_of(&self, key: &Key) -> Option<&str> {
        let mut taken = self.volumes.iter();
        let found = taken.find(|(_, (claim, _))| claim == key);
        found.map(|(volume, _)| volume.as_str())
    }

    /// The selected node of a claim.
    fn node_of<'a>(&'a self, claim: &'a Unbound) -> Option<&'a str> {
        let taken = self.nodes.get(&claim.key).map(|(node, _)| node.as_str());
        taken.or(claim.selected_node.as_deref())
    }
}

/// The volumes for the pod's claims on a node, or why it is not feasible.
pub(super) fn find(
    wanted: &ClaimRequirements,
    cluster: &Cluster,
    taken: &ReservedVolumes,
    node: &NodeInfo,
) -> Result<NodeVolumes, Vec<&'static str>> {
    let csi_node = cluster.claims.csi_node(&node.name);
    let reaches = |volume: &Arc<PersistentVolume>| {
        in_tree::reaches(volume, csi_node, &node.labels, &node.name)
    };
    let mut reasons = Vec::new();
    if !wanted.bound.iter().all(reaches) {
        reasons.push(NO_NODE);
    }
    let found = bind_or_provision(&wanted.unbound, cluster, taken, node);
    let found = found.unwrap_or_else(|reason| {
        reasons.push(reason);
        NodeVolumes::default()
    });
    if wanted.volume_gone {
        reasons.push(GONE);
    }
    if reasons.is_empty() {
        Ok(found)
    } else {
        Err(reasons)
    }
}

fn bind_or_provision(
    claims: &[Unbound],
    cluster: &Cluster,
    taken: &ReservedVolumes,
    node: &NodeInfo,
) -> Result<NodeVolumes, &'static str> {
    let mut found = NodeVolumes::default();
    let mut used: BTreeSet<&str> = taken.volumes.keys().map(String::as_str).collect();
    for claim in claims {
        if let Some(chosen) = taken.node_of(claim) {
            if chosen != &*node.name {
                return Err(NO_MATCH);
            }
            found.provisions.push(claim.clone());
            continue;
        }
        match volume_for(claim, &cluster.claims, taken, &used, node)? {
            Some(volume) => {
                used.insert(volume);
                found.bindings.push((claim.clone(), volume.to_owned()));
            }
            None => found.provisions.push(claim.clone()),
        }
    }
    for claim in &found.provisions {
        provisionable(claim, &cluster.claims, node)?;
    }
    Ok(found)
}

/// The volume to bind the claim to on this node; `None` if it must be provisioned.
fn volume_for<'a>(
    claim: &Unbound,
    claims: &'a Claims,
    taken: &ReservedVolumes,
    used: &BTreeSet<&str>,
    node: &NodeInfo,
) -> Result<Option<&'a str>, &'static str> {
    // Another pod with this claim is being bound: both need the same volume.
    if let Some(volume) = taken.volume_of(&claim.key) {
        let volume = claims.volume(volume).ok_or(NO_MATCH)?;
        let is_here = reaches(&volume.object, &node.labels, &node.name);
        let name = volume.object.metadata.name.as_deref();
        return if is_here { Ok(name) } else { Err(NO_MATCH) };
    }
    let place = Node {
        name: &node.name,
        labels: &node.labels,
    };
    let volumes = claims.volumes_of(&claim.class);
    let found = find_match(&claim.claim, volumes, Some(place), true, used);
    Ok(found.and_then(|volume| volume.metadata.name.as_deref()))
}

fn provisionable(claim: &Unbound, claims: &Claims, node: &NodeInfo) -> Result<(), &'static str> {
    let class = claims.class(&claim.class).ok_or(NO_MATCH)?;
    if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER {
        return Err(NO_MATCH);
    }
    if !is_allowed_topology(class.allowed_topologies.as_ref(), &node.labels) {
        return Err(NO_MATCH);
    }
    let driver = claims.driver(&class.provisioner);
    if driver.and_then(|driver| driver.spec.storage_capacity) != Some(true) {
        return Ok(());
    }
    let size = requested(&claim.claim).value();
    let mut capacities = claims.capacities();
    let has_room = capacities.any(|capacity| {
        capacity.storage_class_name == claim.class
            && limit(capacity).is_some_and(|limit| limit >= size)
            && is_accessible(capacity, node)
    });
    if has_room { Ok(()) } else { Err(NO_SPACE) }
}

/// The maximum volume size.
pub(super) fn limit(capacity: &CSIStorageCapacity) -> Option<i64> {
    let limit = capacity.maximum_volume_size.as_ref();
    let limit = limit.or(capacity.capacity.as_ref())?;
    let limit: machinery::quantity::Quantity = limit.0.parse().ok()?;
    Some(limit.value())
}

fn is_accessible(capacity: &CSIStorageCapacity, node: &NodeInfo) -> bool {
    let topology = capacity.node_topology.as_ref();
    topology.is_some_and(|topology| {
        Selector::from_label_selector(Some(topology)).matches(Some(&node.labels))
    })
}
