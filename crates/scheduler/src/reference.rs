//! A slow and obvious reference implementation of the plugins over lists of nodes and pods, without
//! columns, counts or indexes. Random clusters, changed at random, must give the same nodes and
//! scores.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use reconcile::placement::{tolerates, untolerated};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NodeInfo},
    cycle::{Cycle, Outcome, Scheduling, SeededRng},
    framework::{BEST, candidates::Candidates, profile::Profile},
    matching::{Labels, Namespaces},
    plugins,
    pod::PodInfo,
    samples,
    template::{Spread, Term},
};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// The cluster as lists.
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) nodes: Vec<NodeInfo>,
    /// The node's name and the pod.
    pub(crate) placed: Vec<(String, Arc<PodInfo>)>,
    pub(crate) namespaces: Namespaces,
}

impl Lists {
    pub(crate) fn pods_on<'a>(
        &'a self,
        node: &'a NodeInfo,
    ) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        let here = |(name, _): &&(String, Arc<PodInfo>)| **name == *node.name;
        self.placed.iter().filter(here).map(|(_, pod)| pod)
    }

    /// Nodes in the same domain as a node.
    fn domain<'a>(&'a self, key: &'a str, node: &'a NodeInfo) -> Vec<&'a NodeInfo> {
        let Some(value) = node.labels.get(key) else {
            return Vec::new();
        };
        let same = |other: &&NodeInfo| other.labels.get(key) == Some(value);
        self.nodes.iter().filter(same).collect()
    }

    fn speaks_of(&self, term: &Term, pod: &PodInfo) -> bool {
        term.matcher.matches(&pod.label_set, &self.namespaces)
    }

    pub(crate) fn fits(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let template = &pod.template;
        let sum = |amount: fn(&PodInfo) -> i64| self.pods_on(node).map(|p| amount(p)).sum::<i64>();
        let cordon = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
        let cordon = serde_json::from_value(cordon).unwrap();
        let open =
            !node.unschedulable || template.tolerations.iter().any(|t| tolerates(t, &cordon));
        let hard = ["NoSchedule", "NoExecute"];
        let room = |wanted: i64, has: i64, used: i64| wanted == 0 || wanted <= has - used;
        let mut used_ports = self.pods_on(node).flat_map(|pod| &pod.template.ports);
        open && untolerated(&node.taints, &template.tolerations, &hard).is_none()
            && template.node.matches(&node.labels, &node.name)
            && room(
                template.requests.cpu,
                node.allocatable.cpu,
                sum(|p| p.template.requests.cpu),
            )
            && room(
                template.requests.memory,
                node.allocatable.memory,
                sum(|p| p.template.requests.memory),
            )
            && (self.pods_on(node).count() as i64) < node.pods
            && !used_ports.any(|used| template.ports.iter().any(|port| port.collides(used)))
            && self.spreads(pod, node)
            && self.is_near(pod, node)
            && self.is_far(pod, node)
    }

    fn counts_for(&self, pod: &PodInfo, spread: &Spread, all: &[&Spread], node: &NodeInfo) -> bool {
        let complete = all
            .iter()
            .all(|one| node.labels.contains_key(&*one.topology_key));
        let affine = !spread.honor_affinity || pod.template.node.matches(&node.labels, &node.name);
        let hard = ["NoSchedule", "NoExecute"];
        let tolerated = !spread.honor_taints
            || untolerated(&node.taints, &pod.template.tolerations, &hard).is_none();
        complete && affine && tolerated
    }

    fn counted(&self, pod: &PodInfo, spread: &Spread, node: &NodeInfo) -> i64 {
        let selector = &spread.matcher.selector;
        if selector.is_everything() {
            return 0;
        }
        let counts = |other: &&Arc<PodInfo>| {
            other.namespace() == pod.namespace()
                && !other.is_terminating()
                && selector.matches(Some(&other.label_set.labels))
        };
        self.pods_on(node).filter(counts).count() as i64
    }

    fn spreads(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let hard: Vec<&Spread> = pod.template.spread.iter().filter(|s| s.hard).collect();
        hard.iter().all(|spread| {
            let Some(value) = node.labels.get(&*spread.topology_key) else {
                return false;
            };
            let mut domains: BTreeMap<&String, i64> = BTreeMap::new();
            for other in &self.nodes {
                if self.counts_for(pod, spread, &hard, other) {
                    let domain = &other.labels[&*spread.topology_key];
                    *domains.entry(domain).or_default() += self.counted(pod, spread, other);
                }
            }
            let lowest = domains
                .values()
                .min()
                .copied()
                .unwrap_or(i64::from(i32::MAX));
            let lowest = if domains.len() < spread.min_domains {
                0
            } else {
                lowest
            };
            let own = spread.matcher.selector.matches(Some(&pod.label_set.labels));
            let here = domains.get(value).copied().unwrap_or(0);
            here + i64::from(own) - lowest <= spread.max_skew
        })
    }

    fn is_near(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let terms = &pod.template.affinity;
        if terms.is_empty() {
            return true;
        }
        if !terms
            .iter()
            .all(|term| node.labels.contains_key(&*term.topology_key))
        {
            return false;
        }
        let matches_all = |other: &PodInfo| terms.iter().all(|term| self.speaks_of(term, other));
        let near = terms.iter().all(|term| {
            let domain = self.domain(&term.topology_key, node);
            let mut pods = domain.into_iter().flat_map(|node| self.pods_on(node));
            pods.any(|other| matches_all(other))
        });
        let anywhere = terms.iter().any(|term| {
            let labelled = self
                .nodes
                .iter()
                .filter(|n| n.labels.contains_key(&*term.topology_key));
            let mut pods = labelled.flat_map(|node| self.pods_on(node));
            pods.any(|other| matches_all(other))
        });
        near || (!anywhere && matches_all(pod))
    }

    fn is_far(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let own = pod.template.anti_affinity.iter().any(|term| {
            let domain = self.domain(&term.topology_key, node);
            let mut pods = domain.into_iter().flat_map(|node| self.pods_on(node));
            pods.any(|other| self.speaks_of(term, other))
        });
        let theirs = self.placed.iter().any(|(at, other)| {
            let at = self.nodes.iter().find(|node| *node.name == **at);
            other.template.anti_affinity.iter().any(|term| {
                let key = &*term.topology_key;
                let same = at.is_some_and(|at| {
                    at.labels.contains_key(key) && at.labels.get(key) == node.labels.get(key)
                });
                same && self.speaks_of(term, pod)
            })
        });
        !own && !theirs
    }

    /// The scores by preferences of each node; `None` if there are none.
    fn affinity_scores(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Option<Vec<i64>> {
        let mut touched = false;
        let mut sums = vec![0_i64; nodes.len()];
        for (at, other) in &self.placed {
            let Some(at) = self.nodes.iter().find(|node| *node.name == **at) else {
                continue;
            };
            let mine = pod
                .template
                .preferences
                .iter()
                .map(|term| (term, &**other, term.weight));
            let theirs = other
                .template
                .preferences
                .iter()
                .map(|term| (term, pod, term.weight));
            let required = other.template.affinity.iter().map(|term| (term, pod, 1));
            for (term, about, weight) in mine.chain(theirs).chain(required) {
                let key = &*term.topology_key;
                if !at.labels.contains_key(key) || !self.speaks_of(term, about) {
                    continue;
                }
                touched = true;
                for (sum, node) in sums.iter_mut().zip(nodes) {
                    if node.labels.get(key) == at.labels.get(key) {
                        *sum += weight;
                    }
                }
            }
        }
        let (least, most) = (*sums.iter().min()?, *sums.iter().max()?);
        let stretch = |sum: i64| match most - least {
            0 => 0,
            range => (100.0 * ((sum - least) as f64 / range as f64)) as i64,
        };
        touched.then(|| sums.into_iter().map(stretch).collect())
    }

    fn spread_scores(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Option<Vec<i64>> {
        let soft: Vec<&Spread> = pod.template.spread.iter().filter(|s| !s.hard).collect();
        if soft.is_empty() {
            return None;
        }
        let complete = |node: &NodeInfo| {
            soft.iter()
                .all(|s| node.labels.contains_key(&*s.topology_key))
        };
        let compared: Vec<&&NodeInfo> = nodes.iter().filter(|node| complete(node)).collect();
        let score = |node: &NodeInfo| {
            let one = |spread: &&Spread| {
                let key = &*spread.topology_key;
                let values: BTreeSet<_> = compared.iter().map(|node| &node.labels[key]).collect();
                let size = if key == HOST {
                    compared.len()
                } else {
                    values.len()
                };
                let pods: i64 = if key == HOST {
                    self.counted(pod, spread, node)
                } else {
                    let domain = self.domain(key, node).into_iter();
                    let eligible = domain.filter(|n| self.counts_for(pod, spread, &soft, n));
                    eligible.map(|node| self.counted(pod, spread, node)).sum()
                };
                pods as f64 * (size as f64 + 2.0).ln() + (spread.max_skew - 1) as f64
            };
            soft.iter().map(one).sum::<f64>().round() as i64
        };
        let raw: Vec<Option<i64>> = nodes
            .iter()
            .map(|node| complete(node).then(|| score(node)))
            .collect();
        let most = raw.iter().flatten().max().copied().unwrap_or(0);
        let least = raw.iter().flatten().min().copied().unwrap_or(0);
        let normal = |score: &Option<i64>| match score {
            None => 0,
            Some(_) if most == 0 => BEST,
            Some(score) => BEST * (most + least - score) / most,
        };
        Some(raw.iter().map(normal).collect())
    }
}

/// Makes random objects.
pub(crate) struct Maker {
    pub(crate) dice: SeededRng,
    number: usize,
}

impl Maker {
    /// The same seed makes the same objects.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: SeededRng::new(seed),
            number: 0,
        }
    }

    pub(crate) fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.dice.below(of.len())]
    }

    pub(crate) fn one_in(&mut self, chances: usize) -> bool {
        self.dice.below(chances) == 0
    }

    pub(crate) fn node(&mut self, number: usize) -> NodeInfo {
        let name = format!("n{number}");
        let mut node = samples::node(&name, self.pick(&["2", "4", "8"]), "8Gi");
        node.pods = 12;
        if !self.one_in(8) {
            node.labels
                .insert(ZONE.into(), self.pick(&["a", "b", "c"]).into());
        }
        if !self.one_in(12) {
            node.labels.insert(HOST.into(), name);
        }
        node.labels
            .insert("disk".into(), self.pick(&["ssd", "hdd"]).into());
        node.unschedulable = self.one_in(10);
        if self.one_in(6) {
            let effect = self.pick(&["NoSchedule", "NoExecute", "PreferNoSchedule"]);
            node.taints = serde_json::from_value(json!([{"key": "k", "effect": effect}])).unwrap();
        }
        node
    }

    fn selector(&mut self) -> Value {
        match self.dice.below(5) {
            0 => json!({}),
            1 => json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
            2 => json!({"matchExpressions": [{"key": "app", "operator": "NotIn",
                "values": [self.pick(&["a", "b"])]}]}),
            _ => json!({"matchLabels": {"app": self.pick(&["a", "b", "c"])}}),
        }
    }

    fn term(&mut self) -> Value {
        let mut term =
            json!({"topologyKey": self.pick(&[ZONE, HOST]), "labelSelector": self.selector()});
        match self.dice.below(6) {
            0 => term["namespaces"] = json!([self.pick(&["x", "y"])]),
            1 => term["namespaceSelector"] = json!({}),
            2 => term["namespaceSelector"] = json!({"matchLabels": {"team": "red"}}),
            _ => {}
        }
        term
    }

    fn weighted(&mut self) -> Value {
        json!({"weight": 1 + self.dice.below(100), "podAffinityTerm": self.term()})
    }

    fn terms(&mut self, chances: usize, make: fn(&mut Self) -> Value) -> Vec<Value> {
        let count = if self.one_in(chances) {
            1 + self.dice.below(2)
        } else {
            0
        };
        (0..count).map(|_| make(self)).collect()
    }

    fn constraint(&mut self) -> Value {
        json!({
            "maxSkew": 1 + self.dice.below(2),
            "topologyKey": self.pick(&[ZONE, HOST]),
            "whenUnsatisfiable": self.pick(&["DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": self.selector(),
            "nodeAffinityPolicy": self.pick(&["Honor", "Ignore"]),
            "nodeTaintsPolicy": self.pick(&["Honor", "Ignore"]),
        })
    }

    pub(crate) fn pod(&mut self) -> Arc<PodInfo> {
        let pod = serde_json::from_value(self.document()).unwrap();
        Arc::new(PodInfo::new(&pod))
    }

    /// A pod as the API has it.
    pub(crate) fn document(&mut self) -> Value {
        self.number += 1;
        let name = format!("p{}", self.number);
        let cpu = self.pick(&["0", "100m", "500m", "1"]);
        let mut spec = json!({
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "100Mi"}}}],
            "topologySpreadConstraints": self.terms(3, Self::constraint),
            "affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": self.terms(6, Self::term),
                    "preferredDuringSchedulingIgnoredDuringExecution": self.terms(3, Self::weighted),
                },
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": self.terms(8, Self::term),
                    "preferredDuringSchedulingIgnoredDuringExecution": self.terms(3, Self::weighted),
                },
            },
        });
        if self.one_in(5) {
            spec["nodeSelector"] = json!({"disk": self.pick(&["ssd", "hdd"])});
        }
        if self.one_in(4) {
            spec["tolerations"] = json!([{"operator": "Exists"}]);
        }
        if self.one_in(8) {
            let port = json!({"containerPort": 80, "hostPort": 80});
            spec["containers"][0]["ports"] = json!([port]);
        }
        let labels = json!({"app": self.pick(&["a", "b", "c"])});
        let mut meta = json!({"name": name, "namespace": self.pick(&["x", "y"]),
            "uid": format!("uid-{name}"), "labels": labels});
        if self.one_in(10) {
            meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        json!({"metadata": meta, "spec": spec})
    }
}

