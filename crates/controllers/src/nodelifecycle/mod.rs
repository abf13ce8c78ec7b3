//! Node health: a node without heartbeats becomes Unknown, conditions become taints, and its pods
//! become unready. NoExecute taints are added at a limited rate per zone, and not at all while no
//! node is ready ([`zones`]).

mod health;
mod taints;
mod zones;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Api, Informer, informer::Entry};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod, PodCondition, Taint},
};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use reconcile::{
    Action, Controller, Error, Key, Kind, Recorder, StatusPatch,
    condition::{self},
};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    metrics::Metrics,
    pods::is_ready,
    shared::{NODE, Shared},
};
pub(crate) use health::Facts;
use health::{Heartbeats, ready};
use zones::{Change, Count, Zones, zone_of};

/// The name in [`crate::ALL`].
pub const NAME: &str = "node-lifecycle";
const ACCOUNT: &str = "node-controller";
const LEASES: &str = "kube-node-lease";
/// How often all nodes are checked.
const PERIOD: Duration = Duration::from_secs(5);
/// How many nodes are written concurrently.
const PARALLEL: usize = 8;
/// Nodes with this label do not count for a zone's state.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let leases = Informer::<Lease>::builder(shared.reader())
        .namespace(LEASES)
        .summary(health::renewed)
        .start(&shared.context);
    let nodes = Nodes {
        shared: shared.clone(),
        client: shared.client(ACCOUNT),
        nodes: shared.informer(),
        leases,
        pods: shared.informer(),
        recorder: shared.recorder(ACCOUNT, "node-controller"),
    };
    let controller = Arc::new(nodes);
    shared
        .controller(&controller)
        .watches(&controller.nodes)
        .reads(&controller.leases)
        .reads(&controller.pods)
        .workers(4)
        .start();
    let starting = shared.starting("node-monitor");
    let clock = shared.clock();
    shared.context.spawn("node-monitor", async move {
        controller.nodes.synced().await;
        controller.leases.synced().await;
        controller.pods.synced().await;
        drop(starting);
        let mut monitor = Monitor::default();
        loop {
            monitor.pass(&controller).await;
            let mut left = PERIOD;
            while !left.is_zero() {
                let pause = monitor.zones.next_in().unwrap_or(left).min(left);
                clock.sleep(pause.max(Duration::from_millis(1))).await;
                left = left.saturating_sub(pause.max(Duration::from_millis(1)));
                monitor.taint_due(&controller).await;
            }
        }
    });
}

struct Nodes {
    shared: Arc<Shared>,
    client: kube::Client,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Informer<Pod>,
    recorder: Recorder,
}

impl Controller for Nodes {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Taints follow conditions as soon as they change.
    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(node) = self.nodes.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let desired = taints::desired(&node, self.shared.now());
        if desired != taints::current(&node) {
            self.write_taints(&node, &desired).await?;
        }
        Ok(Action::Done)
    }
}

/// The state between two passes.
#[derive(Default)]
struct Monitor {
    heartbeats: Heartbeats,
    zones: Zones,
    /// Names and uids of the nodes in the last pass.
    known: HashMap<String, Option<Arc<str>>>,
    /// Nodes some of whose pods could not be marked as unready.
    unmarked: HashSet<String>,
}

impl Monitor {
    /// Checks every node's heartbeat, and queues NoExecute taints by zone. Nodes that are well are not decoded.
    async fn pass(&mut self, nodes: &Nodes) {
        let begun = Instant::now();
        let all = nodes.nodes.entries();
        let appeared = self.register(nodes, &all);
        let now = nodes.shared.now();
        self.heartbeats.begin_pass(now);
        let mut counts: BTreeMap<String, Count> = BTreeMap::new();
        let mut looks = Vec::new();
        for (node, facts) in with_facts(&all) {
            let begun = Instant::now();
            let lease = nodes.leases.entry(LEASES, node.name());
            let renewed = lease.and_then(|lease| *lease.summary::<Option<Timestamp>>()?);
            let is_silent = self.heartbeats.is_silent(node.name(), facts, renewed, now);
            if is_silent || !facts.is_ready() {
                looks.push(nodes.look(nodes.nodes.read_entry(node), is_silent));
                continue;
            }
            if !facts.is_excluded {
                counts.entry(facts.zone.to_string()).or_default().ready += 1;
            }
            self.zones.remove(node.name());
            self.unmarked.remove(node.name());
            let metrics = &nodes.shared.metrics;
            metrics.node_look_seconds.took([], begun.elapsed());
        }
        let looked: Vec<_> = stream::iter(looks)
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let mut unready = Vec::new();
        let mut lost = Vec::new();
        for (before, outcome) in looked {
            let after = match outcome {
                Ok(after) => after,
                // Do nothing about a node whose state is uncertain.
                Err(error) => {
                    warn!(node = name(&before), %error, "cannot update the node's health");
                    continue;
                }
            };
            let is_well = ready(&after).is_some_and(|ready| ready.status == "True");
            if !is_excluded(&after) {
                let count = counts.entry(zone_of(&after)).or_default();
                *if is_well {
                    &mut count.ready
                } else {
                    &mut count.not_ready
                } += 1;
            }
            if is_well {
                self.zones.remove(name(&after));
                self.unmarked.remove(name(&after));
                continue;
            }
            let was_well = ready(&before).is_some_and(|ready| ready.status == "True");
            let retried = self.unmarked.contains(name(&after));
            if was_well || retried || appeared.contains(name(&after)) {
                lost.push(name(&after).to_owned());
            }
            unready.push(after);
        }
        let metrics = &nodes.shared.metrics;
        count_zones(metrics, &counts);
        metrics.node_pass_seconds.took([], begun.elapsed());
        self.disruption(nodes, &counts).await;
        for node in &unready {
            if taints::with_eviction(node, now).is_some() && !taints::is_evicting(node) {
                self.zones.add(&zone_of(node), name(node), now);
            }
        }
        self.taint_due(nodes).await;
        self.mark_pods(nodes, lost).await;
    }

