//! Which daemon pods to create and to delete, and the status. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetStatus},
    core::v1::{Node, PodSpec},
};
use reconcile::{
    Kind,
    placement::{matches_node, untolerated},
};

use super::{backoff::Backoffs, daemon::Daemon, pod, roll};

/// At most this many pods are created, and as many deleted, per reconciliation.
const BURST: usize = 250;

/// Whether a pod should run on a node, and whether an existing one may stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fit {
    pub(super) comes: bool,
    pub(super) stays: bool,
}

/// Whether a daemon pod with this spec fits a node.
pub(super) fn fits(spec: &PodSpec, node: &Node) -> Fit {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    let named = spec
        .node_name
        .as_deref()
        .filter(|wanted| !wanted.is_empty());
    if named.is_some_and(|wanted| wanted != name) || !matches_node(spec, labels, name) {
        return Fit::default();
    }
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    let taints = taints.unwrap_or_default();
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let stays = untolerated(taints, tolerations, &["NoExecute"]).is_none();
    let comes = stays && untolerated(taints, tolerations, &["NoSchedule"]).is_none();
    Fit { comes, stays }
}

/// A node, possibly deleted, with its daemon pods: those bound to it first, then the oldest.
#[derive(Default)]
pub(super) struct NodeDaemons<'a> {
    pub(super) fit: Fit,
    pub(super) pods: Vec<&'a Daemon>,
}

pub(super) struct View<'a> {
    pub(super) set: &'a DaemonSet,
    hash: &'a str,
    /// By node name.
    pub(super) places: BTreeMap<&'a str, NodeDaemons<'a>>,
    /// The names of existing nodes.
    nodes: BTreeSet<&'a str>,
    pub(super) now: Timestamp,
}

#[derive(Default)]
pub(super) struct Plan {
    /// Names of nodes.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Daemon>,
    pub(super) events: Vec<(Kind, &'static str, String)>,
    pub(super) after: Option<Duration>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        set: &'a DaemonSet,
        hash: &'a str,
        nodes: &'a [Arc<Node>],
        pods: &'a [Daemon],
        now: Timestamp,
    ) -> Self {
        let spec = pod::spec(set);
        let mut places: BTreeMap<&str, NodeDaemons> = BTreeMap::new();
        for node in nodes {
            let fit = fits(&spec, node);
            let name = node.metadata.name.as_deref().unwrap_or_default();
            places.insert(name, NodeDaemons { fit, pods: vec![] });
        }
        let nodes = places.keys().copied().collect();
        for pod in pods {
            if let Some(node) = pod.target() {
                places.entry(node).or_default().pods.push(pod);
            }
        }
        for place in places.values_mut() {
            if place.pods.len() > 1 {
                let key =
                    |pod: &Daemon| (!pod.is_scheduled(), pod.created(), pod.name().to_owned());
                place.pods.sort_by_cached_key(|pod| key(pod));
            }
        }
        Self {
            set,
            hash,
            places,
            nodes,
            now,
        }
    }

    fn min_ready(&self) -> i32 {
        let spec = self.set.spec.as_ref();
        spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    pub(super) fn is_current(&self, pod: &Daemon) -> bool {
        pod.is_current(self.set, self.hash)
    }

    pub(super) fn is_available(&self, pod: &Daemon) -> bool {
        pod.available_in(self.min_ready(), self.now) == Some(Duration::ZERO)
    }

    /// How many nodes should have a daemon pod.
    pub(super) fn desired(&self) -> i32 {
        let desired = self.places.values().filter(|place| place.fit.comes);
        i32::try_from(desired.count()).unwrap_or(i32::MAX)
    }
}

pub(super) fn decide(view: &View, backoffs: &mut Backoffs) -> Plan {
    let mut plan = Plan::default();
    let surges = roll::surges(view.set);
    for (name, place) in &view.places {
        let alive = || place.pods.iter().filter(|pod| !pod.is_deleting());
        if !view.nodes.contains(name) {
            // A pending pod for a deleted node will never be scheduled; bound ones are left to the
            // pod garbage collector.
            let waiting = place.pods.iter().filter(|pod| !pod.is_scheduled());
            plan.delete.extend(waiting.map(|pod| (*pod).clone()));
        } else if place.fit.comes && place.pods.is_empty() {
            plan.create.push((*name).to_owned());
        } else if place.fit.stays {
            let running = plan.remove_ended(view, backoffs, name, place);
            if !surges {
                plan.delete.extend(running.into_iter().skip(1));
            } else if running.is_empty() && place.fit.comes {
                plan.create.push((*name).to_owned());
            } else {
                plan.remove_surplus(view, running);
            }
        } else {
            plan.delete.extend(alive().map(|pod| (*pod).clone()));
        }
    }
    if plan.create.is_empty() && plan.delete.is_empty() && !roll::is_on_delete(view.set) {
        (plan.create, plan.delete) = roll::decide(view);
    }
    plan.create.truncate(BURST);
    plan.delete.truncate(BURST);
    let min_ready = view.min_ready();
    let daemons = view.places.values().flat_map(|place| &place.pods);
    let waits = daemons.filter_map(|pod| pod.available_in(min_ready, view.now));
    if let Some(wait) = waits.filter(|wait| !wait.is_zero()).min() {
        plan.look_after(wait);
    }
    plan
}

impl Plan {
    fn look_after(&mut self, wait: Duration) {
        self.after = Some(self.after.map_or(wait, |known| known.min(wait)));
    }

