//! The values that variables take from elsewhere: config maps, secrets, fields of the object and
//! resources of the container.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use machinery::quantity::Quantity;
use serde_json::Value;

use crate::{
    error,
    json::{entries, list, str_of},
    session::Session,
};

/// `configmap settings, key color`: a reference in words.
pub(super) fn describe(from: &Value) -> String {
    let part = |kind: &str, field: &str| str_of(&from[kind][field]).to_owned();
    let by_key = |what: &str, kind: &str| {
        format!("{what} {}, key {}", part(kind, "name"), part(kind, "key"))
    };
    if from.get("configMapKeyRef").is_some() {
        by_key("configmap", "configMapKeyRef")
    } else if from.get("secretKeyRef").is_some() {
        by_key("secret", "secretKeyRef")
    } else if from.get("fieldRef").is_some() {
        format!("field path {}", part("fieldRef", "fieldPath"))
    } else if from.get("resourceFieldRef").is_some() {
        let container = match part("resourceFieldRef", "containerName") {
            name if name.is_empty() => name,
            name => format!("{name}/"),
        };
        format!(
            "resource field {container}{}",
            part("resourceFieldRef", "resource")
        )
    } else {
        "invalid valueFrom".to_owned()
    }
}

/// Reads each config map and secret once.
#[derive(Default)]
pub(super) struct Resolver {
    objects: BTreeMap<String, Value>,
}

impl Resolver {
    /// The value of a reference in a container of an object.
    pub(super) async fn value(
        &mut self,
        session: &Session,
        from: &Value,
        (object, container): (&Value, &Value),
    ) -> Result<String> {
        if let Some(source) = from.get("secretKeyRef") {
            let text = self.key(session, source, "secrets", "secret").await?;
            let bytes = BASE64_STANDARD.decode(text).unwrap_or_default();
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
        if let Some(source) = from.get("configMapKeyRef") {
            return self.key(session, source, "configmaps", "config map").await;
        }
        if let Some(source) = from.get("fieldRef") {
            return field(object, str_of(&source["fieldPath"]));
        }
        match from.get("resourceFieldRef") {
            Some(source) => resource(container, source),
            None => bail!("invalid valueFrom"),
        }
    }

    async fn key(
        &mut self,
        session: &Session,
        source: &Value,
        plural: &str,
        what: &str,
    ) -> Result<String> {
        let (name, key) = (str_of(&source["name"]), str_of(&source["key"]));
        let path = format!("/api/v1/namespaces/{}/{plural}/{name}", session.namespace);
        if !self.objects.contains_key(&path) {
            let object = session.api.get(&path).await;
            let object = object.map_err(|error| anyhow::anyhow!(error::message(&error)))?;
            self.objects.insert(path.clone(), object);
        }
        let value = self.objects.get(&path).map(|object| &object["data"][key]);
        let value = value.and_then(Value::as_str);
        Ok(value
            .with_context(|| format!("key {key} not found in {what} {name}"))?
            .to_owned())
    }
}

/// A field of an object's metadata.
fn field(object: &Value, path: &str) -> Result<String> {
    let metadata = &object["metadata"];
    if let Some((map, key)) = path
        .strip_suffix("']")
        .and_then(|path| path.split_once("['"))
        && !map.is_empty()
    {
        let (map, checked) = match map {
            "metadata.annotations" => (&metadata["annotations"], key.to_lowercase()),
            "metadata.labels" => (&metadata["labels"], key.to_owned()),
            _ => bail!("fieldPath {path:?} does not support subscript"),
        };
        let invalid = machinery::format::qualified_name(&checked);
        if !invalid.is_empty() {
            bail!("invalid key subscript in {path}: {}", invalid.join(";"));
        }
        return Ok(str_of(&map[key]).to_owned());
    }
    let pairs = |map: &Value| {
        let mut lines: Vec<String> = entries(map)
            .into_iter()
            .map(|(key, value)| format!("{key}={:?}", str_of(value)))
            .collect();
        lines.sort();
        lines.join("\n")
    };
    Ok(match path {
        "metadata.annotations" => pairs(&metadata["annotations"]),
        "metadata.labels" => pairs(&metadata["labels"]),
        "metadata.name" => str_of(&metadata["name"]).to_owned(),
        "metadata.namespace" => str_of(&metadata["namespace"]).to_owned(),
        "metadata.uid" => str_of(&metadata["uid"]).to_owned(),
        _ => bail!("unsupported fieldPath: {path}"),
    })
}

/// A resource of a container, divided and rounded up.
fn resource(container: &Value, source: &Value) -> Result<String> {
    let wanted = str_of(&source["resource"]);
    let quantity = |text: &str| text.parse::<Quantity>().ok().filter(|q| !q.is_zero());
    let divisor = quantity(str_of(&source["divisor"])).unwrap_or(Quantity::from_millis(1000));
    let known = ["cpu", "memory", "ephemeral-storage"];
    let Some((kind, name)) = wanted.split_once('.').filter(|(kind, name)| {
        ["limits", "requests"].contains(kind)
            && (known.contains(name) || name.starts_with("hugepages-"))
    }) else {
        bail!("Unsupported container resource : {wanted}");
    };
    let amount = quantity(str_of(&container["resources"][kind][name]));
    let amount = amount.unwrap_or(Quantity::from_millis(0));
    let (amount, divisor) = match name {
        "cpu" => (amount.millis(), divisor.millis()),
        _ => (amount.value(), divisor.value()),
    };
    let divisor = divisor.max(1);
    let up = i64::from(amount % divisor != 0);
    Ok((amount / divisor + up).to_string())
}

/// What could not be resolved, one line for each reason.
pub(super) fn failures(mut failed: Vec<(String, String)>) -> Vec<String> {
    failed.sort();
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, reason) in failed {
        by_reason.entry(reason).or_default().push(name);
    }
    let mut lines: Vec<String> = by_reason
        .into_iter()
        .map(|(reason, names)| {
            format!(
                "error retrieving reference for {}: {reason}",
                names.join(", ")
            )
        })
        .collect();
    lines.sort();
    lines
}