    /// Records added and removed nodes; returns the names of added ones.
    fn register(&mut self, nodes: &Nodes, all: &[Entry<Node>]) -> HashSet<String> {
        let now: HashMap<String, Option<Arc<str>>> = with_facts(all)
            .map(|(node, facts)| (node.name().to_owned(), facts.uid.clone()))
            .collect();
        let known = std::mem::replace(&mut self.known, now);
        for (gone, uid) in known
            .iter()
            .filter(|(name, _)| !self.known.contains_key(*name))
        {
            nodes.record(gone, uid.clone(), "RemovingNode", "Removing Node", "from");
            self.heartbeats.forget(gone);
            self.zones.remove(gone);
            self.unmarked.remove(gone);
        }
        let appeared = self
            .known
            .iter()
            .filter(|(name, _)| !known.contains_key(*name));
        let appeared = appeared.map(|(name, uid)| {
            nodes.record(name, uid.clone(), "RegisteredNode", "Registered Node", "in");
            name.clone()
        });
        appeared.collect()
    }

    /// Enters or leaves the state in which no node is ready and nothing is evicted.
    async fn disruption(&mut self, nodes: &Nodes, counts: &BTreeMap<String, Count>) {
        let now = nodes.shared.now();
        match self.zones.observe(counts, now) {
            Change::None => {}
            Change::AllDisrupted => {
                info!("no node is ready, pausing evictions");
                for node in nodes.nodes.list() {
                    if let Some(taints) = taints::without_eviction(&node, now) {
                        nodes.try_taints(&node, &taints).await;
                    }
                }
            }
            Change::Recovered => {
                info!("a node is ready again, resuming evictions");
                self.heartbeats.reset(now);
            }
        }
    }

    /// Taints the nodes that are due; the taint eviction controller evicts their pods.
    async fn taint_due(&mut self, nodes: &Nodes) {
        let now = nodes.shared.now();
        for due in self.zones.due(now) {
            let Some(node) = nodes.nodes.get("", &due) else {
                continue;
            };
            let Some(taints) = taints::with_eviction(&node, now) else {
                continue;
            };
            if nodes.try_taints(&node, &taints).await {
                let by = [("zone", &*zone_of(&node))];
                nodes.shared.metrics.node_evictions.add(by, 1);
            } else {
                self.zones.add(&zone_of(&node), &due, now);
            }
        }
    }

    async fn mark_pods(&mut self, nodes: &Nodes, lost: Vec<String>) {
        let marks: Vec<_> = lost.into_iter().map(|node| nodes.mark_node(node)).collect();
        let marked: Vec<_> = stream::iter(marks)
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        for (node, outcome) in marked {
            match outcome {
                Ok(()) => {
                    self.unmarked.remove(&node);
                }
                Err(error) => {
                    warn!(node, %error, "cannot mark all pods as not ready, retrying");
                    self.unmarked.insert(node);
                }
            }
        }
    }
}

impl Nodes {
    fn api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// The node before and after its health was updated.
    async fn look(
        &self,
        node: Arc<Node>,
        is_silent: bool,
    ) -> (Arc<Node>, Result<Arc<Node>, kube::Error>) {
        let begun = Instant::now();
        let after = self.silence(&node, is_silent).await;
        let metrics = &self.shared.metrics;
        metrics.node_look_seconds.took([], begun.elapsed());
        (node, after)
    }

