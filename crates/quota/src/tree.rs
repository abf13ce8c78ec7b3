//! Reading JSON trees: absent fields read as null, empty or zero.

use machinery::{Object, Value, json::Key};

static NULL: Value = Value::Null;

pub(crate) fn get<'a>(object: &'a Object, name: &str) -> &'a Value {
    object.get(name).unwrap_or(&NULL)
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn entries(value: &Value) -> impl Iterator<Item = (&Key, &Value)> {
    value.as_object().into_iter().flatten()
}
