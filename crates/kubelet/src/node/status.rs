//! The node's status: computed periodically, and written when it changed or the report interval has
//! passed.

use std::{net::IpAddr, sync::Arc, time::Duration};

use client::{Api, Event, Subscription};
use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus,
};
use kube::api::{Patch, PatchParams};
use reconcile::Kind;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::{
    cgroup_driver,
    conditions::{Health, conditions},
};
use crate::{Cloud, Result, core::Core};

const SOON: Duration = Duration::from_millis(500);
/// The deadline for the runtime's answer, so that a hung runtime is reported.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(10);
/// The conditions that the kubelet writes.
const OWN_CONDITIONS: &[&str] = &["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// How soon a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The features in `status.declaredFeatures`, sorted. The scheduler places pods that need a feature only on nodes that
/// declare it.
const DECLARED_FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Keeps the status of the Node up to date; never returns. `changes` are the changes of this Node.
/// Sets `ready` once the API shows a ready node. A deleted Node is not created again before the
/// kubelet restarts, as upstream. A Node that a user creates gets its status.
pub(crate) async fn run(
    core: Arc<Core>,
    node: Node,
    mut changes: Subscription<Node>,
    ready: watch::Sender<bool>,
    node_uid: watch::Sender<Option<String>>,
) {
    let mut pressures = core.pressures.subscribe();
    let mut settings = core.settings.subscribe();
    let mut shutting_down = core.shutting_down.subscribe();
    let mut volumes = core.volumes.in_use();
    let mut addresses = core.config.node_ip_changes.clone();
    let mut reporter = Reporter::new(core.clone(), node);
    loop {
        show_uid(&node_uid, reporter.uid());
        let wait = reporter.report(&ready).await;
        tokio::select! {
            () = core.config.clock.sleep(wait) => {}
            _ = pressures.changed() => {}
            _ = settings.changed() => {}
            _ = shutting_down.changed() => {}
            () = changed(&mut addresses) => {}
            // A pod waits until its volume is in `volumesInUse`.
            _ = volumes.changed() => {}
            change = changes.next() => match change {
                Some(change) => reporter.observe(change),
                None => core.config.clock.sleep(wait).await,
            },
        }
    }
}

/// The Node as the API shows it, and what was written of it.
struct Reporter {
    core: Arc<Core>,
    node: Node,
    exists: bool,
    /// The last written conditions.
    conditions: Vec<NodeCondition>,
    written: Option<Timestamp>,
    is_failing: bool,
    /// The pod CIDRs that the runtime knows.
    configured: Option<String>,
}

impl Reporter {
    fn new(core: Arc<Core>, node: Node) -> Self {
        let status = node.status.clone();
        Self {
            core,
            conditions: status.and_then(|s| s.conditions).unwrap_or_default(),
            node,
            exists: true,
            written: None,
            is_failing: false,
            configured: None,
        }
    }

    fn uid(&self) -> Option<String> {
        self.node.metadata.uid.clone().filter(|_| self.exists)
    }

    /// Computes the status and writes it if it changed or is due; returns when to look again.
    async fn report(&mut self, ready: &watch::Sender<bool>) -> Duration {
        let core = self.core.clone();
        if let Some(assigned) = pod_cidr(&self.node)
            && self.configured.as_ref() != Some(&assigned)
            && configure_network(&core, &assigned).await
        {
            self.configured = Some(assigned);
        }
        let now = core.now();
        let mut status = gather(&core, &self.conditions, now).await;
        core.status_seen.send_replace(Some(core.now()));
        keep_foreign(&self.node, &mut status, &core.config.cloud);
        let is_ready = is_true(status.conditions.iter().flatten(), "Ready");
        let current = core.settings();
        let period = current.node_status_report_frequency.0;
        let due = self.written.is_none_or(|at| now - period >= at);
        let look = current.node_status_update_frequency.0;
        let mut wait = if is_ready { look } else { SOON };
        if self.exists && (due || differs(&self.node, &status)) {
            let is_written = self.write(status, now).await;
            wait = if is_written { wait } else { RETRY };
        }
        if is_ready && self.written.is_some() {
            ready.send_replace(true);
        }
        wait
    }

    /// Writes the status; returns whether that succeeded.
    async fn write(&mut self, status: NodeStatus, now: Timestamp) -> bool {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        tell_changes(&self.core, &self.conditions, conditions);
        match write(&self.core, &self.node, &status).await {
            Ok(fresh) => {
                self.node = fresh;
                self.written = Some(now);
                self.is_failing = false;
                self.conditions = status.conditions.unwrap_or_default();
                true
            }
            Err(error) => {
                // Once, since the servers may be away for hours.
                match self.is_failing {
                    false => warn!(%error, "cannot write node status, trying every second"),
                    true => debug!(%error, "cannot write node status"),
                }
                self.is_failing = true;
                // The Node was deleted and the watch event has not arrived.
                self.exists = !error.is_not_found();
                false
            }
        }
    }

    /// Takes over a change of the Node.
    fn observe(&mut self, change: Event<Node>) {
        match change {
            Event::Added(fresh) | Event::Modified { new: fresh, .. } => {
                self.node = (*fresh).clone();
                self.exists = true;
            }
            Event::Deleted(old) if old.metadata.uid == self.node.metadata.uid => {
                info!(node = self.core.config.node_name, "node object was deleted");
                self.exists = false;
            }
            Event::Deleted(_) => {}
        }
    }
}

/// Resolves when the node's addresses have changed; never if they cannot.
async fn changed(addresses: &mut Option<watch::Receiver<Vec<IpAddr>>>) {
    if let Some(addresses) = addresses
        && addresses.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Notifies watchers only if the uid changed.
fn show_uid(shown: &watch::Sender<Option<String>>, uid: Option<String>) {
    shown.send_if_modified(|current| {
        let changed = *current != uid;
        *current = uid;
        changed
    });
}

/// The node's pod CIDRs, one of each IP family, separated by a comma as in CRI.
fn pod_cidr(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref()?;
    let listed = spec.pod_cidrs.iter().flatten().cloned();
    let all: Vec<String> = listed.filter(|cidr| !cidr.is_empty()).collect();
    let first = spec.pod_cidr.clone().filter(|cidr| !cidr.is_empty());
    match all.is_empty() {
        true => first,
        false => Some(all.join(",")),
    }
}

/// Tells the runtime the pod CIDR; returns whether that succeeded.
async fn configure_network(core: &Core, cidr: &str) -> bool {
    let network_config = v1::NetworkConfig {
        pod_cidr: cidr.to_owned(),
    };
    let runtime_config = v1::RuntimeConfig {
        network_config: Some(network_config),
    };
    let request = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(runtime_config),
    };
    let mut runtime = core.runtime.client.clone().runtime;
    match runtime.update_runtime_config(request).await {
        Ok(_) => {
            info!(pod_cidr = cidr, "network configured");
            true
        }
        Err(status) => {
            let error = status.message();
            warn!(error, "cannot pass the pod CIDR to the runtime");
            false
        }
    }
}

fn is_true<'a>(mut all: impl Iterator<Item = &'a NodeCondition>, type_: &str) -> bool {
    all.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Whether anything but heartbeat times differs from the API's status.
fn differs(node: &Node, status: &NodeStatus) -> bool {
    let plain = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        let mut value = serde_json::to_value(&status).unwrap_or_default();
        if let Value::Object(map) = &mut value {
            let ours = [
                "addresses",
                "allocatable",
                "capacity",
                "conditions",
                "daemonEndpoints",
                "images",
                "nodeInfo",
                "runtimeHandlers",
                "features",
                "declaredFeatures",
                "volumesInUse",
            ];
            map.retain(|key, _| ours.contains(&key.as_str()));
        }
        value
    };
    plain(node.status.as_ref().unwrap_or(&NodeStatus::default())) != plain(status)
}

