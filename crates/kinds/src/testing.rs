//! For the tests of this crate.

use machinery::{Object, Value, field};

/// An object from JSON text.
pub(crate) fn object(json: &str) -> Object {
    match machinery::json::from_str(json).unwrap() {
        Value::Object(map) => map,
        other => panic!("no object: {other}"),
    }
}

/// Errors as Kubernetes prints them.
pub(crate) fn lines(errors: field::Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}
