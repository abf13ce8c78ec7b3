//! A slow and obvious reference implementation of preemption: pods are removed from lists and added
//! back one at a time, and all nodes are compared. Random clusters must give a node and victims of
//! the same cost.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    cluster::NodeInfo,
    cycle::{Outcome, Scheduling},
    framework::profile::Profile,
    pod::PodInfo,
    reference::{Lists, Maker, clone},
};

/// Allowed disruptions by the label `app` of the protected pods.
type Budgets = BTreeMap<&'static str, i64>;

/// A node, the names of its victims, and their cost.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sacrifice {
    node: String,
    victims: BTreeSet<String>,
    cost: (usize, i32, i64, usize, Reverse<Timestamp>),
}

fn began(pod: &PodInfo) -> Timestamp {
    pod.started.unwrap_or(Timestamp::MAX)
}

/// The most important first.
fn ordered(mut pods: Vec<Arc<PodInfo>>) -> Vec<Arc<PodInfo>> {
    pods.sort_by_key(|pod| (Reverse(pod.priority()), began(pod)));
    pods
}

/// The pods whose budget is exhausted when they are deleted one after the other.
fn violating(pods: &[Arc<PodInfo>], budgets: &Budgets) -> BTreeSet<String> {
    let mut left = budgets.clone();
    let mut violating = BTreeSet::new();
    for pod in pods.iter().filter(|pod| &**pod.namespace() == "x") {
        let app = pod.label_set.labels.get("app").map(String::as_str);
        if let Some(allowed) = app.and_then(|app| left.get_mut(app)) {
            *allowed -= 1;
            if *allowed < 0 {
                violating.insert(pod.name.to_string());
            }
        }
    }
    violating
}

fn cost(
    violations: usize,
    victims: &[Arc<PodInfo>],
) -> (usize, i32, i64, usize, Reverse<Timestamp>) {
    let highest = victims.iter().map(|pod| pod.priority()).max().unwrap();
    let sum = victims
        .iter()
        .map(|pod| i64::from(pod.priority()) + (1 << 31));
    let foremost = victims.iter().filter(|pod| pod.priority() == highest);
    let started = foremost.map(|pod| began(pod)).min().unwrap();
    (
        violations,
        highest,
        sum.sum(),
        victims.len(),
        Reverse(started),
    )
}

/// The victims on a node so that the pod fits.
fn on_node(
    lists: &mut Lists,
    pod: &PodInfo,
    node: &NodeInfo,
    budgets: &Budgets,
) -> Option<Sacrifice> {
    let all = std::mem::take(&mut lists.placed);
    let is_lesser = |(at, other): &(String, Arc<PodInfo>)| {
        **at == *node.name && other.priority() < pod.priority()
    };
    lists.placed = all.iter().filter(|one| !is_lesser(one)).cloned().collect();
    let lesser = all.iter().filter(|one| is_lesser(one));
    let lesser = ordered(lesser.map(|(_, pod)| pod.clone()).collect());
    let mut victims = Vec::new();
    if !lesser.is_empty() && lists.fits(pod, node) {
        let protected = violating(&lesser, budgets);
        let is_protected = |pod: &&Arc<PodInfo>| protected.contains(&*pod.name);
        let first = lesser.iter().filter(is_protected);
        for other in first.chain(lesser.iter().filter(|pod| !is_protected(pod))) {
            lists.placed.push((node.name.to_string(), other.clone()));
            if !lists.fits(pod, node) {
                lists.placed.pop();
                victims.push(other.clone());
            }
        }
    }
    lists.placed = all;
    if victims.is_empty() {
        return None;
    }
    let protected = violating(&lesser, budgets);
    let violations = victims.iter().filter(|pod| protected.contains(&*pod.name));
    Some(Sacrifice {
        node: node.name.to_string(),
        cost: cost(violations.count(), &victims),
        victims: victims.iter().map(|pod| pod.name.to_string()).collect(),
    })
}

