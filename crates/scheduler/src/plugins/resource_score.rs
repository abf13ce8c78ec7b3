//! Allocatable and requested resources of nodes, for plugins that score by them.

use serde::Deserialize;

use crate::{
    cluster::{Cluster, Slot},
    pod::PodInfo,
};

/// A resource and its weight.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ResourceWeight {
    pub(super) name: String,
    #[serde(default)]
    pub(super) weight: i64,
}

/// CPU and memory with equal weights.
pub(super) fn default_resources() -> Vec<ResourceWeight> {
    let resource = |name: &str| ResourceWeight {
        name: name.to_owned(),
        weight: 1,
    };
    vec![resource("cpu"), resource("memory")]
}

/// Fills in defaults, and rejects what upstream rejects.
pub(super) fn checked(resources: Vec<ResourceWeight>) -> Result<Vec<ResourceWeight>, String> {
    if resources.is_empty() {
        return Ok(default_resources());
    }
    let mut checked: Vec<ResourceWeight> = Vec::new();
    for mut resource in resources {
        if resource.weight == 0 {
            resource.weight = 1;
        }
        if !(1..=100).contains(&resource.weight) {
            let ResourceWeight { name, weight } = resource;
            return Err(format!(
                "weight of {name} must be between 1 and 100, not {weight}"
            ));
        }
        if checked.iter().any(|other| other.name == resource.name) {
            return Err(format!("resource {} is listed twice", resource.name));
        }
        checked.push(resource);
    }
    Ok(checked)
}

/// The used amounts of nodes.
enum Used<'a> {
    Requested(&'a [i64]),
    NonZeroCpu(&'a [(i64, i64)]),
    NonZeroMemory(&'a [(i64, i64)]),
}

impl Used<'_> {
    fn at(&self, slot: Slot) -> i64 {
        match self {
            Self::Requested(used) => used[slot],
            Self::NonZeroCpu(used) => used[slot].0,
            Self::NonZeroMemory(used) => used[slot].1,
        }
    }
}

/// One resource over all nodes, and the pod's request.
pub(super) struct Scored<'a> {
    allocatable: &'a [i64],
    used: Used<'a>,
    pub(super) request: i64,
    pub(super) weight: i64,
}

impl<'a> Scored<'a> {
    /// The node's allocatable, used, and used amount with the pod; `None` if the node has none of
    /// it.
    pub(super) fn amounts(&self, slot: Slot) -> Option<(i64, i64, i64)> {
        let has = self.allocatable[slot];
        let used = self.used.at(slot);
        (has != 0).then_some((has, used, used + self.request))
    }

    /// The resources that matter for this pod. `non_zero` uses defaults for pods without CPU or
    /// memory requests.
    pub(super) fn new(
        resources: &[ResourceWeight],
        pod: &PodInfo,
        cluster: &'a Cluster,
        non_zero: bool,
    ) -> Vec<Self> {
        let scored = |resource: &ResourceWeight| {
            let (requests, weight) = (&pod.template.requests, resource.weight);
            let requested = |column: &'a crate::cluster::Column, request| Self {
                allocatable: &column.allocatable,
                used: Used::Requested(&column.used),
                request,
                weight,
            };
            Some(match resource.name.as_str() {
                "cpu" if non_zero => Self {
                    allocatable: &cluster.cpu.allocatable,
                    used: Used::NonZeroCpu(&cluster.non_zero),
                    request: pod.template.non_zero.0,
                    weight,
                },
                "memory" if non_zero => Self {
                    allocatable: &cluster.memory.allocatable,
                    used: Used::NonZeroMemory(&cluster.non_zero),
                    request: pod.template.non_zero.1,
                    weight,
                },
                "cpu" => requested(&cluster.cpu, requests.cpu),
                "memory" => requested(&cluster.memory, requests.memory),
                "ephemeral-storage" => requested(&cluster.ephemeral, requests.ephemeral),
                // An extended resource counts only for pods that request it.
                other => {
                    let request = requests.amount(other);
                    (request != 0).then_some(requested(cluster.others.get(other)?, request))?
                }
            })
        };
        resources.iter().filter_map(scored).collect()
    }
}
