//! Why no node accepts a pod, node by node, with the numbers that its condition omits. The
//! cluster's scheduler is asked; if it does not answer, its filters run here on the objects from
//! the API.

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
use scheduler::{
    Diagnosis,
    cluster::{Cluster, NodeInfo},
    cycle::Scheduling,
    diagnosis::NodeDiagnosis,
    framework::profile::Profile,
    pod::{PodInfo, has_ended, node_name},
};

use crate::Result;

/// The maximum number of nodes listed one by one; a larger cluster is summarized by reason.
const NAMED: usize = 20;

/// The objects that scheduling depends on.
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

/// The diagnosis of the cluster's scheduler; `None` if it is not available to this client: upstream
/// has no such path, a scheduler in another process is not asked, or access is denied.
pub(crate) async fn ask(client: &kube::Client, namespace: &str, name: &str) -> Option<Diagnosis> {
    let path = format!("/apis/diagnostics.mainstay.dev/v1/namespaces/{namespace}/pods/{name}");
    let request = http::Request::get(path).body(Vec::new()).ok()?;
    client.request(request).await.ok()
}

/// The same computed here, by the default scheduler's filters on the objects from the API.
pub(crate) fn diagnose(pod: &Pod, facts: &Facts) -> Diagnosis {
    let mut scheduling = Scheduling::new(0);
    fill(&mut scheduling.cluster, facts);
    let (profile, info) = (Profile::default_scheduler(), Arc::new(PodInfo::new(pod)));
    scheduler::diagnosis::diagnose(&mut scheduling, &profile, &info)
}

/// One line for each node, or for each reason in a large cluster. Empty if a node would accept the
/// pod.
pub(crate) fn lines(diagnosis: &Diagnosis) -> Vec<String> {
    if diagnosis.fitting > 0 {
        return Vec::new();
    }
    let nodes = &diagnosis.nodes;
    if nodes.is_empty() || nodes.len() > NAMED {
        return vec![diagnosis.message.clone()];
    }
    let width = nodes.iter().map(|node| node.name.len()).max();
    let width = width.unwrap_or_default();
    let line = |node: &NodeDiagnosis| {
        let (name, plugin, reasons) = (&node.name, &node.plugin, node.reasons.join("; "));
        format!("{name:width$}  {plugin}: {reasons}")
    };
    nodes.iter().map(line).collect()
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

    fn explain(pod: &Pod, facts: &Facts) -> Vec<String> {
        lines(&diagnose(pod, facts))
    }

    #[test]
    fn each_node_has_its_missing_resources_in_numbers() {
        let lines = explain(&pod("web", "1", None), &facts());
        assert_eq!(
            lines,
            [
                "first   NodeResourcesFit: Insufficient cpu (requests 1, 500m of 2 is free)",
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
    fn a_cluster_without_nodes_is_reported() {
        let lines = explain(&pod("web", "1", None), &Facts::default());
        assert_eq!(lines, ["no nodes available to schedule pods"]);
    }
}
