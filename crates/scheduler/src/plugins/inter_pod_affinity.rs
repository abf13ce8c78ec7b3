//! Pod affinity and anti-affinity, of the new pod and of placed pods.
//!
//! As upstream, required affinity needs a single pod that all terms match. Preferences count both
//! ways: those of the new pod about placed ones, and those of placed pods about the new one.

use std::{any::Any, collections::HashMap, sync::Arc};

use serde::Deserialize;
use serde_json::Value;

use super::arguments;
use crate::{
    cluster::{
        ABSENT, Cluster, NodeInfo, Slot, Topology,
        counts::{SlotCounts, TermKind},
        domains::DomainCounts,
    },
    framework::{
        BEST, Plugin, Point, PreFilter, Shift, State,
        candidates::Candidates,
        event::{Event, EventKind},
    },
    matching::{LabelSet, Namespaces},
    pod::PodInfo,
    template::Term,
};

/// The plugin's name.
pub(crate) const NAME: &str = "InterPodAffinity";

const AFFINITY_MISMATCH: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY_MISMATCH: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING_ANTI_AFFINITY_MISMATCH: &str =
    "node(s) didn't satisfy existing pods anti-affinity rules";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Arguments {
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
        }
    }
}

/// The plugin.
#[derive(Debug)]
pub(super) struct InterPodAffinity {
    hard_weight: i64,
    ignore_existing: bool,
}

/// Creates the plugin.
pub(super) fn new(value: &Value) -> Result<Arc<dyn Plugin>, String> {
    let arguments: Arguments = arguments(value)?;
    let weight = arguments.hard_pod_affinity_weight;
    if !(0..=100).contains(&weight) {
        return Err(format!(
            "hardPodAffinityWeight must be between 0 and 100, not {weight}"
        ));
    }
    Ok(Arc::new(InterPodAffinity {
        hard_weight: weight,
        ignore_existing: arguments.ignore_preferred_terms_of_existing_pods,
    }))
}

/// Counts by topology key and domain.
#[derive(Debug, Default)]
struct Domains(HashMap<Arc<str>, Vec<i64>>);

impl Domains {
    /// Adds to the node's domain, if it has the label.
    fn add(&mut self, key: &Arc<str>, slot: Slot, amount: i64, cluster: &Cluster) {
        let topology = cluster.topology(key);
        let domain = topology.at(slot);
        if domain == ABSENT {
            return;
        }
        if !self.0.contains_key(key) {
            self.0.insert(key.clone(), vec![0; topology.size()]);
        }
        if let Some(numbers) = self.0.get_mut(key) {
            numbers[domain as usize] += amount;
        }
    }

    /// Adds to the domains of many nodes, in proportion to their pods.
    fn add_all(&mut self, key: &Arc<str>, slots: &SlotCounts, factor: i64, cluster: &Cluster) {
        let topology = cluster.topology(key);
        if !self.0.contains_key(key) {
            self.0.insert(key.clone(), vec![0; topology.size()]);
        }
        if let Some(numbers) = self.0.get_mut(key) {
            for (slot, pods) in slots.iter() {
                numbers[topology.at(slot) as usize] += factor * pods;
            }
            // Nodes without the label are in no domain.
            numbers[ABSENT as usize] = 0;
        }
    }

    /// The same from maintained counts.
    fn add_counted(&mut self, key: &Arc<str>, counts: &DomainCounts, factor: i64, size: usize) {
        let known = self.0.entry(key.clone());
        let numbers = known.or_insert_with(|| vec![0; size]);
        for (number, pods) in numbers.iter_mut().zip(counts.all()) {
            *number += factor * pods;
        }
        // Nodes without the label are in no domain.
        numbers[ABSENT as usize] = 0;
    }

