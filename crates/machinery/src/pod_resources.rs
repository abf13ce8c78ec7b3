//! The total requests and limits of a pod. The scheduler, the kubelet, quotas, admission plugins,
//! autoscaling and kubectl all count a pod with the functions of this module.
//!
//! The callers hold pods in different forms, so the totals are computed over [`PodResources`], plain
//! data that is read from JSON here and from typed pods in `reconcile::pod_resources`.

use std::collections::BTreeMap;

use crate::{Value, quantity::Quantity};

/// Amounts by resource name.
pub type ResourceList<'a> = BTreeMap<&'a str, Quantity>;

/// Which of a container's resources are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Requests,
    Limits,
}

impl Field {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Limits => "limits",
        }
    }
}

/// The resources of a container or of the pod as a whole.
#[derive(Debug, Clone, Default)]
pub struct ResourceState<'a> {
    /// In the spec.
    pub spec: ResourceList<'a>,
    /// In effect according to the status; `None` if the status has none or is not considered.
    pub actuated: Option<ResourceList<'a>>,
    /// Allocated by the kubelet according to the status.
    pub allocated: ResourceList<'a>,
}

/// A container.
#[derive(Debug, Clone, Default)]
pub struct Container<'a> {
    /// Whether an init container keeps running beside those that start later.
    pub is_sidecar: bool,
    pub resources: ResourceState<'a>,
}

/// Everything in a pod that its requests or limits depend on.
#[derive(Debug, Clone)]
pub struct PodResources<'a> {
    /// What the lists are.
    pub field: Field,
    pub containers: Vec<Container<'a>>,
    pub init_containers: Vec<Container<'a>>,
    /// Of the pod's own `resources`.
    pub pod_level: ResourceState<'a>,
    pub overhead: ResourceList<'a>,
    /// Whether the kubelet has found that the resize in the spec can never succeed.
    pub is_resize_infeasible: bool,
    /// Amounts of containers that have none.
    pub defaults: ResourceList<'a>,
}

impl<'a> PodResources<'a> {
    /// From a pod's spec. The statuses of containers count during a resize; without a `status` only
    /// the spec does.
    pub fn from_json(field: Field, spec: &'a Value, status: Option<&'a Value>) -> Self {
        let containers = |list: &str, statuses: &str| {
            let containers = items(&spec[list]).iter();
            containers
                .map(|container| {
                    let statuses = status.map(|status| items(&status[statuses]));
                    let mut statuses = statuses.into_iter().flatten();
                    let status = statuses.find(|status| status["name"] == container["name"]);
                    container_from_json(field, container, status)
                })
                .collect()
        };
        Self {
            field,
            containers: containers("containers", "containerStatuses"),
            init_containers: containers("initContainers", "initContainerStatuses"),
            pod_level: ResourceState {
                spec: list_from_json(&spec["resources"][field.as_str()]),
                ..ResourceState::default()
            },
            overhead: list_from_json(&spec["overhead"]),
            is_resize_infeasible: status.is_some_and(|status| {
                let conditions = items(&status["conditions"]).iter();
                is_resize_infeasible(conditions.map(|c| (c["type"].as_str(), c["reason"].as_str())))
            }),
            defaults: ResourceList::new(),
        }
    }