/// The containers of a pod spec, init containers last.
pub(super) fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    list(&spec["containers"]).chain(list(&spec["initContainers"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_described_and_resolved_as_by_upstream() {
        let object =
            json!({"metadata": {"name": "web", "namespace": "n", "labels": {"b": "2", "a": "1"}}});
        assert_eq!(field(&object, "metadata.name").unwrap(), "web");
        assert_eq!(
            field(&object, "metadata.labels").unwrap(),
            "a=\"1\"\nb=\"2\""
        );
        assert_eq!(field(&object, "metadata.labels['b']").unwrap(), "2");
        for (path, expected) in [
            ("status.podIP", "unsupported fieldPath: status.podIP"),
            (
                "spec.x['a']",
                "fieldPath \"spec.x['a']\" does not support subscript",
            ),
        ] {
            assert_eq!(field(&object, path).unwrap_err().to_string(), expected);
        }
        let container = json!({"resources": {"limits": {"cpu": "1500m", "memory": "100Mi"}}});
        for (resource_name, divisor, expected) in [
            ("limits.cpu", "", "2"),
            ("limits.cpu", "1m", "1500"),
            ("limits.memory", "1Mi", "100"),
            ("requests.memory", "", "0"),
        ] {
            let source = json!({"resource": resource_name, "divisor": divisor});
            assert_eq!(resource(&container, &source).unwrap(), expected);
        }
        assert!(resource(&container, &json!({"resource": "limits.x"})).is_err());
        assert_eq!(
            describe(&json!({"secretKeyRef": {"name": "s", "key": "k"}})),
            "secret s, key k"
        );
        assert_eq!(
            describe(
                &json!({"resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}})
            ),
            "resource field c/limits.cpu"
        );
        let failed = |name: &str, why: &str| (name.to_owned(), why.to_owned());
        assert_eq!(
            failures(vec![failed("B", "x"), failed("A", "x"), failed("C", "a")]),
            [
                "error retrieving reference for A, B: x",
                "error retrieving reference for C: a"
            ]
        );
    }
}
