//! ConfigMap: text and binary configuration.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{entries, get, same, text, truth};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

/// Maximum bytes of all keys and values of a ConfigMap or Secret.
pub(crate) const MAX_SIZE: usize = 1024 * 1024;

pub const KIND: Builtin = Builtin {
    kind: "ConfigMap",
    plural: "configmaps",
    short_names: &["cm"],
    schema: "core/v1.ConfigMap",
    validate_create: validate,
    validate_update,
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[NAME, column("Data", "string", "Number of entries."), AGE];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let count = entries(get(object, "data")).count() + entries(get(object, "binaryData")).count();
    vec![name_cell(object), Value::from(count), age(object, now)]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let (data, binary) = (get(object, "data"), get(object, "binaryData"));
    let (data_path, binary_path) = (Path::new("data"), Path::new("binaryData"));
    let mut size = 0;
    for (key, value) in entries(data) {
        check::form(
            format::config_key(key),
            key,
            &data_path.key(key),
            &mut errors,
        );
        if binary.get(key).is_some() {
            let detail = format!("duplicate of key present in {binary_path}");
            errors.push(Error::invalid(&data_path.key(key), key.as_str(), detail));
        }
        size += text(value).len();
    }
    for (key, value) in entries(binary) {
        check::form(
            format::config_key(key),
            key,
            &binary_path.key(key),
            &mut errors,
        );
        size += decoded_size(text(value));
    }
    if size > MAX_SIZE {
        errors.push(Error::too_long(&Path::new("[]"), MAX_SIZE));
    }
    errors
}

/// The decoded length of base64 text.
pub(crate) fn decoded_size(base64: &str) -> usize {
    base64.len() / 4 * 3 - base64.bytes().rev().take(2).filter(|b| *b == b'=').count()
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = check_frozen(object, old, &["data", "binaryData"]);
    errors.extend(validate(object));
    errors
}

/// Fields that cannot change once `immutable` is set.
pub(crate) fn check_frozen(object: &Object, old: &Object, fields: &[&str]) -> Errors {
    let mut errors = Vec::new();
    if !truth(get(old, "immutable")) {
        return errors;
    }
    let detail = "field is immutable when `immutable` is set";
    if !truth(get(object, "immutable")) {
        errors.push(Error::forbidden(&Path::new("immutable"), detail));
    }
    for field in fields {
        if !same(get(object, field), get(old, field)) {
            errors.push(Error::forbidden(&Path::new(field), detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn keys_are_validated_and_may_not_be_in_data_and_binary_data() {
        let map = object(r#"{"data": {"a": "1", "/": "2"}, "binaryData": {"a": "AA=="}}"#);
        let found = lines(validate(&map));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("data[/]: Invalid value") || found[0].starts_with("data[a]"));
    }

    #[test]
    fn an_immutable_map_stays_as_it_is() {
        let old = object(r#"{"immutable": true, "data": {"a": "1"}}"#);
        let new = object(r#"{"data": {"a": "2"}}"#);
        assert_eq!(
            lines(validate_update(&new, &old, None)),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }
}