    /// The pod's total: that of its containers, in which pod-level amounts take precedence, plus the
    /// overhead. Overhead adds to a limit, but does not make one.
    pub fn total(&self) -> ResourceList<'a> {
        let mut total = self.total_without_overhead();
        for (&name, &amount) in &self.overhead {
            match total.get_mut(name) {
                Some(sum) if self.field == Field::Requests || !sum.is_zero() => {
                    *sum = sum.plus(amount);
                }
                None if self.field == Field::Requests => _ = total.insert(name, amount),
                _ => {}
            }
        }
        total
    }

    /// The same for admission rules and cgroups that leave the overhead out.
    pub fn total_without_overhead(&self) -> ResourceList<'a> {
        let mut total = self.containers_total();
        let pod_level = self.effective(&self.pod_level);
        for name in self.pod_level.spec.keys().copied() {
            if is_pod_level(name) {
                let amount = pod_level.get(name).copied().unwrap_or(Quantity::ZERO);
                total.insert(name, amount);
            }
        }
        total
    }

    /// The most that the containers need at one time: all containers with the sidecars, or one init
    /// container with the sidecars that start before it.
    pub fn containers_total(&self) -> ResourceList<'a> {
        let mut total = ResourceList::new();
        for container in &self.containers {
            add(
                &mut total,
                &self.with_defaults(self.effective(&container.resources)),
            );
        }
        let (mut sidecars, mut initializing) = (ResourceList::new(), ResourceList::new());
        for container in &self.init_containers {
            // Only containers that keep running are resized.
            let own = match container.is_sidecar {
                true => self.effective(&container.resources),
                false => container.resources.spec.clone(),
            };
            let mut needed = sidecars.clone();
            add(&mut needed, &self.with_defaults(own));
            if container.is_sidecar {
                sidecars.clone_from(&needed);
            }
            raise(&mut initializing, &needed);
        }
        add(&mut total, &sidecars);
        raise(&mut total, &initializing);
        total
    }

    /// Whether no container, nor an init container with the sidecars before it, is without this
    /// resource; or the pod has an amount of its own.
    pub fn all_have(&self, resource: &str) -> bool {
        let has = |list: &ResourceList<'_>| list.get(resource).is_some_and(|sum| !sum.is_zero());
        let mut sidecars = false;
        has(&self.pod_level.spec)
            || self.containers.iter().all(|c| has(&c.resources.spec))
                && self.init_containers.iter().all(|container| {
                    let own = has(&container.resources.spec);
                    sidecars |= own && container.is_sidecar;
                    own || sidecars
                })
    }

    fn with_defaults(&self, mut list: ResourceList<'a>) -> ResourceList<'a> {
        for (&name, &amount) in &self.defaults {
            list.entry(name).or_insert(amount);
        }
        list
    }

    /// During a resize the largest of the wanted, the actuated and the allocated amounts counts; the
    /// wanted ones only if they are feasible.
    fn effective(&self, state: &ResourceState<'a>) -> ResourceList<'a> {
        let Some(actuated) = &state.actuated else {
            return state.spec.clone();
        };
        let mut list = match self.is_resize_infeasible {
            true => ResourceList::new(),
            false => state.spec.clone(),
        };
        raise(&mut list, actuated);
        if self.field == Field::Requests {
            raise(&mut list, &state.allocated);
        }
        list
    }
}

/// A list from names and quantities. The API server rejects invalid quantities; here they are
/// ignored.
pub fn list<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> ResourceList<'a> {
    let entries = entries.into_iter();
    let entries = entries.filter_map(|(name, text)| Some((name, text.parse().ok()?)));
    entries.collect()
}

/// Whether a pod's conditions, as type and reason, say that its resize can never succeed.
pub fn is_resize_infeasible<'a>(
    mut conditions: impl Iterator<Item = (Option<&'a str>, Option<&'a str>)>,
) -> bool {
    conditions.any(|condition| condition == (Some("PodResizePending"), Some("Infeasible")))
}

/// Whether the pod as a whole can have this resource.
fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with("hugepages-")
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn list_from_json(value: &Value) -> ResourceList<'_> {
    let entries = value.as_object().into_iter().flatten();
    list(entries.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))))
}

fn container_from_json<'a>(
    field: Field,
    container: &'a Value,
    status: Option<&'a Value>,
) -> Container<'a> {
    let amounts = |resources: &'a Value| list_from_json(&resources[field.as_str()]);
    let actuated = status.map(|status| &status["resources"]);
    Container {
        is_sidecar: container["restartPolicy"] == "Always",
        resources: ResourceState {
            spec: amounts(&container["resources"]),
            actuated: actuated.filter(|value| !value.is_null()).map(amounts),
            allocated: status
                .map(|status| list_from_json(&status["allocatedResources"]))
                .unwrap_or_default(),
        },
    }
}

fn add<'a>(to: &mut ResourceList<'a>, more: &ResourceList<'a>) {
    for (&name, &amount) in more {
        let sum = to.entry(name).or_insert(Quantity::ZERO);
        *sum = sum.plus(amount);
    }
}

fn raise<'a>(to: &mut ResourceList<'a>, other: &ResourceList<'a>) {
    for (&name, &amount) in other {
        let most = to.entry(name).or_insert(amount);
        if amount > *most {
            *most = amount;
        }
    }
}

#[cfg(test)]
mod tests;
