//! Simulated nodes, a clock that runs fast, and a check whether a cluster matches its specs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::Job,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams},
};
use lifecycle::Context;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::Clock;

/// A clock that runs several times faster.
pub(crate) struct FastClock {
    start: (Timestamp, Instant),
    factor: u32,
}

impl FastClock {
    pub(crate) fn new(factor: u32) -> Self {
        Self {
            start: (Timestamp::now(), Instant::now()),
            factor,
        }
    }
}

impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        self.start.0 + self.start.1.elapsed() * self.factor
    }

    fn sleep(&self, duration: Duration) -> stdx::clock::Sleep {
        Box::pin(tokio::time::sleep(duration / self.factor))
    }
}

struct State {
    names: BTreeSet<String>,
    paused_until: Instant,
}

/// Simulated kubelets and a scheduler: they bind, run and end pods.
#[derive(Clone)]
pub(crate) struct Nodes {
    state: Arc<Mutex<State>>,
}

impl Nodes {
    pub(crate) fn start(context: &Context, client: &kube::Client, clock: Arc<FastClock>) -> Self {
        let state = State {
            names: BTreeSet::new(),
            paused_until: Instant::now(),
        };
        let nodes = Self {
            state: Arc::new(Mutex::new(state)),
        };
        let pods = Informer::<Pod>::builder(client.clone()).start(context);
        let (living, client) = (nodes.clone(), client.clone());
        let mut address = 0;
        context.spawn("nodes", async move {
            loop {
                living.heartbeat(&client, &clock).await;
                for pod in pods.list() {
                    address += 1;
                    if let Err(error) = living.step(&client, &pod, address).await {
                        tracing::debug!(%error, "the pod has changed meanwhile");
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        nodes
    }

    pub(crate) fn add(&self, name: &str) {
        self.state.lock().names.insert(name.to_owned());
    }

    pub(crate) fn remove(&self, name: &str) {
        self.state.lock().names.remove(name);
    }

    /// Binds no new pod for a while.
    pub(crate) fn pause(&self, duration: Duration) {
        self.state.lock().paused_until = Instant::now() + duration;
    }

    fn names(&self) -> BTreeSet<String> {
        self.state.lock().names.clone()
    }

    async fn heartbeat(&self, client: &kube::Client, clock: &FastClock) {
        let api: Api<Node> = Api::all(client.clone());
        for name in self.names() {
            let now = clock.now().to_string();
            let status = json!({"status": {"conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }]}});
            let params = PatchParams::default();
            // A node that was deleted meanwhile has no status.
            let _ = api
                .patch_status(&name, &params, &Patch::Strategic(&status))
                .await;
        }
    }

    /// One step in a pod's life.
    async fn step(&self, client: &kube::Client, pod: &Pod, number: u32) -> Result<(), kube::Error> {
        let meta = &pod.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap(),
            meta.name.as_deref().unwrap(),
        );
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let leaving = meta.deletion_timestamp.is_some();
        match bound {
            None if leaving => Ok(()),
            None => self.bind(client, pod).await,
            Some(node) if !self.names().contains(node) => Ok(()),
            // A kubelet reports that a pod has ended before it deletes it.
            Some(_) if leaving && !matches!(phase, Some("Succeeded" | "Failed")) => {
                let status = json!({"status": {"phase": "Failed"}});
                let params = PatchParams::default();
                api.patch_status(name, &params, &Patch::Strategic(&status))
                    .await
                    .map(drop)
            }
            Some(_) if leaving => {
                let params = DeleteParams::default().grace_period(0);
                api.delete(name, &params).await.map(drop)
            }
            Some(_) if phase == Some("Pending") => {
                let labels = meta.labels.as_ref();
                let finishes = labels.is_some_and(|labels| labels.contains_key("finishes"));
                let ip = format!("10.42.{}.{}", number / 250 % 250, number % 250 + 1);
                let (phase, ready) = if finishes {
                    ("Succeeded", "False")
                } else {
                    ("Running", "True")
                };
                let now = Timestamp::now().to_string();
                let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": now});
                let status = json!({"status": {
                    "phase": phase, "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [ready],
                }});
                let params = PatchParams::default();
                api.patch_status(name, &params, &Patch::Strategic(&status))
                    .await
                    .map(drop)
            }
            // A pod marked as not ready while the node was silent is ready again.
            Some(_) if phase == Some("Running") && !is_ready(pod) => {
                let now = Timestamp::now().to_string();
                let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
                let status = json!({"status": {"conditions": [ready]}});
                let params = PatchParams::default();
                api.patch_status(name, &params, &Patch::Strategic(&status))
                    .await
                    .map(drop)
            }
            Some(_) => Ok(()),
        }
    }

    async fn bind(&self, client: &kube::Client, pod: &Pod) -> Result<(), kube::Error> {
        let names: Vec<String> = self.names().into_iter().collect();
        if names.is_empty() || Instant::now() < self.state.lock().paused_until {
            return Ok(());
        }
        let meta = &pod.metadata;
        let spread = meta.uid.as_deref().unwrap_or_default().bytes();
        let spread = spread.map(usize::from).sum::<usize>() % names.len();
        let target = wanted_node(pod).unwrap_or_else(|| names[spread].clone());
        if !names.contains(&target) {
            return Ok(());
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"kind": "Node", "name": target},
        });
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/binding",
            meta.namespace.as_deref().unwrap(),
            meta.name.as_deref().unwrap()
        );
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&binding).unwrap()).unwrap();
        client.request::<Value>(request).await.map(drop)
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The node in a daemon pod's affinity.
fn wanted_node(pod: &Pod) -> Option<String> {
    let affinity = pod
        .spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let field = required
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?
        .first()?;
    field.values.as_ref()?.first().cloned()
}

async fn list<K>(client: &kube::Client, namespace: &str) -> Vec<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.list(&Default::default()).await.unwrap().items
}

#[derive(Default)]
struct Cluster {
    problems: Vec<String>,
    /// Kind and name of every object by uid.
    owners: HashMap<String, String>,
    /// Pods by the uid of their controller.
    pods: BTreeMap<String, Vec<Pod>>,
}

impl Cluster {
    fn expect<T: PartialEq + std::fmt::Debug>(&mut self, what: String, seen: T, wanted: T) {
        if seen != wanted {
            self.problems
                .push(format!("{what}: {seen:?}, not {wanted:?}"));
        }
    }

    fn take<K: Resource<DynamicType = ()>>(&mut self, objects: &[K]) {
        for object in objects {
            let (meta, kind) = (object.meta(), K::kind(&()));
            let name = format!("{kind} {}", meta.name.as_deref().unwrap());
            if meta.deletion_timestamp.is_some() {
                let finalizers = &meta.finalizers;
                self.problems
                    .push(format!("{name} is still being deleted: {finalizers:?}"));
            }
            self.owners.insert(meta.uid.clone().unwrap(), name);
        }
    }

    fn owned<K: Resource<DynamicType = ()>>(&mut self, objects: &[K]) {
        for object in objects {
            for owner in object.meta().owner_references.iter().flatten() {
                if !self.owners.contains_key(&owner.uid) {
                    let name = object.meta().name.as_deref().unwrap();
                    let (kind, owner) = (K::kind(&()), &owner.name);
                    self.problems
                        .push(format!("{kind} {name} has lost its owner {owner}"));
                }
            }
        }
    }

    fn pods_of<K: Resource>(&self, owner: &K) -> &[Pod] {
        let pods = self.pods.get(owner.meta().uid.as_deref().unwrap());
        pods.map(Vec::as_slice).unwrap_or_default()
    }

    fn running<K: Resource>(&self, owner: &K) -> usize {
        let running = |pod: &&Pod| {
            let status = pod.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        self.pods_of(owner).iter().filter(running).count()
    }
}

/// Everything that does not match the specs; empty when the cluster has converged.
pub(crate) async fn problems(client: &kube::Client, namespace: &str) -> Vec<String> {
    let mut cluster = Cluster::default();
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes: HashSet<String> = nodes
        .list(&Default::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|node| node.metadata.name)
        .collect();
    let pods: Vec<Pod> = list(client, namespace).await;
    let sets: Vec<ReplicaSet> = list(client, namespace).await;
    let deployments: Vec<Deployment> = list(client, namespace).await;
    let stateful: Vec<StatefulSet> = list(client, namespace).await;
    let daemons: Vec<DaemonSet> = list(client, namespace).await;
    let jobs: Vec<Job> = list(client, namespace).await;
    cluster.take(&pods);
    cluster.take(&sets);
    cluster.take(&deployments);
    cluster.take(&stateful);
    cluster.take(&daemons);
    cluster.take(&jobs);
    cluster.owned(&pods);
    cluster.owned(&sets);
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        if node.as_ref().is_none_or(|node| !nodes.contains(node)) {
            cluster.problems.push(format!("Pod {name} is on {node:?}"));
        }
        let owner = pod.metadata.owner_references.iter().flatten().next();
        match owner.map(|owner| owner.uid.clone()) {
            Some(uid) => cluster.pods.entry(uid).or_default().push(pod),
            None => cluster.problems.push(format!("Pod {name} has no owner")),
        }
    }
    check_replicas(&mut cluster, &sets, &deployments);
    check_others(&mut cluster, &stateful, &daemons, &jobs, nodes.len());
    cluster.problems
}

fn count(number: Option<i32>) -> usize {
    usize::try_from(number.unwrap_or(0)).unwrap()
}

fn check_replicas(cluster: &mut Cluster, sets: &[ReplicaSet], deployments: &[Deployment]) {
    for set in sets {
        let name = set.metadata.name.as_deref().unwrap();
        let wanted = count(set.spec.as_ref().unwrap().replicas);
        let (all, running) = (cluster.pods_of(set).len(), cluster.running(set));
        cluster.expect(
            format!("pods of ReplicaSet {name}"),
            (all, running),
            (wanted, wanted),
        );
        let status = set.status.clone().unwrap_or_default();
        let ready = (count(Some(status.replicas)), count(status.ready_replicas));
        cluster.expect(
            format!("status of ReplicaSet {name}"),
            ready,
            (wanted, wanted),
        );
    }
    for deployment in deployments {
        let name = deployment.metadata.name.as_deref().unwrap();
        let wanted = count(deployment.spec.as_ref().unwrap().replicas);
        let uid = deployment.metadata.uid.as_deref().unwrap();
        let mut total = 0;
        for set in sets {
            let mut owners = set.metadata.owner_references.iter().flatten();
            if owners.any(|owner| owner.uid == uid) {
                total += cluster.running(set);
            }
        }
        cluster.expect(format!("pods of Deployment {name}"), total, wanted);
        let status = deployment.status.clone().unwrap_or_default();
        let seen = (
            status.observed_generation,
            count(status.updated_replicas),
            count(status.ready_replicas),
        );
        let generation = deployment.metadata.generation;
        cluster.expect(
            format!("status of Deployment {name}"),
            seen,
            (generation, wanted, wanted),
        );
    }
}

fn check_others(
    cluster: &mut Cluster,
    stateful: &[StatefulSet],
    daemons: &[DaemonSet],
    jobs: &[Job],
    nodes: usize,
) {
    for set in stateful {
        let name = set.metadata.name.as_deref().unwrap();
        let wanted = count(set.spec.as_ref().unwrap().replicas);
        let pods = cluster.pods_of(set).iter();
        let mut names: Vec<String> = pods.filter_map(|pod| pod.metadata.name.clone()).collect();
        names.sort();
        let expected: Vec<String> = (0..wanted)
            .map(|number| format!("{name}-{number}"))
            .collect();
        cluster.expect(format!("pods of StatefulSet {name}"), names, expected);
        cluster.expect(format!("running of {name}"), cluster.running(set), wanted);
    }
    for set in daemons {
        let name = set.metadata.name.as_deref().unwrap();
        let pods = cluster.pods_of(set).iter();
        let on: BTreeSet<_> = pods
            .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
            .collect();
        let (all, running) = (cluster.pods_of(set).len(), cluster.running(set));
        let seen = (on.len(), all, running);
        cluster.expect(
            format!("pods of DaemonSet {name}"),
            seen,
            (nodes, nodes, nodes),
        );
    }
    for job in jobs {
        let name = job.metadata.name.as_deref().unwrap();
        let status = job.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        let ended = conditions.any(|condition| {
            ["Complete", "Failed"].contains(&condition.type_.as_str()) && condition.status == "True"
        });
        cluster.expect(format!("Job {name} has ended"), ended, true);
        let tracked = cluster
            .pods_of(job)
            .iter()
            .filter(|pod| pod.metadata.finalizers.is_some());
        cluster.expect(format!("tracked pods of Job {name}"), tracked.count(), 0);
    }
}