    /// Adds the placed pods that a term matches to their domains.
    fn add_matching(&mut self, term: &Term, factor: i64, cluster: &Cluster) {
        let key = &term.topology_key;
        if let Some(counts) = cluster.counts(&term.matcher, Some(key)) {
            return self.add_counted(key, counts, factor, cluster.topology(key).size());
        }
        let namespaces = cluster.namespaces();
        for (_, slots) in cluster.groups.matching(&term.matcher, namespaces) {
            self.add_all(key, slots, factor, cluster);
        }
    }

    /// Adds placed pods that have a term.
    fn add_holders(
        &mut self,
        key: &Arc<str>,
        (slots, counts): (&SlotCounts, Option<&DomainCounts>),
        factor: i64,
        cluster: &Cluster,
    ) {
        match counts {
            Some(counts) => self.add_counted(key, counts, factor, cluster.topology(key).size()),
            None => self.add_all(key, slots, factor, cluster),
        }
    }

    /// Whether all counts are zero.
    fn is_empty(&self) -> bool {
        self.0.values().flatten().all(|number| *number == 0)
    }
}

/// Whether all terms match this pod; false without terms.
fn all_match(terms: &[Term], pod: &LabelSet, namespaces: &Namespaces) -> bool {
    !terms.is_empty()
        && terms
            .iter()
            .all(|term| term.matcher.matches(pod, namespaces))
}

/// The counts for a pod.
#[derive(Debug, Default)]
struct Counts {
    /// Placed pods that all of the pod's affinity terms match.
    near: Domains,
    /// Placed pods that the pod's anti-affinity terms match.
    far: Domains,
    /// Placed pods whose anti-affinity matches the pod.
    repelling: Domains,
    /// No placed pod matches the affinity terms, but the pod itself does: it may be the first of
    /// its group.
    first: bool,
}

impl State for Counts {
    fn shift(&mut self, change: &Shift<'_>) {
        let Shift {
            pod,
            other,
            cluster,
            slot,
            sign,
        } = *change;
        let (template, namespaces) = (&pod.template, cluster.namespaces());
        if all_match(&template.affinity, &other.label_set, namespaces) {
            for term in &template.affinity {
                self.near.add(&term.topology_key, slot, sign, cluster);
            }
            self.first = begins(pod, &self.near, cluster);
        }
        let matching = |term: &&Term, labels| term.matcher.matches(labels, namespaces);
        let far = template.anti_affinity.iter();
        for term in far.filter(|term| matching(term, &other.label_set)) {
            self.far.add(&term.topology_key, slot, sign, cluster);
        }
        let theirs = other.template.anti_affinity.iter();
        for term in theirs.filter(|term| matching(term, &pod.label_set)) {
            self.repelling.add(&term.topology_key, slot, sign, cluster);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn begins(pod: &PodInfo, near: &Domains, cluster: &Cluster) -> bool {
    near.is_empty() && all_match(&pod.template.affinity, &pod.label_set, cluster.namespaces())
}

/// The terms of placed pods that match the pod.
fn about<'a>(
    pod: &'a PodInfo,
    cluster: &'a Cluster,
) -> impl Iterator<Item = (TermKind, &'a Term, &'a SlotCounts, Option<&'a DomainCounts>)> {
    let (namespaces, topologies) = (cluster.namespaces(), cluster.topologies());
    let holders = &cluster.holders;
    holders.about(&pod.label_set, namespaces, topologies)
}

fn count(pod: &PodInfo, cluster: &Cluster) -> Counts {
    let (template, namespaces) = (&pod.template, cluster.namespaces());
    let mut counts = Counts::default();
    if let [only] = template.affinity.as_slice() {
        counts.near.add_matching(only, 1, cluster);
        counts.first = begins(pod, &counts.near, cluster);
    } else if let Some(first) = template.affinity.first() {
        for (labels, slots) in cluster.groups.matching(&first.matcher, namespaces) {
            if !all_match(&template.affinity, labels, namespaces) {
                continue;
            }
            for term in &template.affinity {
                counts.near.add_all(&term.topology_key, slots, 1, cluster);
            }
        }
        counts.first = begins(pod, &counts.near, cluster);
    }
    for term in &template.anti_affinity {
        counts.far.add_matching(term, 1, cluster);
    }
    for (kind, term, slots, counted) in about(pod, cluster) {
        if kind == TermKind::AntiAffinity {
            let key = &term.topology_key;
            counts
                .repelling
                .add_holders(key, (slots, counted), 1, cluster);
        }
    }
    counts
}

/// Columns and counts of some topology keys, looked up once for many nodes.
struct TopologyColumns<'a>(Vec<(&'a Topology, &'a [i64])>);

impl<'a> TopologyColumns<'a> {
    fn new(domains: &'a Domains, cluster: &'a Cluster) -> Self {
        let all = domains.0.iter();
        let looked = all.map(|(key, numbers)| (cluster.topology(key), numbers.as_slice()));
        Self(looked.collect())
    }

    /// Whether one of the node's domains has a count.
    fn any(&self, slot: Slot) -> bool {
        let mut all = self.0.iter();
        all.any(|(topology, numbers)| numbers[topology.at(slot) as usize] > 0)
    }
}

/// For each affinity term, its column and the matching pods by domain.
fn wanted<'a>(
    counts: &'a Counts,
    pod: &PodInfo,
    cluster: &'a Cluster,
) -> Vec<(&'a Topology, Option<&'a Vec<i64>>)> {
    let terms = pod.template.affinity.iter().map(|term| &term.topology_key);
    terms
        .map(|key| (cluster.topology(key), counts.near.0.get(key)))
        .collect()
}

impl Plugin for InterPodAffinity {
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
        let template = &pod.template;
        let terms = template.affinity.iter().chain(&template.anti_affinity);
        for term in terms.chain(&template.preferences) {
            cluster.prepare_key(&term.topology_key);
            cluster.prepare_matcher(&term.matcher);
            cluster.prepare_counts(&term.matcher, Some(&term.topology_key));
        }
        cluster.prepare_terms_about(pod);
    }