/// Keeps what other writers own: extended resources (all of them allocatable) and conditions of
/// other types.
fn keep_foreign(node: &Node, status: &mut NodeStatus, cloud: &Cloud) {
    let Some(shown) = &node.status else { return };
    // The cloud controller manager owns the addresses.
    if cloud.is_external && shown.addresses.as_ref().is_some_and(|all| !all.is_empty()) {
        status.addresses.clone_from(&shown.addresses);
    }
    let own = status.conditions.get_or_insert_default();
    let foreign = shown.conditions.iter().flatten();
    let foreign = foreign.filter(|condition| !OWN_CONDITIONS.contains(&condition.type_.as_str()));
    own.splice(0..0, foreign.cloned());
    let capacity = status.capacity.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    for (name, amount) in shown.capacity.iter().flatten() {
        if name.contains('/') && !name.starts_with("kubernetes.io/") {
            capacity.insert(name.clone(), amount.clone());
            allocatable.insert(name.clone(), amount.clone());
        }
    }
}

/// A strategic merge patch to `status`, so that conditions and resources of other writers stay.
/// Address lists are replaced as a whole.
fn patch(node: &Node, status: &NodeStatus) -> Value {
    let mut patch = json!({ "status": status });
    if let Some(Value::Array(all)) = patch.pointer_mut("/status/conditions") {
        all.retain(|condition| {
            let type_ = condition["type"].as_str().unwrap_or_default();
            OWN_CONDITIONS.contains(&type_)
        });
    }
    if let Some(Value::Array(all)) = patch.pointer_mut("/status/addresses") {
        all.insert(0, json!({ "$patch": "replace" }));
    }
    // A merge patch removes a field only if it names it.
    let shown = node.status.clone().unwrap_or_default();
    if status.volumes_in_use.is_none() && shown.volumes_in_use.is_some() {
        patch["status"]["volumesInUse"] = Value::Null;
    }
    for (field, shown, now) in [
        ("capacity", &shown.capacity, &status.capacity),
        ("allocatable", &shown.allocatable, &status.allocatable),
    ] {
        for name in shown.iter().flatten().map(|(name, _)| name) {
            if !now.iter().flatten().any(|(known, _)| known == name) {
                patch["status"][field][name] = Value::Null;
            }
        }
    }
    patch
}

