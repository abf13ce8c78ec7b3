//! The nodes that are still possible for a pod, and why the others are not: by node and plugin.

use std::{borrow::Cow, collections::BTreeMap};

use crate::cluster::{Cluster, Slot};

/// Why a node was turned down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The node.
    pub slot: Slot,
    /// The rule.
    pub plugin: &'static str,
    /// In Kubernetes' words; several when several resources are missing.
    pub reasons: Vec<Cow<'static, str>>,
    /// Whether removing pods from the node could help.
    pub resolvable: bool,
}

/// What is left, and what was turned down.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    left: Vec<Slot>,
    rejected: Vec<Rejection>,
}

impl Candidates {
    /// All nodes of a cluster.
    pub fn all(cluster: &Cluster) -> Self {
        Self {
            left: cluster.existing(),
            rejected: Vec::new(),
        }
    }

    /// Only these.
    pub fn only(slots: Vec<Slot>) -> Self {
        Self {
            left: slots,
            rejected: Vec::new(),
        }
    }

    /// Those that are left.
    pub fn slots(&self) -> &[Slot] {
        &self.left
    }

    /// Those that were turned down.
    pub fn rejected(&self) -> &[Rejection] {
        &self.rejected
    }

    /// Keeps the nodes for which `judge` has no objection.
    pub fn retain(
        &mut self,
        plugin: &'static str,
        resolvable: bool,
        judge: impl Fn(Slot) -> Option<&'static str>,
    ) {
        self.retain_with(plugin, |slot| {
            judge(slot).map(|reason| (vec![Cow::Borrowed(reason)], resolvable))
        });
    }

    /// The same with several reasons and a word for each node on whether removing pods could help.
    pub fn retain_with(
        &mut self,
        plugin: &'static str,
        judge: impl Fn(Slot) -> Option<(Vec<Cow<'static, str>>, bool)>,
    ) {
        let rejected = &mut self.rejected;
        self.left.retain(|slot| match judge(*slot) {
            None => true,
            Some((reasons, resolvable)) => {
                rejected.push(Rejection {
                    slot: *slot,
                    plugin,
                    reasons,
                    resolvable,
                });
                false
            }
        });
    }

    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    pub fn message(&self, total: usize) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in self
            .rejected
            .iter()
            .flat_map(|rejection| &rejection.reasons)
        {
            *counts.entry(reason).or_default() += 1;
        }
        histogram(total, counts)
    }
}

/// Counts of reasons in one sentence.
pub fn histogram(total: usize, counts: BTreeMap<&str, usize>) -> String {
    let mut parts: Vec<String> = counts
        .into_iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    parts.sort();
    format!("0/{total} nodes are available: {}.", parts.join(", "))
}