fn budget(app: &str, allowed: i64) -> k8s_openapi::api::policy::v1::PodDisruptionBudget {
    let budget = json!({
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1},
    });
    serde_json::from_value(budget).unwrap()
}

/// A pod with a priority and a start time of its own.
fn pod(maker: &mut Maker, priority: i64, cpu: &str) -> Arc<PodInfo> {
    let mut document: Value = maker.document();
    document["spec"]["priority"] = json!(priority);
    document["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
    if let Some(meta) = document["metadata"].as_object_mut() {
        meta.remove("deletionTimestamp");
    }
    let name = document["metadata"]["name"].as_str().unwrap();
    let second: i64 = name[1..].parse().unwrap();
    let started = Timestamp::from_second(second).unwrap().to_string();
    document["status"] = json!({"startTime": started});
    Arc::new(PodInfo::new(&serde_json::from_value(document).unwrap()))
}

/// Returns the number of compared candidates.
fn run(seed: u64) -> usize {
    let mut maker = Maker::new(seed);
    let (mut lists, mut scheduling) = (Lists::default(), Scheduling::new(seed));
    for name in ["x", "y"] {
        lists.namespaces.insert(name.into(), Default::default());
        scheduling
            .cluster
            .put_namespace(name, Some(Default::default()));
    }
    for number in 0..6 {
        let node = maker.node(number);
        scheduling.cluster.put_node(clone(&node));
        lists.nodes.push(node);
    }
    let mut budgets = Budgets::new();
    for app in ["a", "b"] {
        let allowed = maker.dice.below(3) as i64;
        budgets.insert(app, allowed);
        let budgets = &mut scheduling.cluster.budgets;
        budgets.put("x", app, Some(&budget(app, allowed)));
    }
    let (profile, mut compared) = (Profile::default_scheduler(), 0);
    for _ in 0..40 {
        let priority = maker.dice.below(4) as i64 - 1;
        let filler = pod(&mut maker, priority, "1");
        if let Outcome::Node { slot, .. } = scheduling.schedule(&profile, &filler) {
            let node = scheduling.cluster.names[slot].to_string();
            scheduling.cluster.put_pod(&node, filler.clone());
            lists.placed.push((node, filler));
        }
        let cpu = maker.pick(&["1", "2", "4"]);
        let important = pod(&mut maker, 10, cpu);
        compared += compare(&mut lists, &mut scheduling, &profile, &important, &budgets);
    }
    compared
}

fn compare(
    lists: &mut Lists,
    scheduling: &mut Scheduling,
    profile: &Profile,
    pod: &Arc<PodInfo>,
    budgets: &Budgets,
) -> usize {
    let Outcome::Failed(failure) = scheduling.schedule(profile, pod) else {
        return 0;
    };
    let nodes: Vec<NodeInfo> = lists.nodes.iter().map(clone).collect();
    let all = nodes.iter();
    let all: Vec<Sacrifice> = all
        .filter_map(|node| on_node(lists, pod, node, budgets))
        .collect();
    let least = all.iter().map(|sacrifice| &sacrifice.cost).min();
    match scheduling.post_filter(profile, pod, &failure).nominated {
        Some((slot, victims)) => {
            let node = scheduling.cluster.names[slot].to_string();
            let names = victims.iter().map(|pod| pod.name.to_string()).collect();
            let found = all.iter().find(|one| one.node == node);
            let found = found.unwrap_or_else(|| panic!("no room on {node}: {all:?}"));
            assert_eq!(found.victims, names, "on {node}");
            assert_eq!(Some(&found.cost), least, "{found:?} of {all:?}");
            1
        }
        _ => {
            assert_eq!(all, [], "{:#?}", pod.template);
            0
        }
    }
}

#[test]
fn random_clusters_give_the_victims_that_the_slow_reference_finds() {
    let compared: usize = (0..40).map(run).sum();
    assert!(compared > 200, "only {compared} were compared");
}
