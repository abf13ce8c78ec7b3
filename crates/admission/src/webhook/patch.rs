//! The patch of a mutating webhook: applied to the object in the version that the webhook saw, and
//! decoded as its kind.

use machinery::{
    Object, Status, Value,
    decode::Findings,
    normalise, patch,
    schema::{self, Type},
};

use super::super::matching::GroupVersionKind;
use crate::Resource;

/// The patched object. `resource` serves its version, unless the object is the body of a
/// subresource.
pub(super) fn apply(
    object: &Object,
    operations: &Value,
    kind: GroupVersionKind<'_>,
    resource: Option<&Resource>,
) -> Result<Object, Status> {
    let patched = patch::json::apply(object, operations)
        .map_err(|error| Status::internal(patch::failure::describe(object, operations, &error)))?;
    for key in ["apiVersion", "kind"] {
        if patched.get(key) != object.get(key) {
            return Err(Status::internal(format!(
                "a patch may not change the {key} of an object"
            )));
        }
    }
    let resource = resource.filter(|resource| {
        (
            resource.kind.names().kind.as_str(),
            resource.version.as_str(),
        ) == (kind.kind, kind.version)
    });
    let Some(resource) = resource else {
        return part(patched, kind);
    };
    let decoded = resource.normalise(patched).map_err(Status::internal)?;
    let mut object = decoded.object;
    resource.name_kind(&mut object);
    resource.kind.default(&mut object);
    Ok(object)
}

/// Decodes the body of a subresource by its type.
fn part(patched: Object, kind: GroupVersionKind<'_>) -> Result<Object, Status> {
    let Some(schema) = schema_of(kind) else {
        return Ok(patched);
    };
    let mut findings = Findings::default();
    let named = |key: &str| patched.get(key).cloned();
    let (version, own) = (named("apiVersion"), named("kind"));
    let normalised = normalise::object(schema, Value::Object(patched), &mut findings);
    let mut object = normalised.map_err(Status::internal)?;
    for (key, value) in [("apiVersion", version), ("kind", own)] {
        if let Some(value) = value {
            object.insert(key.to_owned(), value);
        }
    }
    Ok(object)
}

/// A kind's type in the schema table.
fn schema_of(kind: GroupVersionKind<'_>) -> Option<&'static Type> {
    let group = match kind.group.split('.').next() {
        None | Some("") => "core",
        Some(group) => group,
    };
    schema::lookup(&format!("{group}/{}.{}", kind.version, kind.kind))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::object;
    use registry::Registry;

    fn patched(operations: Value) -> Result<Object, Status> {
        let registry = Registry::builtin();
        let pods = registry.get("", "v1", "pods").unwrap();
        let pod = object(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        );
        let kind = GroupVersionKind::new("v1", "Pod");
        apply(&pod, &operations, kind, Some(&pods))
    }

    #[test]
    fn an_object_is_read_again_after_a_patch() {
        let add = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
            {"op": "add", "path": "/spec/unknown", "value": 1}]);
        let pod = patched(add).unwrap();
        assert_eq!(pod["metadata"]["labels"]["a"], "b");
        assert!(pod["spec"].get("unknown").is_none());
        assert_eq!(
            pod["spec"]["restartPolicy"], "Always",
            "defaults are filled in"
        );
    }

    #[test]
    fn patches_that_fail_or_break_the_object_are_internal_errors() {
        for operations in [
            json!([{"op": "replace", "path": "/spec/containers", "value": "none"}]),
            json!([{"op": "remove", "path": "/spec/nothing"}]),
            json!([{"op": "replace", "path": "/kind", "value": "Node"}]),
            json!([{"op": "test", "path": "/metadata/name", "value": "b"}]),
        ] {
            let refused = patched(operations.clone()).unwrap_err();
            assert_eq!(refused.code, 500, "{operations}");
        }
    }
}
