//! Resource amounts as integers, of nodes and pods.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;

/// The default CPU request for scoring.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// The maximum amount: more than any machine has, but small enough that sums over a node's pods,
/// and scores, do not overflow. Users may write any quantity.
const MOST: i64 = 1 << 53;

type Quantities = BTreeMap<String, Quantity>;

/// Resource amounts. CPU is in millicores; everything else in whole units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Millicores of CPU.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral: i64,
    /// Extended resources and huge pages.
    pub others: BTreeMap<String, i64>,
}

impl Resources {
    /// From the API's quantities. The API server rejects invalid ones; here they count as zero.
    pub fn parse(quantities: Option<&Quantities>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in quantities.into_iter().flatten() {
            let Ok(quantity) = quantity.0.parse::<quantity::Quantity>() else {
                continue;
            };
            if name == "cpu" {
                resources.cpu = quantity.millis().clamp(0, MOST);
            } else if let Some(amount) = resources.amount_mut(name) {
                *amount = quantity.value().clamp(0, MOST);
            }
        }
        resources
    }

    fn amount_mut(&mut self, name: &str) -> Option<&mut i64> {
        match name {
            "cpu" => Some(&mut self.cpu),
            "memory" => Some(&mut self.memory),
            "ephemeral-storage" => Some(&mut self.ephemeral),
            "pods" => None,
            other => Some(self.others.entry(other.to_owned()).or_default()),
        }
    }

    /// The amount of one resource.
    pub fn amount(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }

    /// Whether all amounts are zero.
    pub fn is_zero(&self) -> bool {
        let others = self.others.values().all(|amount| *amount == 0);
        self.cpu == 0 && self.memory == 0 && self.ephemeral == 0 && others
    }

    fn add(&mut self, other: &Self) {
        let add = |sum: &mut i64, amount: i64| *sum = (*sum + amount).min(MOST);
        add(&mut self.cpu, other.cpu);
        add(&mut self.memory, other.memory);
        add(&mut self.ephemeral, other.ephemeral);
        for (name, amount) in &other.others {
            add(self.others.entry(name.clone()).or_default(), *amount);
        }
    }

    fn max(&mut self, other: &Self) {
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        self.ephemeral = self.ephemeral.max(other.ephemeral);
        for (name, amount) in &other.others {
            let entry = self.others.entry(name.clone()).or_default();
            *entry = (*entry).max(*amount);
        }
    }
}

/// The pod's requests: the larger of its containers and sidecars together, and its largest init
/// container with the sidecars before it; plus the overhead. Pod-level requests replace the
/// containers' sum. During a resize the larger of the spec and the allocated resources counts.
pub fn requests(pod: &Pod) -> Resources {
    total(pod, |requests, _| requests)
}

/// CPU and memory with defaults for containers without requests: for scoring.
pub fn non_zero(pod: &Pod) -> (i64, i64) {
    let whole = pod_level(pod);
    let known = requests(pod);
    // Pod-level requests need no defaults for containers.
    let fills = |amount: i64| whole.is_none() || amount == 0;
    let (cpu, memory) = (fills(known.cpu), fills(known.memory));
    let filled = total(pod, |mut requests, container| {
        let asked = asked(container.resources.as_ref());
        let names = |name: &str| asked.is_some_and(|asked| asked.contains_key(name));
        if cpu && !names("cpu") {
            requests.cpu = requests.cpu.max(DEFAULT_MILLI_CPU);
        }
        if memory && !names("memory") {
            requests.memory = requests.memory.max(DEFAULT_MEMORY);
        }
        requests
    });
    (filled.cpu, filled.memory)
}

fn asked(resources: Option<&ResourceRequirements>) -> Option<&Quantities> {
    resources.and_then(|resources| resources.requests.as_ref())
}

/// The pod-level requests, if they are of supported resources.
fn pod_level(pod: &Pod) -> Option<&Quantities> {
    let requests = asked(pod.spec.as_ref()?.resources.as_ref())?;
    requests
        .keys()
        .any(|name| is_pod_level(name))
        .then_some(requests)
}

fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

/// The larger of a container's requests and allocated resources.
fn effective(pod: &Pod, container: &Container) -> Resources {
    let spec = Resources::parse(asked(container.resources.as_ref()));
    let Some(status) = status_of(pod, &container.name) else {
        return spec;
    };
    let Some(actual) = &status.resources else {
        return spec;
    };
    let mut most = if is_resize_infeasible(pod) {
        Resources::default()
    } else {
        spec
    };
    most.max(&Resources::parse(actual.requests.as_ref()));
    most.max(&Resources::parse(status.allocated_resources.as_ref()));
    most
}