fn compare(lists: &Lists, cluster: &mut Cluster, profile: &Profile, pod: &Arc<PodInfo>, seed: u64) {
    let fitting = lists.nodes.iter().filter(|node| lists.fits(pod, node));
    let expected: BTreeSet<&str> = fitting.map(|node| &*node.name).collect();
    let (mut cycle, _) = Cycle::begin(profile, pod, cluster).unwrap();
    let mut candidates = Candidates::new(cluster.visits().to_vec());
    cycle.filter(cluster, &mut candidates);
    let slots = candidates.slots().to_vec();
    let found: BTreeSet<&str> = slots.iter().map(|slot| &*cluster.names[*slot]).collect();
    let template = &pod.template;
    assert_eq!(found, expected, "seed {seed}: {template:#?}");
    let nodes: Vec<&NodeInfo> = slots
        .iter()
        .map(|slot| &**cluster.node(*slot).unwrap())
        .collect();
    if nodes.is_empty() {
        return;
    }
    for (name, expected) in [
        ("InterPodAffinity", lists.affinity_scores(pod, &nodes)),
        ("PodTopologySpread", lists.spread_scores(pod, &nodes)),
    ] {
        let plugin = profile.plugin(name).unwrap();
        let scores = plugin.pre_score(pod, cluster, &slots).map(|state| {
            let mut scores = vec![0; slots.len()];
            plugin.score(pod, cluster, &*state, &slots, &mut scores);
            plugin.normalize(&*state, &mut scores);
            scores
        });
        let zero = || vec![0; slots.len()];
        let (scores, expected) = (scores.unwrap_or_else(zero), expected.unwrap_or_else(zero));
        assert_eq!(scores, expected, "seed {seed}, {name}: {template:#?}");
    }
}

