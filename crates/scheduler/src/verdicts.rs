//! Caches results of filters and scores for pods of one template until the node changes.
//!
//! Only plugins take part whose results for a node depend only on the template and that node
//! ([`Plugin::is_local`]): the node's generation tells whether they are still valid. A thousand
//! replicas cost the work of one, and a placed pod invalidates only its node.
//!
//! [`Plugin::is_local`]: crate::framework::Plugin::is_local

use std::{collections::HashMap, sync::Arc};

use crate::{
    cluster::{Cluster, Slot},
    cycle::Cycle,
    framework::{Point, candidates::Candidates},
    template::Template,
};

/// The maximum number of cached templates; above it the cache is cleared.
const MAX_CACHED_TEMPLATES: usize = 64;

/// The results for one node.
#[derive(Debug, Clone, Copy, Default)]
struct Verdict {
    /// The node's generation then; 0 if it was never evaluated.
    generation: u32,
    fits: bool,
    /// Weighted scores of plugins that do not normalize.
    sum: i64,
}

/// The results for one template in one profile.
#[derive(Debug)]
struct Remembered {
    /// Held, so that its address is not reused.
    _template: Arc<Template>,
    epoch: u64,
    verdicts: Vec<Verdict>,
    /// For each Score plugin of the profile that normalizes: raw scores by slot.
    raw: Vec<Option<Vec<i64>>>,
}

/// The cache.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// By the template's address and the profile's number.
    known: HashMap<(usize, u64), Remembered>,
}

impl Verdicts {
    /// The template and the profile of a cycle.
    pub(crate) fn key(cycle: &Cycle<'_>) -> (usize, u64) {
        let template = Arc::as_ptr(&cycle.pod.template) as usize;
        (template, cycle.profile.number())
    }

    /// The nodes that pass the local filters. Evaluates the nodes that changed since the last time.
    pub(crate) fn passing(
        &mut self,
        cycle: &Cycle<'_>,
        cluster: &Cluster,
        nodes: &[Slot],
    ) -> Vec<Slot> {
        let key = Self::key(cycle);
        if self.known.len() >= MAX_CACHED_TEMPLATES && !self.known.contains_key(&key) {
            self.known.clear();
        }
        let remembered = self.known.entry(key).or_insert_with(|| Remembered {
            _template: cycle.pod.template.clone(),
            epoch: cluster.epoch(),
            verdicts: Vec::new(),
            raw: vec![None; cycle.profile.at(Point::Score).len()],
        });
        if remembered.epoch != cluster.epoch() {
            remembered.epoch = cluster.epoch();
            remembered.verdicts.clear();
        }
        let size = cluster.names.len();
        remembered.verdicts.resize(size, Verdict::default());
        let verdicts = &remembered.verdicts;
        let is_stale = |slot: &&Slot| verdicts[**slot].generation != cluster.generation(**slot);
        let stale: Vec<Slot> = nodes.iter().filter(is_stale).copied().collect();
        if !stale.is_empty() {
            remembered.judge(cycle, cluster, stale);
        }
        let fits = |slot: &&Slot| remembered.verdicts[**slot].fits;
        nodes.iter().filter(fits).copied().collect()
    }

    /// Weighted scores of the local plugins for nodes that [`Verdicts::passing`] returned last.
    pub(crate) fn scores(&self, cycle: &Cycle<'_>, nodes: &[Slot]) -> Option<Vec<i64>> {
        let remembered = self.known.get(&Self::key(cycle))?;
        let sum = |slot: &Slot| remembered.verdicts[*slot].sum;
        let mut totals: Vec<i64> = nodes.iter().map(sum).collect();
        let mut scores = Vec::new();
        for (enabled, raw) in cycle.profile.at(Point::Score).iter().zip(&remembered.raw) {
            let Some(raw) = raw else {
                continue;
            };
            scores.clear();
            scores.extend(nodes.iter().map(|slot| raw[*slot]));
            enabled.plugin.normalize(&(), &mut scores);
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += score * enabled.weight;
            }
        }
        Some(totals)
    }
}

impl Remembered {
    fn judge(&mut self, cycle: &Cycle<'_>, cluster: &Cluster, nodes: Vec<Slot>) {
        for slot in &nodes {
            self.verdicts[*slot] = Verdict {
                generation: cluster.generation(*slot),
                ..Verdict::default()
            };
        }
        let mut candidates = Candidates::quiet(nodes);
        cycle.filter_local(cluster, &mut candidates);
        let (nodes, _) = candidates.into_parts();
        for slot in &nodes {
            self.verdicts[*slot].fits = true;
        }
        let mut scores = vec![0; nodes.len()];
        for (at, enabled) in cycle.profile.at(Point::Score).iter().enumerate() {
            let plugin = &enabled.plugin;
            if !plugin.is_local() {
                continue;
            }
            let Some(state) = plugin.pre_score(cycle.pod, cluster, &nodes) else {
                continue;
            };
            scores.fill(0);
            plugin.score(cycle.pod, cluster, &*state, &nodes, &mut scores);
            if plugin.normalizes() {
                let raw = self.raw[at].get_or_insert_default();
                raw.resize(self.verdicts.len(), 0);
                for (slot, score) in nodes.iter().zip(&scores) {
                    raw[*slot] = *score;
                }
            } else {
                for (slot, score) in nodes.iter().zip(&scores) {
                    self.verdicts[*slot].sum += score * enabled.weight;
                }
            }
        }
    }
}
