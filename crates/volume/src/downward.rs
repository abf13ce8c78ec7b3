//! The downward API: fields of a pod and resources of its containers as text.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceFieldSelector},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;

use crate::{Error, NodeFacts, Result};

/// The text of a field path such as `metadata.labels['app']`.
pub fn field(pod: &Pod, path: &str) -> Result<String> {
    let meta = &pod.metadata;
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return Err(Error::Field(path.to_owned())),
        };
        return Ok(map
            .and_then(|map| map.get(key))
            .cloned()
            .unwrap_or_default());
    }
    match path {
        "metadata.name" => Ok(meta.name.clone().unwrap_or_default()),
        "metadata.namespace" => Ok(meta.namespace.clone().unwrap_or_default()),
        "metadata.uid" => Ok(meta.uid.clone().unwrap_or_default()),
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        _ => Err(Error::Field(path.to_owned())),
    }
}

/// `metadata.labels['app']` → (`metadata.labels`, `app`).
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// One `key="value"` line per entry, sorted, values quoted as Go does.
pub fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let line = |(key, value): (&String, &String)| format!("{key}={}", quote(value));
    map.into_iter()
        .flatten()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The text of a container's resource, divided by the divisor and rounded up. A limit that is not
/// set shows the pod's, or else the node's allocatable amount.
pub fn resource(
    pod: &Pod,
    selector: &ResourceFieldSelector,
    own: Option<&str>,
    node: &NodeFacts,
) -> Result<String> {
    let name = selector
        .container_name
        .as_deref()
        .filter(|name| !name.is_empty())
        .or(own);
    let name = name.unwrap_or_default();
    let spec = pod.spec.as_ref();
    let mut containers = spec.into_iter().flat_map(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    });
    let container = containers
        .find(|container| container.name == name)
        .ok_or_else(|| Error::Resource(format!("container {name} not found")))?;
    let pod_limits = spec.and_then(|spec| spec.resources.as_ref()?.limits.as_ref());
    amount(container, selector, pod_limits, node)
}

fn amount(
    container: &Container,
    selector: &ResourceFieldSelector,
    pod_limits: Option<&BTreeMap<String, Quantity>>,
    node: &NodeFacts,
) -> Result<String> {
    let wrong = || Error::Resource(selector.resource.clone());
    let (list, resource) = selector.resource.split_once('.').ok_or_else(wrong)?;
    if !matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        && !resource.starts_with("hugepages-")
    {
        return Err(wrong());
    }
    let resources = container.resources.as_ref();
    let limit = resources
        .and_then(|r| r.limits.as_ref())
        .and_then(|l| l.get(resource));
    let request = resources
        .and_then(|r| r.requests.as_ref())
        .and_then(|l| l.get(resource));
    let found = match list {
        "limits" if resource.starts_with("hugepages-") => limit,
        "limits" => {
            let of_pod = pod_limits.and_then(|limits| limits.get(resource));
            let of_pod = of_pod.filter(|_| matches!(resource, "cpu" | "memory"));
            let mut set = [limit, of_pod].into_iter().flatten();
            set.find(|amount| quantity::millis(&amount.0).unwrap_or(0) != 0)
                .or_else(|| node.allocatable.get(resource))
        }
        "requests" => request,
        _ => return Err(wrong()),
    };
    let zero = Quantity("0".into());
    let found = found.unwrap_or(&zero);
    let divisor = selector
        .divisor
        .as_ref()
        .filter(|d| quantity::millis(&d.0).unwrap_or(0) != 0);
    let whole = |q: &Quantity| quantity::units(&q.0, resource);
    let per = match divisor {
        Some(divisor) => whole(divisor).unwrap_or(1).max(1),
        None if resource == "cpu" => 1000,
        None => 1,
    };
    let amount = whole(found).ok_or_else(wrong)?;
    Ok(((amount + per - 1) / per).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "labels": {"app": "x", "b": "say \"hi\"\n"}},
            "spec": {"containers": [{"name": "c", "resources": {
                "limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}}}]}
        }))
        .unwrap()
    }

    #[test]
    fn fields_become_text() {
        let cases = [
            ("metadata.name", "p"),
            ("metadata.labels['app']", "x"),
            ("metadata.labels['nope']", ""),
            ("metadata.labels", "app=\"x\"\nb=\"say \\\"hi\\\"\\n\""),
        ];
        for (path, text) in cases {
            assert_eq!(field(&pod(), path).unwrap(), text, "{path}");
        }
        assert!(field(&pod(), "spec.nope").is_err());
    }

    #[test]
    fn resources_are_divided_and_rounded_up_and_limits_fall_back_to_the_node() {
        let node = NodeFacts {
            allocatable: BTreeMap::from([("memory".into(), Quantity("1Gi".into()))]),
            ..Default::default()
        };
        let cases = [
            ("limits.cpu", "", "2"),
            ("limits.cpu", "1m", "1500"),
            ("requests.memory", "1Mi", "64"),
            ("limits.memory", "", "1073741824"),
            ("requests.cpu", "", "0"),
        ];
        for (resource_name, divisor, text) in cases {
            let selector = ResourceFieldSelector {
                container_name: Some("c".into()),
                divisor: (!divisor.is_empty()).then(|| Quantity(divisor.into())),
                resource: resource_name.into(),
            };
            assert_eq!(
                resource(&pod(), &selector, None, &node).unwrap(),
                text,
                "{resource_name}"
            );
        }
    }

    #[test]
    fn limits_fall_back_to_those_of_the_pod() {
        let shown = |own: serde_json::Value, resource_name: &str| {
            let pod = serde_json::from_value(serde_json::json!({"spec": {
                "resources": {"limits": {"memory": "64Mi", "cpu": "0"}},
                "containers": [{"name": "c", "resources": {"limits": own}}]}}));
            let allocatable = [("memory", "1Gi"), ("cpu", "4"), ("ephemeral-storage", "5")];
            let node = NodeFacts {
                allocatable: allocatable
                    .map(|(k, v)| (k.into(), Quantity(v.into())))
                    .into(),
                ..Default::default()
            };
            let selector = ResourceFieldSelector {
                resource: resource_name.into(),
                ..Default::default()
            };
            resource(&pod.unwrap(), &selector, Some("c"), &node).unwrap()
        };
        let none = serde_json::json!({});
        assert_eq!(shown(none.clone(), "limits.memory"), (64 << 20).to_string());
        assert_eq!(
            shown(serde_json::json!({"memory": "1Mi"}), "limits.memory"),
            (1 << 20).to_string()
        );
        assert_eq!(
            shown(serde_json::json!({"memory": "0"}), "limits.memory"),
            (64 << 20).to_string()
        );
        assert_eq!(shown(none.clone(), "limits.cpu"), "4");
        assert_eq!(shown(none, "limits.ephemeral-storage"), "5");
    }
}
