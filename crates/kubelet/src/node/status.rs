//! The node's status: gathered, compared, and written when it changed or a long time has passed.

use std::{sync::Arc, time::Duration};

use client::{Event, Subscription};
use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints,
    NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeStatus,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use reconcile::Kind;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    conditions::{Health, conditions},
    machine,
    register::register,
};
use crate::{Result, core::Core};

/// How often the node is looked at; written only when something changed.
const LOOK: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(500);
const MAX_IMAGES: usize = 50;

/// Keeps the status right for ever; `changes` are those of this node's object. Says `ready` once the
/// API shows a ready node.
pub async fn run(
    core: Arc<Core>,
    mut node: Node,
    mut changes: Subscription<Node>,
    ready: watch::Sender<bool>,
) {
    let mut configured = None;
    let mut written: Option<Timestamp> = None;
    let mut before = node
        .status
        .clone()
        .and_then(|s| s.conditions)
        .unwrap_or_default();
    loop {
        if let Some(assigned) = pod_cidr(&node)
            && configured.as_ref() != Some(&assigned)
        {
            match configure_network(&core, &assigned).await {
                Ok(()) => {
                    info!(pod_cidr = assigned, "network configured");
                    configured = Some(assigned);
                }
                Err(error) => warn!(%error, "cannot tell the runtime the pod CIDR"),
            }
        }
        let now = core.now();
        let mut status = gather(&core, &before, now).await;
        keep_foreign(&node, &mut status);
        let is_ready = is_true(status.conditions.iter().flatten(), "Ready");
        let due = written.is_none_or(|at| now - core.config.status_interval >= at);
        let mut wait = if is_ready { LOOK } else { SOON };
        if due || differs(&node, &status) {
            tell_changes(
                &core,
                &before,
                status.conditions.as_deref().unwrap_or_default(),
            );
            match write(&core, &status).await {
                Ok(fresh) => {
                    node = fresh;
                    written = Some(now);
                    before = status.conditions.unwrap_or_default();
                }
                Err(error) => {
                    warn!(%error, "cannot write node status");
                    wait = Duration::from_secs(1);
                }
            }
        }
        if is_ready && written.is_some() {
            ready.send_replace(true);
        }
        tokio::select! {
            () = core.config.clock.sleep(wait) => {}
            change = changes.next() => match change {
                Some(Event::Added(fresh) | Event::Modified { new: fresh, .. }) => {
                    node = (*fresh).clone();
                }
                // Somebody deleted the node: it is made again.
                Some(Event::Deleted(_)) => {
                    if let Ok(fresh) = register(&core.config).await {
                        node = fresh;
                        written = None;
                    }
                }
                None => core.config.clock.sleep(wait).await,
            },
        }
    }
}

fn pod_cidr(node: &Node) -> Option<String> {
    node.spec
        .as_ref()
        .and_then(|spec| spec.pod_cidr.clone())
        .filter(|cidr| !cidr.is_empty())
}

async fn configure_network(core: &Core, cidr: &str) -> Result<()> {
    let network_config = v1::NetworkConfig {
        pod_cidr: cidr.to_owned(),
    };
    let runtime_config = v1::RuntimeConfig {
        network_config: Some(network_config),
    };
    let request = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(runtime_config),
    };
    core.runtime
        .client
        .clone()
        .runtime
        .update_runtime_config(request)
        .await?;
    Ok(())
}

fn is_true<'a>(mut all: impl Iterator<Item = &'a NodeCondition>, type_: &str) -> bool {
    all.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Whether anything but heartbeats differs from what the API shows.
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
            ];
            map.retain(|key, _| ours.contains(&key.as_str()));
        }
        value
    };
    plain(node.status.as_ref().unwrap_or(&NodeStatus::default())) != plain(status)
}

/// Conditions that others wrote stay.
fn keep_foreign(node: &Node, status: &mut NodeStatus) {
    let shown = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let own = status.conditions.get_or_insert_with(Vec::new);
    let foreign = shown.into_iter().flatten().filter(|condition| {
        !matches!(
            condition.type_.as_str(),
            "Ready" | "MemoryPressure" | "DiskPressure" | "PIDPressure"
        )
    });
    let foreign: Vec<NodeCondition> = foreign.cloned().collect();
    own.splice(0..0, foreign);
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

async fn write(core: &Core, status: &NodeStatus) -> Result<Node> {
    let api: Api<Node> = Api::all(core.config.client.clone());
    let patch = json!({"status": status});
    let name = &core.config.node_name;
    Ok(api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?)
}

async fn gather(core: &Core, before: &[NodeCondition], now: Timestamp) -> NodeStatus {
    let config = &core.config;
    let mut addresses: Vec<NodeAddress> = config
        .node_ips
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
    info.container_runtime_version = runtime_version(core).await.unwrap_or_default();
    let (runtime, handlers, features) = runtime_status(core).await;
    NodeStatus {
        addresses: Some(addresses),
        capacity: Some(core.machine.capacity(config.max_pods)),
        allocatable: Some(core.machine.allocatable(config.max_pods)),
        conditions: Some(conditions(&health(core, runtime), before, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint {
                port: config.port.into(),
            }),
        }),
        node_info: Some(info),
        images: Some(images(core).await),
        runtime_handlers: Some(handlers),
        features,
        ..Default::default()
    }
}

fn health(core: &Core, runtime: Option<String>) -> Health {
    let (disk_size, disk_available) = machine::storage(&core.config.root_dir);
    let number = |path: &str| {
        std::fs::read_to_string(path)
            .ok()
            .and_then(|text| text.trim().parse::<i64>().ok())
    };
    let pids_max = number("/proc/sys/kernel/pid_max").unwrap_or(i64::MAX);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let processes = load
        .split(' ')
        .nth(3)
        .and_then(|pair| pair.split('/').nth(1)?.parse().ok());
    Health {
        runtime,
        memory_available: machine::available_memory(),
        disk_size,
        disk_available,
        pids_available: pids_max - processes.unwrap_or(0),
        pids_max,
    }
}

async fn runtime_version(core: &Core) -> Result<String> {
    let request = v1::VersionRequest {
        version: cri::API_VERSION.into(),
    };
    let answer = core
        .runtime
        .client
        .clone()
        .runtime
        .version(request)
        .await?
        .into_inner();
    Ok(format!(
        "{}://{}",
        answer.runtime_name, answer.runtime_version
    ))
}

/// Why the runtime is not ready, its handlers, and what it can do.
async fn runtime_status(
    core: &Core,
) -> (
    Option<String>,
    Vec<NodeRuntimeHandler>,
    Option<NodeFeatures>,
) {
    let request = v1::StatusRequest { verbose: false };
    let answer = match core.runtime.client.clone().runtime.status(request).await {
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
    let answer = core
        .runtime
        .client
        .clone()
        .images
        .list_images(request)
        .await;
    let mut all = answer
        .map(|answer| answer.into_inner().images)
        .unwrap_or_default();
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    all.into_iter()
        .take(MAX_IMAGES)
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