    fn pre_filter(&self, pod: &PodInfo, cluster: &Cluster) -> PreFilter {
        let counts = count(pod, cluster);
        let template = &pod.template;
        let asks = !template.affinity.is_empty() || !template.anti_affinity.is_empty();
        // Trials remove placed pods, of which none repels the pod, and add nominated ones.
        let may_repel = || cluster.nominated.is_any_repelling();
        if !asks && counts.repelling.is_empty() && !may_repel() {
            return PreFilter::Skip;
        }
        PreFilter::Continue(Box::new(counts))
    }

    fn filter(
        &self,
        pod: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        candidates: &mut Candidates,
    ) {
        let Some(counts) = state.downcast_ref::<Counts>() else {
            return;
        };
        let near = wanted(counts, pod, cluster);
        let far = TopologyColumns::new(&counts.far, cluster);
        let repelling = TopologyColumns::new(&counts.repelling, cluster);
        let is_near = |slot: Slot| {
            near.iter().all(|(topology, pods)| {
                let domain = topology.at(slot);
                let found = pods.is_some_and(|pods| pods[domain as usize] > 0);
                domain != ABSENT && (counts.first || found)
            })
        };
        candidates.retain_each(NAME, |slot| {
            if !is_near(slot) {
                return Some((AFFINITY_MISMATCH, false));
            }
            if far.any(slot) {
                return Some((ANTI_AFFINITY_MISMATCH, true));
            }
            repelling
                .any(slot)
                .then_some((EXISTING_ANTI_AFFINITY_MISMATCH, true))
        });
    }