fn tell_changes(core: &Core, before: &[NodeCondition], after: &[NodeCondition]) {
    let ready = |all: &[NodeCondition]| is_true(all.iter(), "Ready");
    if ready(before) != ready(after) {
        let reason = if ready(after) {
            "NodeReady"
        } else {
            "NodeNotReady"
        };
        let message = format!("Node {} status is now: {reason}", core.config.node_name);
        core.events.node(Kind::Normal, reason, message);
    }
}

async fn write(core: &Core, node: &Node, status: &NodeStatus) -> Result<Node> {
    let api: Api<Node> = Api::all(core.config.client.clone());
    let patch = Patch::Strategic(patch(node, status));
    let name = &core.config.node_name;
    Ok(api
        .patch_status(name, &PatchParams::default(), &patch)
        .await?)
}

async fn gather(core: &Core, before: &[NodeCondition], now: Timestamp) -> NodeStatus {
    let (config, settings) = (&core.config, core.settings());
    // Addresses that no flag sets are reported by the cloud controller manager.
    let known: Vec<IpAddr> = match config.cloud.is_external && config.cloud.given_ip.is_none() {
        true => Vec::new(),
        false => config.current_node_ips(),
    };
    let mut addresses: Vec<NodeAddress> = known
        .iter()
        .map(|ip| NodeAddress {
            type_: "InternalIP".into(),
            address: ip.to_string(),
        })
        .collect();
    addresses.push(NodeAddress {
        type_: "Hostname".into(),
        address: config.node_name.clone(),
    });
    let mut info = core.machine.info.clone();
    info.kubelet_version = config.version.clone();
    let (version, (runtime, handlers, features), images) =
        tokio::join!(runtime_version(core), runtime_status(core), images(core));
    info.container_runtime_version = version.unwrap_or_default();
    NodeStatus {
        addresses: Some(addresses),
        capacity: Some(
            core.machine
                .capacity(settings.pod_capacity(core.machine.cpus)),
        ),
        allocatable: Some(core.allocatable()),
        conditions: Some(conditions(&health(core, runtime), before, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: config.port.into(),
            }),
        }),
        node_info: Some(info),
        images: Some(images),
        runtime_handlers: Some(handlers),
        features,
        declared_features: Some(DECLARED_FEATURES.map(str::to_owned).into()),
        volumes_in_use: Some(core.volumes.in_use().borrow().clone())
            .filter(|names| !names.is_empty()),
        ..Default::default()
    }
}

fn health(core: &Core, runtime: Option<String>) -> Health {
    Health {
        runtime,
        shuts_down: *core.shutting_down.borrow(),
        pressures: core.pressures.borrow().clone(),
    }
}

/// The runtime's answer, or an error after the deadline.
async fn in_time<T>(
    call: impl Future<Output = std::result::Result<T, tonic::Status>>,
) -> std::result::Result<T, tonic::Status> {
    let late = |_| tonic::Status::deadline_exceeded("the runtime does not answer");
    tokio::time::timeout(RUNTIME_DEADLINE, call)
        .await
        .map_err(late)?
}

async fn runtime_version(core: &Core) -> Result<String> {
    let request = v1::VersionRequest {
        version: cri::API_VERSION.into(),
    };
    let mut runtime = core.runtime.client.clone().runtime;
    let answer = in_time(runtime.version(request)).await?.into_inner();
    Ok(format!(
        "{}://{}",
        answer.runtime_name, answer.runtime_version
    ))
}

