//! Nodes and pods for tests, and functions that run a single plugin.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Container, ContainerPort, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, NodeInfo, Slot},
    framework::{
        Plugin, Point, PreFilter,
        candidates::{Candidates, Rejection},
    },
    pod::PodInfo,
};

pub(crate) fn time(second: i64) -> Time {
    Time(jiff::Timestamp::from_second(second).unwrap())
}

pub(crate) fn node(name: &str, cpu: &str, memory: &str) -> NodeInfo {
    let allocatable = json!({"cpu": cpu, "memory": memory, "pods": "110"});
    let node = json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}});
    NodeInfo::new(&serde_json::from_value(node).unwrap())
}

pub(crate) fn cordoned(name: &str) -> NodeInfo {
    let mut node = node(name, "8", "16Gi");
    node.unschedulable = true;
    node
}

fn owned(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

pub(crate) fn labelled(name: &str, labels: &[(&str, &str)]) -> NodeInfo {
    let mut node = node(name, "4", "8Gi");
    node.labels = owned(labels);
    node
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

pub(crate) fn prioritised(name: &str, cpu: &str, priority: i32) -> Arc<PodInfo> {
    pod_asking(name, cpu, "1Mi", |spec| spec.priority = Some(priority))
}

pub(crate) fn pod_requesting(name: &str, requests: &[(&str, &str)]) -> Arc<PodInfo> {
    pod_with(name, |spec| spec.containers = vec![requesting(requests)])
}

fn requesting(requests: &[(&str, &str)]) -> Container {
    let requests = requests.iter();
    let requests = requests.map(|(name, amount)| ((*name).into(), Quantity((*amount).into())));
    Container {
        resources: Some(ResourceRequirements {
            requests: Some(requests.collect()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn pod_asking(
    name: &str,
    cpu: &str,
    memory: &str,
    change: impl FnOnce(&mut PodSpec),
) -> Arc<PodInfo> {
    pod_with(name, |spec| {
        spec.containers = vec![requesting(&[("cpu", cpu), ("memory", memory)])];
        change(spec);
    })
}

pub(crate) fn pod_with(name: &str, change: impl FnOnce(&mut PodSpec)) -> Arc<PodInfo> {
    pod_labelled(name, &[], change)
}

pub(crate) fn pod_with_claim(name: &str, claim: &str) -> Arc<PodInfo> {
    let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    let volumes = serde_json::from_value(volume).unwrap();
    pod_with(name, |spec| spec.volumes = Some(volumes))
}

pub(crate) fn bound_claim(cluster: &mut Cluster, claim: &str, volume: &str, object: Value) {
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
    let spec = json!({"volumeName": volume});
    let object_of_claim = json!({"metadata": {"annotations": bound}, "spec": spec});
    let object_of_claim = Arc::new(serde_json::from_value(object_of_claim).unwrap());
    cluster
        .claims
        .put_claim("default", claim, Some(&object_of_claim));
    let object = Arc::new(serde_json::from_value(object).unwrap());
    cluster.claims.put_volume(volume, Some(&object));
}

pub(crate) fn api_pod(name: &str, labels: &[(&str, &str)]) -> Pod {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("default".into()),
        uid: Some(format!("uid-{name}")),
        labels: Some(owned(labels)),
        ..Default::default()
    };
    Pod {
        metadata,
        spec: Some(PodSpec::default()),
        status: None,
    }
}

pub(crate) fn pod_labelled(
    name: &str,
    labels: &[(&str, &str)],
    change: impl FnOnce(&mut PodSpec),
) -> Arc<PodInfo> {
    let mut pod = api_pod(name, labels);
    change(pod.spec.get_or_insert_default());
    Arc::new(PodInfo::new(&pod))
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

fn run(plugin: &dyn Plugin, pod: &PodInfo, cluster: &mut Cluster) -> Candidates {
    cluster.prepare();
    plugin.prepare(pod, cluster);
    let mut slots = cluster.visits().to_vec();
    slots.sort_unstable();
    let mut candidates = Candidates::new(slots);
    let state = if plugin.points().contains(&Point::PreFilter) {
        plugin.pre_filter(pod, cluster)
    } else {
        PreFilter::Continue(Box::new(()))
    };
    match state {
        PreFilter::Skip => {}
        PreFilter::Continue(state) | PreFilter::Only(_, state) => {
            plugin.filter(pod, cluster, state.as_any(), &mut candidates);
        }
        PreFilter::Reject(reason, _) => panic!("refused before any node: {reason}"),
    }
    candidates
}

/// The nodes that a plugin accepts.
pub(crate) fn filtered(plugin: &dyn Plugin, pod: &PodInfo, cluster: &mut Cluster) -> Vec<Slot> {
    run(plugin, pod, cluster).into_parts().0
}

/// The nodes that a plugin rejects, by slot.
pub(crate) fn rejected(
    plugin: &dyn Plugin,
    pod: &PodInfo,
    cluster: &mut Cluster,
) -> Vec<Rejection> {
    let mut rejected = run(plugin, pod, cluster).into_parts().1;
    rejected.sort_by_key(|rejection| rejection.slot);
    rejected
}

/// A plugin's normalized scores.
pub(crate) fn scored(
    plugin: &dyn Plugin,
    pod: &PodInfo,
    cluster: &mut Cluster,
    nodes: &[Slot],
) -> Option<Vec<i64>> {
    cluster.prepare();
    plugin.prepare(pod, cluster);
    let state = plugin.pre_score(pod, cluster, nodes)?;
    let mut scores = vec![0; nodes.len()];
    plugin.score(pod, cluster, &*state, nodes, &mut scores);
    plugin.normalize(&*state, &mut scores);
    Some(scores)
}
