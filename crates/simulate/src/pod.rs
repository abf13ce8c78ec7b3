//! The kubelets of simulated nodes.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use client::{Api, FromJson, Informer};
use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope, api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Resource,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, Preconditions},
};
use reconcile::{Action, Controller, Error, Key};
use serde::Deserialize;
use serde_json::{Value, json};

/// An annotation of pods: after how many seconds of running they succeed.
pub const EXIT_AFTER: &str = "simulate.mainstay.dev/exit-after-seconds";

/// The parts of a pod that a simulated kubelet reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimulatedPod {
    metadata: ObjectMeta,
    node: String,
    host_network: bool,
    phase: Phase,
    started: Option<Timestamp>,
    exit_after: Option<u64>,
    /// Names and images.
    containers: Box<[(String, String)]>,
    init_containers: Box<[(String, String)]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Pending,
    Running,
    Ended,
}

/// The JSON of these parts. The rest of a pod, which is most of it, is skipped and not decoded.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Document {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    deletion_timestamp: Option<Time>,
    annotations: Option<HashMap<String, Option<String>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    host_network: Option<bool>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    name: Option<String>,
    image: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    start_time: Option<Time>,
}

impl From<Document> for SimulatedPod {
    fn from(pod: Document) -> Self {
        let (meta, spec) = (pod.metadata, pod.spec.unwrap_or_default());
        let status = pod.status.unwrap_or_default();
        let exit_after = meta.annotations.as_ref();
        let exit_after = exit_after.and_then(|all| all.get(EXIT_AFTER));
        let named = |containers: Option<Vec<Container>>| {
            let containers = containers.into_iter().flatten();
            containers
                .map(|one| (one.name.unwrap_or_default(), one.image.unwrap_or_default()))
                .collect()
        };
        Self {
            node: spec.node_name.unwrap_or_default(),
            host_network: spec.host_network.unwrap_or_default(),
            phase: match status.phase.as_deref() {
                Some("Running") => Phase::Running,
                Some("Succeeded" | "Failed") => Phase::Ended,
                _ => Phase::Pending,
            },
            started: status.start_time.map(|time| time.0),
            containers: match status.phase.as_deref() {
                Some("Running") if exit_after.is_none() => Box::default(),
                _ => named(spec.containers),
            },
            init_containers: match status.phase.as_deref() {
                Some("Running") => Box::default(),
                _ => named(spec.init_containers),
            },
            exit_after: exit_after.and_then(|text| text.as_ref()?.parse().ok()),
            metadata: ObjectMeta {
                name: meta.name,
                namespace: meta.namespace,
                uid: meta.uid,
                resource_version: meta.resource_version,
                generation: meta.generation,
                deletion_timestamp: meta.deletion_timestamp,
                ..ObjectMeta::default()
            },
        }
    }
}

impl FromJson for SimulatedPod {
    fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Document>(text).map(Self::from)
    }
}

impl Resource for SimulatedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A kubelet's next step for a pod.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    /// Report it as running.
    Start,
    /// Report it as succeeded.
    Exit,
    /// Check again later.
    Wait(Duration),
    /// Delete the pod: its containers are gone.
    Remove,
}

fn decide(pod: &SimulatedPod, now: Timestamp) -> Step {
    if pod.metadata.deletion_timestamp.is_some() {
        return Step::Remove;
    }
    match (pod.phase, pod.exit_after, pod.started) {
        (Phase::Pending, _, _) => Step::Start,
        (Phase::Running, Some(seconds), Some(started)) => {
            let ran = now.duration_since(started).unsigned_abs();
            match Duration::from_secs(seconds).checked_sub(ran) {
                Some(left) if !left.is_zero() => Step::Wait(left),
                _ => Step::Exit,
            }
        }
        _ => Step::Nothing,
    }
}

/// The kubelets of all simulated nodes.
pub(crate) struct Kubelets {
    client: kube::Client,
    pods: Informer<SimulatedPod>,
    nodes: HashSet<String>,
    /// The number of assigned addresses.
    addresses: AtomicU32,
}

