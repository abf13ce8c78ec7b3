//! Resource amounts as integers, of nodes and pods.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource as v1};
use machinery::{
    pod_resources::{self, ResourceList},
    quantity::{Format, Quantity},
};
use reconcile::pod_resources::{Field, from_pod};

/// The default CPU request for scoring.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// The maximum amount: more than any machine has, but small enough that sums over a node's pods,
/// and scores, do not overflow. Users may write any quantity.
const MAX_AMOUNT: i64 = 1 << 53;

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
    pub fn parse(quantities: Option<&BTreeMap<String, v1::Quantity>>) -> Self {
        let quantities = quantities.into_iter().flatten();
        let quantities = quantities.map(|(name, quantity)| (name.as_str(), quantity.0.as_str()));
        Self::from_list(&pod_resources::list(quantities))
    }

    fn from_list(list: &ResourceList<'_>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in list {
            if let Some(amount) = resources.amount_mut(name) {
                *amount = quantity.units(name).clamp(0, MAX_AMOUNT);
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
}

/// The pod's requests. During a resize the larger of the spec and the allocated resources counts.
pub fn requests(pod: &Pod) -> Resources {
    Resources::from_list(&from_pod(Field::Requests, pod).total())
}

/// CPU and memory with defaults for containers without requests: for scoring.
pub fn non_zero(pod: &Pod) -> (i64, i64) {
    let mut resources = from_pod(Field::Requests, pod);
    let known = resources.total();
    // Pod-level requests need no defaults for containers.
    let has_pod_level = !resources.pod_level.spec.is_empty();
    let defaults = [
        ("cpu", Quantity::from_millis(DEFAULT_MILLI_CPU)),
        (
            "memory",
            Quantity::from_value(DEFAULT_MEMORY, Format::Binary),
        ),
    ];
    resources.defaults = defaults
        .into_iter()
        .filter(|(name, _)| !has_pod_level || known.get(name).is_none_or(|sum| sum.is_zero()))
        .collect();
    let filled = Resources::from_list(&resources.total());
    (filled.cpu, filled.memory)
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
        assert_eq!(amounts, [MAX_AMOUNT; 3]);
    }
}