    /// Deletes ended daemon pods, failed ones no faster than their backoff allows; returns the
    /// others.
    fn remove_ended(
        &mut self,
        view: &View,
        backoffs: &mut Backoffs,
        node: &str,
        place: &NodeDaemons,
    ) -> Vec<Daemon> {
        let mut running = Vec::new();
        for pod in place.pods.iter().filter(|pod| !pod.is_deleting()) {
            let (namespace, name) = (pod.namespace(), pod.name());
            if pod.has_failed() {
                let uid = view.set.metadata.uid.clone().unwrap_or_default();
                let status = view.set.status.as_ref();
                let generation = status.and_then(|status| status.observed_generation);
                let key = (uid, generation.unwrap_or(0), node.to_owned());
                if let Err(delay) = backoffs.try_next(key, view.now) {
                    self.look_after(delay);
                    continue;
                }
                let text = format!(
                    "Found failed daemon pod {namespace}/{name} on node {node}, will try to kill it"
                );
                self.events.push((Kind::Warning, "FailedDaemonPod", text));
                self.delete.push((*pod).clone());
            } else if pod.has_succeeded() {
                let text = format!(
                    "Found succeeded daemon pod {namespace}/{name} on node {node}, will try to delete it"
                );
                self.events.push((Kind::Normal, "SucceededDaemonPod", text));
                self.delete.push((*pod).clone());
            } else {
                running.push((*pod).clone());
            }
        }
        running
    }

