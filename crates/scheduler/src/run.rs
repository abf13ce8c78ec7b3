//! The scheduler's one loop: take in what changed, try the next pod, bind in the background.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Event, Informer, Subscription};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use lifecycle::Context;
use reconcile::Recorder;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::{
    Diagnoses, Diagnosis,
    candidates::Candidates,
    cluster::Cluster,
    cycle::{Choice, choose},
    plugins::Change,
    pod::PodInfo,
    preemption,
    queue::{Queue, Waiting},
    write::Writes,
};

/// How a binding in the background ended.
struct Bound {
    waiting: Waiting,
    error: Option<kube::Error>,
}

struct Loop {
    context: Context,
    cluster: Cluster,
    queue: Queue,
    /// Chosen, counted, and not yet seen as bound; the pods by uid.
    assumed: HashMap<String, Arc<PodInfo>>,
    writes: Writes,
    bound: mpsc::UnboundedSender<Bound>,
    diagnoses: Diagnoses,
}

/// Runs until the watches end.
pub(crate) async fn run(
    context: Context,
    client: kube::Client,
    name: String,
    diagnoses: Diagnoses,
) {
    let pods = Informer::<Pod>::builder(client.clone()).start(&context);
    let nodes = Informer::<Node>::builder(client.clone()).start(&context);
    let namespaces = Informer::<Namespace>::builder(client.clone()).start(&context);
    pods.synced().await;
    nodes.synced().await;
    namespaces.synced().await;
    let recorder = Recorder::start(&context, client.clone(), &name);
    let (bound, results) = mpsc::unbounded_channel();
    let mut scheduler = Loop {
        context: context.clone(),
        cluster: Cluster::default(),
        queue: Queue::default(),
        assumed: HashMap::new(),
        writes: Writes {
            client,
            recorder,
            name,
        },
        bound,
        diagnoses,
    };
    let mut inputs = Inputs {
        pods: pods.subscribe(),
        nodes: nodes.subscribe(),
        namespaces: namespaces.subscribe(),
        results,
    };
    context.ready();
    while inputs.take_all(&mut scheduler) {
        let now = Instant::now();
        match scheduler.queue.pop(now) {
            Some(waiting) => {
                scheduler.try_pod(waiting);
                // A long queue must not keep the tasks that bind from running.
                tokio::task::yield_now().await;
            }
            None => {
                let due = scheduler
                    .queue
                    .due()
                    .unwrap_or(now + Duration::from_secs(60));
                if !inputs.wait(&mut scheduler, due).await {
                    return;
                }
            }
        }
    }
}

struct Inputs {
    pods: Subscription<Pod>,
    nodes: Subscription<Node>,
    namespaces: Subscription<Namespace>,
    results: mpsc::UnboundedReceiver<Bound>,
}

impl Inputs {
    /// Everything that waits already. Nodes first: a pod's node should be known before it.
    fn take_all(&mut self, scheduler: &mut Loop) -> bool {
        while let Some(event) = self.namespaces.try_next() {
            scheduler.on_namespace(&event);
        }
        while let Some(event) = self.nodes.try_next() {
            scheduler.on_node(&event);
        }
        while let Some(event) = self.pods.try_next() {
            scheduler.on_pod(&event);
        }
        while let Ok(bound) = self.results.try_recv() {
            scheduler.on_bound(bound);
        }
        true
    }

    /// Waits for the next input or until `due`; false when the watches have ended.
    async fn wait(&mut self, scheduler: &mut Loop, due: Instant) -> bool {
        tokio::select! {
            event = self.nodes.next() => event.map(|event| scheduler.on_node(&event)).is_some(),
            event = self.pods.next() => event.map(|event| scheduler.on_pod(&event)).is_some(),
            event = self.namespaces.next() => {
                event.map(|event| scheduler.on_namespace(&event)).is_some()
            }
            bound = self.results.recv() => bound.map(|bound| scheduler.on_bound(bound)).is_some(),
            () = tokio::time::sleep_until(due.into()) => true,
        }
    }
}

impl Loop {
    fn changed(&mut self, change: Change) {
        self.queue.changed(change, Instant::now());
    }

    fn on_namespace(&mut self, event: &Event<Namespace>) {
        let meta = &event.object().metadata;
        let name = meta.name.clone().unwrap_or_default();
        if matches!(event, Event::Deleted(_)) {
            self.cluster.namespaces.remove(&name);
        } else {
            self.cluster
                .namespaces
                .insert(name, meta.labels.clone().unwrap_or_default());
        }
        self.changed(Change::PodUpdated);
    }

    fn on_node(&mut self, event: &Event<Node>) {
        match event {
            Event::Added(node) => {
                self.cluster.put_node(node.clone());
                self.changed(Change::NodeAdded);
            }
            Event::Deleted(node) => {
                self.cluster
                    .remove_node(node.metadata.name.as_deref().unwrap_or_default());
            }
            Event::Modified { old, new } => {
                self.cluster.put_node(new.clone());
                for change in node_changes(old, new) {
                    self.changed(change);
                }
            }
        }
    }