impl Kubelets {
    pub(crate) fn new(
        client: kube::Client,
        pods: Informer<SimulatedPod>,
        nodes: impl Iterator<Item = String>,
    ) -> Self {
        Self {
            client,
            pods,
            nodes: nodes.collect(),
            addresses: AtomicU32::new(0),
        }
    }

    /// An address of 100.64.0.0/10, which is not used publicly.
    fn next_address(&self) -> String {
        let number = self.addresses.fetch_add(1, Ordering::Relaxed) % (1 << 22);
        let first = u32::from_be_bytes([100, 64, 0, 1]);
        std::net::Ipv4Addr::from(first + number).to_string()
    }

    async fn patch(&self, pod: &SimulatedPod, key: &Key, status: Value) -> Result<(), Error> {
        let api: Api<SimulatedPod> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
        let params = PatchParams::default();
        let patch = Patch::Strategic(&patch);
        let sent = api.patch_status(&key.name, &params, &patch).await;
        unless_changed(sent.map(drop))
    }

    async fn remove(&self, pod: &SimulatedPod, key: &Key) -> Result<(), Error> {
        let api: Api<SimulatedPod> = Api::namespaced(self.client.clone(), &key.namespace);
        let uid = Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        };
        let params = DeleteParams::default().grace_period(0).preconditions(uid);
        unless_changed(api.delete(&key.name, &params).await)
    }
}

/// Not found and conflict are no errors: the object is gone or another one.
fn unless_changed(outcome: Result<(), kube::Error>) -> Result<(), Error> {
    match outcome {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => Ok(other?),
    }
}

impl Controller for Kubelets {
    fn name(&self) -> &'static str {
        "simulated-kubelets"
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else {
            return Ok(Action::Done);
        };
        if !self.nodes.contains(&pod.node) {
            return Ok(Action::Done);
        }
        let now = Timestamp::now();
        match decide(&pod, now) {
            Step::Nothing => {}
            Step::Wait(left) => return Ok(Action::After(left)),
            Step::Start => {
                let address = (!pod.host_network).then(|| self.next_address());
                self.patch(&pod, key, running(&pod, address.as_deref(), now))
                    .await?;
            }
            Step::Exit => self.patch(&pod, key, succeeded(&pod, now)).await?,
            Step::Remove => self.remove(&pod, key).await?,
        }
        Ok(Action::Done)
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn conditions(pod: &SimulatedPod, is_ready: bool, now: &str) -> Value {
    let condition = |kind: &str, is_true: bool| {
        let mut condition = json!({
            "type": kind, "status": if is_true { "True" } else { "False" },
            "lastTransitionTime": now, "observedGeneration": pod.metadata.generation,
        });
        if !is_true {
            condition["reason"] = json!("PodCompleted");
        }
        condition
    };
    json!([
        condition("PodReadyToStartContainers", is_ready),
        condition("Initialized", true),
        condition("Ready", is_ready),
        condition("ContainersReady", is_ready),
    ])
}

fn containers(named: &[(String, String)], state: &Value, is_running: bool) -> Value {
    let status = |(name, image): &(String, String)| {
        json!({
            "name": name, "image": image, "imageID": image, "ready": is_running,
            "started": is_running, "restartCount": 0, "state": state,
            "containerID": format!("simulated://{name}"),
        })
    };
    named.iter().map(status).collect()
}

fn running(pod: &SimulatedPod, address: Option<&str>, now: Timestamp) -> Value {
    let now = time(now);
    let done = json!({"terminated": {
        "exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now,
    }});
    let mut status = json!({
        "phase": "Running", "startTime": now, "conditions": conditions(pod, true, &now),
        "observedGeneration": pod.metadata.generation,
        "containerStatuses": containers(&pod.containers, &json!({"running": {"startedAt": now}}), true),
    });
    if !pod.init_containers.is_empty() {
        status["initContainerStatuses"] = containers(&pod.init_containers, &done, false);
    }
    if let Some(address) = address {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{"ip": address}]);
    }
    status
}

