//! Node health: a node whose kubelet has gone silent is said to be unknown, its conditions become
//! taints, and its pods stop counting as ready.

use std::{collections::HashMap, sync::Arc, time::Duration};

use client::Informer;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, NodeCondition, Pod, Taint},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Queue, Recorder};
use serde_json::json;

use crate::{
    pods::is_ready,
    shared::{NODE, Shared},
};

/// As in the table of controllers.
pub const NAME: &str = "node-lifecycle";
const ACCOUNT: &str = "node-controller";
/// A kubelet that says nothing for this long is gone.
const GRACE: Duration = Duration::from_secs(50);
/// A new node may take a little longer.
const FIRST_GRACE: Duration = Duration::from_secs(60);
const LEASES: &str = "kube-node-lease";

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "node.kubernetes.io/network-unavailable",
    ),
];

/// The last sign of life and when, by our own clock, it was first seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    sign: (Option<Timestamp>, Option<Timestamp>),
    at: Timestamp,
}

struct Lifecycle {
    shared: Arc<Shared>,
    client: kube::Client,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Informer<Pod>,
    recorder: Recorder,
    /// Guards what was last heard of each node.
    seen: Mutex<HashMap<String, Seen>>,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let leases = Informer::<Lease>::builder(shared.reader())
        .namespace(LEASES)
        .start(&shared.context);
    let controller = Arc::new(Lifecycle {
        shared: shared.clone(),
        client: shared.client(ACCOUNT),
        nodes: shared.informer(),
        leases,
        pods: shared.informer(),
        recorder: shared.recorder(ACCOUNT, "node-controller"),
        seen: Mutex::default(),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        controller.nodes.synced().await;
        controller.leases.synced().await;
        controller.pods.synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        reconcile::follow(context, &controller.nodes, &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        reconcile::follow(context, &controller.leases, &queue, |event| {
            vec![Key::new(
                "",
                event.object().metadata.name.clone().unwrap_or_default(),
            )]
        });
        reconcile::run(context, controller, queue, 4);
        std::future::pending::<()>().await;
    });
}

impl Controller for Lifecycle {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(node) = self.nodes.get("", &key.name) else {
            self.seen.lock().remove(&key.name);
            return Ok(Action::Done);
        };
        let now = self.shared.now();
        let left = self.patience(&node, now);
        let mut node = (*node).clone();
        if left.is_zero()
            && let Some(conditions) = silenced(&node, now)
        {
            node = self.write_conditions(&node, conditions).await?;
        }
        let before = taints(&node);
        let after = desired_taints(&node, now);
        if before != after {
            node = self.write_taints(&node, &after).await?;
        }
        if status_of(&node, "Ready") != Some("True") {
            self.mark_pods(&key.name, now).await?;
        }
        Ok(if left.is_zero() {
            Action::Done
        } else {
            Action::After(left)
        })
    }
}

impl Lifecycle {
    /// How long the node may still be silent.
    fn patience(&self, node: &Node, now: Timestamp) -> Duration {
        let name = node.metadata.name.clone().unwrap_or_default();
        let lease = self.leases.get(LEASES, &name);
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|t| t.0));
        let ready = condition(node, "Ready");
        let heartbeat = ready
            .filter(|ready| ready.status != "Unknown")
            .and_then(|ready| ready.last_heartbeat_time.as_ref().map(|time| time.0));
        let sign = (renewed, heartbeat);
        let mut seen = self.seen.lock();
        let entry = seen.entry(name).or_insert_with(|| Seen { sign, at: now });
        if entry.sign != sign {
            *entry = Seen { sign, at: now };
        }
        let grace = if ready.is_none() { FIRST_GRACE } else { GRACE };
        let silent = Duration::try_from(now.duration_since(entry.at)).unwrap_or_default();
        grace.saturating_sub(silent)
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn write_conditions(
        &self,
        node: &Node,
        conditions: Vec<NodeCondition>,
    ) -> Result<Node, Error> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let node = self.api().patch_status(name, &params, &patch).await?;
        let text = format!("Node {name} status is now: NodeNotReady");
        let about = kube::Resource::object_ref(&node, &());
        self.recorder
            .event(&about, Kind::Normal, "NodeNotReady", text);
        Ok(node)
    }

    async fn write_taints(&self, node: &Node, taints: &[Taint]) -> Result<Node, Error> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let taints = (!taints.is_empty()).then_some(taints);
        let patch = json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": taints},
        });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        Ok(self.api().patch(name, &params, &patch).await?)
    }

    /// Pods of a node that is not well must not get traffic.
    async fn mark_pods(&self, node: &str, now: Timestamp) -> Result<(), Error> {
        for pod in self
            .pods
            .by_index(NODE, node)
            .into_iter()
            .filter(|pod| is_ready(pod))
        {
            let mut conditions = pod
                .status
                .as_ref()
                .and_then(|s| s.conditions.clone())
                .unwrap_or_default();
            for condition in conditions
                .iter_mut()
                .filter(|condition| condition.type_ == "Ready")
            {
                condition.status = "False".into();
                condition.last_transition_time = Some(Time(now));
            }
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": conditions}});
            let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
            match api.patch_status(name, &params, &patch).await {
                Ok(_) => {
                    let about = kube::Resource::object_ref(&*pod, &());
                    let text = "Node is not ready";
                    self.recorder
                        .event(&about, Kind::Warning, "NodeNotReady", text);
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == kind)
}

fn status_of<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    condition(node, kind).map(|condition| condition.status.as_str())
}

fn taints(node: &Node) -> Vec<Taint> {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.clone())
        .unwrap_or_default()
}