    fn on_pod(&mut self, event: &Event<Pod>) {
        let pod = event.object();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        if matches!(event, Event::Deleted(_)) || ended {
            self.queue.remove(&uid);
            self.assumed.remove(&uid);
            self.diagnoses.remove(&uid);
            if self.cluster.remove_pod(&uid).is_some() {
                self.changed(Change::PodGone);
            }
            return;
        }
        let spec = pod.spec.as_ref();
        let node = spec
            .and_then(|spec| spec.node_name.clone())
            .filter(|name| !name.is_empty());
        if let Some(node) = node {
            self.assumed.remove(&uid);
            self.queue.remove(&uid);
            self.diagnoses.remove(&uid);
            self.cluster
                .put_pod(&node, Arc::new(PodInfo::new(pod.clone())));
            self.changed(Change::PodPlaced);
            return;
        }
        let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let mine = scheduler.unwrap_or("default-scheduler") == self.writes.name;
        if !mine || self.assumed.contains_key(&uid) || pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        self.queue
            .put(Arc::new(PodInfo::new(pod.clone())), Instant::now());
    }

    /// One try: a node is found and the pod counted there, or it is known why not.
    fn try_pod(&mut self, waiting: Waiting) {
        let pod = waiting.pod.clone();
        match choose(&pod, &mut self.cluster) {
            Choice::Node(slot) => {
                let node = self.cluster.names[slot].clone();
                self.cluster.put_pod(&node, pod.clone());
                self.assumed.insert(pod.uid.clone(), pod);
                self.bind(waiting, node);
            }
            Choice::Nothing(candidates) => self.no_node(waiting, &candidates),
        }
    }

    fn bind(&self, waiting: Waiting, node: Arc<str>) {
        let (writes, bound) = (self.writes.clone(), self.bound.clone());
        self.context.spawn("bind", async move {
            let error = writes.bind(&waiting.pod, &node).await.err();
            // The loop is gone only when everything ends.
            let _ = bound.send(Bound { waiting, error });
        });
    }

    fn on_bound(&mut self, Bound { waiting, error }: Bound) {
        let Some(error) = error else { return };
        let uid = &waiting.pod.uid;
        // Not assumed any more: it was seen as bound, or it is gone.
        if self.assumed.remove(uid).is_none() {
            return;
        }
        self.cluster.remove_pod(uid);
        self.changed(Change::PodGone);
        if matches!(&error, kube::Error::Api(status) if status.code == 404) {
            debug!(pod = waiting.pod.name, "gone before it was bound");
            return;
        }
        warn!(pod = waiting.pod.name, %error, "cannot bind, will be tried again");
        self.queue.retry(waiting, Instant::now());
    }

    fn no_node(&mut self, waiting: Waiting, candidates: &Candidates) {
        let (pod, total) = (waiting.pod.clone(), self.cluster.size());
        let mut nominated = None;
        let message = if total == 0 {
            "no nodes available to schedule pods".to_owned()
        } else {
            let why = candidates.message(total);
            match preemption::find(&pod, &mut self.cluster, candidates) {
                Ok(sacrifice) => {
                    let node = self.cluster.names[sacrifice.slot].clone();
                    self.preempt(&pod, &node, sacrifice.victims);
                    nominated = Some(node);
                    why
                }
                Err(why_not) => format!("{why} preemption: {why_not}"),
            }
        };
        debug!(pod = pod.name, message, "no node");
        let by = rejecting(candidates);
        self.diagnoses
            .put(&pod.uid, self.diagnosis(candidates, &message));
        self.queue.turned_away(waiting, by, Instant::now());
        let writes = self.writes.clone();
        self.context.spawn("explain", async move {
            writes.explain(&pod, &message, nominated.as_deref()).await;
        });
    }

    fn preempt(&self, pod: &Arc<PodInfo>, node: &Arc<str>, victims: Vec<Arc<PodInfo>>) {
        for victim in victims {
            let (writes, pod, node) = (self.writes.clone(), pod.clone(), node.clone());
            self.context.spawn("preempt", async move {
                writes.evict(&victim, &pod, &node).await;
            });
        }
    }

    fn diagnosis(&self, candidates: &Candidates, message: &str) -> Diagnosis {
        let nodes = candidates.rejected().iter().map(|rejection| {
            let reasons = rejection.reasons.iter().map(ToString::to_string).collect();
            (
                self.cluster.names[rejection.slot].clone(),
                rejection.plugin,
                reasons,
            )
        });
        Diagnosis {
            message: message.to_owned(),
            nodes: nodes.collect(),
        }
    }
}

fn rejecting(candidates: &Candidates) -> Vec<&'static str> {
    let mut plugins: Vec<_> = candidates.rejected().iter().map(|r| r.plugin).collect();
    plugins.sort_unstable();
    plugins.dedup();
    plugins
}

/// What of a node's change could help anybody. Heartbeats could not.
fn node_changes(old: &Node, new: &Node) -> Vec<Change> {
    let allocatable = |node: &Node| node.status.as_ref().and_then(|s| s.allocatable.clone());
    let taints = |node: &Node| {
        node.spec
            .as_ref()
            .map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false)))
    };
    let mut changes = Vec::new();
    if allocatable(old) != allocatable(new) {
        changes.push(Change::NodeAllocatable);
    }
    if old.metadata.labels != new.metadata.labels {
        changes.push(Change::NodeLabels);
    }
    if taints(old) != taints(new) {
        changes.push(Change::NodeTaints);
    }
    changes
}
