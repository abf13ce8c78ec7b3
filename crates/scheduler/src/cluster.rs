//! The nodes and what runs on them, in columns: one entry per node in each, so that a filter over
//! thousands of nodes is a loop over arrays. A node keeps its slot for life; slots of gone nodes are
//! used again.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, Taint};

use crate::{
    pod::{HostPort, Namespaces, PodInfo},
    resources::Resources,
};

/// The number of a node's slot.
pub type Slot = usize;

/// A topology value that the node does not have.
pub const ABSENT: u32 = 0;

/// The values of one label key over all nodes, as small integers.
#[derive(Default)]
pub struct Topology {
    values: Vec<u32>,
    known: HashMap<String, u32>,
}

impl Topology {
    /// The value of a node, [`ABSENT`] when it has none.
    pub fn at(&self, slot: Slot) -> u32 {
        self.values.get(slot).copied().unwrap_or(ABSENT)
    }

    /// One more than the largest value.
    pub fn size(&self) -> usize {
        self.known.len() + 1
    }

    fn set(&mut self, slot: Slot, value: Option<&String>) {
        if self.values.len() <= slot {
            self.values.resize(slot + 1, ABSENT);
        }
        self.values[slot] = match value {
            None => ABSENT,
            Some(value) => match self.known.get(value) {
                Some(id) => *id,
                None => {
                    let id = u32::try_from(self.known.len() + 1).unwrap_or(u32::MAX);
                    self.known.insert(value.clone(), id);
                    id
                }
            },
        };
    }
}

/// One resource: what each node has and what is taken.
#[derive(Default)]
pub struct Column {
    /// What pods may use.
    pub allocatable: Vec<i64>,
    /// What they asked for.
    pub used: Vec<i64>,
}

impl Column {
    fn grow(&mut self, size: usize) {
        self.allocatable.resize(size, 0);
        self.used.resize(size, 0);
    }

    /// What is free.
    pub fn free(&self, slot: Slot) -> i64 {
        self.allocatable[slot] - self.used[slot]
    }
}

/// Everything the scheduler knows about the cluster.
#[derive(Default)]
pub struct Cluster {
    slots: HashMap<String, Slot>,
    free: Vec<Slot>,
    /// Names, by slot.
    pub names: Vec<Arc<str>>,
    /// The node, or nothing when only its pods are known yet.
    pub nodes: Vec<Option<Arc<Node>>>,
    /// Thousandths of CPU.
    pub cpu: Column,
    /// Bytes.
    pub memory: Column,
    /// Bytes.
    pub ephemeral: Column,
    /// Pods.
    pub count: Column,
    /// Extended resources.
    pub others: HashMap<String, Column>,
    /// CPU and memory with assumptions for pods that ask for nothing, for comparing nodes.
    pub weights: Vec<(i64, i64)>,
    /// Whether the node is cordoned.
    pub unschedulable: Vec<bool>,
    /// Taints.
    pub taints: Vec<Vec<Taint>>,
    /// Ports in use.
    pub ports: Vec<Vec<HostPort>>,
    /// Pods on the node, by uid.
    pub pods: Vec<BTreeMap<String, Arc<PodInfo>>>,
    /// Images on the node and their sizes.
    pub images: Vec<HashMap<String, i64>>,
    /// On how many nodes an image is.
    pub image_spread: HashMap<String, usize>,
    topologies: HashMap<String, Topology>,
    /// Labels of namespaces.
    pub namespaces: Namespaces,
    placed: HashMap<String, Slot>,
    /// Uids of pods that keep others away.
    repelling: HashSet<String>,
}

impl Cluster {
    /// The slots of all nodes that exist.
    pub fn existing(&self) -> Vec<Slot> {
        let exists = |(slot, node): (Slot, &Option<Arc<Node>>)| node.as_ref().map(|_| slot);
        self.nodes.iter().enumerate().filter_map(exists).collect()
    }

    /// How many nodes exist.
    pub fn size(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    /// A node's slot by name.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.slots.get(name).copied()
    }

