//! Nodes and pods for tests.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, Node, NodeStatus, Pod, PodSpec, ResourceRequirements,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kube::api::ObjectMeta;

use crate::{cluster::Cluster, pod::PodInfo};

pub(crate) fn node(name: &str, cpu: &str, memory: &str) -> Arc<Node> {
    let amounts = [("cpu", cpu), ("memory", memory), ("pods", "110")];
    let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let metadata = ObjectMeta {
        name: Some(name.into()),
        ..Default::default()
    };
    let status = NodeStatus {
        allocatable: Some(amounts.into()),
        ..Default::default()
    };
    Arc::new(Node {
        metadata,
        status: Some(status),
        ..Default::default()
    })
}

pub(crate) fn labelled(name: &str, labels: &[(&str, &str)]) -> Arc<Node> {
    let mut node = (*node(name, "4", "8Gi")).clone();
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    node.metadata.labels = Some(labels.collect());
    Arc::new(node)
}

pub(crate) fn cluster(nodes: &[(&str, &str, &str)]) -> Cluster {
    let mut cluster = Cluster::default();
    for (name, cpu, memory) in nodes {
        cluster.put_node(node(name, cpu, memory));
    }
    cluster
}

pub(crate) fn pod(name: &str, cpu: &str, memory: &str) -> Arc<PodInfo> {
    pod_asking(name, cpu, memory, |_| {})
}

pub(crate) fn pod_asking(
    name: &str,
    cpu: &str,
    memory: &str,
    change: impl FnOnce(&mut PodSpec),
) -> Arc<PodInfo> {
    let requests = [("cpu", cpu), ("memory", memory)];
    let requests = requests.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let resources = ResourceRequirements {
        requests: Some(requests.into()),
        ..Default::default()
    };
    let container = Container {
        resources: Some(resources),
        ..Default::default()
    };
    pod_with(name, |spec| {
        spec.containers = vec![container];
        change(spec);
    })
}

pub(crate) fn pod_with(name: &str, change: impl FnOnce(&mut PodSpec)) -> Arc<PodInfo> {
    pod_labelled(name, &[], change)
}

pub(crate) fn pod_labelled(
    name: &str,
    labels: &[(&str, &str)],
    change: impl FnOnce(&mut PodSpec),
) -> Arc<PodInfo> {
    let mut spec = PodSpec::default();
    change(&mut spec);
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("default".into()),
        uid: Some(format!("uid-{name}")),
        labels: Some(labels.collect()),
        ..Default::default()
    };
    let pod = Pod {
        metadata,
        spec: Some(spec),
        status: None,
    };
    Arc::new(PodInfo::new(Arc::new(pod)))
}

pub(crate) fn with_host_port(number: i32) -> Vec<Container> {
    let port = ContainerPort {
        container_port: number,
        host_port: Some(number),
        ..Default::default()
    };
    vec![Container {
        ports: Some(vec![port]),
        ..Default::default()
    }]
}
