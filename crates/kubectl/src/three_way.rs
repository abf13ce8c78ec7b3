//! The patch from a live object to a manifest: fields of the manifest that differ are set; fields
//! of the last manifest that are no longer in it are removed; all others are kept. Lists with a
//! merge key are merged by element.

use machinery::schema::{Field, Shape, Type};
use serde_json::{Map, Value, json};

/// A strategic merge patch if the type is known, else a JSON merge patch.
pub(crate) fn patch(
    original: &Value,
    wanted: &Value,
    live: &Value,
    schema: Option<&Type>,
) -> Value {
    let mut patch = Map::new();
    let empty = Map::new();
    let original = original.as_object().unwrap_or(&empty);
    let (Some(wanted), Some(live)) = (wanted.as_object(), live.as_object()) else {
        return wanted.clone();
    };
    objects(original, wanted, live, schema, &mut patch);
    for fixed in ["apiVersion", "kind"] {
        patch.remove(fixed);
    }
    Value::Object(patch)
}

fn objects(
    original: &Map<String, Value>,
    wanted: &Map<String, Value>,
    live: &Map<String, Value>,
    schema: Option<&Type>,
    patch: &mut Map<String, Value>,
) {
    for (key, value) in wanted {
        let field = schema.and_then(|schema| schema.field(key));
        let before = original.get(key).unwrap_or(&Value::Null);
        match live.get(key) {
            None | Some(Value::Null) => drop(patch.insert(key.clone(), value.clone())),
            Some(there) => merge_field(key, field, before, value, there, patch),
        }
    }
    for key in original
        .keys()
        .filter(|key| !wanted.contains_key(*key) && live.contains_key(*key))
    {
        patch.insert(key.clone(), Value::Null);
    }
}

fn merge_field(
    key: &str,
    field: Option<&Field>,
    original: &Value,
    wanted: &Value,
    live: &Value,
    patch: &mut Map<String, Value>,
) {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) if !field.is_some_and(|f| f.patch.replace) => {
            let mut inner = Map::new();
            let empty = Map::new();
            let original = original.as_object().unwrap_or(&empty);
            objects(
                original,
                wanted,
                live,
                field.and_then(|f| element(f.shape)),
                &mut inner,
            );
            if !inner.is_empty() {
                patch.insert(key.to_owned(), Value::Object(inner));
            }
        }
        (Value::Array(wanted), Value::Array(live)) if field.is_some_and(|f| f.patch.merge) => {
            let original = original.as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(field) = field {
                lists(key, field, original, wanted, live, patch);
            }
        }
        _ if wanted == live => {}
        _ => drop(patch.insert(key.to_owned(), wanted.clone())),
    }
}

fn lists(
    key: &str,
    field: &Field,
    original: &[Value],
    wanted: &[Value],
    live: &[Value],
    patch: &mut Map<String, Value>,
) {
    let Some(by) = field.patch.key else {
        return scalars(key, original, wanted, live, patch);
    };
    let find =
        |list: &[Value], item: &Value| list.iter().find(|other| other[by] == item[by]).cloned();
    let mut changes = Vec::new();
    for item in wanted {
        let Some(there) = find(live, item) else {
            changes.push(item.clone());
            continue;
        };
        let before = find(original, item).unwrap_or_default();
        let change = patch_of(&before, item, &there, element(field.shape));
        if let Some(mut change) = change {
            change.insert(by.to_owned(), item[by].clone());
            changes.push(Value::Object(change));
        }
    }
    for gone in original
        .iter()
        .filter(|item| find(wanted, item).is_none() && find(live, item).is_some())
    {
        changes.push(json!({"$patch": "delete", by: gone[by]}));
    }
    if !changes.is_empty() {
        let order: Vec<Value> = wanted.iter().map(|item| json!({by: item[by]})).collect();
        patch.insert(format!("$setElementOrder/{key}"), Value::Array(order));
        patch.insert(key.to_owned(), Value::Array(changes));
    }
}

/// The change of one element; `None` if there is none.
fn patch_of(
    original: &Value,
    wanted: &Value,
    live: &Value,
    schema: Option<&Type>,
) -> Option<Map<String, Value>> {
    let (empty, mut change) = (Map::new(), Map::new());
    let original = original.as_object().unwrap_or(&empty);
    objects(
        original,
        wanted.as_object()?,
        live.as_object()?,
        schema,
        &mut change,
    );
    (!change.is_empty()).then_some(change)
}

fn scalars(
    key: &str,
    original: &[Value],
    wanted: &[Value],
    live: &[Value],
    patch: &mut Map<String, Value>,
) {
    let added: Vec<Value> = wanted
        .iter()
        .filter(|item| !live.contains(item))
        .cloned()
        .collect();
    let gone = |item: &&Value| !wanted.contains(item) && live.contains(item);
    let gone: Vec<Value> = original.iter().filter(gone).cloned().collect();
    if !gone.is_empty() {
        patch.insert(
            format!("$deleteFromPrimitiveList/{key}"),
            Value::Array(gone),
        );
    }
    if !added.is_empty() {
        patch.insert(
            format!("$setElementOrder/{key}"),
            Value::Array(wanted.to_vec()),
        );
        patch.insert(key.to_owned(), Value::Array(added));
    }
}

/// The struct of a field, a list's element or a map's value.
pub(crate) fn element(shape: Shape) -> Option<&'static Type> {
    match shape {
        Shape::Struct(id) => Some(id.get()),
        Shape::List(inner) => element(*inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use machinery::schema::lookup;

    use super::*;

    fn pod(containers: Value) -> Value {
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn elements_of_a_keyed_list_are_merged_and_given_up_ones_are_deleted() {
        let original = pod(json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]));
        let wanted = pod(json!([{"name": "a", "image": "a:2"}]));
        let live = pod(json!([
            {"name": "a", "image": "a:1", "imagePullPolicy": "Always"},
            {"name": "b", "image": "b:1"},
            {"name": "injected", "image": "x"}]));
        let expected = json!({"spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"image": "a:2", "name": "a"}, {"$patch": "delete", "name": "b"}]}});
        assert_eq!(
            patch(&original, &wanted, &live, lookup("core/v1.Pod")),
            expected
        );
    }

    #[test]
    fn nothing_is_patched_when_the_object_is_as_wanted() {
        let wanted = pod(json!([{"name": "a", "image": "a:1"}]));
        let live = pod(json!([{"name": "a", "image": "a:1", "imagePullPolicy": "Always"}]));
        assert_eq!(
            patch(&wanted, &wanted, &live, lookup("core/v1.Pod")),
            json!({})
        );
    }

    #[test]
    fn a_field_that_the_last_manifest_set_and_this_one_does_not_is_removed() {
        let original = json!({"data": {"a": "1", "b": "2"}});
        let wanted = json!({"data": {"a": "1"}});
        let live = json!({"data": {"a": "1", "b": "2", "c": "somebody else's"}});
        assert_eq!(
            patch(&original, &wanted, &live, None),
            json!({"data": {"b": null}})
        );
    }
}