    /// A node's labels.
    pub fn labels(&self, slot: Slot) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.nodes[slot]
            .as_ref()
            .and_then(|node| node.metadata.labels.as_ref())
            .unwrap_or(&NONE)
    }

    /// The column of a topology key; [`Cluster::prepare`] made it.
    pub fn topology(&self, key: &str) -> &Topology {
        static NONE: std::sync::LazyLock<Topology> = std::sync::LazyLock::new(Topology::default);
        self.topologies.get(key).unwrap_or(&NONE)
    }

    /// Makes the columns that the pod will be judged by.
    pub fn prepare(&mut self, pod: &PodInfo) {
        for key in pod.topology_keys() {
            if !self.topologies.contains_key(key) {
                let mut topology = Topology::default();
                for slot in 0..self.names.len() {
                    topology.set(slot, self.labels(slot).get(key));
                }
                self.topologies.insert(key.to_owned(), topology);
            }
        }
    }

    /// Placed pods with required anti-affinity, and where they are.
    pub fn repelling(&self) -> impl Iterator<Item = (Slot, &Arc<PodInfo>)> {
        self.repelling.iter().filter_map(|uid| {
            let slot = *self.placed.get(uid)?;
            Some((slot, self.pods[slot].get(uid)?))
        })
    }

    /// The slot of a pod that is placed or assumed.
    pub fn placed(&self, uid: &str) -> Option<Slot> {
        self.placed.get(uid).copied()
    }

    fn slot_of(&mut self, name: &str) -> Slot {
        if let Some(slot) = self.slots.get(name) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.grow();
            self.names.len() - 1
        });
        self.names[slot] = Arc::from(name);
        self.slots.insert(name.to_owned(), slot);
        slot
    }

    fn grow(&mut self) {
        let size = self.names.len() + 1;
        self.names.push(Arc::from(""));
        self.nodes.push(None);
        self.weights.push((0, 0));
        self.unschedulable.push(false);
        self.taints.push(Vec::new());
        self.ports.push(Vec::new());
        self.pods.push(BTreeMap::new());
        self.images.push(HashMap::new());
        let fixed = [
            &mut self.cpu,
            &mut self.memory,
            &mut self.ephemeral,
            &mut self.count,
        ];
        for column in fixed.into_iter().chain(self.others.values_mut()) {
            column.grow(size);
        }
    }

    fn other(&mut self, name: &str) -> &mut Column {
        let size = self.names.len();
        let column = self.others.entry(name.to_owned()).or_default();
        if column.used.len() < size {
            column.grow(size);
        }
        column
    }

    /// Takes a node in, or its newest version.
    pub fn put_node(&mut self, node: Arc<Node>) {
        let slot = self.slot_of(node.metadata.name.as_deref().unwrap_or_default());
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let amounts = Resources::of(allocatable);
        self.cpu.allocatable[slot] = amounts.cpu;
        self.memory.allocatable[slot] = amounts.memory;
        self.ephemeral.allocatable[slot] = amounts.ephemeral;
        let pods = allocatable.and_then(|all| all.get("pods")?.0.parse::<i64>().ok());
        self.count.allocatable[slot] = pods.unwrap_or(0);
        for column in self.others.values_mut() {
            column.allocatable[slot] = 0;
        }
        for (name, amount) in &amounts.others {
            self.other(name).allocatable[slot] = *amount;
        }
        self.unschedulable[slot] = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        self.taints[slot] = spec
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        self.put_images(slot, &node);
        let labels = node.metadata.labels.as_ref();
        for (key, topology) in &mut self.topologies {
            topology.set(slot, labels.and_then(|labels| labels.get(key)));
        }
        self.nodes[slot] = Some(node);
    }

    fn put_images(&mut self, slot: Slot, node: &Node) {
        for name in std::mem::take(&mut self.images[slot]).into_keys() {
            if let Some(count) = self.image_spread.get_mut(&name) {
                *count = count.saturating_sub(1);
            }
        }
        let images = node
            .status
            .iter()
            .flat_map(|status| status.images.iter().flatten());
        for image in images {
            for name in image.names.iter().flatten() {
                let size = image.size_bytes.unwrap_or(0);
                if self.images[slot].insert(name.clone(), size).is_none() {
                    *self.image_spread.entry(name.clone()).or_default() += 1;
                }
            }
        }
    }

    /// Forgets a node; its pods stay known until they are gone too.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slot(name) else { return };
        self.put_images(slot, &Node::default());
        self.nodes[slot] = None;
        self.taints[slot].clear();
        for topology in self.topologies.values_mut() {
            topology.set(slot, None);
        }
        self.release_if_empty(slot);
    }

    fn release_if_empty(&mut self, slot: Slot) {
        if self.nodes[slot].is_none() && self.pods[slot].is_empty() {
            self.slots.remove(&*self.names[slot]);
            self.free.push(slot);
        }
    }

    /// Counts a pod on a node; a pod that was counted elsewhere or before is counted anew.
    pub fn put_pod(&mut self, node: &str, pod: Arc<PodInfo>) {
        self.remove_pod(&pod.uid);
        let slot = self.slot_of(node);
        self.count_pod(slot, &pod, 1);
        self.ports[slot].extend(pod.ports.iter().cloned());
        if !pod.anti_affinity.is_empty() {
            self.repelling.insert(pod.uid.clone());
            self.prepare(&pod);
        }
        self.placed.insert(pod.uid.clone(), slot);
        self.pods[slot].insert(pod.uid.clone(), pod);
    }

    /// Forgets a pod; returns it when it was counted.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let slot = self.placed.remove(uid)?;
        let pod = self.pods[slot].remove(uid)?;
        self.repelling.remove(uid);
        self.count_pod(slot, &pod, -1);
        for port in &pod.ports {
            if let Some(at) = self.ports[slot].iter().position(|used| used == port) {
                self.ports[slot].swap_remove(at);
            }
        }
        self.release_if_empty(slot);
        Some(pod)
    }

    fn count_pod(&mut self, slot: Slot, pod: &PodInfo, sign: i64) {
        self.cpu.used[slot] += sign * pod.requests.cpu;
        self.memory.used[slot] += sign * pod.requests.memory;
        self.ephemeral.used[slot] += sign * pod.requests.ephemeral;
        self.count.used[slot] += sign;
        for (name, amount) in &pod.requests.others {
            self.other(name).used[slot] += sign * amount;
        }
        self.weights[slot].0 += sign * pod.weights.cpu;
        self.weights[slot].1 += sign * pod.weights.memory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{node, pod};

    #[test]
    fn what_a_pod_takes_is_given_back_when_it_goes() {
        let mut cluster = Cluster::default();
        cluster.put_node(node("n1", "2", "4Gi"));
        let slot = cluster.slot("n1").unwrap();
        cluster.put_pod("n1", pod("a", "500m", "1Gi"));
        cluster.put_pod("n1", pod("a", "700m", "1Gi"));
        assert_eq!(cluster.cpu.free(slot), 1300);
        assert_eq!(cluster.count.used[slot], 1);
        cluster.remove_pod("uid-a");
        assert_eq!(cluster.cpu.free(slot), 2000);
        assert_eq!(cluster.memory.used[slot], 0);
    }

    #[test]
    fn pods_may_be_known_before_their_node_and_outlive_it() {
        let mut cluster = Cluster::default();
        cluster.put_pod("n1", pod("a", "500m", "1Gi"));
        assert!(cluster.existing().is_empty());
        cluster.put_node(node("n1", "2", "4Gi"));
        assert_eq!(cluster.cpu.free(cluster.slot("n1").unwrap()), 1500);
        cluster.remove_node("n1");
        assert_eq!(cluster.size(), 0);
        cluster.remove_pod("uid-a");
        assert_eq!(cluster.slot("n1"), None);
        cluster.put_node(node("n2", "1", "1Gi"));
        assert_eq!(cluster.slot("n2"), Some(0), "the slot is used again");
    }
}