    /// With surge, an old and a new daemon pod share a node until the new one is available. An old
    /// one that is not ready is deleted at once.
    fn remove_surplus(&mut self, view: &View, running: Vec<Daemon>) {
        let (new, old): (Vec<_>, Vec<_>) =
            running.into_iter().partition(|pod| view.is_current(pod));
        let pair = new.first().zip(old.first());
        let replaced = pair.filter(|(new, old)| !old.is_ready() || view.is_available(new));
        let replaced = replaced.map(|(_, old)| old.clone());
        self.delete
            .extend(new.into_iter().skip(1).chain(old.into_iter().skip(1)));
        self.delete.extend(replaced);
    }
}

pub(super) fn status(view: &View) -> DaemonSetStatus {
    let before = view.set.status.clone().unwrap_or_default();
    let mut status = DaemonSetStatus {
        observed_generation: view.set.metadata.generation,
        collision_count: before.collision_count,
        conditions: before.conditions,
        ..Default::default()
    };
    let (mut updated, mut available) = (0, 0);
    for name in &view.nodes {
        let place = &view.places[name];
        match (place.fit.comes, place.pods.first()) {
            (true, Some(pod)) => {
                status.desired_number_scheduled += 1;
                status.current_number_scheduled += 1;
                status.number_ready += i32::from(pod.is_ready());
                available += i32::from(view.is_available(pod));
                updated += i32::from(view.is_current(pod));
            }
            (true, None) => status.desired_number_scheduled += 1,
            (false, Some(_)) => status.number_misscheduled += 1,
            (false, None) => {}
        }
    }
    let positive = |count: i32| (count > 0).then_some(count);
    status.updated_number_scheduled = positive(updated);
    status.number_available = positive(available);
    status.number_unavailable = positive(status.desired_number_scheduled - available);
    status
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::{history, pods::samples::at};

    /// A DaemonSet with these maxSurge and maxUnavailable.
    pub(crate) fn set(surge: i32, missing: i32) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"uid": "set", "name": "d", "namespace": "ns"},
            "spec": {
                "selector": {}, "template": {},
                "updateStrategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}},
            },
        }))
        .unwrap()
    }

    /// `name` or `name:Effect` of a taint that no daemon tolerates.
    fn node(text: &str) -> Arc<Node> {
        let (name, effect) = text.split_once(':').unwrap_or((text, ""));
        let taints = if effect.is_empty() {
            json!([])
        } else {
            json!([{"key": "k", "effect": effect}])
        };
        let node = json!({"metadata": {"name": name}, "spec": {"taints": taints}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    /// `name node hash [ready|Failed|Succeeded|deleted|waiting|young]`.
    fn pod(text: &str) -> Daemon {
        let words: Vec<&str> = text.split(' ').collect();
        let has = |word: &str| words[3..].contains(&word);
        let phase = ["Failed", "Succeeded"].into_iter().find(|phase| has(phase));
        let since = if has("young") { 95 } else { 1 };
        let ready = json!([{"type": "Ready", "status": "True",
            "lastTransitionTime": at(since).to_string()}]);
        let mut pod = json!({
            "metadata": {
                "name": words[0], "namespace": "ns", "labels": {(history::HASH): words[2]},
                "creationTimestamp": at(0).to_string(),
                "deletionTimestamp": has("deleted").then(|| at(1).to_string()),
            },
            "spec": {"nodeName": words[1], "containers": []},
            "status": {"phase": phase.unwrap_or("Running"),
                "conditions": if has("ready") || has("young") { ready } else { json!([]) }},
        });
        if has("waiting") {
            pod["spec"] = json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [words[1]]}]},
                ]},
            }}});
        }
        Daemon::detached(Arc::new(serde_json::from_value(pod).unwrap()))
    }

    fn with_plan<T>(
        set: &DaemonSet,
        nodes: &[&str],
        pods: &[&str],
        backoffs: &mut Backoffs,
        look: impl Fn(&View, Plan) -> T,
    ) -> T {
        let nodes: Vec<_> = nodes.iter().map(|text| node(text)).collect();
        let pods: Vec<_> = pods.iter().map(|text| pod(text)).collect();
        let view = View::new(set, "new", &nodes, &pods, at(100));
        let plan = decide(&view, backoffs);
        look(&view, plan)
    }

    /// The changes: `+` nodes that get a pod, `-` deleted pods.
    pub(crate) fn changes(set: &DaemonSet, nodes: &[&str], pods: &[&str]) -> String {
        with_plan(set, nodes, pods, &mut Backoffs::default(), |_, plan| {
            let gone = plan.delete.iter().map(|pod| pod.name().to_owned());
            let gone: Vec<_> = gone.collect();
            format!("+{} -{}", plan.create.join(","), gone.join(","))
        })
    }

    #[test]
    fn every_node_that_fits_gets_one_pod_and_others_lose_theirs() {
        let nodes = ["a", "b:NoSchedule", "c:NoExecute"];
        for (pods, expected) in [
            (&["p c new ready"][..], "+a -p"),
            (&["p a new ready", "q b new ready"], "+ -"),
            (&["p a new", "q a new", "r a new"], "+ -q,r"),
            (&["p a new waiting", "q a new"], "+ -p"),
            (&["p a new Failed"], "+ -p"),
            (&["p a new Succeeded"], "+ -p"),
            (&["p a new deleted"], "+ -"),
            (&["p c new deleted"], "+a -"),
            (&["p a new", "q gone new waiting"], "+ -q"),
            (&["p a new", "q gone new"], "+ -"),
        ] {
            assert_eq!(changes(&set(0, 1), &nodes, pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn with_surge_a_node_has_an_old_and_a_new_pod_until_the_new_one_is_available() {
        for (pods, expected) in [
            (&["p a new deleted"][..], "+a -"),
            (&["p a old ready", "q a new"], "+ -"),
            (&["p a old ready", "q a new ready"], "+ -p"),
            (&["p a old", "q a new"], "+ -p"),
            (
                &["p a old ready", "q a old ready", "r a new", "s a new"],
                "+ -s,q",
            ),
        ] {
            assert_eq!(changes(&set(1, 0), &["a"], pods), expected, "{pods:?}");
        }
        let mut patient = set(1, 0);
        patient.spec.as_mut().unwrap().min_ready_seconds = Some(10);
        assert_eq!(
            changes(&patient, &["a"], &["p a old ready", "q a new young"]),
            "+ -"
        );
    }

    #[test]
    fn a_failed_daemon_is_made_again_after_a_growing_while() {
        let mut backoffs = Backoffs::default();
        let look = |_: &View, plan: Plan| (plan.delete.len(), plan.after, plan.events);
        let pods = ["p a new Failed"];
        let (deleted, after, events) = with_plan(&set(0, 1), &["a"], &pods, &mut backoffs, look);
        assert_eq!((deleted, after), (1, None));
        let text = "Found failed daemon pod ns/p on node a, will try to kill it".to_owned();
        assert_eq!(events, [(Kind::Warning, "FailedDaemonPod", text)]);
        let (deleted, after, events) = with_plan(&set(0, 1), &["a"], &pods, &mut backoffs, look);
        assert_eq!((deleted, after), (0, Some(Duration::from_secs(1))));
        assert!(events.is_empty());
    }

    #[test]
    fn no_more_than_a_burst_is_made_at_once() {
        let names: Vec<String> = (0..300).map(|number| format!("n{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut backoffs = Backoffs::default();
        let made = with_plan(&set(0, 1), &names, &[], &mut backoffs, |_, plan| {
            plan.create.len()
        });
        assert_eq!(made, BURST);
    }

    #[test]
    fn the_status_counts_nodes() {
        let nodes = ["a", "b", "c", "d:NoSchedule"];
        let pods = [
            "p a new ready",
            "q b old",
            "r d new ready",
            "s gone new ready",
        ];
        let status = with_plan(
            &set(0, 1),
            &nodes,
            &pods,
            &mut Backoffs::default(),
            |view, _| status(view),
        );
        assert_eq!(status.desired_number_scheduled, 3);
        assert_eq!(status.current_number_scheduled, 2);
        assert_eq!(status.number_misscheduled, 1);
        assert_eq!(status.number_ready, 1);
        assert_eq!(status.number_available, Some(1));
        assert_eq!(status.number_unavailable, Some(2));
        assert_eq!(status.updated_number_scheduled, Some(1));
    }
}
