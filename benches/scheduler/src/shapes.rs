//! The shapes of upstream's scheduler_perf: the initial pods, the measured pods, and other
//! activity. Objects are JSON as a client sends it.

use serde_json::{Value, json};

/// Other activity during the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Churn {
    /// Nothing.
    None,
    /// Five unschedulable pods per second.
    Unschedulable,
    /// Five pods per second that fit only by preemption.
    Preempting,
    /// A node, a Service and an unschedulable pod, created and deleted every second.
    Mixed,
}

/// The pods before the measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    pub(crate) pod: fn(usize) -> Value,
    /// This many per node instead of the configured number.
    pub(crate) on_each_node: Option<usize>,
    /// Whether they have scheduling gates, and no node.
    pub(crate) gated: bool,
}

/// One shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Upstream's name.
    pub(crate) name: &'static str,
    /// The minimum rate of upstream's CI at 5,000 nodes, in pods per second.
    pub(crate) floor: Option<u32>,
    pub(crate) before: Before,
    /// A pod that is measured.
    pub(crate) measured: fn(usize) -> Value,
    /// Whether at most one pod fits on a node, including the initial ones.
    pub(crate) one_on_a_node: bool,
    /// Whether a Service selects the plain pods, so that they are spread by default.
    pub(crate) service: bool,
    pub(crate) churn: Churn,
    /// Whether measured pods are schedulable.
    pub(crate) fits: bool,
}

pub(crate) const NAMESPACE: &str = "bench";
const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// The node of the pods of `SchedulingDaemonset`.
pub(crate) const DAEMON_NODE: &str = "node-0";

const fn shape(
    name: &'static str,
    floor: Option<u32>,
    before: fn(usize) -> Value,
    measured: fn(usize) -> Value,
) -> Shape {
    Shape {
        name,
        floor,
        before: Before {
            pod: before,
            on_each_node: None,
            gated: false,
        },
        measured,
        one_on_a_node: false,
        service: false,
        churn: Churn::None,
        fits: true,
    }
}

const OF_SERVICE: Shape = Shape {
    service: true,
    ..shape("SchedulingOfService", None, plain, plain)
};

const ANTI_AFFINITY: Shape = Shape {
    one_on_a_node: true,
    ..shape("SchedulingPodAntiAffinity", Some(180), repelling, repelling)
};

const PREEMPTION: Shape = Shape {
    before: Before {
        pod: low_priority,
        on_each_node: Some(4),
        gated: false,
    },
    one_on_a_node: true,
    ..shape("PreemptionBasic", None, low_priority, high_priority)
};

const PREEMPTION_ASYNC: Shape = Shape {
    churn: Churn::Preempting,
    measured: plain,
    one_on_a_node: false,
    name: "PreemptionAsync",
    floor: Some(160),
    ..PREEMPTION
};

const UNSCHEDULABLE: Shape = Shape {
    churn: Churn::Unschedulable,
    ..shape("Unschedulable", Some(170), plain, plain)
};

const MIXED: Shape = Shape {
    churn: Churn::Mixed,
    ..shape("MixedSchedulingBasePod", None, plain, plain)
};

const GATED: Shape = Shape {
    before: Before {
        pod: gated,
        on_each_node: None,
        gated: true,
    },
    ..shape("SchedulingWhileGated", None, gated, plain)
};

const TOO_LARGE: Shape = Shape {
    fits: false,
    ..shape("TooLarge", None, plain, too_large)
};

/// All shapes.
pub(crate) const SHAPES: &[Shape] = &[
    shape("SchedulingBasic", Some(680), plain, plain),
    OF_SERVICE,
    shape("SchedulingNodeAffinity", Some(540), plain, node_affinity),
    shape(
        "SchedulingPodAffinity",
        Some(70),
        pod_affinity,
        pod_affinity,
    ),
    ANTI_AFFINITY,
    shape("PreferredPodAffinity", Some(90), prefers_near, prefers_near),
    shape(
        "PreferredPodAntiAffinity",
        Some(90),
        prefers_far,
        prefers_far,
    ),
    shape("TopologySpreading", Some(460), plain, spreading),
    shape("PreferredTopologySpreading", None, plain, prefers_spreading),
    PREEMPTION,
    PREEMPTION_ASYNC,
    UNSCHEDULABLE,
    MIXED,
    GATED,
    shape("SchedulingDaemonset", Some(390), plain, daemon),
    TOO_LARGE,
];

