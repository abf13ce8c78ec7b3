//! Counts of placed pods by node, updated as pods are added and removed: by their labels, so that
//! selectors count groups instead of pods; and by their affinity terms, so that the terms that
//! match a new pod are found without checking every placed pod.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Slot,
    domains::{DomainCounts, MANY, Topologies},
};
use crate::{
    matching::{LabelSet, Matcher, Namespaces, SelectorIndex},
    template::{Template, Term},
};

/// The maximum number of cached matchers; above it the cache is cleared.
const REMEMBERED_MATCHERS: usize = 8192;

/// The maximum number of pairs of matcher and topology key that are counted by domain; above it all
/// are dropped.
const COUNTED: usize = 128;

/// Nodes with their number of pods, ordered by slot.
#[derive(Debug, Default, Clone)]
pub struct SlotCounts(Vec<(u32, u32)>);

impl SlotCounts {
    fn add(&mut self, slot: Slot) {
        let slot = slot as u32;
        match self.0.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (slot, 1)),
        }
    }

    fn remove(&mut self, slot: Slot) {
        if let Ok(at) = self
            .0
            .binary_search_by_key(&(slot as u32), |(slot, _)| *slot)
        {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// Each node and its number of pods.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, i64)> {
        self.0
            .iter()
            .map(|(slot, count)| (*slot as usize, i64::from(*count)))
    }
}

#[derive(Debug)]
struct Group {
    labels: Arc<LabelSet>,
    slots: SlotCounts,
    /// The counts that its pods are part of.
    counted: Vec<u32>,
}

/// Placed pods by namespace and labels.
#[derive(Debug, Default)]
pub struct Groups {
    groups: Vec<Option<Group>>,
    free: Vec<u32>,
    known: HashMap<Arc<LabelSet>, u32>,
    by_namespace: HashMap<Arc<str>, BTreeSet<u32>>,
    matched: HashMap<Arc<Matcher>, Vec<u32>>,
    matchers: SelectorIndex<Arc<Matcher>>,
    counts: Vec<(Arc<Matcher>, DomainCounts)>,
    known_counts: HashMap<(Arc<Matcher>, Option<Arc<str>>), u32>,
}

impl Groups {
    /// Adds a pod on a node.
    pub fn add(
        &mut self,
        labels: &Arc<LabelSet>,
        slot: Slot,
        namespaces: &Namespaces,
        topologies: &Topologies,
    ) {
        let id = match self.known.get(labels) {
            Some(id) => *id,
            None => self.make(labels, namespaces),
        };
        if let Some(group) = &mut self.groups[id as usize] {
            group.slots.add(slot);
            for at in &group.counted {
                let (_, counts) = &mut self.counts[*at as usize];
                counts.shift(slot, labels.terminating, 1, topologies);
            }
        }
    }

