//! The total requests and limits of typed pods, computed by [`machinery::pod_resources`].

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{self, ContainerStatus, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
pub use machinery::pod_resources::Field;
use machinery::pod_resources::{
    Container, PodResources, ResourceList, ResourceState, is_resize_infeasible, list,
};

type Quantities = BTreeMap<String, Quantity>;

/// The resources in the spec alone.
pub fn from_spec(field: Field, pod: &Pod) -> PodResources<'_> {
    let spec = pod.spec.as_ref();
    let init_containers = spec.and_then(|spec| spec.init_containers.as_deref());
    PodResources {
        field,
        containers: containers(field, spec.map(|spec| spec.containers.as_slice())),
        init_containers: containers(field, init_containers),
        pod_level: ResourceState {
            spec: amounts(field, spec.and_then(|spec| spec.resources.as_ref())),
            ..ResourceState::default()
        },
        overhead: quantities(spec.and_then(|spec| spec.overhead.as_ref())),
        is_resize_infeasible: false,
        defaults: ResourceList::new(),
    }
}

/// The resources in the spec and, as they count during a resize, in the status.
pub fn from_pod(field: Field, pod: &Pod) -> PodResources<'_> {
    let mut resources = from_spec(field, pod);
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else {
        return resources;
    };
    let statuses = [&status.container_statuses, &status.init_container_statuses];
    let statuses = statuses.into_iter().flatten().flatten();
    let specs = spec.containers.iter();
    let specs = specs.chain(spec.init_containers.iter().flatten());
    let read = resources.containers.iter_mut();
    for (container, spec) in read.chain(&mut resources.init_containers).zip(specs) {
        if let Some(status) = statuses.clone().find(|status| status.name == spec.name) {
            add_status(field, &mut container.resources, status);
        }
    }
    if let Some(actuated) = &status.resources {
        resources.pod_level.actuated = Some(amounts(field, Some(actuated)));
        resources.pod_level.allocated = quantities(status.allocated_resources.as_ref());
    }
    let conditions = status.conditions.iter().flatten();
    resources.is_resize_infeasible =
        is_resize_infeasible(conditions.map(|c| (Some(c.type_.as_str()), c.reason.as_deref())));
    resources
}

fn add_status<'a>(field: Field, resources: &mut ResourceState<'a>, status: &'a ContainerStatus) {
    if let Some(actuated) = &status.resources {
        resources.actuated = Some(amounts(field, Some(actuated)));
        resources.allocated = quantities(status.allocated_resources.as_ref());
    }
}

fn containers(field: Field, containers: Option<&[v1::Container]>) -> Vec<Container<'_>> {
    let containers = containers.into_iter().flatten();
    let containers = containers.map(|container| Container {
        is_sidecar: container.restart_policy.as_deref() == Some("Always"),
        resources: ResourceState {
            spec: amounts(field, container.resources.as_ref()),
            ..ResourceState::default()
        },
    });
    containers.collect()
}

fn amounts(field: Field, resources: Option<&ResourceRequirements>) -> ResourceList<'_> {
    quantities(resources.and_then(|resources| match field {
        Field::Requests => resources.requests.as_ref(),
        Field::Limits => resources.limits.as_ref(),
    }))
}

fn quantities(quantities: Option<&Quantities>) -> ResourceList<'_> {
    let quantities = quantities.into_iter().flatten();
    list(quantities.map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(name: &str, cpu: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}})
    }

    #[test]
    fn typed_pods_have_the_same_totals_as_their_json() {
        let mut sidecar = container("s", "200m");
        sidecar["restartPolicy"] = "Always".into();
        let spec = json!({
            "containers": [container("a", "1"), container("b", "300m")],
            "initContainers": [sidecar, container("i", "2")],
            "overhead": {"memory": "1Mi"},
            "resources": {"requests": {"memory": "1Gi"}},
        });
        let status = |name: &str| {
            json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}},
                "allocatedResources": {"cpu": "5"}})
        };
        for reason in ["Deferred", "Infeasible"] {
            let condition = json!({"type": "PodResizePending", "status": "True", "reason": reason});
            let status = json!({"conditions": [condition], "containerStatuses": [status("b")],
                "initContainerStatuses": [status("s"), status("i")]});
            let pod: Pod = serde_json::from_value(json!({"spec": spec, "status": status})).unwrap();
            let [spec, status] = [&spec, &status].map(machinery::json::to_value_or_null);
            for field in [Field::Requests, Field::Limits] {
                let of_spec = PodResources::from_json(field, &spec, None).total();
                assert_eq!(from_spec(field, &pod).total(), of_spec);
                let of_status = PodResources::from_json(field, &spec, Some(&status)).total();
                assert_eq!(from_pod(field, &pod).total(), of_status);
                assert_ne!(of_spec, of_status);
            }
        }
    }

    #[test]
    fn a_resize_of_the_pod_as_a_whole_counts() {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [], "resources": {"requests": {"cpu": "1"}}},
            "status": {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}},
        }))
        .unwrap();
        assert_eq!(from_spec(Field::Requests, &pod).total()["cpu"].value(), 1);
        assert_eq!(from_pod(Field::Requests, &pod).total()["cpu"].value(), 3);
    }
}
