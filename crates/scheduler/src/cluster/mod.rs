//! The nodes and their pods in columns: one entry per node in each, so that a filter over thousands
//! of nodes is a loop over arrays. A node keeps its slot as long as it exists; slots of removed
//! nodes are reused. Counts for selectors are updated as pods are added and removed ([`counts`]).

pub mod claims;
pub mod counts;
pub mod device_claims;
pub mod domains;
mod node;
mod nominated;
mod topology;
pub mod workloads;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::DeviceClass;

pub use node::NodeInfo;
pub use nominated::Nominated;
pub use topology::{ABSENT, Topology};

use crate::{
    devices::{classes::Classes, slices::Slices},
    matching::Namespaces,
    pod::PodInfo,
    preemption::Budgets,
    template::{HostPort, NodeRequirements},
};
use claims::Claims;
use counts::{Groups, Holders};
use device_claims::DeviceClaims;
use domains::{DomainCounts, Topologies};
use topology::Order;
use workloads::Workloads;

/// The index of a node in the columns.
pub type Slot = usize;

/// The maximum number of node requirements whose results are cached for all nodes.
const REMEMBERED_REQUIREMENTS: usize = 512;

/// One resource: each node's allocatable and requested amounts.
#[derive(Debug, Default)]
pub struct Column {
    /// The allocatable amount.
    pub allocatable: Vec<i64>,
    /// The requested amount.
    pub used: Vec<i64>,
}

impl Column {
    fn grow(&mut self, size: usize) {
        self.allocatable.resize(size, 0);
        self.used.resize(size, 0);
    }

    /// The free amount.
    pub fn free(&self, slot: Slot) -> i64 {
        self.allocatable[slot].wrapping_sub(self.used[slot])
    }
}

/// The scheduler's view of the cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    slots: HashMap<Arc<str>, Slot>,
    free: Vec<Slot>,
    order: Order,
    /// Changes with the set of nodes, with their images and with device classes.
    epoch: u64,
    /// By slot: changes with the node and with its pods. Never 0.
    generations: Vec<u32>,
    /// Names by slot.
    pub names: Vec<Arc<str>>,
    /// The node; `None` if only its pods are known yet.
    pub nodes: Vec<Option<Arc<NodeInfo>>>,
    /// Millicores of CPU.
    pub cpu: Column,
    /// Bytes.
    pub memory: Column,
    /// Bytes.
    pub ephemeral: Column,
    /// Pods.
    pub count: Column,
    /// Extended resources.
    pub others: HashMap<String, Column>,
    /// CPU and memory with defaults for pods without requests, for scoring.
    pub non_zero: Vec<(i64, i64)>,
    /// Host ports in use.
    pub ports: Vec<Vec<HostPort>>,
    /// Pods on the node.
    pub pods: Vec<Vec<Arc<PodInfo>>>,
    /// Images, with the nodes that have them and their sizes there.
    images: HashMap<String, HashMap<u32, i64>>,
    topologies: Topologies,
    /// Node requirements and which nodes meet them, by the requirements' address.
    requirements: HashMap<usize, (Arc<NodeRequirements>, Vec<bool>)>,
    /// Labels of namespaces.
    namespaces: Namespaces,
    placed: HashMap<Arc<str>, Slot>,
    /// The number of placed pods of each priority.
    priorities: BTreeMap<i32, usize>,
    /// The number of placed pods that use a claim.
    claim_users: HashMap<(Arc<str>, String), usize>,
    /// Placed pods by labels.
    pub groups: Groups,
    /// Affinity terms of placed pods.
    pub holders: Holders,
    /// Services and controllers.
    pub workloads: Workloads,
    /// Claims and volumes.
    pub claims: Claims,
    /// ResourceClaims.
    pub device_claims: DeviceClaims,
    /// The devices.
    pub slices: Slices,
    /// Device classes; [`Cluster::put_device_class`] changes them.
    pub classes: Classes,
    /// Nominated pods.
    pub nominated: Nominated,
    /// PodDisruptionBudgets.
    pub budgets: Budgets,
}

impl Cluster {
    /// All nodes in the order in which they are visited; [`Cluster::prepare`] updates it.
    pub fn visits(&self) -> &[Slot] {
        self.order.visits()
    }