/// Why the runtime is not ready, its handlers and its features.
async fn runtime_status(
    core: &Core,
) -> (
    Option<String>,
    Vec<NodeRuntimeHandler>,
    Option<NodeFeatures>,
) {
    let request = v1::StatusRequest { verbose: false };
    let mut runtime = core.runtime.client.clone().runtime;
    let answer = match in_time(runtime.status(request)).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            let why = format!("container runtime is down: {}", status.message());
            return (Some(why), vec![], None);
        }
    };
    let all = answer
        .status
        .map(|status| status.conditions)
        .unwrap_or_default();
    let mut why = Vec::new();
    for (type_, what) in [
        ("RuntimeReady", "container runtime not ready"),
        ("NetworkReady", "container runtime network not ready"),
    ] {
        match all.iter().find(|condition| condition.r#type == type_) {
            Some(condition) if condition.status => {}
            Some(condition) => why.push(format!(
                "{what}: {type_}=false reason:{} message:{}",
                condition.reason, condition.message
            )),
            None => why.push(format!("{what}: {type_} is not reported")),
        }
    }
    why.extend(cgroup_driver::problem(core).await);
    let handlers = answer
        .runtime_handlers
        .into_iter()
        .map(|handler| NodeRuntimeHandler {
            name: Some(handler.name),
            features: handler.features.map(|features| NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                user_namespaces: Some(features.user_namespaces),
            }),
        });
    let features = answer.features.map(|features| NodeFeatures {
        supplemental_groups_policy: Some(features.supplemental_groups_policy),
    });
    (
        (!why.is_empty()).then(|| why.join(", ")),
        handlers.collect(),
        features,
    )
}

/// The largest images.
async fn images(core: &Core) -> Vec<ContainerImage> {
    let request = v1::ListImagesRequest { filter: None };
    let mut images = core.runtime.client.clone().images;
    let answer = in_time(images.list_images(request)).await;
    let mut all = answer
        .map(|answer| answer.into_inner().images)
        .unwrap_or_default();
    // A negative number means all of them.
    let most = usize::try_from(core.settings().node_status_max_images).ok();
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    all.into_iter()
        .take(most.unwrap_or(usize::MAX))
        .map(|image| ContainerImage {
            names: Some(
                image
                    .repo_digests
                    .into_iter()
                    .chain(image.repo_tags)
                    .take(5)
                    .collect(),
            ),
            size_bytes: i64::try_from(image.size).ok(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(status: Value) -> Node {
        serde_json::from_value(json!({ "status": status })).unwrap()
    }

    #[test]
    fn conditions_and_resources_of_others_stay() {
        let shown = node(json!({
            "capacity": {"cpu": "1", "example.com/gpu": "3", "hugepages-64Ki": "0"},
            "conditions": [
                {"type": "NetworkUnavailable", "status": "False"},
                {"type": "Ready", "status": "False"},
            ],
        }));
        let mut status: NodeStatus = serde_json::from_value(json!({
            "capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"},
            "addresses": [{"type": "Hostname", "address": "n"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }))
        .unwrap();
        keep_foreign(&shown, &mut status, &Cloud::default());
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(
            json["allocatable"],
            json!({"cpu": "2", "example.com/gpu": "3"})
        );
        let patch = patch(&shown, &status);
        assert_eq!(
            patch["status"]["conditions"],
            json!([{"type": "Ready", "status": "True"}])
        );
        assert_eq!(patch["status"]["capacity"]["hugepages-64Ki"], Value::Null);
        assert_eq!(patch["status"]["capacity"]["example.com/gpu"], "3");
        assert_eq!(
            patch["status"]["addresses"][0],
            json!({"$patch": "replace"})
        );
    }

    #[test]
    fn addresses_set_by_a_cloud_provider_are_kept() {
        let addresses = |address: &str| {
            Some(vec![NodeAddress {
                type_: "InternalIP".into(),
                address: address.into(),
            }])
        };
        let status = |address: &str| NodeStatus {
            addresses: addresses(address),
            ..NodeStatus::default()
        };
        let shown = Node {
            status: Some(status("192.0.2.9")),
            ..Node::default()
        };
        let external = Cloud {
            is_external: true,
            ..Cloud::default()
        };
        for (cloud, expected) in [(Cloud::default(), "192.0.2.1"), (external, "192.0.2.9")] {
            let mut own = status("192.0.2.1");
            keep_foreign(&shown, &mut own, &cloud);
            assert_eq!(own.addresses, addresses(expected));
        }
    }
}
