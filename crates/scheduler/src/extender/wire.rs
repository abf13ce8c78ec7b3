//! The messages of extenders, as in `k8s.io/kube-scheduler/extender/v1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The request of `filter` and `prioritize`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Arguments<'a> {
    pub(super) pod: &'a Value,
    /// For an extender without a cache of nodes.
    pub(super) nodes: Option<Value>,
    /// For an extender with a cache of nodes.
    pub(super) node_names: Option<&'a [&'a str]>,
}

/// Rejected nodes and the reasons.
pub(super) type FailedNodes = BTreeMap<String, String>;

/// The response of `filter`. Go matches field names in any case; extenders write them as upstream
/// does.
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

/// An entry in the response of `prioritize`.
#[derive(Debug, Deserialize)]
pub(super) struct HostPriority {
    #[serde(rename = "Host", alias = "host")]
    pub(super) host: String,
    #[serde(rename = "Score", alias = "score", default)]
    pub(super) score: i64,
}

/// The request of `bind`.
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

/// The response of `bind`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Bound {
    #[serde(rename = "Error", alias = "error")]
    pub(super) error: Option<String>,
}

/// The request of `preempt`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Preemption<'a> {
    pub(super) pod: &'a Value,
    /// For an extender without a cache of nodes: whole pods.
    pub(super) node_name_to_victims: Option<BTreeMap<&'a str, Victims>>,
    /// For an extender with a cache of nodes: their uids.
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

/// The response of `preempt`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Preempted {
    #[serde(rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims")]
    pub(super) nodes: Option<BTreeMap<String, MetaVictims>>,
}
