//! One attempt to find a node for a pod: PreFilter, Filter over as many nodes as needed, Score.
//! Pure except for random choices between equal nodes, which a seed reproduces.

use std::{
    any::Any,
    borrow::Cow,
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cluster::{Cluster, Slot},
    extender::{self, Extenders},
    framework::{
        Plugin, Point, PostFilter, PreFilter, Shift, State,
        candidates::{Candidates, Rejection, histogram},
        profile::{PluginCall, Profile},
    },
    node_rejections::NodeRejections,
    pod::PodInfo,
    verdicts::Verdicts,
    write::Release,
};

/// If there are fewer nodes, all are evaluated.
const LEAST_NODES: usize = 100;
const LEAST_PERCENTAGE: usize = 5;

/// A small reproducible random number generator.
#[derive(Debug, Clone)]
pub struct SeededRng(u64);

impl SeededRng {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Why no node was found.
#[derive(Debug, Clone, Default)]
pub struct Failure {
    /// How many nodes there are.
    pub total: usize,
    /// Rejected nodes, each with its plugin.
    pub rejected: Vec<Rejection>,
    /// Plugins that rejected the pod or a node.
    pub plugins: BTreeSet<&'static str>,
    /// A plugin rejected the pod in PreFilter: the reason, and whether preemption could help.
    pub before_nodes: Option<(Cow<'static, str>, bool)>,
    /// The message about nodes that were not evaluated because PreFilter plugins named others.
    pub not_looked_at: Option<String>,
    /// The attempt could not be made: an extender did not answer.
    pub error: Option<String>,
}

impl Failure {
    /// The message of the pod's condition, without what preemption adds.
    pub fn message(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        if self.total == 0 {
            return "no nodes available to schedule pods".into();
        }
        if let Some((message, _)) = &self.before_nodes {
            return format!("0/{} nodes are available: {message}.", self.total);
        }
        let reasons = self
            .rejected
            .iter()
            .flat_map(|rejection| &*rejection.reasons);
        let reasons = reasons.map(|reason| (&**reason, 1));
        let rest = self.total.saturating_sub(self.rejected.len());
        let unseen = self.not_looked_at.as_deref().filter(|_| rest > 0);
        histogram(
            self.total,
            reasons.chain(unseen.map(|reason| (reason, rest))),
        )
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub enum Outcome {
    /// A node was found.
    Node {
        /// The node.
        slot: Slot,
        /// The number of evaluated nodes.
        evaluated: usize,
        /// The number of feasible nodes.
        feasible: usize,
    },
    /// No node was found.
    Failed(Failure),
}

/// A Filter plugin, its index in the profile and its state for the pod.
struct Filter<'a> {
    plugin: &'a Arc<dyn Plugin>,
    place: usize,
    state: Box<dyn State>,
}

/// A pod that is being scheduled, with the plugins' states.
pub struct Cycle<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// The extenders.
    pub extenders: Arc<Extenders>,
    /// The Filter plugins that did not skip, with their states.
    filters: Vec<Filter<'a>>,
    /// The number of local ones at the front.
    local: usize,
    /// Whether the local plugins' results are cached.
    is_remembered: bool,
    /// Whether the duration of each plugin is measured.
    is_measured: bool,
    /// Why the attempt is given up.
    error: Option<String>,
}

/// The durations of an attempt's extension points; zero for those not reached.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExtensionPointDurations {
    /// PreFilter.
    pub pre_filter: Duration,
    /// Filter of all evaluated nodes.
    pub filter: Duration,
    /// PreScore and Score.
    pub score: Duration,
}

/// The result of all PostFilter plugins.
#[derive(Debug, Default)]
pub struct PostFiltered {
    /// The node and the victims, in descending order of importance.
    pub nominated: Option<(Slot, Vec<Arc<PodInfo>>)>,
    /// Whether preemption was tried.
    pub tried_preemption: bool,
    /// Whether to clear `nominatedNodeName`.
    pub clear: bool,
    /// Appended to the pod's condition.
    pub messages: Vec<String>,
    /// A claim to release in the background.
    pub release: Option<Release>,
}

/// The cluster and the scheduler's state between attempts.
pub struct Scheduling {
    /// The cluster.
    pub cluster: Cluster,
    /// Where the next attempt starts, so that all nodes have the same chance.
    next_start: usize,
    /// Chooses between equal nodes.
    pub dice: SeededRng,
    /// Cached results of local plugins; `None` to evaluate every node again.
    verdicts: Option<Verdicts>,
    /// Cached rejections of local plugins.
    rejections: NodeRejections,
    /// The durations of the last attempt.
    pub took: ExtensionPointDurations,
    /// The extenders. Pods that they decide about ([`Extenders::decide_about`]) must be scheduled
    /// on a thread that may block.
    pub extenders: Arc<Extenders>,
}

impl Scheduling {
    /// A scheduler's state; the same seed makes the same decisions.
    pub fn new(seed: u64) -> Self {
        Self {
            cluster: Cluster::default(),
            next_start: 0,
            dice: SeededRng::new(seed),
            verdicts: Some(Verdicts::default()),
            rejections: NodeRejections::default(),
            took: ExtensionPointDurations::default(),
            extenders: Arc::default(),
        }
    }