fn run(seed: u64) {
    let mut maker = Maker::new(seed);
    let (mut lists, mut cluster) = (Lists::default(), Cluster::default());
    let red: Labels = [("team".to_owned(), "red".to_owned())].into();
    for (name, labels) in [("x", red), ("y", Labels::new())] {
        lists.namespaces.insert(name.into(), labels.clone());
        cluster.put_namespace(name, Some(labels));
    }
    for number in 0..12 {
        let node = maker.node(number);
        cluster.put_node(clone(&node));
        lists.nodes.push(node);
    }
    let profile = Profile::default_scheduler();
    assert_eq!(profile.plugins().count(), plugins::ALL.len());
    for _ in 0..60 {
        let pod = maker.pod();
        compare(&lists, &mut cluster, &profile, &pod, seed);
        change(&mut maker, &mut lists, &mut cluster, pod);
    }
}

pub(crate) fn clone(node: &NodeInfo) -> NodeInfo {
    NodeInfo {
        name: node.name.clone(),
        labels: node.labels.clone(),
        taints: node.taints.clone(),
        unschedulable: node.unschedulable,
        allocatable: node.allocatable.clone(),
        pods: node.pods,
        images: node.images.clone(),
        features: node.features.clone(),
    }
}

/// Places the pod on a random node whether or not it fits, and sometimes removes a pod, changes a
/// node, or removes and re-adds one.
fn change(maker: &mut Maker, lists: &mut Lists, cluster: &mut Cluster, pod: Arc<PodInfo>) {
    let at = maker.dice.below(lists.nodes.len());
    let node = lists.nodes[at].name.to_string();
    cluster.put_pod(&node, pod.clone());
    lists.placed.push((node, pod));
    if maker.one_in(3) {
        let gone = maker.dice.below(lists.placed.len());
        let (_, pod) = lists.placed.swap_remove(gone);
        cluster.remove_pod(&pod.uid);
    }
    if maker.one_in(6) {
        let at = maker.dice.below(lists.nodes.len());
        let number = lists.nodes[at].name[1..].parse().unwrap();
        let node = maker.node(number);
        if maker.one_in(2) {
            cluster.remove_node(&node.name);
        }
        cluster.put_node(clone(&node));
        lists.nodes[at] = node;
    }
}

