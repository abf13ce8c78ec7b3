//! Client-side patches: for `--local`, `--dry-run=client` and kustomizations.

use anyhow::{Context, Result, anyhow, bail};
use machinery::{
    Object,
    patch::{json, merge, strategic},
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
            let patched =
                json::apply(&as_object(object)?, &patch).map_err(|error| anyhow!("{error:?}"))?;
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
        let patch = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "z"}]);
        let merged = apply(&pod, PatchType::Json, &patch).unwrap();
        assert_eq!(merged["spec"]["containers"][0]["image"], "z");
    }
}
