//! The Node object as this machine makes it, and what it keeps right on an existing one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
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

/// Creates the Node, or brings the labels of an existing one up to date.
pub async fn register(config: &Config) -> Result<Node> {
    let api: Api<Node> = Api::all(config.client.clone());
    if let Some(node) = api.get_opt(&config.node_name).await? {
        return update_labels(&api, config, node).await;
    }
    let mut node = Node::default();
    node.metadata.name = Some(config.node_name.clone());
    node.metadata.labels = Some(labels(config));
    let taints = Some(config.node_taints.clone()).filter(|taints| !taints.is_empty());
    node.spec = Some(NodeSpec {
        taints,
        ..Default::default()
    });
    match api.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let node = api.get(&config.node_name).await?;
            update_labels(&api, config, node).await
        }
        created => {
            info!(node = config.node_name, "registered");
            Ok(created?)
        }
    }
}

async fn update_labels(api: &Api<Node>, config: &Config, node: Node) -> Result<Node> {
    let wanted = labels(config);
    let current = node.metadata.labels.clone().unwrap_or_default();
    let missing: BTreeMap<_, _> = wanted
        .iter()
        .filter(|(key, value)| current.get(*key) != Some(value))
        .collect();
    if missing.is_empty() {
        return Ok(node);
    }
    let patch = json!({"metadata": {"labels": missing}});
    let params = PatchParams::default();
    Ok(api
        .patch(&config.node_name, &params, &Patch::Merge(&patch))
        .await?)
}
