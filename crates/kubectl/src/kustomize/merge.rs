//! The strategic merge of kustomize's patches. It differs from the server's: elements of a patch
//! come first in merged lists, and lists of types without a schema are replaced.

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::schema::Schema;
use crate::json::list;

const DIRECTIVE: &str = "$patch";

/// The patched object; `None` if the patch deletes it.
pub(super) fn apply(
    object: &Value,
    patch: &Value,
    document: Option<&Value>,
) -> Result<Option<Value>> {
    merge(
        Some(object),
        Some(patch),
        Schema::for_object(object, document),
    )
}

fn merge(
    own: Option<&Value>,
    patch: Option<&Value>,
    schema: Option<Schema<'_>>,
) -> Result<Option<Value>> {
    let (own, patch) = match (own, patch) {
        (None | Some(Value::Null), None) => return Ok(own.cloned()),
        (None | Some(Value::Null), Some(Value::Null)) => return Ok(None),
        (Some(own), None) => return Ok(Some(own.clone())),
        (Some(_), Some(Value::Null)) => return Ok(None),
        (None | Some(Value::Null), Some(patch)) => return added(patch, schema),
        (Some(own), Some(patch)) => (own, patch),
    };
    match (own, patch) {
        (Value::Object(own), Value::Object(patch)) => merge_maps(own, patch, schema),
        (Value::Array(own), Value::Array(patch)) => {
            match schema.and_then(|schema| Some((schema, schema.merge_keys()?))) {
                Some((schema, keys)) => merge_lists(own, patch, schema, &keys).map(Some),
                None => Ok(Some(Value::Array(patch.clone()))),
            }
        }
        (Value::Object(_) | Value::Array(_), _) | (_, Value::Object(_) | Value::Array(_)) => {
            bail!(
                "wrong node kind: expected {} but got {}",
                kind(own),
                kind(patch)
            )
        }
        _ => Ok(Some(patch.clone())),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "MappingNode",
        Value::Array(_) => "SequenceNode",
        _ => "ScalarNode",
    }
}

/// What a patch adds: without directives and nulls.
fn added(patch: &Value, schema: Option<Schema<'_>>) -> Result<Option<Value>> {
    match patch {
        Value::Object(map) => match directive(map)? {
            Directive::Delete => Ok(None),
            Directive::Merge | Directive::Replace => {
                let bare = without_directive(map);
                merge_maps(&bare, &bare, schema)
            }
        },
        Value::Array(items) => match schema.and_then(|schema| Some((schema, schema.merge_keys()?)))
        {
            Some((schema, keys)) => merge_lists(&[], items, schema, &keys).map(Some),
            None => Ok(Some(patch.clone())),
        },
        scalar => Ok(Some(scalar.clone())),
    }
}

#[derive(PartialEq, Eq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(patch: &Map<String, Value>) -> Result<Directive> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        None | Some("merge") => Ok(Directive::Merge),
        Some("replace") => Ok(Directive::Replace),
        Some("delete") => Ok(Directive::Delete),
        Some(other) => bail!("unknown patch strategy '{other}'"),
    }
}

fn without_directive(map: &Map<String, Value>) -> Map<String, Value> {
    let mut map = map.clone();
    map.shift_remove(DIRECTIVE);
    map
}

fn merge_maps(
    own: &Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Option<Schema<'_>>,
) -> Result<Option<Value>> {
    match directive(patch)? {
        Directive::Delete => return Ok(None),
        Directive::Replace => return Ok(Some(Value::Object(without_directive(patch)))),
        Directive::Merge => {}
    }
    let mut merged = own.clone();
    for (key, value) in patch.iter().filter(|(key, _)| *key != DIRECTIVE) {
        let schema = schema.and_then(|schema| schema.field(key));
        match merge(own.get(key), Some(value), schema)? {
            Some(value) => {
                merged.insert(key.clone(), value);
            }
            None => {
                merged.shift_remove(key);
            }
        }
    }
    Ok(Some(Value::Object(merged)))
}

