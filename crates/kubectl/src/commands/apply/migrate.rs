//! Migration from client-side to server-side apply: fields owned by earlier client-side applies are
//! transferred to the server-side manager, so that leaving them out of a manifest removes them.

use serde_json::{Map, Value, json};

use super::LAST_APPLIED;
use crate::json::{list, str_of};

/// Owns the last-applied annotation after the migration; without an owner it would be removed.
pub(super) const ANNOTATION_MANAGER: &str = "kubectl-last-applied";

/// The object to apply as [`ANNOTATION_MANAGER`] so that the annotation stays; `None` if there is
/// none, or if a server-side manager owns it already.
pub(super) fn annotation_to_keep(object: &Value) -> Option<Value> {
    let metadata = &object["metadata"];
    let note = metadata["annotations"][LAST_APPLIED].as_str()?;
    if owners(metadata, "Apply").next().is_some() {
        return None;
    }
    let mut kept = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {"name": metadata["name"], "annotations": {LAST_APPLIED: note}},
    });
    if !metadata["namespace"].is_null() {
        kept["metadata"]["namespace"] = metadata["namespace"].clone();
    }
    Some(kept)
}

/// The JSON patch that transfers the fields of client-side managers to `manager`; `None` if there
/// are none. It conflicts if the object has changed.
pub(super) fn patch(object: &Value, manager: &str) -> Option<Value> {
    let metadata = &object["metadata"];
    let clients: Vec<String> = owners(metadata, "Update")
        .map(|entry| str_of(&entry["manager"]).to_owned())
        .collect();
    let before: Vec<Value> = list(&metadata["managedFields"]).cloned().collect();
    let mut after = before.clone();
    for client in &clients {
        after = moved(after, client, manager);
    }
    if after == before {
        return None;
    }
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": after},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]))
}

/// The managedFields entries that own the last-applied annotation.
fn owners<'a>(metadata: &'a Value, operation: &'static str) -> impl Iterator<Item = &'a Value> {
    let annotation = format!("f:{LAST_APPLIED}");
    list(&metadata["managedFields"]).filter(move |entry| {
        let annotations = &entry["fieldsV1"]["f:metadata"]["f:annotations"];
        entry["operation"] == operation && !annotations[&annotation].is_null()
    })
}

fn moved(mut entries: Vec<Value>, client: &str, manager: &str) -> Vec<Value> {
    let is = |entry: &Value, name: &str, operation: &str| {
        entry["manager"] == name
            && entry["operation"] == operation
            && str_of(&entry["subresource"]).is_empty()
    };
    let server = entries.iter().position(|entry| is(entry, manager, "Apply"));
    let Some(target) =
        server.or_else(|| entries.iter().position(|entry| is(entry, client, "Update")))
    else {
        return entries;
    };
    let version = entries[target]["apiVersion"].clone();
    let same_version = entries
        .iter()
        .find(|entry| is(entry, client, "Update") && entry["apiVersion"] == version);
    if let Some(fields) = same_version.map(|entry| entry["fieldsV1"].clone()) {
        union(&mut entries[target]["fieldsV1"], &fields);
    }
    entries[target]["operation"] = json!("Apply");
    entries[target]["manager"] = json!(manager);
    entries.retain(|entry| !is(entry, client, "Update"));
    entries
}

/// The union of both field sets. An empty set stands for the path itself, written as a dot
/// elsewhere.
fn union(into: &mut Value, other: &Value) {
    let empty = Map::new();
    let other = other.as_object().unwrap_or(&empty);
    let Some(fields) = into.as_object_mut() else {
        *into = Value::Object(other.clone());
        return;
    };
    if fields.is_empty() != other.is_empty() {
        fields.insert(".".into(), json!({}));
    }
    for (key, value) in other {
        match fields.get_mut(key) {
            Some(known) => union(known, value),
            None => {
                fields.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields})
    }

    fn noted(more: Value) -> Value {
        let mut fields =
            json!({"f:metadata": {"f:annotations": {format!("f:{LAST_APPLIED}"): {}}}});
        union(&mut fields, &more);
        fields
    }

    fn object(managed: Vec<Value>) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "a", "namespace": "b", "resourceVersion": "7", "managedFields": managed,
            "annotations": {LAST_APPLIED: "{}"},
        }})
    }

    #[test]
    fn the_fields_of_the_client_side_manager_become_the_servers() {
        let client = entry(
            "kubectl-client-side-apply",
            "Update",
            noted(json!({"f:data": {"f:old": {}}})),
        );
        let server = entry("kubectl", "Apply", json!({"f:data": {"f:new": {}}}));
        let other = entry("controller", "Update", json!({"f:data": {"f:seen": {}}}));
        let object = object(vec![other.clone(), server, client]);
        let patch = patch(&object, "kubectl").unwrap();
        let merged = noted(json!({"f:data": {"f:new": {}, "f:old": {}}}));
        assert_eq!(
            patch[0]["value"],
            json!([other, entry("kubectl", "Apply", merged)])
        );
        assert_eq!(patch[1]["value"], "7");
        let kept = annotation_to_keep(&object).unwrap();
        assert_eq!(kept["metadata"]["namespace"], "b");
    }

    #[test]
    fn a_migrated_object_is_left_alone() {
        let keeper = entry(ANNOTATION_MANAGER, "Apply", noted(json!({})));
        let server = entry("kubectl", "Apply", json!({"f:data": {"f:new": {}}}));
        let object = object(vec![keeper, server]);
        assert_eq!(patch(&object, "kubectl"), None);
        assert_eq!(annotation_to_keep(&object), None);
    }

    #[test]
    fn an_owned_field_with_owned_children_is_written_with_a_dot() {
        let mut fields = json!({"f:labels": {}});
        union(&mut fields, &json!({"f:labels": {"f:app": {}}}));
        assert_eq!(fields, json!({"f:labels": {".": {}, "f:app": {}}}));
    }
}
