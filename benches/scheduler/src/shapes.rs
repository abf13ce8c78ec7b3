//! The shapes of upstream's scheduler_perf: what is there before, and what is scheduled then.

use k8s_openapi::api::core::v1::Pod as ApiPod;
use scheduler::{
    cluster::{Cluster, NodeInfo},
    matching::Labels,
};
use serde_json::{Value, json};

/// One shape.
pub(crate) struct Shape {
    /// As upstream names it.
    pub(crate) name: &'static str,
    /// Objects beside nodes and pods.
    pub(crate) surround: fn(&mut Cluster),
    /// A pod that is there before the clock starts.
    pub(crate) initial: fn(usize) -> ApiPod,
    /// A pod that is measured.
    pub(crate) measured: fn(usize) -> ApiPod,
    /// How many of the pods before fill a node; then all nodes are filled.
    pub(crate) fill: Option<usize>,
}

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

fn nothing(_: &mut Cluster) {}

/// A Service that selects the plain pods, so that they are spread by default.
fn service(cluster: &mut Cluster) {
    let selector: Labels = [("app".to_owned(), "plain".to_owned())].into();
    cluster
        .workloads
        .put_service("default", "plain", Some(selector));
}

const fn shape(
    name: &'static str,
    surround: fn(&mut Cluster),
    initial: fn(usize) -> ApiPod,
    measured: fn(usize) -> ApiPod,
) -> Shape {
    Shape {
        name,
        surround,
        initial,
        measured,
        fill: None,
    }
}

const PREEMPTION: Shape = Shape {
    fill: Some(4),
    ..shape("Preemption", nothing, low_priority, high_priority)
};

/// All shapes.
pub(crate) const SHAPES: &[Shape] = &[
    shape("SchedulingBasic", nothing, plain, plain),
    shape("SchedulingOfService", service, plain, plain),
    shape("SchedulingNodeAffinity", nothing, plain, node_affinity),
    shape("SchedulingPodAffinity", nothing, pod_affinity, pod_affinity),
    shape(
        "SchedulingPodAntiAffinity",
        nothing,
        pod_anti_affinity,
        pod_anti_affinity,
    ),
    shape(
        "PreferredPodAffinity",
        nothing,
        preferred_affinity,
        preferred_affinity,
    ),
    shape(
        "PreferredPodAntiAffinity",
        nothing,
        preferred_anti_affinity,
        preferred_anti_affinity,
    ),
    shape("TopologySpreading", nothing, plain, spreading),
    shape(
        "PreferredTopologySpreading",
        nothing,
        plain,
        preferred_spreading,
    ),
    PREEMPTION,
    shape("Unschedulable", nothing, plain, too_large),
];

/// A node of upstream's template: 4 CPUs, 32 GiB, 110 pods, three zones.
pub(crate) fn node(number: usize) -> NodeInfo {
    let labels = json!({ZONE: format!("zone{}", number % 3), HOST: format!("node-{number}")});
    let node = json!({
        "metadata": {"name": format!("node-{number}"), "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    });
    NodeInfo::new(&serde_json::from_value(node).unwrap_or_default())
}

fn pod(number: usize, app: &str, cpu: &str, more: Value) -> ApiPod {
    let requests = json!({"cpu": cpu, "memory": "500Mi"});
    let mut spec = json!({"containers": [
        {"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": requests}},
    ]});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    let name = format!("{app}-{number}");
    let meta = json!({"name": name, "namespace": "default", "uid": format!("uid-{name}-{cpu}"),
        "labels": {"app": app}});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap_or_default()
}

fn plain(number: usize) -> ApiPod {
    pod(number, "plain", "100m", json!({}))
}

fn node_affinity(number: usize) -> ApiPod {
    let expression = json!({"key": ZONE, "operator": "In", "values": ["zone1", "zone2"]});
    let terms = json!([{"matchExpressions": [expression]}]);
    let required = json!({"nodeSelectorTerms": terms});
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
    pod(
        number,
        "affine",
        "100m",
        json!({"affinity": {"nodeAffinity": affinity}}),
    )
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn required(kind: &str, key: &str, app: &str) -> Value {
    let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term(key, app)]});
    json!({"affinity": {kind: terms}})
}

fn preferred(kind: &str, key: &str, app: &str) -> Value {
    let weighted = json!({"weight": 1, "podAffinityTerm": term(key, app)});
    let terms = json!({"preferredDuringSchedulingIgnoredDuringExecution": [weighted]});
    json!({"affinity": {kind: terms}})
}

fn pod_affinity(number: usize) -> ApiPod {
    pod(
        number,
        "near",
        "100m",
        required("podAffinity", ZONE, "near"),
    )
}

fn pod_anti_affinity(number: usize) -> ApiPod {
    pod(
        number,
        "far",
        "100m",
        required("podAntiAffinity", HOST, "far"),
    )
}

fn preferred_affinity(number: usize) -> ApiPod {
    pod(
        number,
        "near",
        "100m",
        preferred("podAffinity", HOST, "near"),
    )
}

fn preferred_anti_affinity(number: usize) -> ApiPod {
    pod(
        number,
        "far",
        "100m",
        preferred("podAntiAffinity", HOST, "far"),
    )
}

fn spread(wish: &str) -> Value {
    let selector = json!({"matchLabels": {"app": "spread"}});
    json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": ZONE,
        "whenUnsatisfiable": wish, "labelSelector": selector}]})
}

fn spreading(number: usize) -> ApiPod {
    pod(number, "spread", "100m", spread("DoNotSchedule"))
}

fn preferred_spreading(number: usize) -> ApiPod {
    pod(number, "spread", "100m", spread("ScheduleAnyway"))
}

fn low_priority(number: usize) -> ApiPod {
    pod(number, "low", "900m", json!({"priority": 0}))
}

fn high_priority(number: usize) -> ApiPod {
    pod(number, "high", "3", json!({"priority": 10}))
}

fn too_large(number: usize) -> ApiPod {
    pod(number, "large", "9", json!({"priority": 10}))
}
