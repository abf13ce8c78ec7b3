//! The messages of extenders, as `k8s.io/kube-scheduler/extender/v1` has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What `filter` and `prioritize` are asked.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Arguments<'a> {
    pub(super) pod: &'a Value,
    /// For an extender that has no cache of nodes.
    pub(super) nodes: Option<Value>,
    /// For one that has.
    pub(super) node_names: Option<&'a [&'a str]>,
}

/// Nodes and why they will not do.
pub(super) type FailedNodes = BTreeMap<String, String>;

/// What `filter` answers. Go reads names of fields in any case; extenders write them as upstream does.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Filtered {
    #[serde(alias = "nodes")]
    pub(super) nodes: Option<NodeList>,
    #[serde(alias = "nodeNames", alias = "nodenames")]
    pub(super) node_names: Option<Vec<String>>,
    #[serde(alias = "failedNodes", alias = "failednodes")]
    pub(super) failed_nodes: Option<FailedNodes>,
    #[serde(alias = "failedAndUnresolvableNodes")]
    pub(super) failed_and_unresolvable_nodes: Option<FailedNodes>,
    #[serde(alias = "error")]
    pub(super) error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeList {
    pub(super) items: Option<Vec<Node>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) metadata: Meta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Meta {
    pub(super) name: String,
}

/// One of the scores that `prioritize` answers.
#[derive(Debug, Deserialize)]
pub(super) struct HostPriority {
    #[serde(rename = "Host", alias = "host")]
    pub(super) host: String,
    #[serde(rename = "Score", alias = "score", default)]
    pub(super) score: i64,
}

/// What `bind` is asked.
#[derive(Debug, Serialize)]
pub(super) struct Binding<'a> {
    #[serde(rename = "PodName")]
    pub(super) pod_name: &'a str,
    #[serde(rename = "PodNamespace")]
    pub(super) pod_namespace: &'a str,
    #[serde(rename = "PodUID")]
    pub(super) pod_uid: &'a str,
    #[serde(rename = "Node")]
    pub(super) node: &'a str,
}

/// What `bind` answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Bound {
    #[serde(rename = "Error", alias = "error")]
    pub(super) error: Option<String>,
}

/// What `preempt` is asked.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Preemption<'a> {
    pub(super) pod: &'a Value,
    /// For an extender that has no cache of nodes: whole pods.
    pub(super) node_name_to_victims: Option<BTreeMap<&'a str, Victims>>,
    /// For one that has: their uids.
    pub(super) node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

#[derive(Debug, Serialize)]
pub(super) struct Victims {
    #[serde(rename = "Pods")]
    pub(super) pods: Vec<Value>,
    #[serde(rename = "NumPDBViolations")]
    pub(super) violations: usize,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MetaVictims {
    #[serde(rename = "Pods", alias = "pods")]
    pub(super) pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations")]
    pub(super) violations: usize,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    pub(super) uid: String,
}

/// What `preempt` answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Preempted {
    #[serde(rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
    pub(super) nodes: Option<BTreeMap<String, MetaVictims>>,
}
