//! The pod-level resources in the status: allocated and in effect.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity::Quantity as Amount;

use super::{Facts, Resize};
use crate::pod::spec;

type List = BTreeMap<String, Amount>;

/// Sets both. While a resize is in progress, the previous resources are in effect.
pub(super) fn set(facts: &Facts, status: &mut PodStatus) {
    set_given(facts.pod, status);
    if let (Some(Resize::InProgress { .. }), Some(before)) =
        (facts.resize, &facts.previous.resources)
    {
        status.resources = Some(before.clone());
    }
}

fn set_given(pod: &Pod, status: &mut PodStatus) {
    let requests = total(pod, |resources| resources.requests.as_ref(), true);
    let limits = total(pod, |resources| resources.limits.as_ref(), false);
    let some = |list: List| {
        let list = list.into_iter();
        let list: BTreeMap<String, Quantity> = list
            .map(|(name, amount)| (name, Quantity(amount.to_string())))
            .collect();
        Some(list).filter(|list| !list.is_empty())
    };
    status.allocated_resources = some(requests);
    status.resources = Some(ResourceRequirements {
        requests: status.allocated_resources.clone(),
        limits: some(limits),
        ..Default::default()
    });
}

/// The pod-level resources or the sums of the containers, plus the overhead (for limits only where
/// a limit exists). Init containers count by their maximum, sidecars are added to everything after
/// them.
fn total(
    pod: &Pod,
    list: fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>,
    with_new: bool,
) -> List {
    let spec = spec::spec(pod);
    let of = |container: &Container| read(container.resources.as_ref().and_then(list));
    let (mut running, mut peak) = (List::new(), List::new());
    for container in spec::init_containers(pod) {
        if spec::is_sidecar(container) {
            add(&mut running, of(container));
            raise(&mut peak, running.clone());
        } else {
            let mut now = running.clone();
            add(&mut now, of(container));
            raise(&mut peak, now);
        }
    }
    for container in &spec.containers {
        add(&mut running, of(container));
    }
    raise(&mut running, peak);
    for (name, amount) in read(spec.resources.as_ref().and_then(list)) {
        running.insert(name, amount);
    }
    for (name, amount) in read(spec.overhead.as_ref()) {
        match running.get_mut(&name) {
            Some(known) if with_new || !known.is_zero() => *known = known.plus(amount),
            None if with_new => _ = running.insert(name, amount),
            _ => {}
        }
    }
    running
}

fn read(list: Option<&BTreeMap<String, Quantity>>) -> List {
    let list = list.into_iter().flatten();
    list.filter_map(|(name, text)| Some((name.clone(), text.0.parse().ok()?)))
        .collect()
}

fn add(to: &mut List, more: List) {
    for (name, amount) in more {
        let sum = to.get(&name).map_or(amount, |known| known.plus(amount));
        to.insert(name, sum);
    }
}

fn raise(to: &mut List, other: List) {
    for (name, amount) in other {
        let larger = to.get(&name).map_or(amount, |known| (*known).max(amount));
        to.insert(name, larger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(spec: serde_json::Value) -> serde_json::Value {
        let pod: Pod = serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap();
        let mut status = PodStatus::default();
        set_given(&pod, &mut status);
        serde_json::json!([status.allocated_resources, status.resources])
    }

    #[test]
    fn containers_are_summed_and_the_pod_and_its_overhead_count() {
        let resources = |cpu: &str| serde_json::json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": "64Mi"}});
        let both = serde_json::json!([
            {"name": "a", "resources": resources("100m")},
            {"name": "b", "resources": resources("200m")}]);
        let init = serde_json::json!([{"name": "i", "resources": resources("1")}]);
        assert_eq!(
            shown(serde_json::json!({"containers": both})),
            serde_json::json!([{"cpu": "300m"},
                {"requests": {"cpu": "300m"}, "limits": {"cpu": "300m", "memory": "128Mi"}}])
        );
        assert_eq!(
            shown(
                serde_json::json!({"containers": both, "initContainers": init,
                "overhead": {"cpu": "50m", "memory": "1Mi"}, "resources": {"limits": {"memory": "1Gi"}}})
            ),
            serde_json::json!([{"cpu": "1050m", "memory": "1Mi"},
                {"requests": {"cpu": "1050m", "memory": "1Mi"}, "limits": {"cpu": "1050m", "memory": "1025Mi"}}])
        );
        assert_eq!(
            shown(serde_json::json!({"containers": [{"name": "a"}]})),
            serde_json::json!([null, {}])
        );
    }
}
