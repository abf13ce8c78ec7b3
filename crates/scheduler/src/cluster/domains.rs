//! Counts of pods by the domains of a topology key, updated as pods are added and removed: a
//! decision reads the counts instead of visiting every pod.

use std::{collections::HashMap, sync::Arc};

use super::{Slot, Topology, counts::SlotCounts};

/// The columns of all topology keys.
pub type Topologies = HashMap<Arc<str>, Topology>;

/// Pods on fewer nodes are counted on demand. Tests compare both ways in small clusters.
pub(super) const MANY: usize = if cfg!(test) { 3 } else { 128 };

/// Counts of pods by the domains of one key, or by node.
#[derive(Debug, Default)]
pub struct DomainCounts {
    /// `None` counts by node.
    key: Option<Arc<str>>,
    /// The version of the topology that these counts belong to.
    version: u64,
    /// All pods.
    all: Vec<i64>,
    /// Pods that are not being deleted.
    staying: Vec<i64>,
}

impl DomainCounts {
    pub(super) fn new(key: Option<Arc<str>>) -> Self {
        Self {
            key,
            // No topology has this version: the pods are counted before the first read.
            version: u64::MAX,
            ..Self::default()
        }
    }

    /// Whether the counts match the nodes' current labels.
    pub(super) fn is_fresh(&self, topologies: &Topologies) -> bool {
        self.version == version(self.key.as_ref(), topologies)
    }

    /// Counts all pods again.
    pub(super) fn recount<'a>(
        &mut self,
        groups: impl Iterator<Item = (bool, &'a SlotCounts)>,
        topologies: &Topologies,
    ) {
        self.version = version(self.key.as_ref(), topologies);
        self.all.clear();
        self.staying.clear();
        for (terminating, slots) in groups {
            for (slot, pods) in slots.iter() {
                self.shift(slot, terminating, pods, topologies);
            }
        }
    }

    /// Adds pods to a node, or removes them.
    pub(super) fn shift(
        &mut self,
        slot: Slot,
        terminating: bool,
        pods: i64,
        topologies: &Topologies,
    ) {
        let at = match &self.key {
            None => slot,
            Some(key) => topologies.get(key).map_or(0, |one| one.at(slot) as usize),
        };
        if self.all.len() <= at {
            self.all.resize(at + 1, 0);
            self.staying.resize(at + 1, 0);
        }
        self.all[at] += pods;
        if !terminating {
            self.staying[at] += pods;
        }
    }

    /// All pods by domain; domains beyond the end have none. The first entry is for nodes without
    /// the label.
    pub fn all(&self) -> &[i64] {
        &self.all
    }

    /// The same without pods that are being deleted.
    pub fn staying(&self) -> &[i64] {
        &self.staying
    }
}

fn version(key: Option<&Arc<str>>, topologies: &Topologies) -> u64 {
    key.and_then(|key| topologies.get(key))
        .map_or(0, Topology::version)
}