    fn make(&mut self, labels: &Arc<LabelSet>, namespaces: &Namespaces) -> u32 {
        let group = Group {
            labels: labels.clone(),
            slots: SlotCounts::default(),
            counted: Vec::new(),
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.groups.push(None);
            (self.groups.len() - 1) as u32
        });
        self.groups[id as usize] = Some(group);
        self.known.insert(labels.clone(), id);
        let namespace = self.by_namespace.entry(labels.namespace.clone());
        namespace.or_default().insert(id);
        for matcher in self.matchers.candidates(&labels.labels) {
            if matcher.matches(labels, namespaces)
                && let Some(ids) = self.matched.get_mut(matcher)
            {
                ids.push(id);
                let counts = self.counts.iter().enumerate();
                let own = counts.filter(|(_, (counted, _))| counted == matcher);
                let own = own.map(|(at, _)| at as u32);
                if let Some(group) = &mut self.groups[id as usize] {
                    group.counted.extend(own);
                }
            }
        }
        id
    }

    /// Removes a pod.
    pub fn remove(&mut self, labels: &Arc<LabelSet>, slot: Slot, topologies: &Topologies) {
        let Some(id) = self.known.get(labels).copied() else {
            return;
        };
        let Some(group) = &mut self.groups[id as usize] else {
            return;
        };
        group.slots.remove(slot);
        for at in &group.counted {
            let (_, counts) = &mut self.counts[*at as usize];
            counts.shift(slot, labels.terminating, -1, topologies);
        }
        if !group.slots.0.is_empty() {
            return;
        }
        self.groups[id as usize] = None;
        self.known.remove(labels);
        self.free.push(id);
        if let Some(ids) = self.by_namespace.get_mut(&labels.namespace) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_namespace.remove(&labels.namespace);
            }
        }
        for matcher in self.matchers.candidates(&labels.labels) {
            if let Some(ids) = self.matched.get_mut(matcher) {
                ids.retain(|other| *other != id);
            }
        }
    }

    /// Caches which groups a matcher selects.
    pub fn prepare(&mut self, matcher: &Arc<Matcher>, namespaces: &Namespaces) {
        if self.matched.contains_key(matcher) {
            return;
        }
        if self.matched.len() >= REMEMBERED_MATCHERS {
            self.forget_matchers();
        }
        let found = self.find(matcher, namespaces);
        self.matchers.insert(&matcher.selector, matcher.clone());
        self.matched.insert(matcher.clone(), found);
    }

    /// Labels of namespaces changed: clears the cached matchers.
    pub fn forget_matchers(&mut self) {
        self.forget_counts();
        self.matched.clear();
        self.matchers = SelectorIndex::default();
    }

    fn forget_counts(&mut self) {
        self.counts.clear();
        self.known_counts.clear();
        for group in self.groups.iter_mut().flatten() {
            group.counted.clear();
        }
    }

    /// Maintains counts of a matcher's pods by the domains of a key, or by node without one. Not
    /// for pods on few nodes, which [`Groups::matching`] finds fast enough.
    pub fn prepare_counts(
        &mut self,
        matcher: &Arc<Matcher>,
        key: Option<&Arc<str>>,
        topologies: &Topologies,
    ) {
        let Some(ids) = self.matched.get(matcher) else {
            return;
        };
        let pair = (matcher.clone(), key.cloned());
        let at = match self.known_counts.get(&pair) {
            Some(at) => *at,
            None => {
                let groups = ids
                    .iter()
                    .filter_map(|id| self.groups[*id as usize].as_ref());
                let nodes: usize = groups.map(|group| group.slots.len()).sum();
                if nodes < MANY {
                    return;
                }
                if self.counts.len() >= COUNTED {
                    self.forget_counts();
                }
                self.count_anew(pair)
            }
        };
        let (_, counts) = &mut self.counts[at as usize];
        if !counts.is_fresh(topologies) {
            let ids = self.matched.get(matcher).into_iter().flatten();
            let groups = ids.filter_map(|id| self.groups[*id as usize].as_ref());
            let slots = groups.map(|group| (group.labels.terminating, &group.slots));
            counts.recount(slots, topologies);
        }
    }

    fn count_anew(&mut self, pair: (Arc<Matcher>, Option<Arc<str>>)) -> u32 {
        let at = self.counts.len() as u32;
        let (matcher, key) = pair.clone();
        for id in self.matched.get(&matcher).into_iter().flatten() {
            if let Some(group) = &mut self.groups[*id as usize] {
                group.counted.push(at);
            }
        }
        self.counts.push((matcher, DomainCounts::new(key)));
        self.known_counts.insert(pair, at);
        at
    }

    /// The counts that [`Groups::prepare_counts`] maintains, if they match the nodes' current
    /// labels.
    pub fn counts(
        &self,
        matcher: &Arc<Matcher>,
        key: Option<&Arc<str>>,
        topologies: &Topologies,
    ) -> Option<&DomainCounts> {
        let at = self.known_counts.get(&(matcher.clone(), key.cloned()))?;
        let (_, counts) = &self.counts[*at as usize];
        counts.is_fresh(topologies).then_some(counts)
    }

    fn find(&self, matcher: &Matcher, namespaces: &Namespaces) -> Vec<u32> {
        let covered = self
            .by_namespace
            .iter()
            .filter(|(namespace, _)| matcher.covers(namespace, namespaces));
        let ids = covered.flat_map(|(_, ids)| ids).copied();
        let selected = |id: &u32| {
            let group = self.groups[*id as usize].as_ref();
            group.is_some_and(|group| matcher.selector.matches(Some(&group.labels.labels)))
        };
        ids.filter(selected).collect()
    }

    /// The groups that a matcher selects, with the nodes of their pods.
    pub fn matching(
        &self,
        matcher: &Matcher,
        namespaces: &Namespaces,
    ) -> impl Iterator<Item = (&Arc<LabelSet>, &SlotCounts)> {
        let found = match self.matched.get(matcher) {
            Some(ids) => std::borrow::Cow::Borrowed(ids.as_slice()),
            None => std::borrow::Cow::Owned(self.find(matcher, namespaces)),
        };
        (0..found.len()).filter_map(move |at| {
            let group = self.groups[found[at] as usize].as_ref()?;
            Some((&group.labels, &group.slots))
        })
    }
}

/// The effect of a placed pod's term on other pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermKind {
    /// Required affinity: adds to the score of matching pods.
    Affinity,
    /// Required anti-affinity: excludes matching pods.
    AntiAffinity,
    /// A preference for or against, by its weight.
    Preference,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TermAt {
    holder: u32,
    kind: TermKind,
    index: u32,
}

#[derive(Debug)]
struct Holder {
    template: Arc<Template>,
    slots: SlotCounts,
    /// By the topology keys of its terms, if it has pods on many nodes.
    counts: HashMap<Arc<str>, DomainCounts>,
}