/// The conditions of a node that has gone silent; nothing when they already say so.
fn silenced(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions = node
        .status
        .clone()
        .unwrap_or_default()
        .conditions
        .unwrap_or_default();
    let mut changed = false;
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        match conditions
            .iter_mut()
            .find(|condition| condition.type_ == kind)
        {
            None => {
                changed = true;
                conditions.push(NodeCondition {
                    type_: kind.into(),
                    status: "Unknown".into(),
                    reason: Some("NodeStatusNeverUpdated".into()),
                    message: Some("Kubelet never posted node status.".into()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(Time(now)),
                });
            }
            Some(condition) if condition.status != "Unknown" => {
                changed = true;
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(Time(now));
            }
            Some(_) => {}
        }
    }
    changed.then_some(conditions)
}

/// The taints that the node's conditions mean, beside those that others have set.
fn desired_taints(node: &Node, now: Timestamp) -> Vec<Taint> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    match status_of(node, "Ready") {
        Some("True") => {}
        Some("Unknown") => wanted.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        Some(_) => wanted.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        // Nothing is known yet: keep new pods away, evict nobody.
        None => wanted.push((NOT_READY, "NoSchedule")),
    }
    for (kind, taint) in PRESSURES {
        if status_of(node, kind) == Some("True") {
            wanted.push((taint, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let ours = |taint: &Taint| {
        let by_condition = [NOT_READY, UNREACHABLE, UNSCHEDULABLE].contains(&taint.key.as_str())
            || PRESSURES.iter().any(|(_, key)| *key == taint.key);
        by_condition && (taint.effect == "NoSchedule" || taint.effect == "NoExecute")
    };
    let is_wanted = |taint: &Taint| wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut all = taints(node);
    all.retain(|taint| !ours(taint) || is_wanted(taint));
    for (key, effect) in wanted {
        if !all
            .iter()
            .any(|taint| taint.key == key && taint.effect == effect)
        {
            all.push(Taint {
                key: key.into(),
                effect: effect.into(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeSpec, NodeStatus};

    use super::*;
    use crate::pods::samples::at;

    fn node(conditions: &[(&str, &str)], keys: &[(&str, &str)]) -> Node {
        let conditions = conditions.iter().map(|(kind, status)| NodeCondition {
            type_: (*kind).into(),
            status: (*status).into(),
            ..Default::default()
        });
        let taints = keys.iter().map(|(key, effect)| Taint {
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

    fn desired(node: &Node) -> Vec<String> {
        let taints = desired_taints(node, at(1));
        taints
            .iter()
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect()
    }

    #[test]
    fn conditions_become_taints_and_others_taints_are_left_alone() {
        let own = ("gpu", "NoSchedule");
        let well = node(&[("Ready", "True")], &[own, (NOT_READY, "NoSchedule")]);
        assert_eq!(desired(&well), ["gpu:NoSchedule"]);
        let sick = node(&[("Ready", "False"), ("DiskPressure", "True")], &[own]);
        assert_eq!(
            desired(&sick),
            [
                "gpu:NoSchedule",
                "node.kubernetes.io/not-ready:NoSchedule",
                "node.kubernetes.io/not-ready:NoExecute",
                "node.kubernetes.io/disk-pressure:NoSchedule",
            ]
        );
        let lost = node(&[("Ready", "Unknown")], &[(NOT_READY, "NoExecute")]);
        assert_eq!(
            desired(&lost),
            [
                "node.kubernetes.io/unreachable:NoSchedule",
                "node.kubernetes.io/unreachable:NoExecute"
            ]
        );
        assert_eq!(
            desired(&node(&[], &[])),
            ["node.kubernetes.io/not-ready:NoSchedule"]
        );
    }

    #[test]
    fn a_silent_node_is_unknown_in_everything_and_only_once() {
        let mut silent = node(&[("Ready", "True"), ("MemoryPressure", "False")], &[]);
        let conditions = silenced(&silent, at(9)).unwrap();
        assert!(
            conditions
                .iter()
                .all(|condition| condition.status == "Unknown")
        );
        assert_eq!(
            conditions[0].message.as_deref(),
            Some("Kubelet stopped posting node status.")
        );
        silent.status.as_mut().unwrap().conditions = Some(conditions);
        assert!(silenced(&silent, at(10)).is_none());
    }
}
