//! Usage of a namespace's quotas: amounts, scopes, and the usage of each kind of object. Shared by
//! the admission plugin that charges and the controller that recounts. Pure.

#![forbid(unsafe_code)]

pub mod amounts;
pub mod scopes;
mod tree;

use amounts::Amounts;
use machinery::{
    Object, Value,
    pod_resources::{Field, PodResources},
    quantity::Quantity,
};

const COMPUTE: &[&str] = &["cpu", "memory", "ephemeral-storage"];

/// The resource that a quota name counts: group (empty for core) and plural. `None` if it counts no
/// kind of object.
pub fn counted(name: &str) -> Option<(&str, &str)> {
    if let Some(rest) = name.strip_prefix("count/") {
        let (plural, group) = rest.split_once('.').unwrap_or((rest, ""));
        return Some((group, plural));
    }
    let plural = match name {
        "services" | "services.loadbalancers" | "services.nodeports" => "services",
        "configmaps"
        | "secrets"
        | "replicationcontrollers"
        | "resourcequotas"
        | "persistentvolumeclaims" => name,
        "requests.storage" => "persistentvolumeclaims",
        _ if name.contains(".storageclass.storage.k8s.io/") => "persistentvolumeclaims",
        "pods" | "cpu" | "memory" | "ephemeral-storage" => "pods",
        _ if name.starts_with("requests.") || name.starts_with("limits.") => "pods",
        _ if name.starts_with("hugepages-") => "pods",
        _ => return None,
    };
    Some(("", plural))
}

/// The usage of an object, by quota names.
pub fn usage(group: &str, resource: &str, object: &Object) -> Amounts {
    let one = Quantity::from_value(1, machinery::quantity::Format::Decimal);
    let mut usage = Amounts::new();
    let suffix = if group.is_empty() {
        String::new()
    } else {
        format!(".{group}")
    };
    usage.insert(format!("count/{resource}{suffix}"), one);
    if !group.is_empty() {
        return usage;
    }
    let spec = tree::get(object, "spec");
    match resource {
        "pods" => pod_usage(&mut usage, object),
        "services" => {
            usage.insert("services".to_owned(), one);
            service_usage(&mut usage, spec);
        }
        "persistentvolumeclaims" => claim_usage(&mut usage, object),
        "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => {
            usage.insert(resource.to_owned(), one);
        }
        _ => {}
    }
    usage
}

/// The class of a claim: the old annotation takes precedence over its field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A claim counts with the storage that it requests, or with what an expansion has allocated for it if that is more: a
/// request may be reduced while an expansion that failed is still tried.
fn claim_usage(usage: &mut Amounts, claim: &Object) {
    let one = Quantity::from_value(1, machinery::quantity::Format::Decimal);
    let spec = tree::get(claim, "spec");
    let storage = |amounts: &Value| {
        let storage = amounts::from_json(amounts).get("storage").copied()?;
        // Whole bytes, which the usage of a quota must have.
        Some(match storage.is_integer() {
            true => storage,
            false => Quantity::from_value(storage.value(), storage.format()),
        })
    };
    let allocated = storage(&tree::get(claim, "status")["allocatedResources"]);
    let size = storage(&spec["resources"]["requests"]);
    let size = size.map(|size| allocated.map_or(size, |allocated| allocated.max(size)));
    let annotation = tree::get(claim, "metadata")["annotations"][CLASS].as_str();
    let class = annotation.unwrap_or_else(|| tree::text(&spec["storageClassName"]));
    let mut insert = |name: &str, amount: Quantity| {
        usage.insert(name.to_owned(), amount);
        if !class.is_empty() {
            usage.insert(
                format!("{class}.storageclass.storage.k8s.io/{name}"),
                amount,
            );
        }
    };
    insert("persistentvolumeclaims", one);
    if let Some(size) = size {
        insert("requests.storage", size);
    }
}

