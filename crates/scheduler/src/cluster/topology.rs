//! Values of node labels as small integers in columns, and the order in which nodes are visited.

use std::collections::HashMap;

use super::{NodeInfo, Slot};

/// The value of a node without the label.
pub const ABSENT: u32 = 0;

/// The values of one label key over all nodes.
#[derive(Debug, Default)]
pub struct Topology {
    values: Vec<u32>,
    known: HashMap<String, u32>,
    /// The number of nodes with each value; not maintained for nodes without the label.
    nodes: Vec<u32>,
    /// The number of nodes with the label.
    labelled: usize,
    /// Changes when any node's value changes.
    version: u64,
}

impl Topology {
    /// The value of a node; [`ABSENT`] if it has none.
    pub fn at(&self, slot: Slot) -> u32 {
        self.values.get(slot).copied().unwrap_or(ABSENT)
    }

    /// One more than the largest value.
    pub fn size(&self) -> usize {
        self.known.len() + 1
    }

    /// The number of nodes with the label.
    pub fn labelled(&self) -> usize {
        self.labelled
    }

    /// The number of nodes with a value.
    pub fn nodes(&self, value: usize) -> u32 {
        self.nodes.get(value).copied().unwrap_or(0)
    }

    /// Changes when any node's value changes.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn set(&mut self, slot: Slot, value: Option<&String>) {
        if self.values.len() <= slot {
            self.values.resize(slot + 1, ABSENT);
        }
        let (old, new) = (self.values[slot], self.id(value));
        if old == new {
            return;
        }
        self.values[slot] = new;
        self.version += 1;
        self.nodes.resize(self.known.len() + 1, 0);
        if old != ABSENT {
            self.nodes[old as usize] -= 1;
            self.labelled -= 1;
        }
        if new != ABSENT {
            self.nodes[new as usize] += 1;
            self.labelled += 1;
        }
    }

    fn id(&mut self, value: Option<&String>) -> u32 {
        match value {
            None => ABSENT,
            Some(value) => match self.known.get(value) {
                Some(id) => *id,
                None => {
                    let id = u32::try_from(self.known.len() + 1).unwrap_or(u32::MAX);
                    self.known.insert(value.clone(), id);
                    id
                }
            },
        }
    }
}

/// All nodes, alternating between zones.
#[derive(Debug, Default)]
pub(super) struct Order {
    zones: Vec<((String, String), Vec<Slot>)>,
    visits: Vec<Slot>,
    stale: bool,
}

impl Order {
    pub(super) fn add(&mut self, slot: Slot, node: &NodeInfo) {
        let zone = node.zone();
        let known = |((region, name), _): &((String, String), Vec<Slot>)| {
            (region.as_str(), name.as_str()) == zone
        };
        match self.zones.iter().position(known) {
            Some(at) => self.zones[at].1.push(slot),
            None => {
                let zone = (zone.0.to_owned(), zone.1.to_owned());
                self.zones.push((zone, vec![slot]));
            }
        }
        self.stale = true;
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        for (_, slots) in &mut self.zones {
            slots.retain(|other| *other != slot);
        }
        self.zones.retain(|(_, slots)| !slots.is_empty());
        self.stale = true;
    }

    pub(super) fn len(&self) -> usize {
        self.zones.iter().map(|(_, slots)| slots.len()).sum()
    }

    pub(super) fn refresh(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        self.visits.clear();
        let longest = self.zones.iter().map(|(_, slots)| slots.len()).max();
        for index in 0..longest.unwrap_or(0) {
            let row = self.zones.iter().filter_map(|(_, slots)| slots.get(index));
            self.visits.extend(row);
        }
    }

    pub(super) fn visits(&self) -> &[Slot] {
        debug_assert!(!self.stale, "prepare() was not called after a change");
        &self.visits
    }
}
