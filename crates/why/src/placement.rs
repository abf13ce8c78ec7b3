//! Why no node takes a pod: the scheduler's own filters run on what the API tells, node by node, with
//! the numbers that its condition leaves out.

use std::sync::Arc;

use client::{Api, kube};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSIDriver, CSINode, StorageClass},
    },
};
use kube::{Resource, ResourceExt, api::ListParams};
use machinery::quantity::{Format, Quantity};
use scheduler::{
    cluster::{Cluster, NodeInfo, Slot},
    cycle::{Failure, Outcome, Scheduling},
    framework::profile::Profile,
    pod::{PodInfo, has_ended, node_name},
};

use crate::Result;

/// Nodes that are named one by one; a larger cluster is told by reason.
const NAMED: usize = 20;

/// The objects that scheduling looks at.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    pub namespaces: Vec<Namespace>,
    pub claims: Vec<PersistentVolumeClaim>,
    pub volumes: Vec<PersistentVolume>,
    pub classes: Vec<StorageClass>,
    pub drivers: Vec<CSIDriver>,
    pub csi_nodes: Vec<CSINode>,
}

impl Facts {
    pub(crate) async fn read(client: &kube::Client) -> Result<Self> {
        Ok(Self {
            nodes: list(client).await?,
            pods: list(client).await?,
            namespaces: list(client).await?,
            claims: list(client).await?,
            volumes: list(client).await?,
            classes: list(client).await?,
            drivers: list(client).await?,
            csi_nodes: list(client).await?,
        })
    }
}

async fn list<K>(client: &kube::Client) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + client::FromJson + std::fmt::Debug,
{
    let api: Api<K> = Api::all_with(client.clone(), &());
    Ok(api.list(&ListParams::default()).await?)
}

/// One line for each node, or for each reason in a large cluster. Empty when a node would take the pod.
pub(crate) fn explain(pod: &Pod, facts: &Facts) -> Vec<String> {
    let mut scheduling = Scheduling::new(0);
    fill(&mut scheduling.cluster, facts);
    let info = Arc::new(PodInfo::new(pod));
    let failure = match scheduling.schedule(&Profile::default_scheduler(), &info) {
        Outcome::Node { .. } => return Vec::new(),
        Outcome::Failed(failure) => failure,
    };
    if failure.rejected.is_empty() || failure.total > NAMED {
        return vec![failure.message()];
    }
    by_node(&scheduling.cluster, &info, &failure)
}

fn fill(cluster: &mut Cluster, facts: &Facts) {
    for namespace in &facts.namespaces {
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        cluster.put_namespace(&namespace.name_any(), Some(labels));
    }
    for node in &facts.nodes {
        cluster.put_node(NodeInfo::new(node));
    }
    for class in &facts.classes {
        cluster
            .claims
            .put_class(&class.name_any(), Some(&Arc::new(class.clone())));
    }
    for driver in &facts.drivers {
        cluster
            .claims
            .put_driver(&driver.name_any(), Some(&Arc::new(driver.clone())));
    }
    for node in &facts.csi_nodes {
        cluster
            .claims
            .put_csi_node(&node.name_any(), Some(&Arc::new(node.clone())));
    }
    for volume in &facts.volumes {
        cluster
            .claims
            .put_volume(&volume.name_any(), Some(&Arc::new(volume.clone())));
    }
    for claim in &facts.claims {
        let (namespace, name) = key(claim);
        cluster
            .claims
            .put_claim(&namespace, &name, Some(&Arc::new(claim.clone())));
    }
    for pod in facts.pods.iter().filter(|pod| !has_ended(pod)) {
        if let Some(node) = node_name(pod) {
            cluster.put_pod(node, Arc::new(PodInfo::new(pod)));
        }
    }
}