fn succeeded(pod: &SimulatedPod, now: Timestamp) -> Value {
    let now = time(now);
    let state = json!({"terminated": {
        "exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now,
    }});
    json!({
        "phase": "Succeeded", "conditions": conditions(pod, false, &now),
        "containerStatuses": containers(&pod.containers, &state, false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value, annotations: Value, deleted: bool) -> SimulatedPod {
        let mut pod = json!({
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
            "status": status,
        });
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
        }
        SimulatedPod::from_json(&pod.to_string()).unwrap()
    }

    #[test]
    fn a_pod_starts_runs_as_long_as_it_says_and_goes_when_it_is_deleted() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let (none, short) = (json!({}), json!({EXIT_AFTER: "30"}));
        let running = json!({"phase": "Running", "startTime": "1970-01-01T00:00:10Z"});
        let ended = json!({"phase": "Succeeded"});
        for (status, annotations, deleted, wanted) in [
            (json!({}), &none, false, Step::Start),
            (running.clone(), &none, false, Step::Nothing),
            (running.clone(), &none, true, Step::Remove),
            (ended.clone(), &none, false, Step::Nothing),
            (ended, &none, true, Step::Remove),
        ] {
            let seen = decide(&pod(status.clone(), annotations.clone(), deleted), at(20));
            assert_eq!(seen, wanted, "{status}");
        }
        let short = pod(running, short, false);
        assert_eq!(decide(&short, at(20)), Step::Wait(Duration::from_secs(20)));
        assert_eq!(decide(&short, at(40)), Step::Exit);
    }

    #[test]
    fn what_a_kubelet_reads_of_a_pod_is_what_its_decoded_form_has() {
        let text = json!({
            "kind": "Pod", "metadata": {
                "name": "a", "namespace": "d", "uid": "u", "resourceVersion": "7", "generation": 2,
                "deletionTimestamp": "1970-01-01T00:00:09Z",
                "annotations": {"other": null, EXIT_AFTER: "30"}, "managedFields": [{"manager": "m"}],
            },
            "spec": {"nodeName": "n", "hostNetwork": true, "tolerations": [{"key": null}],
                "initContainers": [{"name": "i", "image": null}],
                "containers": [{"name": "c", "image": "x", "env": [{"name": "A"}]}]},
            "status": {"phase": "Pending", "startTime": null, "conditions": [{"type": "Ready"}]},
        });
        let read = SimulatedPod::from_json(&text.to_string()).unwrap();
        let full = Pod::from_json(&text.to_string()).unwrap();
        assert_eq!(
            read.metadata.deletion_timestamp,
            full.metadata.deletion_timestamp
        );
        assert_eq!(
            read.metadata.resource_version,
            full.metadata.resource_version
        );
        assert_eq!(
            (read.metadata.uid, read.metadata.generation),
            (full.metadata.uid, full.metadata.generation)
        );
        assert_eq!(
            (read.node.as_str(), read.host_network, read.exit_after),
            ("n", true, Some(30))
        );
        assert_eq!(*read.containers, [("c".to_owned(), "x".to_owned())]);
        assert_eq!(*read.init_containers, [("i".to_owned(), String::new())]);
        for broken in ["{", "7", r#"{"metadata": {"name": 7}}"#] {
            assert!(SimulatedPod::from_json(broken).is_err(), "{broken}");
        }
        let bare = SimulatedPod::from_json(r#"{"metadata": {"annotations": null}, "spec": null}"#);
        assert_eq!(bare.unwrap().phase, Phase::Pending);
    }

    #[test]
    fn a_running_pod_is_ready_with_an_address_and_its_containers() {
        let status = running(
            &pod(json!({}), json!({}), false),
            Some("100.64.0.1"),
            Timestamp::UNIX_EPOCH,
        );
        let status: k8s_openapi::api::core::v1::PodStatus = serde_json::from_value(status).unwrap();
        assert_eq!(status.pod_ip.as_deref(), Some("100.64.0.1"));
        let mut conditions = status.conditions.iter().flatten();
        assert!(conditions.any(|one| one.type_ == "Ready" && one.status == "True"));
        let containers = status.container_statuses.unwrap();
        assert!(containers[0].ready && containers[0].name == "c");
    }
}