fn pod_usage(usage: &mut Amounts, pod: &Object) {
    let status = tree::get(pod, "status");
    let phase = tree::text(&status["phase"]);
    if matches!(phase, "Succeeded" | "Failed") {
        return;
    }
    let spec = tree::get(pod, "spec");
    let one = Quantity::from_value(1, machinery::quantity::Format::Decimal);
    usage.insert("pods".to_owned(), one);
    // While a pod is resized, what it still has counts as well.
    let total = |field| PodResources::from_json(field, spec, Some(status)).total();
    for (name, amount) in total(Field::Requests) {
        if COMPUTE.contains(&name) || name.starts_with("hugepages-") {
            usage.insert(name.to_owned(), amount);
        }
        usage.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in total(Field::Limits) {
        usage.insert(format!("limits.{name}"), amount);
    }
}

fn service_usage(usage: &mut Amounts, spec: &Value) {
    let number =
        |value: usize| Quantity::from_value(value as i64, machinery::quantity::Format::Decimal);
    let kind = tree::text(&spec["type"]);
    let balanced = kind == "LoadBalancer";
    let ports = tree::list(&spec["ports"]);
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if spec["allocateLoadBalancerNodePorts"] == false => ports
            .iter()
            .filter(|port| port["nodePort"].as_i64().unwrap_or_default() != 0)
            .count(),
        "LoadBalancer" => ports.len(),
        _ => 0,
    };
    usage.insert(
        "services.loadbalancers".to_owned(),
        number(usize::from(balanced)),
    );
    usage.insert("services.nodeports".to_owned(), number(node_ports));
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_pod_is_charged_for_its_requests_and_limits() {
        let container = json!({"name": "c", "resources": {
            "requests": {"cpu": "1", "example.com/gpu": "2"}, "limits": {"memory": "1Gi"}}});
        let spec = json!({"containers": [container], "overhead": {"cpu": "100m"}});
        let status = json!({"name": "c", "resources": {"requests": {"cpu": "3"}}});
        let charged = |status: Value| {
            let pod = json!({"spec": spec, "status": status});
            let pod = pod.as_object().cloned().unwrap_or_default();
            usage("", "pods", &pod)
                .into_iter()
                .map(|(name, amount)| format!("{name}={amount}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let of = |cpu: &str| {
            format!(
                "count/pods=1 cpu={cpu} limits.memory=1Gi pods=1 requests.cpu={cpu} requests.example.com/gpu=2"
            )
        };
        assert_eq!(charged(json!({})), of("1100m"));
        // A resize that has not ended.
        let status = json!({"containerStatuses": [status]});
        assert_eq!(charged(status), of("3100m"));
        assert_eq!(charged(json!({"phase": "Succeeded"})), "count/pods=1");
    }

    #[test]
    fn a_claim_is_charged_for_what_it_requests_or_an_expansion_has_allocated() {
        let charged = |claim: Value| {
            let claim = claim.as_object().cloned().unwrap_or_default();
            usage("", "persistentvolumeclaims", &claim)
                .into_iter()
                .map(|(name, amount)| format!("{name}={amount}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let claim = |requested: &str, allocated: &str| {
            let status = json!({"allocatedResources": {"storage": allocated}});
            json!({"spec": {"resources": {"requests": {"storage": requested}}}, "status": status})
        };
        let of = |size: &str| {
            format!(
                "count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage={size}"
            )
        };
        // A request that was reduced while the expansion to the larger size goes on.
        assert_eq!(charged(claim("2Gi", "100Gi")), of("100Gi"));
        assert_eq!(charged(claim("2Gi", "1Gi")), of("2Gi"));
        assert_eq!(charged(claim("1500m", "")), of("2"));
        let mut classed = claim("1Gi", "");
        classed["spec"]["storageClassName"] = "gold".into();
        let with_class = |class: &str| {
            let of_class = format!("{class}.storageclass.storage.k8s.io/");
            format!(
                "count/persistentvolumeclaims=1 {of_class}persistentvolumeclaims=1 {of_class}requests.storage=1Gi persistentvolumeclaims=1 requests.storage=1Gi"
            )
        };
        assert_eq!(charged(classed.clone()), with_class("gold"));
        classed["metadata"] = json!({"annotations": {CLASS: "fast"}});
        assert_eq!(charged(classed), with_class("fast"));
    }

    #[test]
    fn quota_resource_names_map_to_counted_resources() {
        let cases = [
            ("pods", Some(("", "pods"))),
            ("requests.cpu", Some(("", "pods"))),
            ("requests.nvidia.com/gpu", Some(("", "pods"))),
            ("count/pods", Some(("", "pods"))),
            ("count/deployments.apps", Some(("apps", "deployments"))),
            (
                "count/widgets.example.com",
                Some(("example.com", "widgets")),
            ),
            ("services.nodeports", Some(("", "services"))),
            ("requests.storage", Some(("", "persistentvolumeclaims"))),
            (
                "gold.storageclass.storage.k8s.io/requests.storage",
                Some(("", "persistentvolumeclaims")),
            ),
            ("nonsense", None),
        ];
        for (name, expected) in cases {
            assert_eq!(counted(name), expected, "{name}");
        }
    }
}