#[test]
fn random_clusters_are_judged_as_the_slow_reference_judges_them() {
    for seed in 0..25 {
        run(seed);
    }
}

/// Another pod of the same template.
pub(crate) fn replica(of: &PodInfo, number: usize) -> Arc<PodInfo> {
    let name = format!("{}-{number}", of.name);
    Arc::new(PodInfo {
        uid: format!("uid-{name}").into(),
        name: name.into(),
        template: of.template.clone(),
        label_set: of.label_set.clone(),
        created: of.created,
        started: None,
        generation: None,
        nominated: None,
        preempted: false,
        unscheduled: None,
        made_claims: Box::default(),
    })
}

/// Pods that do not fit together must never be on one node; nodes never shrink in this test.
fn check_room(cluster: &Cluster, seed: u64) {
    for slot in cluster.visits() {
        let pods = &cluster.pods[*slot];
        let node = cluster.node(*slot).unwrap();
        let cpu: i64 = pods.iter().map(|pod| pod.template.requests.cpu).sum();
        assert!(cpu <= node.allocatable.cpu, "seed {seed}: {}", node.name);
        assert!(pods.len() as i64 <= node.pods, "seed {seed}: {}", node.name);
        let ports = pods.iter().filter(|pod| !pod.template.ports.is_empty());
        assert!(ports.count() <= 1, "seed {seed}: {}", node.name);
    }
}

