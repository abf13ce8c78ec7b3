//! ResourceSlices, parsed once and indexed by pool and by node.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, NodeSelectorTerm},
        resource::v1::{self as api, DeviceAttribute, DeviceTaint, ResourceSlice},
    },
    apimachinery::pkg::api::resource as quantity,
};
use machinery::{json, quantity::Quantity};
use reconcile::placement::matches_any;

use super::{DeviceId, PoolId, capacity::Capacity};
use crate::cluster::NodeInfo;

/// The nodes that can use devices.
#[derive(Debug, Clone, PartialEq)]
pub enum Nodes {
    /// The node of this name.
    Named(String),
    /// All.
    All,
    /// Those that match one of the terms.
    Selected(Vec<NodeSelectorTerm>),
    /// Each device of the slice says it.
    PerDevice,
    /// None: a later version of the API may say it in another way.
    Unknown,
}

impl Nodes {
    fn new(name: Option<&String>, all: Option<bool>, selector: Option<&NodeSelector>) -> Self {
        match (name.filter(|name| !name.is_empty()), selector) {
            (Some(name), _) => Self::Named(name.clone()),
            _ if all == Some(true) => Self::All,
            (None, Some(selector)) => Self::Selected(selector.node_selector_terms.clone()),
            (None, None) => Self::Unknown,
        }
    }

    /// Whether a node is one of them.
    pub fn include(&self, node: &NodeInfo) -> bool {
        match self {
            Self::Named(name) => **name == *node.name,
            Self::All => true,
            Self::Selected(terms) => matches_any(terms, &node.labels, &node.name),
            Self::PerDevice | Self::Unknown => false,
        }
    }
}

/// The amounts of a counter set that exist or that a device consumes.
pub type CounterAmounts = BTreeMap<String, Quantity>;

/// One device.
#[derive(Debug)]
pub struct Device {
    /// Its id.
    pub id: DeviceId,
    /// The nodes that can use it, if its slice does not say it for all devices.
    pub nodes: Nodes,
    /// Its attributes.
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Its capacities.
    pub capacity: BTreeMap<String, Capacity>,
    /// The counters that it consumes, by counter set.
    pub consumes: Vec<(String, CounterAmounts)>,
    /// Its taints.
    pub taints: Vec<DeviceTaint>,
    /// Whether it can be allocated several times.
    pub is_shareable: bool,
    /// Whether an allocation is for the node that was chosen, although others can use the device.
    pub binds_to_node: bool,
    /// The conditions that must be true before the pod is bound.
    pub binding_conditions: Vec<String>,
    /// The conditions that say that the device cannot be used.
    pub binding_failure_conditions: Vec<String>,
    /// The fields that selectors see.
    pub fields: json::Value,
}

/// One ResourceSlice.
#[derive(Debug)]
pub struct Slice {
    /// The slice's name.
    pub name: Arc<str>,
    /// The pool.
    pub pool: PoolId,
    /// The pool's generation.
    pub generation: i64,
    /// How many slices the pool has in this generation.
    pub slice_count: i64,
    /// The nodes that can use the devices.
    pub nodes: Nodes,
    /// The pool's counters, by counter set.
    pub counter_sets: Vec<(String, CounterAmounts)>,
    /// The devices.
    pub devices: Vec<Device>,
}

/// The API server rejects invalid quantities; here they count as zero.
pub(super) fn amount(quantity: &quantity::Quantity) -> Quantity {
    quantity.0.parse().unwrap_or(Quantity::ZERO)
}

fn amounts(counters: &BTreeMap<String, api::Counter>) -> CounterAmounts {
    let amounts = counters.iter();
    amounts
        .map(|(name, counter)| (name.clone(), amount(&counter.value)))
        .collect()
}

impl Device {
    fn new(device: &api::Device, pool: &PoolId) -> Self {
        let name = device.node_name.as_ref();
        let consumes = device.consumes_counters.iter().flatten();
        let capacity = device.capacity.iter().flatten();
        Self {
            id: DeviceId {
                pool: pool.clone(),
                device: device.name.as_str().into(),
            },
            nodes: Nodes::new(name, device.all_nodes, device.node_selector.as_ref()),
            attributes: device.attributes.clone().unwrap_or_default(),
            capacity: capacity
                .map(|(name, capacity)| (name.clone(), Capacity::new(capacity)))
                .collect(),
            consumes: consumes
                .map(|set| (set.counter_set.clone(), amounts(&set.counters)))
                .collect(),
            taints: device.taints.clone().unwrap_or_default(),
            is_shareable: device.allow_multiple_allocations == Some(true),
            binds_to_node: device.binds_to_node == Some(true),
            binding_conditions: device.binding_conditions.clone().unwrap_or_default(),
            binding_failure_conditions: device
                .binding_failure_conditions
                .clone()
                .unwrap_or_default(),
            fields: fields(device),
        }
    }
}