    /// The same without cached results: slower, with the same decisions.
    pub fn forgetful(seed: u64) -> Self {
        Self {
            verdicts: None,
            ..Self::new(seed)
        }
    }

    /// Finds a node for a pod.
    pub fn schedule(&mut self, profile: &Profile, pod: &Arc<PodInfo>) -> Outcome {
        let started = Instant::now();
        let begun = Cycle::begin(profile, pod, &mut self.cluster);
        self.took = ExtensionPointDurations {
            pre_filter: started.elapsed(),
            ..ExtensionPointDurations::default()
        };
        match begun {
            Ok((cycle, only)) => self.choose(cycle, only),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Filter and Score.
    fn choose(&mut self, mut cycle: Cycle<'_>, only: AllowedNodes) -> Outcome {
        let (pod, started) = (cycle.pod, Instant::now());
        if let Some(slot) = self.nominated(&mut cycle) {
            return Outcome::Node {
                slot,
                evaluated: 1,
                feasible: 1,
            };
        }
        // PreFilter plugins may have named the only nodes to evaluate; the cache of results is for all nodes.
        let (mut feasible, evaluated, mut rejected) = match &only {
            None => self.feasible(&mut cycle),
            Some((names, _)) => self.feasible_of(&mut cycle, names),
        };
        let asked = match cycle.error.take() {
            Some(error) => Err(error),
            None => self.ask_extenders(pod, &mut feasible, &mut rejected),
        };
        self.took.filter = started.elapsed();
        if let Err(error) = asked {
            return Outcome::Failed(self.error(error));
        }
        match feasible.as_slice() {
            [] => Outcome::Failed(self.failure(rejected, only)),
            [slot] => Outcome::Node {
                slot: *slot,
                evaluated,
                feasible: 1,
            },
            several => Outcome::Node {
                slot: self.best(&cycle, several),
                evaluated,
                feasible: several.len(),
            },
        }
    }

    /// The feasible nodes for the pod, or why every node is rejected. Does not affect later
    /// decisions. Extenders are not asked.
    pub fn judge(&mut self, profile: &Profile, pod: &Arc<PodInfo>) -> Result<Vec<Slot>, Failure> {
        let (mut cycle, only) = Cycle::begin(profile, pod, &mut self.cluster)?;
        let nodes = match &only {
            None => self.cluster.visits().to_vec(),
            Some((names, _)) => self.known(names),
        };
        let mut candidates = Candidates::new(nodes);
        cycle.filter(&mut self.cluster, &mut candidates);
        if let Some(error) = cycle.error.take() {
            return Err(self.error(error));
        }
        match candidates.into_parts() {
            (none, rejected) if none.is_empty() => Err(self.failure(rejected, only)),
            (fitting, _) => Ok(fitting),
        }
    }

    /// The failure of an attempt that was given up.
    fn error(&self, error: String) -> Failure {
        Failure {
            total: self.cluster.visits().len(),
            error: Some(error),
            ..Failure::default()
        }
    }

    /// The existing nodes of these names.
    fn known(&self, names: &BTreeSet<String>) -> Vec<Slot> {
        let known = names.iter().filter_map(|name| self.cluster.slot(name));
        let exists = |slot: &Slot| self.cluster.node(*slot).is_some();
        known.filter(exists).collect()
    }

    /// Runs PostFilter after a failure: the first plugin that nominates a node decides. The messages
    /// of all others are joined.
    pub fn post_filter(
        &mut self,
        profile: &Profile,
        pod: &Arc<PodInfo>,
        failure: &Failure,
    ) -> PostFiltered {
        let begun = Cycle::begin(profile, pod, &mut self.cluster);
        let mut cycle =
            begun.map_or_else(|_| Cycle::without_filters(profile, pod), |(cycle, _)| cycle);
        cycle.extenders = self.extenders.clone();
        let (cluster, dice) = (&mut self.cluster, &mut self.dice);
        let mut found = PostFiltered::default();
        for enabled in profile.at(Point::PostFilter) {
            let plugin = &enabled.plugin;
            match plugin.post_filter(&mut cycle, cluster, failure, dice) {
                Some(PostFilter::Nominate { slot, victims }) => {
                    found.nominated = Some((slot, victims));
                    return found;
                }
                Some(PostFilter::Nothing { message, clear }) => {
                    found.tried_preemption = true;
                    found.clear |= clear;
                    found.messages.push(message);
                }
                Some(PostFilter::Message { message, release }) => {
                    found.release = found.release.or(release);
                    found.messages.push(message);
                }
                None => {}
            }
        }
        found
    }

    /// The nominated node, if the pod fits there now.
    fn nominated(&mut self, cycle: &mut Cycle<'_>) -> Option<Slot> {
        let known = self.cluster.nominated.node_of(&cycle.pod.uid);
        let node = known.or(cycle.pod.nominated.as_ref())?;
        let slot = self.cluster.slot(node)?;
        self.cluster.node(slot)?;
        let mut candidates = Candidates::new(vec![slot]);
        cycle.filter(&mut self.cluster, &mut candidates);
        // All nodes are tried, which may have the same error.
        cycle.error = None;
        let (mut left, mut rejected) = candidates.into_parts();
        let asked = self.ask_extenders(cycle.pod, &mut left, &mut rejected);
        asked.ok().and_then(|()| left.first().copied())
    }

    /// Keeps the nodes that extenders accept.
    fn ask_extenders(
        &self,
        pod: &PodInfo,
        feasible: &mut Vec<Slot>,
        rejected: &mut Vec<Rejection>,
    ) -> Result<(), String> {
        if !self.extenders.decide_about(pod) {
            return Ok(());
        }
        let names = feasible.iter().map(|slot| &*self.cluster.names[*slot]);
        let (left, failed) = self.extenders.filter(pod, names.collect())?;
        let slot = |name: &str| self.cluster.slot(name);
        let left: Vec<Slot> = left.into_iter().filter_map(slot).collect();
        for slot in feasible.iter().filter(|slot| !left.contains(slot)) {
            let name = &*self.cluster.names[*slot];
            let why = || failed.iter().filter(|one| one.node == name);
            rejected.push(Rejection {
                slot: *slot,
                plugin: extender::NAME,
                reasons: why().map(|one| one.reason.clone().into()).collect(),
                resolvable: why().all(|one| one.resolvable),
            });
        }
        *feasible = left;
        Ok(())
    }

    /// Feasible nodes, as many as are to be scored; the number of evaluated nodes; and the
    /// rejections, if none is feasible.
    fn feasible(&mut self, cycle: &mut Cycle<'_>) -> (Vec<Slot>, usize, Vec<Rejection>) {
        let total = self.cluster.visits().len();
        let wanted = nodes_to_find(cycle.profile.percentage_of_nodes, total);
        let mut verdicts = self.verdicts.take();
        let found = self.look(cycle, wanted, verdicts.as_mut());
        let (feasible, looked_at, rejected) = match found {
            // The cache has no reasons.
            (none, ..) if none.is_empty() && verdicts.is_some() && cycle.error.is_none() => {
                self.explain(cycle, wanted)
            }
            found => found,
        };
        self.verdicts = verdicts;
        self.next_start = (self.next_start + looked_at) % total.max(1);
        cycle.is_remembered = self.verdicts.is_some();
        (feasible, looked_at, rejected)
    }

    /// Evaluates nodes from the next one on until enough are feasible.
    fn look(
        &mut self,
        cycle: &mut Cycle<'_>,
        wanted: usize,
        mut verdicts: Option<&mut Verdicts>,
    ) -> (Vec<Slot>, usize, Vec<Rejection>) {
        let total = self.cluster.visits().len();
        let (mut feasible, mut rejected, mut looked_at) = (Vec::new(), Vec::new(), 0);
        while looked_at < total && feasible.len() < wanted && cycle.error.is_none() {
            let size = (wanted - feasible.len()).max(16).min(total - looked_at);
            let all = self.cluster.visits();
            let begin = (self.next_start + looked_at) % total;
            let (end, rest) = (begin + size, (begin + size).saturating_sub(total));
            let mut chunk: Vec<Slot> = all[begin..end.min(total)].to_vec();
            chunk.extend_from_slice(&all[..rest]);
            let (mut left, why) = match verdicts.as_deref_mut() {
                Some(verdicts) => {
                    let passing = verdicts.passing(cycle, &self.cluster, &chunk);
                    let mut candidates = Candidates::quiet(passing);
                    cycle.filter_after_local(&mut self.cluster, &mut candidates);
                    (candidates.into_parts().0, Vec::new())
                }
                None => {
                    let mut candidates = Candidates::new(chunk.clone());
                    cycle.filter(&mut self.cluster, &mut candidates);
                    candidates.into_parts()
                }
            };
            rejected.extend(why);
            if feasible.len() + left.len() >= wanted {
                left.truncate(wanted - feasible.len());
                let last = left.last().copied();
                let position = chunk.iter().position(|slot| Some(*slot) == last);
                looked_at += position.map_or(size, |position| position + 1);
            } else {
                looked_at += size;
            }
            feasible.extend(left);
        }
        (feasible, looked_at, rejected)
    }

    /// Evaluates all nodes with reasons, which are cached for local plugins.
    fn explain(
        &mut self,
        cycle: &mut Cycle<'_>,
        wanted: usize,
    ) -> (Vec<Slot>, usize, Vec<Rejection>) {
        let mut nodes = self.cluster.visits().to_vec();
        let begin = self.next_start % nodes.len().max(1);
        nodes.rotate_left(begin);
        let (passing, mut rejected) = self.rejections.divide(cycle, &self.cluster, &nodes);
        let mut candidates = Candidates::new(passing);
        cycle.filter_after_local(&mut self.cluster, &mut candidates);
        let (mut left, more) = candidates.into_parts();
        left.truncate(wanted);
        rejected.extend(more);
        (left, nodes.len(), rejected)
    }

    /// The same for the nodes that plugins named.
    fn feasible_of(
        &mut self,
        cycle: &mut Cycle<'_>,
        names: &BTreeSet<String>,
    ) -> (Vec<Slot>, usize, Vec<Rejection>) {
        let mut nodes = self.known(names);
        let begin = self.next_start % nodes.len().max(1);
        nodes.rotate_left(begin);
        let wanted = nodes_to_find(cycle.profile.percentage_of_nodes, nodes.len());
        let mut candidates = Candidates::new(nodes);
        cycle.filter(&mut self.cluster, &mut candidates);
        let (mut left, rejected) = candidates.into_parts();
        let looked_at = left.len() + rejected.len();
        left.truncate(wanted);
        let total = self.cluster.visits().len();
        self.next_start = (self.next_start + looked_at) % total.max(1);
        (left, looked_at, rejected)
    }

    fn failure(&self, rejected: Vec<Rejection>, only: AllowedNodes) -> Failure {
        let mut plugins = BTreeSet::new();
        // Most nodes are rejected by the same plugin as the one before.
        for same in rejected.chunk_by(|one, next| one.plugin == next.plugin) {
            plugins.extend(same.first().map(|rejection| rejection.plugin));
        }
        let not_looked_at = only.map(|(_, by)| {
            let names: Vec<&str> = by.iter().copied().collect();
            plugins.extend(by);
            format!("node(s) didn't satisfy plugin(s) [{}]", names.join(" "))
        });
        Failure {
            total: self.cluster.visits().len(),
            rejected,
            plugins,
            not_looked_at,
            ..Failure::default()
        }
    }

    /// The node with the highest score; chosen at random between equals.
    fn best(&mut self, cycle: &Cycle<'_>, nodes: &[Slot]) -> Slot {
        let started = Instant::now();
        let verdicts = self.verdicts.as_ref().filter(|_| cycle.is_remembered);
        let known = verdicts.and_then(|verdicts| verdicts.scores(cycle, nodes));
        let mut totals = cycle.scores_with(&self.cluster, nodes, known);
        if self.extenders.decide_about(cycle.pod) {
            let names: Vec<&str> = nodes
                .iter()
                .map(|slot| &*self.cluster.names[*slot])
                .collect();
            let more = self.extenders.scores(cycle.pod, &names);
            for (total, name) in totals.iter_mut().zip(names) {
                *total = total.saturating_add(more.get(name).copied().unwrap_or(0));
            }
        }
        self.took.score = started.elapsed();
        let highest = totals.iter().max().copied().unwrap_or(0);
        let equals = totals.iter().filter(|total| **total == highest).count();
        let chosen = self.dice.below(equals.max(1));
        let mut best = nodes
            .iter()
            .zip(&totals)
            .filter(|(_, total)| **total == highest);
        best.nth(chosen).map_or(nodes[0], |(slot, _)| *slot)
    }
}

/// How many feasible nodes are enough.
fn nodes_to_find(percentage: usize, nodes: usize) -> usize {
    if nodes < LEAST_NODES {
        return nodes;
    }
    let percentage = match percentage {
        0 => 50_usize.saturating_sub(nodes / 125).max(LEAST_PERCENTAGE),
        percentage => percentage,
    };
    (nodes * percentage / 100).max(LEAST_NODES).min(nodes)
}

/// Node names, and the plugins that named them.
type AllowedNodes = Option<(BTreeSet<String>, BTreeSet<&'static str>)>;

impl<'a> Cycle<'a> {
    fn without_filters(profile: &'a Profile, pod: &'a Arc<PodInfo>) -> Self {
        Self {
            profile,
            pod,
            extenders: Arc::default(),
            filters: Vec::new(),
            local: 0,
            is_remembered: false,
            is_measured: profile.begin_attempt(),
            error: None,
        }
    }

    /// Runs PreFilter.
    pub fn begin(
        profile: &'a Profile,
        pod: &'a Arc<PodInfo>,
        cluster: &mut Cluster,
    ) -> Result<(Self, AllowedNodes), Failure> {
        cluster.prepare();
        for plugin in profile.plugins() {
            plugin.prepare(pod, cluster);
        }
        let total = cluster.visits().len();
        let failure = |plugins: BTreeSet<&'static str>, message, resolvable| Failure {
            total,
            plugins,
            before_nodes: Some((message, resolvable)),
            ..Failure::default()
        };
        if total == 0 {
            return Err(Failure::default());
        }
        let mut cycle = Self::without_filters(profile, pod);
        let (mut only, mut refused): (AllowedNodes, _) = (None, None);
        for (place, enabled) in profile.at(Point::Filter).iter().enumerate() {
            let plugin = &enabled.plugin;
            let filter = |state| Filter {
                plugin,
                place,
                state,
            };
            if !plugin.points().contains(&Point::PreFilter) {
                cycle.filters.push(filter(Box::new(())));
                continue;
            }
            let call = cycle.plugin_call(Point::PreFilter, plugin, place, 1);
            let answer = || plugin.pre_filter(pod, cluster);
            match profile.ask(call, answer, PreFilter::status) {
                PreFilter::Skip => {}
                PreFilter::Continue(state) => cycle.filters.push(filter(state)),
                PreFilter::Only(names, state) => {
                    cycle.filters.push(filter(state));
                    let (kept, by) = only.get_or_insert_with(|| (names.clone(), BTreeSet::new()));
                    kept.retain(|name| names.contains(name));
                    by.insert(plugin.name());
                    if kept.is_empty() {
                        let message = conflict(by);
                        return Err(failure(by.clone(), message.into(), false));
                    }
                }
                PreFilter::Reject(reason, true) => refused = Some((plugin.name(), reason)),
                PreFilter::Reject(reason, false) => {
                    return Err(failure([plugin.name()].into(), reason, false));
                }
            }
        }
        let local = |filter: &&Filter<'_>| filter.plugin.is_local();
        cycle.local = cycle.filters.iter().take_while(local).count();
        match refused {
            Some((plugin, reason)) => Err(failure([plugin].into(), reason, true)),
            None => Ok((cycle, only)),
        }
    }

    /// Filters candidates. Nodes with nominated pods of at least this pod's priority must also fit
    /// those.
    pub fn filter(&mut self, cluster: &mut Cluster, candidates: &mut Candidates) {
        self.filter_as_is(&self.filters, cluster, candidates);
        self.error = self.error.take().or(candidates.take_error());
        self.filter_by_nominated(cluster, candidates);
    }

    /// The same for candidates that have passed the local filters.
    fn filter_after_local(&mut self, cluster: &mut Cluster, candidates: &mut Candidates) {
        self.filter_as_is(&self.filters[self.local..], cluster, candidates);
        self.error = self.error.take().or(candidates.take_error());
        self.filter_by_nominated(cluster, candidates);
    }

    /// Runs only the local filters.
    pub(crate) fn filter_local(&self, cluster: &Cluster, candidates: &mut Candidates) {
        self.filter_as_is(&self.filters[..self.local], cluster, candidates);
    }

    fn filter_by_nominated(&mut self, cluster: &mut Cluster, candidates: &mut Candidates) {
        if cluster.nominated.is_empty() {
            return;
        }
        let mut rejected = Vec::new();
        for slot in candidates.slots() {
            let slot = *slot;
            let others: Vec<Arc<PodInfo>> = cluster
                .nominated
                .on(&cluster.names[slot])
                .iter()
                .filter(|other| {
                    other.priority() >= self.pod.priority() && other.uid != self.pod.uid
                })
                .cloned()
                .collect();
            if others.is_empty() {
                continue;
            }
            for other in &others {
                self.shift(cluster, other, slot, 1);
            }
            let mut alone = Candidates::new(vec![slot]);
            self.filter_as_is(&self.filters, cluster, &mut alone);
            for other in &others {
                self.shift(cluster, other, slot, -1);
            }
            rejected.extend(alone.rejected().first().cloned());
        }
        candidates.reject_all(rejected);
    }

    /// Filters candidates with the cluster's current state.
    fn filter_as_is(&self, filters: &[Filter<'_>], cluster: &Cluster, candidates: &mut Candidates) {
        for filter in filters {
            let nodes = candidates.slots().len();
            if nodes == 0 {
                return;
            }
            let (plugin, state) = (filter.plugin, filter.state.as_any());
            let call = self.plugin_call(Point::Filter, plugin, filter.place, nodes);
            let ask = || plugin.filter(self.pod, cluster, state, candidates);
            self.profile.ask(call, ask, |()| "Success");
        }
    }

    fn plugin_call<'p>(
        &self,
        point: Point,
        plugin: &'p Arc<dyn Plugin>,
        place: usize,
        nodes: usize,
    ) -> PluginCall<'p> {
        PluginCall {
            point,
            plugin,
            place,
            nodes,
            is_measured: self.is_measured,
        }
    }

    /// Tries the effect of adding another pod to a node (`sign` 1), or removing it (-1).
    pub fn shift(&mut self, cluster: &mut Cluster, other: &PodInfo, slot: Slot, sign: i64) {
        cluster.shift(slot, other, sign);
        for filter in &mut self.filters {
            filter.state.shift(&Shift {
                pod: self.pod,
                other,
                cluster,
                slot,
                sign,
            });
        }
    }

    /// Computes a plugin's normalised scores of nodes; returns false if the plugin skips the pod.
    fn score(
        &self,
        cluster: &Cluster,
        (place, plugin): (usize, &Arc<dyn Plugin>),
        nodes: &[Slot],
        scores: &mut [i64],
    ) -> bool {
        let call = self.plugin_call(Point::PreScore, plugin, place, 1);
        let ask = || plugin.pre_score(self.pod, cluster, nodes);
        let status = |state: &Option<Box<dyn Any>>| match state {
            Some(_) => "Success",
            None => "Skip",
        };
        let Some(state) = self.profile.ask(call, ask, status) else {
            return false;
        };
        let call = self.plugin_call(Point::Score, plugin, place, nodes.len());
        let ask = || {
            plugin.score(self.pod, cluster, &*state, nodes, scores);
            plugin.normalize(&*state, scores);
        };
        self.profile.ask(call, ask, |()| "Success");
        true
    }

    /// Weighted sums of all plugins' scores.
    pub fn scores(&self, cluster: &Cluster, nodes: &[Slot]) -> Vec<i64> {
        self.scores_with(cluster, nodes, None)
    }

    /// The same if the sums of local plugins are known.
    fn scores_with(&self, cluster: &Cluster, nodes: &[Slot], local: Option<Vec<i64>>) -> Vec<i64> {
        let knows_local = local.is_some();
        let mut totals = local.unwrap_or_else(|| vec![0_i64; nodes.len()]);
        let mut scores = vec![0_i64; nodes.len()];
        for (place, enabled) in self.profile.at(Point::Score).iter().enumerate() {
            let plugin = &enabled.plugin;
            if knows_local && plugin.is_local() {
                continue;
            }
            scores.fill(0);
            if !self.score(cluster, (place, plugin), nodes, &mut scores) {
                continue;
            }
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += score * enabled.weight;
            }
        }
        totals
    }
}

fn conflict(plugins: &BTreeSet<&'static str>) -> String {
    let names: Vec<&str> = plugins.iter().copied().collect();
    if let [name] = names.as_slice() {
        return format!("node(s) didn't satisfy plugin {name}");
    }
    format!(
        "node(s) didn't satisfy plugin(s) [{}] simultaneously",
        names.join(" ")
    )
}

#[cfg(test)]
#[path = "cycle_tests.rs"]
mod tests;
