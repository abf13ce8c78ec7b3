//! The pod-level resources in the status: allocated and in effect.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use reconcile::pod_resources::{Field, from_spec};

use super::{Facts, Resize};

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
    let total = |field| {
        let total = from_spec(field, pod).total().into_iter();
        let total: BTreeMap<String, Quantity> = total
            .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_string())))
            .collect();
        Some(total).filter(|list| !list.is_empty())
    };
    status.allocated_resources = total(Field::Requests);
    status.resources = Some(ResourceRequirements {
        requests: status.allocated_resources.clone(),
        limits: total(Field::Limits),
        ..Default::default()
    });
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