/// The result of an attempt as text.
fn attempt(scheduling: &mut Scheduling, profile: &Profile, pod: &Arc<PodInfo>) -> String {
    match scheduling.schedule(profile, pod) {
        Outcome::Node {
            slot,
            evaluated,
            feasible,
        } => {
            let node = scheduling.cluster.names[slot].clone();
            scheduling.cluster.put_pod(&node, pod.clone());
            format!("{node}, one of {feasible} of {evaluated}")
        }
        Outcome::Failed(mut failure) => {
            failure.rejected.sort_by_key(|rejection| rejection.slot);
            format!("{} {:?}", failure.message(), failure.rejected)
        }
    }
}

/// Compares a scheduler with cached results to one without.
fn remember(seed: u64) {
    let mut maker = Maker::new(seed);
    let mut both = [Scheduling::new(seed), Scheduling::forgetful(seed)];
    let nodes = 20 + maker.dice.below(150);
    for number in 0..nodes {
        let node = maker.node(number);
        for one in &mut both {
            one.cluster.put_node(clone(&node));
        }
    }
    let profile = Profile::default_scheduler();
    let workloads: Vec<_> = (0..8).map(|_| maker.pod()).collect();
    let mut placed: Vec<Arc<PodInfo>> = Vec::new();
    for number in 0..300 {
        let pod = replica(&workloads[maker.dice.below(workloads.len())], number);
        let [one, other] = both
            .each_mut()
            .map(|scheduling| attempt(scheduling, &profile, &pod));
        assert_eq!(one, other, "seed {seed}, pod {number}");
        placed.push(pod);
        let gone = maker.one_in(4).then(|| maker.dice.below(placed.len()));
        if let Some(gone) = gone.map(|at| placed.swap_remove(at)) {
            for one in &mut both {
                one.cluster.remove_pod(&gone.uid);
            }
        }
        let nominee = maker
            .one_in(10)
            .then(|| replica(&workloads[0], 1000 + number));
        if let Some(nominee) = nominee {
            let node: Arc<str> = format!("n{}", maker.dice.below(nodes)).into();
            for one in &mut both {
                let nominated = &mut one.cluster.nominated;
                nominated.put(nominee.clone(), node.clone());
            }
        }
        if maker.one_in(10) {
            let changed = maker.dice.below(nodes);
            let mut node = maker.node(changed);
            node.allocatable.cpu = 8000;
            for one in &mut both {
                one.cluster.put_node(clone(&node));
            }
        }
        both[0].cluster.prepare();
        check_room(&both[0].cluster, seed);
    }
}

#[test]
fn cached_filter_results_change_no_decision() {
    for seed in 0..12 {
        remember(seed);
    }
}