impl Holder {
    fn term(&self, at: TermAt) -> Option<&Term> {
        let terms = match at.kind {
            TermKind::Affinity => &self.template.affinity,
            TermKind::AntiAffinity => &self.template.anti_affinity,
            TermKind::Preference => &self.template.preferences,
        };
        terms.get(at.index as usize)
    }
}

/// The affinity terms of placed pods.
#[derive(Debug, Default)]
pub struct Holders {
    holders: Vec<Option<Holder>>,
    free: Vec<u32>,
    known: HashMap<Arc<Template>, u32>,
    terms: SelectorIndex<TermAt>,
}

fn all_terms(template: &Template) -> impl Iterator<Item = (TermKind, u32, &Term)> {
    let numbered = |kind, terms: &'_ [Term]| {
        (0..terms.len())
            .map(move |index| (kind, index as u32))
            .collect::<Vec<_>>()
    };
    let affinity = numbered(TermKind::Affinity, &template.affinity).into_iter();
    let affinity = affinity.zip(&template.affinity);
    let anti = numbered(TermKind::AntiAffinity, &template.anti_affinity).into_iter();
    let anti = anti.zip(&template.anti_affinity);
    let preferences = numbered(TermKind::Preference, &template.preferences).into_iter();
    let preferences = preferences.zip(&template.preferences);
    let all = affinity.chain(anti).chain(preferences);
    all.map(|((kind, index), term)| (kind, index, term))
}

impl Holders {
    /// Adds a pod's terms on its node.
    pub fn add(&mut self, template: &Arc<Template>, slot: Slot, topologies: &Topologies) {
        if !template.has_terms() {
            return;
        }
        let id = match self.known.get(template) {
            Some(id) => *id,
            None => self.make(template),
        };
        if let Some(holder) = &mut self.holders[id as usize] {
            holder.slots.add(slot);
            for counts in holder.counts.values_mut() {
                counts.shift(slot, false, 1, topologies);
            }
        }
    }

    /// Maintains counts by domain of the pods whose terms match a pod, if they are on many nodes.
    pub fn prepare_counts(
        &mut self,
        pod: &LabelSet,
        namespaces: &Namespaces,
        topologies: &Topologies,
    ) {
        for at in self.terms.candidates(&pod.labels) {
            let Some(holder) = &mut self.holders[at.holder as usize] else {
                continue;
            };
            if holder.slots.len() < MANY {
                continue;
            }
            let Some(term) = holder.term(*at) else {
                continue;
            };
            let key = term.topology_key.clone();
            if !term.matcher.matches(pod, namespaces) {
                continue;
            }
            let counts = holder.counts.entry(key);
            let counts = counts.or_insert_with_key(|key| DomainCounts::new(Some(key.clone())));
            if !counts.is_fresh(topologies) {
                counts.recount([(false, &holder.slots)].into_iter(), topologies);
            }
        }
    }

    fn make(&mut self, template: &Arc<Template>) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.holders.push(None);
            (self.holders.len() - 1) as u32
        });
        self.holders[id as usize] = Some(Holder {
            template: template.clone(),
            slots: SlotCounts::default(),
            counts: HashMap::new(),
        });
        self.known.insert(template.clone(), id);
        for (kind, index, term) in all_terms(template) {
            let at = TermAt {
                holder: id,
                kind,
                index,
            };
            self.terms.insert(&term.matcher.selector, at);
        }
        id
    }

    /// Removes a pod's terms.
    pub fn remove(&mut self, template: &Arc<Template>, slot: Slot, topologies: &Topologies) {
        let Some(id) = self.known.get(template).copied() else {
            return;
        };
        let Some(holder) = &mut self.holders[id as usize] else {
            return;
        };
        holder.slots.remove(slot);
        for counts in holder.counts.values_mut() {
            counts.shift(slot, false, -1, topologies);
        }
        if !holder.slots.0.is_empty() {
            return;
        }
        self.holders[id as usize] = None;
        self.known.remove(template);
        self.free.push(id);
        for (kind, index, term) in all_terms(template) {
            let at = TermAt {
                holder: id,
                kind,
                index,
            };
            self.terms.remove(&term.matcher.selector, &at);
        }
    }

    /// The terms of placed pods that match a pod, with the nodes of their pods, and their counts by
    /// domain if maintained.
    pub fn about<'a>(
        &'a self,
        pod: &'a LabelSet,
        namespaces: &'a Namespaces,
        topologies: &'a Topologies,
    ) -> impl Iterator<Item = (TermKind, &'a Term, &'a SlotCounts, Option<&'a DomainCounts>)> {
        self.terms.candidates(&pod.labels).filter_map(|at| {
            let holder = self.holders[at.holder as usize].as_ref()?;
            let term = holder.term(*at)?;
            let matches = term.matcher.matches(pod, namespaces);
            let counts = holder.counts.get(&term.topology_key);
            let counts = counts.filter(|counts| counts.is_fresh(topologies));
            matches.then_some((at.kind, term, &holder.slots, counts))
        })
    }
}
