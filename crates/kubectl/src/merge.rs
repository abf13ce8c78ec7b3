//! Client-side patches: for `--local`, `--dry-run=client` and kustomizations.

use anyhow::{Context, Result, anyhow, bail};
use machinery::{
    Object,
    patch::{failure, json, merge, strategic},
    schema,
};
use serde_json::Value;

use crate::{api::PatchType, json::str_of};

/// The patched object.
pub(crate) fn apply(object: &Value, kind: PatchType, patch: &Value) -> Result<Value> {
    let schema = schema_of(object);
    match (kind, schema) {
        (PatchType::Json, _) => {
            let patch: machinery::Value = serde_json::from_str(&patch.to_string())?;
            json::check(&patch, false).map_err(|error| anyhow!(error))?;
            let object = as_object(object)?;
            let patched = json::apply(&object, &patch)
                .map_err(|error| anyhow!(failure::describe(&object, &patch, &error)))?;
            from_object(&patched)
        }
        (PatchType::Strategic, Some(schema)) => {
            let mut patch = as_object(patch)?;
            let patched = strategic::apply(schema, &as_object(object)?, &mut patch)?;
            from_object(&patched)
        }
        (PatchType::Merge | PatchType::Strategic, _) => {
            let mut target = as_object(object)?;
            merge::apply(&mut target, as_object(patch)?);
            from_object(&target)
        }
        (PatchType::Apply, _) => bail!("server-side apply is made by the server"),
    }
}

/// The type of an object, if it is built in.
pub(crate) fn schema_of(object: &Value) -> Option<&'static schema::Type> {
    let version = str_of(&object["apiVersion"]);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    schema::lookup_kind(group, version, str_of(&object["kind"]))
}

/// The object as Go's types serialize it: fields in the order of their declaration, quantities in canonical form,
/// structs that are never left out. Objects of other kinds, or with values of other types, stay as they are.
pub(crate) fn typed(object: &Value) -> Value {
    decoded(object).unwrap_or_else(|_| object.clone())
}

/// The same; fails in Go's words if a value has another type.
pub(crate) fn decoded(object: &Value) -> Result<Value> {
    decode(object).map(|(decoded, _)| decoded)
}

/// The same for an object that is sent: with unknown fields it stays as it is, so that the server reports them.
pub(crate) fn decoded_if_known(object: Value) -> Result<Value> {
    let (decoded, is_known) = decode(&object)?;
    Ok(if is_known { decoded } else { object })
}

/// The object, and whether the schema has all its fields.
fn decode(object: &Value) -> Result<(Value, bool)> {
    let Some(schema) = schema_of(object) else {
        return Ok((object.clone(), true));
    };
    let mut findings = machinery::decode::Findings::default();
    let given: machinery::Value = serde_json::from_str(&object.to_string())?;
    let normal = machinery::normalise::object(schema, given, &mut findings)
        .map_err(|error| anyhow!(error))?;
    let normal = from_object(&normal)?;
    let mut out = serde_json::Map::new();
    for key in ["kind", "apiVersion"] {
        out.insert(key.to_owned(), normal[key].clone());
    }
    let fields = normal.as_object().into_iter().flatten();
    out.extend(fields.map(|(key, value)| (key.clone(), value.clone())));
    Ok((Value::Object(out), findings.is_empty()))
}

fn as_object(value: &Value) -> Result<Object> {
    serde_json::from_str(&value.to_string()).context("not a JSON object")
}

fn from_object(object: &Object) -> Result<Value> {
    Ok(serde_json::from_str(&serde_json::to_string(object)?)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn built_in_kinds_merge_lists_by_key_and_others_replace_them() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "image": "x"}]}});
        let patch = json!({"spec": {"containers": [{"name": "b", "image": "y"}]}});
        let merged = apply(&pod, PatchType::Strategic, &patch).unwrap();
        assert_eq!(merged["spec"]["containers"].as_array().unwrap().len(), 2);
        let merged = apply(&pod, PatchType::Merge, &patch).unwrap();
        assert_eq!(merged["spec"]["containers"].as_array().unwrap().len(), 1);
        assert_eq!(
            typed(&json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"image": "x", "name": "a"}]}})).to_string(),
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{},"spec":{"containers":[{"name":"a","image":"x","resources":{}}]},"status":{}}"#
        );
        let patch = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "z"}]);
        let merged = apply(&pod, PatchType::Json, &patch).unwrap();
        assert_eq!(merged["spec"]["containers"][0]["image"], "z");
    }
}
