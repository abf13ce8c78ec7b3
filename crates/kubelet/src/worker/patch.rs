//! The strategic merge patch from the status in the API to the computed one. It contains only what
//! the kubelet owns, without conditions of other writers and without fields of the scheduler and
//! other controllers, so that concurrent writers never undo each other.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Map, Value, json};

use crate::pod::status::is_owned;

/// Fields of a pod's status that other components write.
const FOREIGN: &[&str] = &[
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
];

/// The patch; `None` if nothing differs.
pub(super) fn patch(shown: &Pod, status: &PodStatus) -> Option<Value> {
    let old = shown.status.as_ref().map(serde_json::to_value);
    let old = old.transpose().ok()?.unwrap_or_else(|| json!({}));
    let new = serde_json::to_value(status).ok()?;
    let changes = difference(&old, &new)?;
    Some(json!({"metadata": {"uid": shown.metadata.uid}, "status": changes}))
}

/// The merge patch from one status to the other.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut changes = Map::new();
    let ours = |key: &&String| !FOREIGN.contains(&key.as_str());
    for key in new.keys().chain(old.keys()).filter(ours) {
        let (before, after) = (old.get(key), new.get(key));
        if before == after || changes.contains_key(key) {
            continue;
        }
        let change = match key.as_str() {
            "conditions" => conditions(before, after),
            // Lists with a merge key are replaced as a whole to keep their order.
            "podIPs" | "hostIPs" => Some(replaced(after)),
            _ => Some(match (before, after) {
                (Some(before), Some(after)) => match fields(before, after) {
                    Some(change) => change,
                    None => continue,
                },
                (_, after) => after.cloned().unwrap_or(Value::Null),
            }),
        };
        changes.extend(change.map(|change| (key.clone(), change)));
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Objects are merged field by field; anything else is replaced.
fn fields(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut changes = Map::new();
    for (key, value) in after {
        let change = match before.get(key) {
            Some(before) => fields(before, value),
            None => Some(value.clone()),
        };
        changes.extend(change.map(|change| (key.clone(), change)));
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

fn replaced(list: Option<&Value>) -> Value {
    let items = list.and_then(Value::as_array).cloned().unwrap_or_default();
    let directive = json!({"$patch": "replace"});
    Value::Array(std::iter::once(directive).chain(items).collect())
}

/// Only the conditions that the kubelet owns, each by its type.
fn conditions(old: Option<&Value>, new: Option<&Value>) -> Option<Value> {
    fn owned(list: Option<&Value>) -> impl Iterator<Item = (&str, &Value)> {
        let items = list.and_then(Value::as_array).into_iter().flatten();
        items
            .filter_map(|item| Some((item["type"].as_str()?, item)))
            .filter(|(type_, _)| is_owned(type_))
    }
    let find = |list, wanted: &str| owned(list).find(|(type_, _)| *type_ == wanted);
    let mut changes = Vec::new();
    for (type_, after) in owned(new) {
        let before = find(old, type_).map(|(_, before)| before);
        let change = match before {
            Some(before) => fields(before, after),
            None => Some(after.clone()),
        };
        changes.extend(change.map(|mut change| {
            change["type"] = type_.into();
            change
        }));
    }
    for (type_, _) in owned(old).filter(|(type_, _)| find(new, type_).is_none()) {
        changes.push(json!({"$patch": "delete", "type": type_}));
    }
    (!changes.is_empty()).then_some(Value::Array(changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_patch_has_only_changed_fields_that_the_kubelet_owns() {
        let old = json!({"phase": "Pending", "reason": "x", "hostIP": "1", "nominatedNodeName": "n",
            "podIPs": [{"ip": "1"}], "containerStatuses": [1],
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "r"},
                {"type": "Initialized", "status": "True"},
                {"type": "PodResizePending", "status": "True"},
                {"type": "example.com/gate", "status": "True"}]});
        let new = json!({"phase": "Running", "hostIP": "1", "podIPs": [{"ip": "2"}],
            "containerStatuses": [1, 2],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Initialized", "status": "True"},
                {"type": "PodScheduled", "status": "True"}]});
        let expected = json!({"phase": "Running", "reason": null,
            "podIPs": [{"$patch": "replace"}, {"ip": "2"}], "containerStatuses": [1, 2],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": null},
                {"type": "PodScheduled", "status": "True"},
                {"type": "PodResizePending", "$patch": "delete"}]});
        assert_eq!(difference(&old, &new), Some(expected));
        assert_eq!(difference(&new, &new), None);
    }

    #[test]
    fn a_condition_that_only_others_wrote_is_no_difference() {
        let old = json!({"conditions": [{"type": "example.com/gate", "status": "True"}]});
        assert_eq!(difference(&old, &json!({})), None);
    }
}