/// The fields of a device that selectors see.
fn fields(device: &api::Device) -> json::Value {
    let seen = api::Device {
        allow_multiple_allocations: device.allow_multiple_allocations,
        attributes: device.attributes.clone(),
        capacity: device.capacity.clone(),
        ..api::Device::default()
    };
    let text = serde_json::to_string(&seen);
    let value = text.and_then(|text| serde_json::from_str(&text));
    value.unwrap_or_default()
}

impl Slice {
    /// From the API object.
    pub fn new(slice: &ResourceSlice) -> Self {
        let spec = &slice.spec;
        let pool = PoolId {
            driver: spec.driver.as_str().into(),
            pool: spec.pool.name.as_str().into(),
        };
        let nodes = Nodes::new(
            spec.node_name.as_ref(),
            spec.all_nodes,
            spec.node_selector.as_ref(),
        );
        let per_device = spec.per_device_node_selection == Some(true);
        let sets = spec.shared_counters.iter().flatten();
        let devices = spec.devices.iter().flatten();
        Self {
            name: slice.metadata.name.as_deref().unwrap_or_default().into(),
            generation: spec.pool.generation,
            slice_count: spec.pool.resource_slice_count,
            nodes: match nodes {
                Nodes::Unknown if per_device => Nodes::PerDevice,
                nodes => nodes,
            },
            counter_sets: sets
                .map(|set| (set.name.clone(), amounts(&set.counters)))
                .collect(),
            devices: devices.map(|device| Device::new(device, &pool)).collect(),
            pool,
        }
    }

    /// Whether the slice concerns a node. Counters concern all.
    pub fn concerns(&self, node: &NodeInfo) -> bool {
        if !self.counter_sets.is_empty() {
            return true;
        }
        match &self.nodes {
            Nodes::PerDevice => self.devices.iter().any(|device| device.nodes.include(node)),
            nodes => nodes.include(node),
        }
    }

    /// The node of the slice, if it can concern no other.
    fn only_node(&self) -> Option<&str> {
        match &self.nodes {
            Nodes::Named(name) if self.counter_sets.is_empty() => Some(name),
            _ => None,
        }
    }
}

/// All slices.
#[derive(Debug, Default)]
pub struct Slices {
    by_name: HashMap<Arc<str>, Arc<Slice>>,
    by_pool: HashMap<PoolId, BTreeSet<Arc<str>>>,
    by_node: HashMap<String, BTreeSet<Arc<str>>>,
    /// The slices that can concern any node.
    shared: BTreeSet<Arc<str>>,
}

impl Slices {
    /// Stores a slice, or removes it with `None`.
    pub fn put(&mut self, name: &str, slice: Option<Slice>) {
        if let Some(old) = self.by_name.remove(name) {
            if let Some(names) = self.by_pool.get_mut(&old.pool) {
                names.remove(name);
                if names.is_empty() {
                    self.by_pool.remove(&old.pool);
                }
            }
            let node = old.only_node().unwrap_or_default();
            if let Some(names) = self.by_node.get_mut(node) {
                names.remove(name);
                if names.is_empty() {
                    self.by_node.remove(node);
                }
            }
            self.shared.remove(name);
        }
        let Some(slice) = slice.map(Arc::new) else {
            return;
        };
        let names = self.by_pool.entry(slice.pool.clone()).or_default();
        names.insert(slice.name.clone());
        match slice.only_node() {
            Some(node) => {
                let names = self.by_node.entry(node.to_owned()).or_default();
                names.insert(slice.name.clone());
            }
            None => {
                self.shared.insert(slice.name.clone());
            }
        }
        self.by_name.insert(slice.name.clone(), slice);
    }

    /// The slices that concern a node, ordered by name.
    pub fn for_node<'a>(&'a self, node: &'a NodeInfo) -> Vec<&'a Slice> {
        let own = self.by_node.get(&*node.name).into_iter().flatten();
        let mut slices: Vec<&Slice> = own
            .chain(&self.shared)
            .filter_map(|name| self.by_name.get(name))
            .map(AsRef::as_ref)
            .filter(|slice| slice.concerns(node))
            .collect();
        slices.sort_by(|one, other| one.name.cmp(&other.name));
        slices
    }

    /// The slices of a pool, ordered by name.
    pub fn in_pool(&self, pool: &PoolId) -> impl Iterator<Item = &Slice> {
        let names = self.by_pool.get(pool).into_iter().flatten();
        names
            .filter_map(|name| self.by_name.get(name))
            .map(AsRef::as_ref)
    }
}