    /// The number of nodes.
    pub fn size(&self) -> usize {
        self.order.len()
    }

    /// The number of placed pods.
    pub fn placed_pods(&self) -> usize {
        self.placed.len()
    }

    /// Changes when a node is added or removed, when images of a node change, and with the
    /// extended resources that device classes stand for.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Changes when the node or its pods change. Never 0; a value repeats only with another epoch.
    pub fn generation(&self, slot: Slot) -> u32 {
        self.generations[slot]
    }

    fn touch(&mut self, slot: Slot) {
        let generation = &mut self.generations[slot];
        *generation = generation.wrapping_add(1);
        if *generation == 0 {
            *generation = 1;
            self.epoch += 1;
        }
    }

    /// A node's slot by name.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.slots.get(name).copied()
    }

    /// A node by slot; `None` if only its pods are known.
    pub fn node(&self, slot: Slot) -> Option<&Arc<NodeInfo>> {
        self.nodes[slot].as_ref()
    }

    /// The column of a topology key, made by [`Cluster::prepare_key`].
    pub fn topology(&self, key: &str) -> &Topology {
        static NONE: std::sync::LazyLock<Topology> = std::sync::LazyLock::new(Topology::default);
        self.topologies.get(key).unwrap_or(&NONE)
    }

    /// Labels of namespaces.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// The nodes that have an image, with its size on each.
    pub fn image(&self, name: &str) -> Option<&HashMap<u32, i64>> {
        self.images.get(name)
    }

    /// The number of placed pods that use a claim.
    pub fn claim_users(&self, namespace: &Arc<str>, claim: String) -> usize {
        let users = self.claim_users.get(&(namespace.clone(), claim));
        users.copied().unwrap_or(0)
    }

    /// Whether any placed pod has a lower priority than this pod.
    pub fn has_less_important(&self, pod: &PodInfo) -> bool {
        let lowest = self.priorities.first_key_value();
        lowest.is_some_and(|(lowest, _)| *lowest < pod.priority())
    }

    /// The slot of a placed or assumed pod.
    pub fn placed(&self, uid: &str) -> Option<Slot> {
        self.placed.get(uid).copied()
    }

    /// Must be called before pods are scheduled.
    pub fn prepare(&mut self) {
        self.order.refresh();
    }

    /// Makes the column of a topology key.
    pub fn prepare_key(&mut self, key: &Arc<str>) {
        if self.topologies.contains_key(key) {
            return;
        }
        let mut topology = Topology::default();
        for (slot, node) in self.nodes.iter().enumerate() {
            let labels = node.as_ref().map(|node| &node.labels);
            topology.set(slot, labels.and_then(|labels| labels.get(&**key)));
        }
        self.topologies.insert(key.clone(), topology);
    }

    /// Caches which groups of pods a matcher selects.
    pub fn prepare_matcher(&mut self, matcher: &Arc<crate::matching::Matcher>) {
        self.groups.prepare(matcher, &self.namespaces);
    }

    /// Maintains counts of a prepared matcher's pods by the domains of a key, or by node without
    /// one.
    pub fn prepare_counts(
        &mut self,
        matcher: &Arc<crate::matching::Matcher>,
        key: Option<&Arc<str>>,
    ) {
        self.groups.prepare_counts(matcher, key, &self.topologies);
    }

    /// Maintains counts by domain of the placed pods whose terms match a pod.
    pub fn prepare_terms_about(&mut self, pod: &PodInfo) {
        self.holders
            .prepare_counts(&pod.label_set, &self.namespaces, &self.topologies);
    }

    /// Counts of a matcher's pods by the domains of a key, or by node, if maintained.
    pub fn counts(
        &self,
        matcher: &Arc<crate::matching::Matcher>,
        key: Option<&Arc<str>>,
    ) -> Option<&DomainCounts> {
        self.groups.counts(matcher, key, &self.topologies)
    }

    /// The columns of all topology keys.
    pub fn topologies(&self) -> &Topologies {
        &self.topologies
    }

    /// Caches which nodes meet the requirements.
    pub fn prepare_requirements(&mut self, requirements: &Arc<NodeRequirements>) {
        let address = Arc::as_ptr(requirements) as usize;
        if requirements.is_empty() || self.requirements.contains_key(&address) {
            return;
        }
        if self.requirements.len() >= REMEMBERED_REQUIREMENTS {
            self.requirements.clear();
        }
        let meets = |node: &Option<Arc<NodeInfo>>| {
            let node = node.as_ref();
            node.is_some_and(|node| requirements.matches(&node.labels, &node.name))
        };
        let mask = self.nodes.iter().map(meets).collect();
        self.requirements
            .insert(address, (requirements.clone(), mask));
    }

    /// Which nodes meet the requirements, if cached; nodes beyond its end do not.
    pub fn requirement_mask(&self, requirements: &Arc<NodeRequirements>) -> Option<&[bool]> {
        let known = self.requirements.get(&(Arc::as_ptr(requirements) as usize));
        known.map(|(_, mask)| mask.as_slice())
    }

    /// Whether a node meets the requirements.
    pub fn meets(&self, requirements: &Arc<NodeRequirements>, slot: Slot) -> bool {
        if requirements.is_empty() {
            return true;
        }
        if let Some(mask) = self.requirement_mask(requirements) {
            return mask.get(slot).copied().unwrap_or(false);
        }
        let node = self.node(slot);
        node.is_some_and(|node| requirements.matches(&node.labels, &node.name))
    }

    /// Stores a namespace's labels, or removes it with `None`.
    pub fn put_namespace(&mut self, name: &str, labels: Option<crate::matching::Labels>) {
        let old = match labels.clone() {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        if old != labels {
            self.groups.forget_matchers();
        }
    }

    /// Stores a device class, or removes it with `None`.
    pub fn put_device_class(&mut self, name: &str, class: Option<&Arc<DeviceClass>>) {
        if self.classes.put(name, class) {
            // Which resources nodes must have themselves may have changed.
            self.epoch += 1;
        }
    }

    fn slot_of(&mut self, name: &str) -> Slot {
        if let Some(slot) = self.slots.get(name) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.grow();
            self.names.len() - 1
        });
        let name: Arc<str> = Arc::from(name);
        self.names[slot] = name.clone();
        self.slots.insert(name, slot);
        slot
    }

    fn grow(&mut self) {
        let size = self.names.len() + 1;
        self.names.push(Arc::from(""));
        self.generations.push(1);
        self.nodes.push(None);
        self.non_zero.push((0, 0));
        self.ports.push(Vec::new());
        self.pods.push(Vec::new());
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
        if !self.others.contains_key(name) {
            self.others.insert(name.to_owned(), Column::default());
        }
        let column = self.others.entry(name.to_owned()).or_default();
        if column.used.len() < size {
            column.grow(size);
        }
        column
    }

    /// Stores a node; returns its previous version.
    pub fn put_node(&mut self, node: NodeInfo) -> Option<Arc<NodeInfo>> {
        let (slot, node) = (self.slot_of(&node.name), Arc::new(node));
        let old = self.nodes[slot].replace(node.clone());
        let amounts = &node.allocatable;
        self.cpu.allocatable[slot] = amounts.cpu;
        self.memory.allocatable[slot] = amounts.memory;
        self.ephemeral.allocatable[slot] = amounts.ephemeral;
        self.count.allocatable[slot] = node.pods;
        for column in self.others.values_mut() {
            column.allocatable[slot] = 0;
        }
        for (name, amount) in &amounts.others {
            self.other(name).allocatable[slot] = *amount;
        }
        self.touch(slot);
        if old.as_ref().is_none_or(|old| old.images != node.images) {
            self.put_images(slot, old.as_deref(), Some(&node));
            self.epoch += 1;
        }
        if old.as_ref().is_none_or(|old| old.zone() != node.zone()) {
            self.order.remove(slot);
            self.order.add(slot, &node);
        }
        if old.as_ref().is_none_or(|old| old.labels != node.labels) {
            self.put_labels(slot, Some(&node));
        }
        old
    }

    fn put_labels(&mut self, slot: Slot, node: Option<&NodeInfo>) {
        for (key, topology) in &mut self.topologies {
            topology.set(slot, node.and_then(|node| node.labels.get(&**key)));
        }
        for (requirements, mask) in self.requirements.values_mut() {
            if mask.len() <= slot {
                mask.resize(slot + 1, false);
            }
            mask[slot] = node.is_some_and(|node| requirements.matches(&node.labels, &node.name));
        }
    }

    fn put_images(&mut self, slot: Slot, old: Option<&NodeInfo>, new: Option<&NodeInfo>) {
        let slot = slot as u32;
        for name in old.into_iter().flat_map(|node| node.images.keys()) {
            if let Some(nodes) = self.images.get_mut(name) {
                nodes.remove(&slot);
                if nodes.is_empty() {
                    self.images.remove(name);
                }
            }
        }
        for (name, size) in new.into_iter().flat_map(|node| &node.images) {
            if !self.images.contains_key(name) {
                self.images.insert(name.clone(), HashMap::new());
            }
            if let Some(nodes) = self.images.get_mut(name) {
                nodes.insert(slot, *size);
            }
        }
    }

    /// Removes a node; its pods stay until they are removed, too.
    pub fn remove_node(&mut self, name: &str) -> Option<Arc<NodeInfo>> {
        let slot = self.slot(name)?;
        let old = self.nodes[slot].take()?;
        self.touch(slot);
        self.epoch += 1;
        self.put_images(slot, Some(&old), None);
        self.put_labels(slot, None);
        self.order.remove(slot);
        let fixed = [
            &mut self.cpu,
            &mut self.memory,
            &mut self.ephemeral,
            &mut self.count,
        ];
        for column in fixed.into_iter().chain(self.others.values_mut()) {
            column.allocatable[slot] = 0;
        }
        self.release_if_empty(slot);
        Some(old)
    }

    fn release_if_empty(&mut self, slot: Slot) {
        if self.nodes[slot].is_none() && self.pods[slot].is_empty() {
            self.slots.remove(&self.names[slot]);
            self.free.push(slot);
        }
    }

    /// Adds a pod to a node, replacing an earlier version, also on another node.
    pub fn put_pod(&mut self, node: &str, pod: Arc<PodInfo>) -> Option<Arc<PodInfo>> {
        // Find the slot first: it may be released and reused when its only pod is removed.
        let slot = self.slot_of(node);
        let same = self.placed(&pod.uid) == Some(slot);
        if same && let Some(known) = self.alike(slot, &pod) {
            // For example when an assumed binding is confirmed: no count changes.
            return Some(std::mem::replace(known, pod));
        }
        let old = if same {
            self.take_pod(&pod.uid)
        } else {
            self.remove_pod(&pod.uid)
        };
        self.touch(slot);
        self.shift(slot, &pod, 1);
        let topologies = &self.topologies;
        self.groups
            .add(&pod.label_set, slot, &self.namespaces, topologies);
        self.holders.add(&pod.template, slot, topologies);
        let template = &pod.template;
        let terms = template.affinity.iter().chain(&template.anti_affinity);
        for term in terms.chain(&template.preferences) {
            self.prepare_key(&term.topology_key);
        }
        for claim in &pod.template.claims {
            let key = (pod.namespace().clone(), pod.claim_name(claim));
            *self.claim_users.entry(key).or_default() += 1;
        }
        *self.priorities.entry(pod.priority()).or_default() += 1;
        self.placed.insert(pod.uid.clone(), slot);
        self.pods[slot].push(pod);
        old
    }

    /// The known version of a pod on a node, if the new one has the same counts.
    fn alike(&mut self, slot: Slot, pod: &PodInfo) -> Option<&mut Arc<PodInfo>> {
        let mut pods = self.pods[slot].iter_mut();
        pods.find(|known| known.uid == pod.uid).filter(|known| {
            Arc::ptr_eq(&known.template, &pod.template)
                && Arc::ptr_eq(&known.label_set, &pod.label_set)
                && known.name == pod.name
        })
    }

    /// Removes a pod; returns it if it was placed.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let slot = self.placed(uid)?;
        let pod = self.take_pod(uid);
        self.release_if_empty(slot);
        pod
    }

    fn take_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let slot = self.placed.remove(uid)?;
        let at = self.pods[slot].iter().position(|pod| &*pod.uid == uid)?;
        let pod = self.pods[slot].swap_remove(at);
        self.touch(slot);
        self.shift(slot, &pod, -1);
        if let Some(count) = self.priorities.get_mut(&pod.priority()) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&pod.priority());
            }
        }
        self.groups.remove(&pod.label_set, slot, &self.topologies);
        self.holders.remove(&pod.template, slot, &self.topologies);
        for claim in &pod.template.claims {
            let key = (pod.namespace().clone(), pod.claim_name(claim));
            if let Some(users) = self.claim_users.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.claim_users.remove(&key);
                }
            }
        }
        Some(pod)
    }

    /// Changes the columns as if the pod were added to the node (`sign` 1) or removed (-1), and
    /// nothing else: to try what would fit.
    pub fn shift(&mut self, slot: Slot, pod: &PodInfo, sign: i64) {
        let (requests, non_zero) = (&pod.template.requests, pod.template.non_zero);
        // An overflow is undone when the pods are removed.
        let shift = |sum: &mut i64, amount: i64| *sum = sum.wrapping_add(sign * amount);
        shift(&mut self.cpu.used[slot], requests.cpu);
        shift(&mut self.memory.used[slot], requests.memory);
        shift(&mut self.ephemeral.used[slot], requests.ephemeral);
        shift(&mut self.count.used[slot], 1);
        for (name, amount) in &requests.others {
            shift(&mut self.other(name).used[slot], *amount);
        }
        shift(&mut self.non_zero[slot].0, non_zero.0);
        shift(&mut self.non_zero[slot].1, non_zero.1);
        let used = &mut self.ports[slot];
        for port in &pod.template.ports {
            if sign > 0 {
                used.push(port.clone());
            } else if let Some(at) = used.iter().position(|other| other == port) {
                used.swap_remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{labelled, node, pod, prioritised};

    #[test]
    fn resources_of_a_deleted_pod_are_released() {
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
    fn less_important_pods_are_known_until_the_last_is_gone() {
        let mut cluster = Cluster::default();
        let pod = prioritised("p", "1", 5);
        assert!(!cluster.has_less_important(&pod));
        cluster.put_pod("n1", prioritised("equal", "1", 5));
        assert!(!cluster.has_less_important(&pod));
        cluster.put_pod("n1", prioritised("a", "1", 4));
        cluster.put_pod("n2", prioritised("b", "1", 4));
        cluster.put_pod("n2", prioritised("a", "1", 4));
        cluster.remove_pod("uid-b");
        assert!(cluster.has_less_important(&pod));
        cluster.remove_pod("uid-a");
        assert!(!cluster.has_less_important(&pod));
    }

    #[test]
    fn pods_may_be_known_before_their_node_and_outlive_it() {
        let mut cluster = Cluster::default();
        cluster.put_pod("n1", pod("a", "500m", "1Gi"));
        cluster.prepare();
        assert!(cluster.visits().is_empty());
        cluster.put_node(node("n1", "2", "4Gi"));
        assert_eq!(cluster.cpu.free(cluster.slot("n1").unwrap()), 1500);
        cluster.remove_node("n1");
        assert_eq!(cluster.size(), 0);
        cluster.remove_pod("uid-a");
        assert_eq!(cluster.slot("n1"), None);
        cluster.put_node(node("n2", "1", "1Gi"));
        assert_eq!(cluster.slot("n2"), Some(0), "the slot is used again");
    }

    #[test]
    fn nodes_are_visited_in_turns_over_zones() {
        let mut cluster = Cluster::default();
        let zone = "topology.kubernetes.io/zone";
        for (name, at) in [
            ("a1", "a"),
            ("a2", "a"),
            ("a3", "a"),
            ("b1", "b"),
            ("c1", "c"),
        ] {
            cluster.put_node(labelled(name, &[(zone, at)]));
        }
        let order = |cluster: &mut Cluster| {
            cluster.prepare();
            let names = cluster
                .visits()
                .iter()
                .map(|slot| cluster.names[*slot].to_string());
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(&mut cluster), "a1 b1 c1 a2 a3");
        cluster.remove_node("b1");
        cluster.put_node(labelled("a2", &[(zone, "c")]));
        assert_eq!(order(&mut cluster), "a1 c1 a3 a2");
    }
}