fn merge_lists(own: &[Value], patch: &[Value], schema: Schema<'_>, keys: &[&str]) -> Result<Value> {
    let lone = |item: &&Value| item.as_object().is_some_and(|map| map.len() == 1);
    let whole = patch
        .iter()
        .filter(lone)
        .find_map(|item| item.get(DIRECTIVE));
    let patch: Vec<&Value> = patch
        .iter()
        .filter(|item| !(lone(item) && item.get(DIRECTIVE).is_some()))
        .collect();
    match whole.and_then(Value::as_str) {
        Some("replace") => return Ok(patch.into_iter().cloned().collect()),
        Some("delete") => return Ok(Value::Null),
        _ => {}
    }
    if keys.is_empty() {
        let mut merged: Vec<Value> = Vec::new();
        for item in patch.into_iter().chain(own) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(Value::Array(merged));
    }
    let mut merged = Vec::new();
    let mut is_met = vec![false; own.len()];
    for item in &patch {
        let known = (0..own.len()).find(|at| !is_met[*at] && is_same(&own[*at], item, keys));
        if let Some(at) = known {
            is_met[at] = true;
        }
        let known = known.map(|at| &own[at]);
        merged.extend(merge(known, Some(item), schema.elements())?);
    }
    let rest = own.iter().zip(is_met).filter(|(_, is_met)| !is_met);
    merged.extend(rest.map(|(item, _)| item.clone()));
    Ok(Value::Array(merged))
}

/// Whether two elements agree in their keys; a key that only one of them has is ignored.
fn is_same(own: &Value, patch: &Value, keys: &[&str]) -> bool {
    let mut agrees = false;
    for key in keys {
        match (own.get(key), patch.get(key)) {
            (Some(own), Some(patch)) if own == patch => agrees = true,
            (Some(_), Some(_)) => return false,
            _ => {}
        }
    }
    agrees
}

/// Whether a document is a JSON patch: a list of operations.
pub(super) fn is_json_patch(patch: &Value) -> bool {
    patch.is_array() && list(patch).all(|operation| operation.get("op").is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}})
    }

    #[test]
    fn elements_of_the_patch_come_first_and_others_keep_their_order() {
        let own = pod(json!([{"name": "a"}, {"name": "b", "image": "x"}, {"name": "c"}]));
        let patch = pod(json!([{"name": "b", "tty": true}, {"name": "d"}]));
        let merged = apply(&own, &patch, None).unwrap().unwrap();
        assert_eq!(
            merged["spec"]["containers"],
            json!([{"name": "b", "image": "x", "tty": true}, {"name": "d"}, {"name": "a"}, {"name": "c"}])
        );
    }

    #[test]
    fn directives_delete_and_replace() {
        let own = pod(json!([{"name": "a"}, {"name": "b"}]));
        for (patch, expected) in [
            (
                json!([{"name": "a", "$patch": "delete"}]),
                json!([{"name": "b"}]),
            ),
            (
                json!([{"name": "c"}, {"$patch": "replace"}]),
                json!([{"name": "c"}]),
            ),
        ] {
            let merged = apply(&own, &pod(patch), None).unwrap().unwrap();
            assert_eq!(merged["spec"]["containers"], expected);
        }
        let gone = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "$patch": "delete"});
        assert_eq!(apply(&own, &gone, None).unwrap(), None);
        let cleared = json!({"spec": null});
        assert!(
            apply(&own, &cleared, None)
                .unwrap()
                .unwrap()
                .get("spec")
                .is_none()
        );
    }

    #[test]
    fn lists_of_other_types_are_replaced_unless_a_document_has_their_keys() {
        let custom =
            |items: Value| json!({"apiVersion": "a.b/v1", "kind": "C", "spec": {"items": items}});
        let own = custom(json!([{"name": "a"}]));
        let patch = custom(json!([{"name": "b"}]));
        let merged = apply(&own, &patch, None).unwrap().unwrap();
        assert_eq!(merged["spec"]["items"], json!([{"name": "b"}]));
        let document = json!({"definitions": {"C": {
            "x-kubernetes-group-version-kind": [{"group": "a.b", "version": "v1", "kind": "C"}],
            "properties": {"spec": {"$ref": "#/definitions/S"}}},
            "S": {"properties": {"items": {"type": "array", "items": {},
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"}}}}});
        let merged = apply(&own, &patch, Some(&document)).unwrap().unwrap();
        assert_eq!(
            merged["spec"]["items"],
            json!([{"name": "b"}, {"name": "a"}])
        );
    }
}
