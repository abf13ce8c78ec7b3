//! Reading and defaulting JSON values: absent fields read as null, empty or zero.

use machinery::json::Key;
use machinery::{Object, Value};

static NULL: Value = Value::Null;

/// A field of an object; null when absent.
#[inline]
pub fn get<'a>(object: &'a Object, name: &str) -> &'a Value {
    object.get(name).unwrap_or(&NULL)
}

/// A string; empty when absent.
#[inline]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// An integer; zero when absent.
#[inline]
pub fn int(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

/// A boolean; false when absent.
#[inline]
pub fn truth(value: &Value) -> bool {
    value.as_bool().unwrap_or_default()
}

/// The elements of a list; none when absent.
#[inline]
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The entries of a map; none when absent.
pub fn entries(value: &Value) -> impl Iterator<Item = (&Key, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Whether a field is set.
#[inline]
pub fn is_set(value: &Value) -> bool {
    !value.is_null()
}

/// The object's name.
#[inline]
pub fn name(object: &Object) -> &str {
    text(&get(object, "metadata")["name"])
}

/// The object's namespace.
#[inline]
pub fn namespace(object: &Object) -> &str {
    text(&get(object, "metadata")["namespace"])
}

/// Sets a field if it is absent.
pub fn default_to(object: &mut Object, name: &str, value: impl Into<Value>) {
    if object.get(name).is_none_or(Value::is_null) {
        object.insert(Key::new(name), value.into());
    }
}

/// Sets a field if it is absent, empty or zero: for fields whose zero means unset.
pub fn default_empty(object: &mut Object, name: &str, value: impl Into<Value>) {
    let unset = match object.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Bool(_)) => false,
    };
    if unset {
        object.insert(Key::new(name), value.into());
    }
}

/// A nested object, if there.
#[inline]
pub fn child<'a>(object: &'a mut Object, name: &str) -> Option<&'a mut Object> {
    object.get_mut(name)?.as_object_mut()
}

/// A nested object, created if absent.
pub fn child_or_new<'a>(object: &'a mut Object, name: &str) -> &'a mut Object {
    let slot = object.entry(Key::new(name)).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = Value::Object(Object::new());
    }
    match slot {
        Value::Object(map) => map,
        // It was just made an object.
        _ => unreachable!("the slot holds an object"),
    }
}

/// The objects in a list.
pub fn each<'a>(object: &'a mut Object, name: &str) -> impl Iterator<Item = &'a mut Object> {
    object
        .get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// Restores the old value of a field, or removes the field if the old object had none.
pub fn keep(object: &mut Object, old: &Object, name: &str) {
    match old.get(name) {
        Some(value) => {
            object.insert(Key::new(name), value.clone());
        }
        None => {
            object.shift_remove(name);
        }
    }
}

/// Equal except for absent, null and empty values, which are the same in Go.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(k, v)| same(v, get(b, k)))
                && b.iter().all(|(k, v)| a.contains_key(k) || is_empty(v))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b || (is_empty(a) && is_empty(b)),
    }
}

/// Null, or an empty container.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn null_and_empty_objects_are_equal_to_absent_fields() {
        assert!(same(&json!({"a": 1, "b": {}, "c": null}), &json!({"a": 1})));
        assert!(!same(&json!({"a": 1}), &json!({"a": 1, "b": 2})));
        assert!(!same(&json!([1]), &json!([1, 2])));
        assert!(same(&json!(null), &json!({})));
    }
}
