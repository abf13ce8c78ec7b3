//! Spreads pods over zones, nodes or other topology domains, within a maximum skew. Pods without
//! constraints are spread with the others of their Services and controller, as a preference.
//!
//! Domains are counted over the nodes that the pod could be on (by its node affinity, and by its
//! tolerations if the constraint says so).

use std::{any::Any, borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use reconcile::placement::untolerated;
use serde::Deserialize;
use serde_json::Value;

use super::{arguments, taint_toleration::HARD};
use crate::{
    cluster::{ABSENT, Cluster, NodeInfo, Slot, Topology},
    framework::{
        BEST, Plugin, Point, PreFilter, Shift, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    matching::{Labels, Matcher},
    pod::PodInfo,
    template::Spread,
};

/// The plugin's name.
pub(crate) const NAME: &str = "PodTopologySpread";

const SKEWED: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    default_constraints: Vec<TopologySpreadConstraint>,
    defaulting_type: Option<String>,
}

/// The plugin.
#[derive(Debug)]
pub(super) struct PodTopologySpread {
    /// For pods without constraints; the selector is derived from the pod.
    defaults: Vec<TopologySpreadConstraint>,
    /// Whether the defaults are upstream's own: nodes without a zone are then still spread by host
    /// name.
    system: bool,
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let arguments: Arguments = arguments(value)?;
    let given = arguments.default_constraints;
    let (defaults, system) = match arguments.defaulting_type.as_deref() {
        None | Some("System") if given.is_empty() => (system_defaults(), true),
        None | Some("System") => {
            return Err("defaultConstraints need defaultingType List".into());
        }
        Some("List")
            if given
                .iter()
                .any(|constraint| constraint.label_selector.is_some()) =>
        {
            return Err("defaultConstraints must not have a labelSelector".into());
        }
        Some("List") => (given, false),
        Some(other) => return Err(format!("unknown defaultingType {other:?}")),
    };
    Ok(Arc::new(PodTopologySpread { defaults, system }))
}

fn system_defaults() -> Vec<TopologySpreadConstraint> {
    let soft = |key: &str, skew| TopologySpreadConstraint {
        max_skew: skew,
        topology_key: key.into(),
        when_unsatisfiable: "ScheduleAnyway".into(),
        ..Default::default()
    };
    vec![soft(HOSTNAME, 3), soft(ZONE, 5)]
}

impl PodTopologySpread {
    /// The pod's constraints, or the defaults.
    fn constraints<'a>(
        &self,
        pod: &'a PodInfo,
        cluster: &Cluster,
        hard: bool,
    ) -> Vec<Cow<'a, Spread>> {
        if !pod.template.spread.is_empty() {
            let own = pod.template.spread.iter();
            return own
                .filter(|spread| spread.hard == hard)
                .map(Cow::Borrowed)
                .collect();
        }
        let wish = if hard {
            "DoNotSchedule"
        } else {
            "ScheduleAnyway"
        };
        let defaults = self.defaults.iter();
        let mut defaults = defaults
            .filter(|one| one.when_unsatisfiable == wish)
            .peekable();
        if defaults.peek().is_none() {
            return Vec::new();
        }
        let Some(selector) = cluster.workloads.selector_for(pod) else {
            return Vec::new();
        };
        let matcher = Arc::new(Matcher::within(pod.namespace(), selector));
        let made = |constraint: &TopologySpreadConstraint| {
            let mut spread = Spread::new(constraint, pod.namespace(), &Labels::new());
            spread.matcher = matcher.clone();
            Cow::Owned(spread)
        };
        defaults.map(made).collect()
    }
}

/// Whether the node counts for a constraint.
fn is_eligible(pod: &PodInfo, spread: &Spread, cluster: &Cluster, slot: Slot) -> bool {
    if spread.honor_affinity && !cluster.meets(&pod.template.node, slot) {
        return false;
    }
    !spread.honor_taints
        || cluster.node(slot).is_some_and(|node| {
            untolerated(&node.taints, &pod.template.tolerations, &HARD).is_none()
        })
}

/// Which nodes count for a constraint, with everything looked up that is the same for all nodes.
struct Eligible<'a> {
    /// The topology keys that a node must have.
    keys: Vec<&'a Topology>,
    /// The nodes that the pod's node affinity allows, if that matters.
    affinity: Option<&'a [bool]>,
    pod: &'a PodInfo,
    spread: &'a Spread,
    cluster: &'a Cluster,
}

