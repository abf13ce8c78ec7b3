//! Registers the Node object, and updates an existing one.

use std::collections::BTreeMap;

use client::Api;
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tracing::info;

use super::machine::architecture;
use crate::{Config, Error, Result};

/// The labels that every node has.
pub(crate) fn labels(config: &Config) -> BTreeMap<String, String> {
    let arch = architecture();
    let mut labels = BTreeMap::from([
        (
            "kubernetes.io/hostname".to_owned(),
            config.node_name.clone(),
        ),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), arch.to_owned()),
        ("beta.kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("beta.kubernetes.io/arch".to_owned(), arch.to_owned()),
    ]);
    labels.extend(config.node_labels.clone());
    labels
}

/// The annotation with the directory in which the built-in local path provisioner may create
/// volumes.
pub(crate) const LOCAL_PATH_ROOT: &str = "mainstay.dev/local-path-root";

/// Tells the attachdetach controller to attach volumes of this node: the kubelet waits for
/// `volumesAttached` and never attaches itself. The controller ignores nodes without this
/// annotation.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Tells a cloud controller manager the node IP of the flag.
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Keeps pods away until a cloud controller manager has initialised the node.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

fn annotations(config: &Config) -> BTreeMap<String, String> {
    let root = config.local_path_root.to_string_lossy().into_owned();
    let mut annotations = BTreeMap::from([
        (LOCAL_PATH_ROOT.to_owned(), root),
        (CONTROLLER_ATTACHES.to_owned(), "true".to_owned()),
    ]);
    if let Some(ip) = config.cloud.given_ip.filter(|_| config.cloud.is_external) {
        annotations.insert(PROVIDED_IP.to_owned(), ip.to_string());
    }
    annotations
}

/// The taints of a new node.
fn taints(config: &Config) -> Vec<Taint> {
    let mut taints = config.node_taints.clone();
    if config.cloud.is_external {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    taints
}

/// The provider id: the flag wins over the KubeletConfiguration.
fn provider_id(config: &Config) -> Option<String> {
    let configured = Some(config.kubelet.provider_id.clone()).filter(|id| !id.is_empty());
    config.cloud.provider_id.clone().or(configured)
}

/// Creates the Node, or updates labels and annotations of an existing one.
pub(crate) async fn register(config: &Config) -> Result<Node> {
    let api: Api<Node> = Api::all(config.client.clone());
    if let Some(node) = api.get_opt(&config.node_name).await? {
        return update_metadata(&api, config, node).await;
    }
    if !config.kubelet.register_node {
        return Err(Error::Other(format!(
            "there is no Node {:?}, and registerNode is false",
            config.node_name
        )));
    }
    let mut node = Node::default();
    node.metadata.name = Some(config.node_name.clone());
    node.metadata.labels = Some(labels(config));
    node.metadata.annotations = Some(annotations(config));
    node.spec = Some(NodeSpec {
        taints: Some(taints(config)).filter(|taints| !taints.is_empty()),
        provider_id: provider_id(config),
        ..Default::default()
    });
    match api.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let node = api.get(&config.node_name).await?;
            update_metadata(&api, config, node).await
        }
        created => {
            info!(node = config.node_name, "registered");
            Ok(created?)
        }
    }
}

async fn update_metadata(api: &Api<Node>, config: &Config, node: Node) -> Result<Node> {
    let missing = |wanted: BTreeMap<String, String>, shown: &Option<BTreeMap<String, String>>| {
        let shown = shown.clone().unwrap_or_default();
        let missing = wanted.into_iter();
        missing
            .filter(|(key, value)| shown.get(key) != Some(value))
            .collect::<BTreeMap<_, _>>()
    };
    let labels = missing(labels(config), &node.metadata.labels);
    let shown = node.metadata.annotations.clone().unwrap_or_default();
    let wanted = annotations(config);
    let is_stale = shown.contains_key(PROVIDED_IP) && !wanted.contains_key(PROVIDED_IP);
    let mut annotations = json!(missing(wanted, &node.metadata.annotations));
    if is_stale {
        annotations[PROVIDED_IP] = serde_json::Value::Null;
    }
    if labels.is_empty() && annotations.as_object().is_some_and(|map| map.is_empty()) {
        return Ok(node);
    }
    let patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
    let params = PatchParams::default();
    Ok(api
        .patch(&config.node_name, &params, &Patch::Merge(&patch))
        .await?)
}