/// A node of upstream's template: 4 CPUs, 32 GiB, 110 pods, three zones.
pub(crate) fn node(number: usize) -> Value {
    let name = format!("node-{number}");
    let pods = if name == DAEMON_NODE { "90000" } else { "110" };
    let labels = json!({ZONE: format!("zone{}", number % 3), HOST: name});
    let amounts = json!({"cpu": "4", "memory": "32Gi", "pods": pods});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// The Service of [`Shape::service`].
pub(crate) fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"clusterIP": "None", "selector": {"app": "plain"}, "ports": [{"port": 80}]},
    })
}

fn pod(number: usize, app: &str, cpu: &str, more: Value) -> Value {
    let requests = json!({"cpu": cpu, "memory": "500Mi"});
    let mut spec = json!({
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10.2",
            "resources": {"requests": requests}}],
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    let name = format!("{app}-{number}");
    let meta = json!({"name": name, "namespace": NAMESPACE, "labels": {"app": app}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
}

fn plain(number: usize) -> Value {
    pod(number, "plain", "100m", json!({}))
}

fn gated(number: usize) -> Value {
    let gates = json!({"schedulingGates": [{"name": "example.com/hold"}]});
    pod(number, "gated", "100m", gates)
}

fn required_nodes(term: Value) -> Value {
    let required = json!({"nodeSelectorTerms": [term]});
    let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": required});
    json!({"affinity": {"nodeAffinity": affinity}})
}

fn node_affinity(number: usize) -> Value {
    let zones = json!({"key": ZONE, "operator": "In", "values": ["zone1", "zone2"]});
    let more = required_nodes(json!({"matchExpressions": [zones]}));
    pod(number, "affine", "100m", more)
}

/// Requests no CPU: all must fit on one node.
fn daemon(number: usize) -> Value {
    let name = json!({"key": "metadata.name", "operator": "In", "values": [DAEMON_NODE]});
    let mut pod = pod(
        number,
        "daemon",
        "0",
        required_nodes(json!({"matchFields": [name]})),
    );
    pod["spec"]["containers"][0]["resources"] = json!({});
    pod
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

fn pod_affinity(number: usize) -> Value {
    let more = required("podAffinity", ZONE, "near");
    pod(number, "near", "100m", more)
}

fn repelling(number: usize) -> Value {
    let more = required("podAntiAffinity", HOST, "far");
    pod(number, "far", "100m", more)
}

fn prefers_near(number: usize) -> Value {
    let more = preferred("podAffinity", HOST, "near");
    pod(number, "near", "100m", more)
}

fn prefers_far(number: usize) -> Value {
    let more = preferred("podAntiAffinity", HOST, "far");
    pod(number, "far", "100m", more)
}

fn spread(wish: &str) -> Value {
    let selector = json!({"matchLabels": {"app": "spread"}});
    json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": ZONE,
        "whenUnsatisfiable": wish, "labelSelector": selector}]})
}

fn spreading(number: usize) -> Value {
    pod(number, "spread", "100m", spread("DoNotSchedule"))
}

fn prefers_spreading(number: usize) -> Value {
    pod(number, "spread", "100m", spread("ScheduleAnyway"))
}

/// The PriorityClass of important pods, and its value.
pub(crate) const HIGH: (&str, i32) = ("bench-high", 10);

fn low_priority(number: usize) -> Value {
    pod(number, "low", "900m", json!({}))
}

/// Fits only on a node whose pods are preempted.
pub(crate) fn high_priority(number: usize) -> Value {
    pod(number, "high", "3", json!({"priorityClassName": HIGH.0}))
}

/// Fits on no node.
pub(crate) fn too_large(number: usize) -> Value {
    pod(number, "large", "9", json!({"priorityClassName": HIGH.0}))
}