impl<'a> Eligible<'a> {
    fn new(
        pod: &'a PodInfo,
        spread: &'a Spread,
        keys: Vec<&'a Topology>,
        cluster: &'a Cluster,
    ) -> Self {
        let mask = cluster.requirement_mask(&pod.template.node);
        Self {
            keys,
            affinity: mask.filter(|_| spread.honor_affinity),
            pod,
            spread,
            cluster,
        }
    }

    /// Whether every node counts, so that maintained counts can be used.
    fn has_all_nodes(&self) -> bool {
        let any_node = !self.spread.honor_affinity || self.pod.template.node.is_empty();
        let all = self.cluster.size();
        let mut keys = self.keys.iter();
        any_node && !self.spread.honor_taints && keys.all(|topology| topology.labelled() == all)
    }

    fn has(&self, slot: Slot) -> bool {
        if !has_all(&self.keys, slot) {
            return false;
        }
        match self.affinity {
            Some(mask) if !self.spread.honor_taints => mask.get(slot).copied().unwrap_or(false),
            _ => is_eligible(self.pod, self.spread, self.cluster, slot),
        }
    }
}

/// The columns of the constraints' topology keys.
fn topologies<'a>(constraints: &[Cow<'_, Spread>], cluster: &'a Cluster) -> Vec<&'a Topology> {
    let keys = constraints.iter().map(|spread| &*spread.topology_key);
    keys.map(|key| cluster.topology(key)).collect()
}

fn has_all(keys: &[&Topology], slot: Slot) -> bool {
    keys.iter().all(|topology| topology.at(slot) != ABSENT)
}

/// Calls `count` for each node with pods that match the constraint.
fn matching(spread: &Spread, cluster: &Cluster, mut count: impl FnMut(Slot, i64)) {
    // As upstream: a selector that matches everything counts nothing.
    if spread.matcher.selector.is_everything() {
        return;
    }
    let groups = cluster
        .groups
        .matching(&spread.matcher, cluster.namespaces());
    for (labels, slots) in groups {
        if !labels.terminating {
            slots.iter().for_each(|(slot, pods)| count(slot, pods));
        }
    }
}

/// The pods that match the constraint by domain, over all nodes. The first entry is for nodes
/// without the label.
fn domains_of(spread: &Spread, cluster: &Cluster) -> Vec<i64> {
    let topology = cluster.topology(&spread.topology_key);
    let mut domains = vec![0; topology.size()];
    if spread.matcher.selector.is_everything() {
        return domains;
    }
    match cluster.counts(&spread.matcher, Some(&spread.topology_key)) {
        Some(counts) => {
            for (domain, pods) in domains.iter_mut().zip(counts.staying()) {
                *domain = *pods;
            }
        }
        None => matching(spread, cluster, |slot, pods| {
            domains[topology.at(slot) as usize] += pods;
        }),
    }
    domains
}

/// The pods that match the constraint on each of these nodes.
fn pods_on(spread: &Spread, cluster: &Cluster, nodes: &[Slot]) -> Vec<i64> {
    if spread.matcher.selector.is_everything() {
        return vec![0; nodes.len()];
    }
    if let Some(counts) = cluster.counts(&spread.matcher, None) {
        let pods = counts.staying();
        let at = |slot: &Slot| pods.get(*slot).copied().unwrap_or(0);
        return nodes.iter().map(at).collect();
    }
    let mut pods = vec![0; cluster.names.len()];
    matching(spread, cluster, |slot, count| pods[slot] += count);
    nodes.iter().map(|slot| pods[*slot]).collect()
}

/// A DoNotSchedule constraint with the pods of each domain.
struct Counted {
    spread: Spread,
    /// Pods by domain; `None` for domains without eligible nodes.
    domains: Vec<Option<i64>>,
    own: i64,
}

impl Counted {
    /// The pods of the emptiest domain. Domains missing to minDomains count as empty.
    fn lowest(&self) -> i64 {
        let (mut count, mut lowest) = (0, i64::from(i32::MAX));
        for pods in self.domains.iter().flatten() {
            count += 1;
            lowest = lowest.min(*pods);
        }
        if count < self.spread.min_domains {
            0
        } else {
            lowest
        }
    }
}

struct Hard(Vec<Counted>);