    fn pre_score(&self, pod: &PodInfo, cluster: &Cluster, _: &[Slot]) -> Option<Box<dyn Any>> {
        let preferences = &pod.template.preferences;
        if self.ignore_existing && preferences.is_empty() {
            return None;
        }
        let mut sums = Domains::default();
        for term in preferences {
            sums.add_matching(term, term.weight, cluster);
        }
        for (kind, term, slots, counted) in about(pod, cluster) {
            let weight = match kind {
                TermKind::AntiAffinity => continue,
                TermKind::Affinity => self.hard_weight,
                TermKind::Preference => term.weight,
            };
            if weight != 0 {
                let key = &term.topology_key;
                sums.add_holders(key, (slots, counted), weight, cluster);
            }
        }
        (!sums.0.is_empty()).then(|| Box::new(sums) as Box<dyn Any>)
    }

    fn score(
        &self,
        _: &PodInfo,
        cluster: &Cluster,
        state: &dyn Any,
        nodes: &[Slot],
        scores: &mut [i64],
    ) {
        let Some(Domains(sums)) = state.downcast_ref() else {
            return;
        };
        for (key, numbers) in sums {
            let topology = cluster.topology(key);
            for (slot, score) in nodes.iter().zip(scores.iter_mut()) {
                *score += numbers[topology.at(*slot) as usize];
            }
        }
    }

    fn normalize(&self, _: &dyn Any, scores: &mut [i64]) {
        let least = scores.iter().min().copied().unwrap_or(0);
        let range = scores.iter().max().copied().unwrap_or(0) - least;
        for score in scores {
            *score = if range > 0 {
                (BEST as f64 * ((*score - least) as f64 / range as f64)) as i64
            } else {
                0
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
            EventKind::Namespace,
        ]
    }

    fn hints_by_template(&self) -> bool {
        true
    }

    fn is_helped_by(&self, pod: &PodInfo, event: &Event<'_>, cluster: &Cluster) -> bool {
        let (template, namespaces) = (&pod.template, cluster.namespaces());
        let near = |other: &PodInfo| all_match(&template.affinity, &other.label_set, namespaces);
        let far = |other: &PodInfo| {
            let mut terms = template.anti_affinity.iter();
            terms.any(|term| term.matcher.matches(&other.label_set, namespaces))
        };
        let repels = |other: &PodInfo| {
            let mut terms = other.template.anti_affinity.iter();
            terms.any(|term| term.matcher.matches(&pod.label_set, namespaces))
        };
        // A pod that matches its own terms may become the first of its group when no other is left.
        let leaves = |other: &PodInfo| near(other) && near(pod);
        match event {
            Event::PodAdded(other) => near(other),
            Event::PodDeleted(other, _) => far(other) || repels(other) || leaves(other),
            Event::PodUpdated { old, new } => {
                let leaves = leaves(old) && !near(new);
                leaves || (near(new) && !near(old)) || (far(old) && !far(new))
            }
            Event::OwnUpdate { old, new } => old.label_set.labels != new.label_set.labels,
            Event::NodeAdded(node) => node_helps(pod, None, node),
            Event::NodeUpdated { old, new } => node_helps(pod, Some(old), new),
            // The node's pods are removed with it, before their own deletion is seen.
            Event::NodeDeleted(_) | Event::Namespace => true,
            _ => false,
        }
    }
}

/// Whether a node that was added, or moved to another domain, could help.
fn node_helps(pod: &PodInfo, old: Option<&NodeInfo>, new: &NodeInfo) -> bool {
    let template = &pod.template;
    let label = |node: &NodeInfo, term: &Term| node.labels.get(&*term.topology_key).cloned();
    let Some(old) = old else {
        // A pod with anti-affinity, its own or of others, may fit on any new node.
        let mut near = template.affinity.iter();
        return template.affinity.is_empty() || near.any(|term| label(new, term).is_some());
    };
    let mut terms = template.affinity.iter().chain(&template.anti_affinity);
    terms.any(|term| label(old, term) != label(new, term))
        || (template.affinity.is_empty() && old.labels != new.labels)
}

#[cfg(test)]
#[path = "inter_pod_affinity_tests.rs"]
mod tests;
