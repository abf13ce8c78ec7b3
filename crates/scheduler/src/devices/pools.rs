//! The pools that have devices for a node. Slices of older generations are ignored; pools that are
//! being updated or that contradict themselves are marked and not allocated from.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::{
    PoolId,
    slices::{CounterAmounts, Device, Nodes, Slice, Slices},
};
use crate::cluster::NodeInfo;

/// Whether devices of a pool can be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// They can.
    Usable,
    /// Slices are missing: the driver is updating the pool.
    Incomplete,
    /// Slices contradict each other.
    Invalid,
}

/// A pool and its slices of the newest generation.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) id: &'a PoolId,
    pub(super) state: State,
    /// The slices with devices for the node, ordered by name.
    pub(super) slices: Vec<&'a Slice>,
    /// The other slices with devices, which consume the same counters.
    pub(super) others: Vec<&'a Slice>,
    /// The counters by set.
    pub(super) counter_sets: BTreeMap<&'a str, &'a CounterAmounts>,
}

/// A device that may be allocated, and the index of its pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) device: &'a Device,
    pub(super) slice: &'a Slice,
    pub(super) pool: usize,
}

impl Found<'_> {
    /// The nodes that can use the device.
    pub(super) fn nodes(&self) -> &Nodes {
        match &self.slice.nodes {
            Nodes::PerDevice => &self.device.nodes,
            nodes => nodes,
        }
    }
}

impl Pool<'_> {
    pub(super) fn is_invalid(&self) -> bool {
        self.state == State::Invalid
    }

    fn has_binding_conditions(&self) -> bool {
        let mut devices = self.slices.iter().flat_map(|slice| &slice.devices);
        devices.any(|device| !device.binding_conditions.is_empty())
    }
}

/// The pools for a node, by driver and name; those with binding conditions last.
pub(super) fn gather<'a>(slices: &'a Slices, node: &'a NodeInfo) -> Vec<Pool<'a>> {
    let mut newest: BTreeMap<&PoolId, Vec<&Slice>> = BTreeMap::new();
    for slice in slices.for_node(node) {
        let known = newest.entry(&slice.pool).or_default();
        let generation = known.first().map_or(slice.generation, |one| one.generation);
        if slice.generation > generation {
            known.clear();
        }
        if slice.generation >= generation {
            known.push(slice);
        }
    }
    let pools = newest.into_iter();
    let pools = pools.filter_map(|(id, own)| Some(build(id, complete(slices, id, own)?)));
    let (mut pools, last): (Vec<Pool<'_>>, Vec<Pool<'_>>) =
        pools.partition(|pool| !pool.has_binding_conditions());
    pools.extend(last);
    pools
}

/// The slices of a pool for a node, and all others of the same generation.
struct Complete<'a> {
    own: Vec<&'a Slice>,
    others: Vec<&'a Slice>,
    is_complete: bool,
}

/// `None` if the pool has a newer generation without devices for the node.
fn complete<'a>(slices: &'a Slices, id: &PoolId, own: Vec<&'a Slice>) -> Option<Complete<'a>> {
    let first = own.first()?;
    let (generation, count) = (first.generation, first.slice_count);
    let is_full = |slices: usize| i64::try_from(slices) == Ok(count);
    let is_complete = is_full(own.len());
    if is_complete {
        return Some(Complete {
            own,
            others: Vec::new(),
            is_complete,
        });
    }
    let mut all = Vec::new();
    for slice in slices.in_pool(id) {
        if slice.generation > generation {
            return None;
        }
        if slice.generation == generation {
            all.push(slice);
        }
    }
    let is_complete = is_full(all.len());
    let is_other = |slice: &&Slice| !own.iter().any(|known| known.name == slice.name);
    let others = all.into_iter().filter(is_other).collect();
    Some(Complete {
        own,
        others,
        is_complete,
    })
}

fn build<'a>(id: &'a PoolId, found: Complete<'a>) -> Pool<'a> {
    let (sets, slices): (Vec<&Slice>, Vec<&Slice>) = found
        .own
        .into_iter()
        .partition(|slice| !slice.counter_sets.is_empty());
    let counter_sets = counter_sets(&sets);
    let is_valid = counter_sets.as_ref().is_some_and(|sets| {
        let consumers = slices.iter().chain(&found.others);
        has_unique_names(&slices) && consumers.into_iter().all(|slice| has_counters(sets, slice))
    });
    let state = match (found.is_complete, is_valid) {
        (false, _) => State::Incomplete,
        (true, false) => State::Invalid,
        (true, true) => State::Usable,
    };
    let usable = |slices| match state {
        State::Usable => slices,
        _ => Vec::new(),
    };
    Pool {
        id,
        state,
        slices: usable(slices),
        others: usable(found.others),
        counter_sets: counter_sets.unwrap_or_default(),
    }
}

/// `None` if two sets have one name.
fn counter_sets<'a>(slices: &[&'a Slice]) -> Option<BTreeMap<&'a str, &'a CounterAmounts>> {
    let mut sets = BTreeMap::new();
    for (name, counters) in slices.iter().flat_map(|slice| &slice.counter_sets) {
        match sets.entry(name.as_str()) {
            Entry::Vacant(entry) => entry.insert(counters),
            Entry::Occupied(_) => return None,
        };
    }
    Some(sets)
}

fn has_unique_names(slices: &[&Slice]) -> bool {
    let mut devices = slices.iter().flat_map(|slice| &slice.devices);
    let mut names = BTreeSet::new();
    devices.all(|device| names.insert(&device.id.device))
}

/// Whether the counters exist that the devices consume.
fn has_counters(sets: &BTreeMap<&str, &CounterAmounts>, slice: &Slice) -> bool {
    let mut consumed = slice.devices.iter().flat_map(|device| &device.consumes);
    consumed.all(|(set, counters)| {
        let known = sets.get(set.as_str());
        known.is_some_and(|known| counters.keys().all(|name| known.contains_key(name)))
    })
}

/// The devices of usable pools, in the order in which they are tried.
pub(super) fn devices<'a>(pools: &[Pool<'a>]) -> Vec<Found<'a>> {
    let mut devices = Vec::new();
    for (at, pool) in pools.iter().enumerate() {
        for slice in &pool.slices {
            devices.extend(slice.devices.iter().map(|device| Found {
                device,
                slice,
                pool: at,
            }));
        }
    }
    devices
}