impl State for Hard {
    fn shift(&mut self, change: &Shift<'_>) {
        let Shift {
            pod,
            other,
            cluster,
            slot,
            sign,
        } = *change;
        let keys = self.0.iter().map(|counted| &counted.spread.topology_key);
        let complete = |key: &Arc<str>| cluster.topology(key).at(slot) != ABSENT;
        if other.namespace() != pod.namespace() || !keys.into_iter().all(complete) {
            return;
        }
        for counted in &mut self.0 {
            let spread = &counted.spread;
            let selected = spread
                .matcher
                .selector
                .matches(Some(&other.label_set.labels));
            if selected && is_eligible(pod, spread, cluster, slot) {
                let domain = cluster.topology(&spread.topology_key).at(slot) as usize;
                *counted.domains[domain].get_or_insert(0) += sign;
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn count(pod: &PodInfo, all: &[Cow<'_, Spread>], at: usize, cluster: &Cluster) -> Counted {
    let spread = &all[at];
    let topology = cluster.topology(&spread.topology_key);
    let mut domains: Vec<Option<i64>> = vec![None; topology.size()];
    let eligible = Eligible::new(pod, spread, topologies(all, cluster), cluster);
    if eligible.has_all_nodes() {
        for (domain, pods) in domains.iter_mut().enumerate().skip(1) {
            *pods = (topology.nodes(domain) > 0).then_some(0);
        }
        let counted = domains_of(spread, cluster);
        for (domain, pods) in domains.iter_mut().zip(&counted).skip(1) {
            *domain = domain.map(|known| known + pods);
        }
    } else {
        for slot in cluster.visits() {
            let domain = topology.at(*slot) as usize;
            if domains[domain].is_none() && eligible.has(*slot) {
                domains[domain] = Some(0);
            }
        }
        matching(spread, cluster, |slot, pods| {
            if eligible.has(slot) {
                *domains[topology.at(slot) as usize].get_or_insert(0) += pods;
            }
        });
    }
    Counted {
        own: i64::from(spread.matcher.selector.matches(Some(&pod.label_set.labels))),
        spread: spread.clone().into_owned(),
        domains,
    }
}

/// A ScheduleAnyway constraint over the nodes that are scored.
struct Soft {
    topology_key: Arc<str>,
    max_skew: i64,
    weight: f64,
    /// By domain; for the host name in the order of the scored nodes.
    pods: Vec<i64>,
    by_node: bool,
}

struct SoftState {
    constraints: Vec<Soft>,
    /// Which of the scored nodes lack a label.
    ignored: Vec<bool>,
}

impl PodTopologySpread {
    fn soften(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        nodes: &[Slot],
        constraints: &[Cow<'_, Spread>],
    ) -> SoftState {
        let needs_all = !pod.template.spread.is_empty() || !self.system;
        let keys = if needs_all {
            topologies(constraints, cluster)
        } else {
            Vec::new()
        };
        let lacks = |slot: &Slot| !has_all(&keys, *slot);
        let ignored: Vec<bool> = nodes.iter().map(lacks).collect();
        let compared = || nodes.iter().zip(&ignored).filter(|(_, ignored)| !**ignored);
        let soft = |spread: &Cow<'_, Spread>| {
            let topology = cluster.topology(&spread.topology_key);
            let by_node = &*spread.topology_key == HOSTNAME;
            let (domains, pods) = if by_node {
                (compared().count(), pods_on(spread, cluster, nodes))
            } else {
                let mut seen = vec![false; topology.size()];
                compared().for_each(|(slot, _)| seen[topology.at(*slot) as usize] = true);
                let eligible = Eligible::new(pod, spread, keys.clone(), cluster);
                let pods = if eligible.has_all_nodes() {
                    domains_of(spread, cluster)
                } else {
                    let mut pods = vec![0; topology.size()];
                    matching(spread, cluster, |slot, count| {
                        if cluster.node(slot).is_some() && eligible.has(slot) {
                            pods[topology.at(slot) as usize] += count;
                        }
                    });
                    pods
                };
                (seen.iter().filter(|seen| **seen).count(), pods)
            };
            Soft {
                topology_key: spread.topology_key.clone(),
                max_skew: spread.max_skew,
                weight: (domains as f64 + 2.0).ln(),
                pods,
                by_node,
            }
        };
        let constraints = constraints.iter().map(soft).collect();
        SoftState {
            constraints,
            ignored,
        }
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[
            Point::PreFilter,
            Point::Filter,
            Point::PreScore,
            Point::Score,
        ]
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) {
        let mut spreads = false;
        for hard in [true, false] {
            let constraints = self.constraints(pod, cluster, hard);
            spreads |= !constraints.is_empty();
            for spread in constraints {
                cluster.prepare_key(&spread.topology_key);
                cluster.prepare_matcher(&spread.matcher);
                let by_node = !hard && &*spread.topology_key == HOSTNAME;
                let key = (!by_node).then_some(&spread.topology_key);
                cluster.prepare_counts(&spread.matcher, key);
            }
        }
        if spreads {
            cluster.prepare_requirements(&pod.template.node);
        }
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        let hard = self.constraints(pod, cluster, true);
        if hard.is_empty() {
            return PreFilter::Skip;
        }
        let counted = (0..hard.len()).map(|at| count(pod, &hard, at, cluster));
        PreFilter::Continue(Box::new(Hard(counted.collect())))
    }

    fn filter(&self, _: &PodInfo, cluster: &Cluster, state: &dyn Any, candidates: &mut Candidates) {
        let Some(Hard(constraints)) = state.downcast_ref() else {
            return;
        };
        for counted in constraints {
            let topology = cluster.topology(&counted.spread.topology_key);
            let most = counted.lowest() + counted.spread.max_skew - counted.own;
            candidates.retain_each(NAME, |slot| {
                let domain = topology.at(slot);
                if domain == ABSENT {
                    return Some((NO_LABEL, false));
                }
                let pods = counted.domains[domain as usize].unwrap_or(0);
                (pods > most).then_some((SKEWED, true))
            });
        }
    }

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, nodes: &[Slot]) -> Option<Box<dyn Any>> {
        let soft = self.constraints(pod, cluster, false);
        if soft.is_empty() {
            return None;
        }
        Some(Box::new(self.soften(pod, cluster, nodes, &soft)))
    }

    fn score(
        &self,
        _: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let Some(state) = state.downcast_ref::<SoftState>() else {
            return;
        };
        let mut crowd = vec![0.0_f64; nodes.len()];
        for soft in &state.constraints {
            let topology = cluster.topology(&soft.topology_key);
            for (position, (sum, slot)) in crowd.iter_mut().zip(nodes).enumerate() {
                let domain = topology.at(*slot);
                if domain != ABSENT {
                    let at = if soft.by_node {
                        position
                    } else {
                        domain as usize
                    };
                    *sum += soft.pods[at] as f64 * soft.weight + (soft.max_skew - 1) as f64;
                }
            }
        }
        for ((score, sum), ignored) in scores.iter_mut().zip(crowd).zip(&state.ignored) {
            *score = if *ignored { 0 } else { sum.round() as i64 };
        }
    }

    fn normalize(&self, state: &dyn Any, scores: &mut [i64]) {
        let Some(state) = state.downcast_ref::<SoftState>() else {
            return;
        };
        let (mut least, mut most) = (i64::MAX, 0);
        for (score, ignored) in scores.iter().zip(&state.ignored) {
            if !ignored {
                least = least.min(*score);
                most = most.max(*score);
            }
        }
        for (score, ignored) in scores.iter_mut().zip(&state.ignored) {
            *score = match (ignored, most) {
                (true, _) => 0,
                (_, 0) => BEST,
                _ => BEST * (most + least - *score) / most,
            };
        }
    }

    fn events(&self) -> &'static [EventKind] {
        &[
            EventKind::PodAdded,
            EventKind::PodUpdated,
            EventKind::PodDeleted,
            EventKind::NodeAdded,
            EventKind::NodeUpdated,
            EventKind::NodeDeleted,
            EventKind::OwnUpdate,
        ]
    }

    fn hints_by_template(&self) -> bool {
        true
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, cluster: &Cluster) -> bool {
        let hard = self.constraints(pod, cluster, true);
        let selects = |other: &PodInfo, spread: &Cow<'_, Spread>| {
            spread
                .matcher
                .matches(&other.label_set, cluster.namespaces())
        };
        let involved = |other: &PodInfo| hard.iter().any(|spread| selects(other, spread));
        let has_keys = |node: &NodeInfo| {
            let mut keys = hard.iter().map(|spread| &spread.topology_key);
            keys.all(|key| node.labels.contains_key(&**key))
        };
        match event {
            Event::PodAdded(other) | Event::PodDeleted(other, _) => involved(other),
            Event::PodUpdated { old, new } => {
                // A pod that begins to terminate no longer counts.
                let terminates = old.is_terminating() != new.is_terminating();
                let changes = |spread| selects(old, spread) != selects(new, spread);
                hard.iter().any(changes) || (terminates && involved(new))
            }
            Event::NodeAdded(node) | Event::NodeDeleted(node) => has_keys(node),
            Event::NodeUpdated { old, new } => {
                let moved = |spread: &Cow<'_, Spread>| {
                    let key = &*spread.topology_key;
                    old.labels.get(key) != new.labels.get(key)
                };
                has_keys(old) != has_keys(new)
                    || has_keys(new) && (hard.iter().any(moved) || old.taints != new.taints)
            }
            Event::OwnUpdate { old, new } => {
                old.label_set.labels != new.label_set.labels
                    || old.template.tolerations != new.template.tolerations
                    || old.template.spread != new.template.spread
            }
            _ => false,
        }
    }
}

#[cfg(test)]
#[path = "pod_topology_spread_tests.rs"]
mod tests;