fn status_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let inits = status.init_container_statuses.iter().flatten();
    containers.chain(inits).find(|status| status.name == name)
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    })
}

fn total(pod: &Pod, adjust: impl Fn(Resources, &Container) -> Resources) -> Resources {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let mut sum = Resources::default();
    for container in &spec.containers {
        sum.add(&adjust(effective(pod, container), container));
    }
    let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&adjust(effective(pod, container), container));
            peak.max(&sidecars);
        } else {
            let own = Resources::parse(asked(container.resources.as_ref()));
            let mut during = sidecars.clone();
            during.add(&adjust(own, container));
            peak.max(&during);
        }
    }
    sum.add(&sidecars);
    sum.max(&peak);
    if let Some(whole) = pod_level(pod) {
        let most = whole_effective(pod, whole);
        for name in whole.keys().filter(|name| is_pod_level(name)) {
            if let Some(amount) = sum.amount_mut(name) {
                *amount = most.amount(name);
            }
        }
    }
    sum.add(&Resources::parse(spec.overhead.as_ref()));
    sum
}

/// The pod-level requests, with the allocated resources during a resize.
fn whole_effective(pod: &Pod, whole: &Quantities) -> Resources {
    let spec = Resources::parse(Some(whole));
    let status = pod.status.as_ref();
    let Some(actual) = status.and_then(|status| status.resources.as_ref()) else {
        return spec;
    };
    let mut most = if is_resize_infeasible(pod) {
        Resources::default()
    } else {
        spec
    };
    most.max(&Resources::parse(actual.requests.as_ref()));
    let allocated = status.and_then(|status| status.allocated_resources.as_ref());
    most.max(&Resources::parse(allocated));
    most
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    fn asks(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    fn sidecar(cpu: &str) -> Value {
        json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn the_request_of_a_pod_is_the_maximum_over_its_phases() {
        for (inits, cpu) in [
            (json!([]), 1000),
            (json!([asks("2")]), 2000),
            (json!([sidecar("300m")]), 1300),
            (json!([sidecar("300m"), asks("2")]), 2300),
            (json!([asks("2"), sidecar("300m")]), 2000),
        ] {
            let spec = json!({"containers": [asks("500m"), asks("500m")], "initContainers": inits});
            assert_eq!(requests(&pod(json!({"spec": spec}))).cpu, cpu, "{spec}");
        }
    }

    #[test]
    fn overhead_adds_and_requests_of_the_whole_pod_replace() {
        let spec = json!({
            "containers": [asks("500m")],
            "resources": {"requests": {"cpu": "2"}},
            "overhead": {"cpu": "100m", "memory": "1"},
        });
        let resources = requests(&pod(json!({"spec": spec})));
        assert_eq!((resources.cpu, resources.memory), (2100, 1));
    }

    #[test]
    fn a_container_without_requests_counts_with_the_default_for_scoring() {
        let empty = pod(json!({"spec": {"containers": [{"name": "c"}]}}));
        assert!(requests(&empty).is_zero());
        assert_eq!(non_zero(&empty), (100, 200 << 20));
        let zero = json!({"name": "c", "resources": {"requests": {"cpu": "0"}}});
        let zero = pod(json!({"spec": {"containers": [zero]}}));
        assert_eq!(non_zero(&zero), (0, 200 << 20), "an explicit zero stays");
    }

    #[test]
    fn during_a_resize_the_larger_of_requested_and_allocated_counts() {
        let status = |conditions: Value| {
            json!({
                "conditions": conditions,
                "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "2"},
                }],
            })
        };
        let spec = json!({"containers": [asks("3")]});
        let growing = pod(json!({"spec": spec, "status": status(json!([]))}));
        assert_eq!(requests(&growing).cpu, 3000);
        let refused =
            json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        let refused = pod(json!({"spec": spec, "status": status(refused)}));
        assert_eq!(requests(&refused).cpu, 2000);
    }

    #[test]
    fn amounts_beyond_every_machine_do_not_overflow() {
        // The sum of two of these overflows 64 bits.
        let half = (i64::MAX / 2 + (1 << 40)).to_string();
        let container = |cpu: &str| {
            let requests = json!({"cpu": cpu, "memory": half, "example.com/a": half});
            json!({"name": "c", "resources": {"requests": requests}})
        };
        let spec = json!({
            "containers": [container("1"), container("9223372036854775807")],
            "initContainers": [sidecar("9223372036854775807"), container("9223372036854775807")],
            "overhead": {"memory": half},
        });
        let resources = requests(&pod(json!({"spec": spec})));
        let amounts = ["cpu", "memory", "example.com/a"].map(|name| resources.amount(name));
        assert_eq!(amounts, [MOST; 3]);
    }
}
