//! `apply --overwrite=false`: a patch is refused if it changes what was changed in the live object since the last apply.
//! As upstream's, the comparison includes the annotation of the last apply, so that every patch of a built-in kind is
//! refused; of other kinds none is.

use machinery::schema::{Field, Type};
use serde_json::{Map, Value};

use crate::{
    json::{compact, list},
    output::yaml,
    three_way::{self, element},
};

use super::{LAST_APPLIED, last_applied};

/// The directive of a map in a strategic merge patch, which is about the whole map.
const DIRECTIVE: &str = "$patch";

/// Why a patch is refused; `None` if it is not.
pub(super) fn find(patch: &Value, live: &Value, schema: &Type) -> Option<String> {
    let original = last_applied(live);
    let mut changes = three_way::patch(&original, live, &original, Some(schema));
    remove_orders(&mut changes);
    let (Value::Object(left), Value::Object(right)) = (patch, &changes) else {
        return None;
    };
    maps_differ(left, right, Some(schema)).then(|| {
        format!(
            "patch:\n{}\nconflicts with changes made from original to current:\n{}\n",
            yaml::to_string(&crate::json::sorted(patch)),
            yaml::to_string(&crate::json::sorted(&changes))
        )
    })
}

/// What could not be merged, in upstream's words.
pub(super) fn describe(wanted: &Value, live: &Value, why: &str) -> String {
    let original = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    format!(
        "creating patch with:\noriginal:\n{}\nmodified:\n{}\n\ncurrent:\n{}\n\nfor: {why}",
        original.unwrap_or_default(),
        compact(wanted),
        compact(live)
    )
}

/// Removes the order of lists, which is no change.
fn remove_orders(changes: &mut Value) {
    match changes {
        Value::Object(map) => {
            map.retain(|key, _| !key.starts_with("$setElementOrder/"));
            map.values_mut().for_each(remove_orders);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_orders),
        _ => {}
    }
}

fn maps_differ(
    left: &Map<String, Value>,
    right: &Map<String, Value>,
    schema: Option<&Type>,
) -> bool {
    let in_both = left.iter().filter(|(key, _)| *key != DIRECTIVE);
    in_both
        .filter_map(|(key, value)| Some((key, value, right.get(key)?)))
        .any(|(key, left, right)| {
            let field = schema.and_then(|schema| schema.field(key));
            differ(left, right, field)
        })
}

/// Whether a field is changed in two ways.
fn differ(left: &Value, right: &Value, field: Option<&Field>) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let is_replaced = field.is_some_and(|field| field.patch.replace);
            let schema = field.and_then(|field| element(field.shape));
            left.get(DIRECTIVE) != right.get(DIRECTIVE)
                || !is_replaced && maps_differ(left, right, schema)
        }
        (Value::Array(items), Value::Array(others)) => match field {
            Some(field) if field.patch.merge => field.patch.key.is_some_and(|key| {
                let schema = element(field.shape);
                let pairs = items.iter().flat_map(|item| {
                    let same = list(right).filter(move |other| other[key] == item[key]);
                    same.map(move |other| (item, other))
                });
                pairs
                    .into_iter()
                    .any(|(item, other)| elements_differ(item, other, schema))
            }),
            _ => {
                items.len() != others.len()
                    || items
                        .iter()
                        .zip(others)
                        .any(|(item, other)| differ(item, other, None))
            }
        },
        _ => left != right,
    }
}

fn elements_differ(left: &Value, right: &Value, schema: Option<&Type>) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.get(DIRECTIVE) != right.get(DIRECTIVE) || maps_differ(left, right, schema)
        }
        _ => left != right,
    }
}

#[cfg(test)]
mod tests {
    use machinery::schema::lookup;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_changed_in_two_ways_is_a_conflict() {
        let pod = lookup("core/v1.Pod").unwrap();
        let spec = |spec: Value| json!({"spec": spec});
        let container = |image: &str| json!({"containers": [{"name": "a", "image": image}]});
        for (patch, changes, expected) in [
            (json!({}), json!({"metadata": {"uid": "u"}}), false),
            (
                spec(json!({"nodeName": "a"})),
                spec(json!({"hostname": "b"})),
                false,
            ),
            (
                spec(json!({"nodeName": "a"})),
                spec(json!({"nodeName": "b"})),
                true,
            ),
            (
                spec(json!({"nodeName": null})),
                spec(json!({"nodeName": "b"})),
                true,
            ),
            (spec(json!({"nodeName": "a"})), json!({"spec": null}), true),
            (spec(container("x")), spec(container("y")), true),
            (
                spec(container("x")),
                spec(json!({"containers": [{"name": "b", "image": "y"}]})),
                false,
            ),
            (
                spec(json!({"containers": [{"name": "a", "$patch": "delete"}]})),
                spec(container("y")),
                true,
            ),
            (
                spec(json!({"containers": [{"name": "a", "args": ["x"]}]})),
                spec(json!({"containers": [{"name": "a", "args": ["x", "y"]}]})),
                true,
            ),
        ] {
            let (left, right) = (patch.as_object().unwrap(), changes.as_object().unwrap());
            assert_eq!(
                maps_differ(left, right, Some(pod)),
                expected,
                "{patch} {changes}"
            );
        }
    }

    #[test]
    fn the_annotation_of_the_last_apply_is_compared_too() {
        let kind = lookup("core/v1.ConfigMap").unwrap();
        let live = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": "c", "annotations": {LAST_APPLIED:
                "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"1\"},\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"c\"}}\n"}}});
        let patch = json!({"metadata": {"annotations": {LAST_APPLIED: "x"}}, "data": {"a": "2"}});
        let why = find(&patch, &live, kind).unwrap();
        assert!(why.starts_with("patch:\ndata:\n  a: \"2\"\n"), "{why}");
        assert!(
            why.contains("\n\nconflicts with changes made from original to current:\nmetadata:\n"),
            "{why}"
        );
        assert_eq!(find(&json!({"data": {"a": "2"}}), &live, kind), None);
    }
}