    /// Sets the conditions of a node without heartbeats; returns the current node.
    async fn silence(&self, node: &Arc<Node>, is_silent: bool) -> Result<Arc<Node>, kube::Error> {
        let conditions = if is_silent {
            health::silenced(node, self.shared.now())
        } else {
            Vec::new()
        };
        if conditions.is_empty() {
            return Ok(node.clone());
        }
        // Precondition: a status that the kubelet wrote meanwhile is a heartbeat, which the next
        // pass sees.
        let patch = StatusPatch::new(&**node).if_unchanged(&**node);
        let patch = patch.conditions(&conditions);
        let written = match patch.send(&self.api(), name(node)).await {
            Ok(written) => Arc::new(written),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                return Ok(node.clone());
            }
            Err(error) => return Err(error),
        };
        if ready(node).is_some_and(|ready| ready.status == "True") {
            let text = format!("Node {} status is now: NodeNotReady", name(node));
            let about = written.object_ref(&());
            self.recorder
                .event(&about, Kind::Normal, "NodeNotReady", text);
        }
        Ok(written)
    }

    async fn write_taints(&self, node: &Node, taints: &[Taint]) -> Result<(), Error> {
        // Taints are a list without merge keys: written as a whole, with a precondition.
        let taints = (!taints.is_empty()).then_some(taints);
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": taints},
        });
        let params = PatchParams::default();
        self.api()
            .patch(name(node), &params, &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// Returns whether the taints were written.
    async fn try_taints(&self, node: &Node, taints: &[Taint]) -> bool {
        match self.write_taints(node, taints).await {
            Ok(()) => true,
            Err(error) => {
                if !error.is_conflict() && !error.is_not_found() {
                    warn!(node = name(node), %error, "cannot write the node's taints");
                }
                false
            }
        }
    }

    async fn mark_node(&self, node: String) -> (String, Result<(), kube::Error>) {
        let outcome = self.mark_pods(&node).await;
        (node, outcome)
    }

    /// Marks the pods of a lost node as not ready, so that they get no traffic.
    async fn mark_pods(&self, node: &str) -> Result<(), kube::Error> {
        let pods = self.pods.by_index(NODE, node);
        for pod in pods.into_iter().filter(|pod| is_ready(pod)) {
            let not_ready = PodCondition {
                status: "False".into(),
                observed_generation: pod.metadata.generation,
                ..crate::pods::condition(&pod, "Ready")
                    .cloned()
                    .unwrap_or_default()
            };
            let Some(not_ready) =
                condition::transition(crate::pods::conditions(&pod), not_ready, self.shared.now())
            else {
                continue;
            };
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let patch = StatusPatch::new(&*pod).condition(&not_ready);
            let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
            match patch.send(&api, pod_name).await {
                Ok(_) => {
                    let about = pod.object_ref(&());
                    let text = "Node is not ready";
                    self.recorder
                        .event(&about, Kind::Warning, "NodeNotReady", text);
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn record(&self, node: &str, uid: Option<Arc<str>>, reason: &str, verb: &str, to: &str) {
        let about = k8s_openapi::api::core::v1::ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            uid: uid.map(|uid| uid.to_string()),
            ..Default::default()
        };
        let text = format!("{verb} {node} {to} Controller");
        self.recorder.event(&about, Kind::Normal, reason, text);
    }
}

fn count_zones(metrics: &Metrics, counts: &BTreeMap<String, Count>) {
    for gauges in [
        &metrics.zone_size,
        &metrics.zone_unhealthy,
        &metrics.zone_health,
    ] {
        gauges.clear();
    }
    for (zone, count) in counts {
        let (by, size) = ([("zone", zone.as_str())], count.ready + count.not_ready);
        metrics.zone_size.set(by, size);
        metrics.zone_unhealthy.set(by, count.not_ready);
        metrics.zone_health.set(by, 100 * count.ready / size.max(1));
    }
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Whether a node does not count for the state of its zone.
fn is_excluded(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(EXCLUDED))
}

/// The nodes with the facts that the shared informer keeps for each.
fn with_facts(nodes: &[Entry<Node>]) -> impl Iterator<Item = (&Entry<Node>, &Facts)> {
    nodes
        .iter()
        .filter_map(|node| Some((node, node.summary()?)))
}

#[cfg(test)]
pub(crate) mod samples {
    //! Nodes for tests.

    use k8s_openapi::api::core::v1::{NodeCondition, NodeSpec, NodeStatus};

    use super::*;

    pub(crate) fn node(conditions: &[(&str, &str)], taints: &[(&str, &str)]) -> Node {
        let conditions = conditions.iter().map(|(kind, status)| NodeCondition {
            type_: (*kind).into(),
            status: (*status).into(),
            ..Default::default()
        });
        let taints = taints.iter().map(|(key, effect)| Taint {
            key: (*key).into(),
            effect: (*effect).into(),
            ..Default::default()
        });
        Node {
            spec: Some(NodeSpec {
                taints: Some(taints.collect()),
                ..Default::default()
            }),
            status: Some(NodeStatus {
                conditions: Some(conditions.collect()),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}