fn key<K: Resource<Scope = NamespaceResourceScope>>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn by_node(cluster: &Cluster, pod: &PodInfo, failure: &Failure) -> Vec<String> {
    let width = failure
        .rejected
        .iter()
        .map(|rejection| cluster.names[rejection.slot].len())
        .max();
    let width = width.unwrap_or_default();
    let mut lines: Vec<String> = failure
        .rejected
        .iter()
        .map(|rejection| {
            let reasons: Vec<String> = rejection
                .reasons
                .iter()
                .map(|reason| with_numbers(cluster, rejection.slot, pod, reason))
                .collect();
            let name = &cluster.names[rejection.slot];
            format!(
                "{name:width$}  {}: {}",
                rejection.plugin,
                reasons.join("; ")
            )
        })
        .collect();
    lines.sort();
    lines
}

/// `Insufficient cpu` with what the pod asks for and what is free.
fn with_numbers(cluster: &Cluster, slot: Slot, pod: &PodInfo, reason: &str) -> String {
    let Some(resource) = reason.strip_prefix("Insufficient ") else {
        return match reason {
            "Too many pods" => {
                let (used, most) = (cluster.count.used[slot], cluster.count.allocatable[slot]);
                format!("{reason} ({used} of {most})")
            }
            _ if reason.contains("untolerated taint") => {
                format!("{reason}: {}", taints(cluster, slot))
            }
            _ => reason.to_owned(),
        };
    };
    let column = match resource {
        "cpu" => &cluster.cpu,
        "memory" => &cluster.memory,
        "ephemeral-storage" => &cluster.ephemeral,
        other => match cluster.others.get(other) {
            Some(column) => column,
            None => return format!("{reason} (the node has none)"),
        },
    };
    let show = |amount: i64| match resource {
        "cpu" => Quantity::from_millis(amount).to_string(),
        _ => Quantity::from_value(amount, Format::Binary).to_string(),
    };
    let asked = pod.template.requests.amount(resource);
    let (free, all) = (column.free(slot).max(0), column.allocatable[slot]);
    format!(
        "{reason} (asks for {}, {} of {} is free)",
        show(asked),
        show(free),
        show(all)
    )
}

/// The taints that keep pods away; which of them the pod tolerates is left to the reader.
fn taints(cluster: &Cluster, slot: Slot) -> String {
    let taints = cluster.node(slot).into_iter().flat_map(|node| &node.taints);
    let hard = taints.filter(|taint| taint.effect != "PreferNoSchedule");
    let shown = hard.map(|taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        format!("{}={value}:{}", taint.key, taint.effect).replace("=:", ":")
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts() -> Facts {
        let node = |name: &str, taints: serde_json::Value| {
            let allocatable = json!({"cpu": "2", "memory": "4Gi", "pods": "110"});
            let node = json!({"metadata": {"name": name}, "spec": {"taints": taints},
                "status": {"allocatable": allocatable}});
            serde_json::from_value(node).unwrap()
        };
        let taint = json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]);
        Facts {
            nodes: vec![node("first", json!([])), node("second", taint)],
            pods: vec![pod("placed", "1500m", Some("first"))],
            ..Facts::default()
        }
    }

    fn pod(name: &str, cpu: &str, node: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": node, "containers": [
                {"name": "a", "resources": {"requests": {"cpu": cpu}}}]}}))
        .unwrap()
    }

    #[test]
    fn each_node_says_what_is_missing_in_numbers() {
        let lines = explain(&pod("web", "1", None), &facts());
        assert_eq!(
            lines,
            [
                "first   NodeResourcesFit: Insufficient cpu (asks for 1, 500m of 2 is free)",
                "second  TaintToleration: node(s) had untolerated taint(s): gpu=yes:NoSchedule",
            ]
        );
    }

    #[test]
    fn a_pod_that_fits_has_nothing_against_it() {
        assert_eq!(
            explain(&pod("web", "100m", None), &facts()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_cluster_without_nodes_says_so() {
        let lines = explain(&pod("web", "1", None), &Facts::default());
        assert_eq!(lines, ["no nodes available to schedule pods"]);
    }
}
