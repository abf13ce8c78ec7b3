//! The Node object as this machine makes it, and what it keeps right on an existing one.

use std::collections::BTreeMap;

use client::Api;
use k8s_openapi::api::core::v1::{Node, NodeSpec};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tracing::info;

use super::machine::architecture;
use crate::{Config, Result};

/// The labels that every node has.
pub fn labels(config: &Config) -> BTreeMap<String, String> {
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

/// Where the cluster's own provisioner may make volumes on this node.
pub const LOCAL_PATH_ROOT: &str = "mainstay.dev/local-path-root";

/// Says that the attachdetach controller attaches volumes for this node: the kubelet waits for
/// `volumesAttached` and never attaches by itself. The controller ignores nodes without it.
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

fn annotations(config: &Config) -> BTreeMap<String, String> {
    let root = config.local_path_root.to_string_lossy().into_owned();
    BTreeMap::from([
        (LOCAL_PATH_ROOT.to_owned(), root),
        (CONTROLLER_ATTACHES.to_owned(), "true".to_owned()),
    ])
}

/// Creates the Node, or brings labels and annotations of an existing one up to date.
pub async fn register(config: &Config) -> Result<Node> {
    let api: Api<Node> = Api::all(config.client.clone());
    if let Some(node) = api.get_opt(&config.node_name).await? {
        return update_metadata(&api, config, node).await;
    }
    let mut node = Node::default();
    node.metadata.name = Some(config.node_name.clone());
    node.metadata.labels = Some(labels(config));
    node.metadata.annotations = Some(annotations(config));
    let taints = Some(config.node_taints.clone()).filter(|taints| !taints.is_empty());
    node.spec = Some(NodeSpec {
        taints,
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
    let annotations = missing(annotations(config), &node.metadata.annotations);
    if labels.is_empty() && annotations.is_empty() {
        return Ok(node);
    }
    let patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
    let params = PatchParams::default();
    Ok(api
        .patch(&config.node_name, &params, &Patch::Merge(&patch))
        .await?)
}
