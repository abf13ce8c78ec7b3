//! Metadata on the write path: reading it, and fields that only the server may set.

use jiff::{SignedDuration, Timestamp};
use machinery::{Object, Status, Value, json::Key};
use rand::Rng;

use crate::{NameSuffixes, names};

/// The finalizers of the garbage collector.
pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

/// Fields that only the server sets on create.
const SYSTEM: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];

/// An object's metadata.
pub fn metadata(object: &Object) -> Option<&Object> {
    object.get("metadata").and_then(Value::as_object)
}

/// The metadata, created if missing.
pub fn of_mut(object: &mut Object) -> &mut Object {
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".to_owned(), Value::Object(Object::new()));
    }
    match object.get_mut("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => unreachable!("inserted above"),
    }
}

/// A text field; empty when it is missing.
pub fn text<'a>(object: &'a Object, key: &str) -> &'a str {
    metadata(object)
        .and_then(|metadata| metadata.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A text field of the spec; empty when it is missing.
pub fn spec_text<'a>(object: &'a Object, key: &str) -> &'a str {
    let value = object.get("spec").and_then(|spec| spec.get(key));
    value.and_then(Value::as_str).unwrap_or_default()
}

/// A number; `None` when it is missing.
pub fn number(object: &Object, key: &str) -> Option<i64> {
    metadata(object)?.get(key)?.as_i64()
}

/// Sets a field, or removes it when the value is empty or null.
pub fn set(object: &mut Object, key: &str, value: impl Into<Value>) {
    let value = value.into();
    let metadata = of_mut(object);
    if value.is_null() || value.as_str().is_some_and(str::is_empty) {
        metadata.shift_remove(key);
    } else {
        metadata.insert(Key::new(key), value);
    }
}

/// The resourceVersion as a number; 0 when there is none.
pub fn revision(object: &Object) -> Result<u64, Status> {
    let given = text(object, "resourceVersion");
    if given.is_empty() {
        return Ok(0);
    }
    machinery::text::parse_uint(given).map_err(Status::unknown)
}

/// Whether it has a deletionTimestamp.
pub fn is_deleting(object: &Object) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

/// The names of the finalizers.
pub fn finalizers(object: &Object) -> Vec<&str> {
    let list = metadata(object)
        .and_then(|metadata| metadata.get("finalizers"))
        .and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Replaces the finalizers.
pub fn set_finalizers(object: &mut Object, finalizers: Vec<String>) {
    let value = if finalizers.is_empty() {
        Value::Null
    } else {
        finalizers.into()
    };
    set(object, "finalizers", value);
}

/// A time in metadata's format.
pub fn time(at: Timestamp) -> String {
    machinery::time::format(at.as_second())
}

/// The deletion time, if there is one.
pub fn deletion_time(object: &Object) -> Option<Timestamp> {
    text(object, "deletionTimestamp").parse().ok()
}

/// A time some seconds away.
pub fn shifted(at: Timestamp, seconds: i64) -> Timestamp {
    at.saturating_add(SignedDuration::from_secs(seconds))
        .unwrap_or(at)
}

/// Removes the fields that only the server sets.
pub fn forget_system(object: &mut Object) {
    let metadata = of_mut(object);
    for key in SYSTEM {
        metadata.shift_remove(key);
    }
}

/// Removes the fields of a new object that clients cannot set.
pub fn reset_for_create(object: &mut Object) {
    forget_system(object);
    of_mut(object).shift_remove("resourceVersion");
}

/// Sets the UID and the creation time of a new object. Called after mutating admission, so that
/// webhooks and policies cannot choose them.
pub fn identify(object: &mut Object, now: Timestamp) {
    let uid = uuid::Builder::from_random_bytes(rand::rng().random()).into_uuid();
    set(object, "uid", uid.to_string());
    set(object, "creationTimestamp", time(now));
}

/// Generates a name from `generateName` if there is none. Returns whether it did.
pub fn generate_name(object: &mut Object, suffixes: &dyn NameSuffixes) -> bool {
    if !text(object, "name").is_empty() || text(object, "generateName").is_empty() {
        return false;
    }
    let name = names::generate(text(object, "generateName"), suffixes);
    set(object, "name", name);
    true
}

/// Sets the namespace of the request; an object with another namespace is rejected.
pub fn ensure_namespace_matches(object: &mut Object, namespace: &str) -> Result<(), Status> {
    let own = text(object, "namespace");
    if machinery::text::same(own, namespace) {
        return Ok(());
    }
    if own.is_empty() || namespace.is_empty() {
        set(object, "namespace", namespace);
        return Ok(());
    }
    Err(Status::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    ))
}

/// Rejects an object whose name differs from the request's.
pub fn check_name(object: &Object, name: &str) -> Result<(), Status> {
    Err(Status::bad_request(match text(object, "name") {
        "" => format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ),
        given if given == name => return Ok(()),
        given => {
            format!("the name of the object ({given}) does not match the name on the URL ({name})")
        }
    }))
}

/// Restores immutable metadata on update.
pub fn keep_immutable(object: &mut Object, old: &Object) {
    if text(object, "uid").is_empty() {
        set(object, "uid", text(old, "uid"));
    }
    set(object, "creationTimestamp", text(old, "creationTimestamp"));
    if is_deleting(old) {
        set(object, "deletionTimestamp", text(old, "deletionTimestamp"));
    }
    if number(object, "deletionGracePeriodSeconds").is_none() {
        set(
            object,
            "deletionGracePeriodSeconds",
            number(old, "deletionGracePeriodSeconds"),
        );
    }
}

/// Whether changes of a field count for the generation.
pub fn is_counted(field: &str) -> bool {
    !matches!(field, "apiVersion" | "kind" | "metadata" | "status")
}

/// Whether two objects differ in fields that count for the generation.
pub fn spec_differs(object: &Object, old: &Object) -> bool {
    let counted = |(key, _): &(&Key, &Value)| is_counted(key);
    let (new_count, old_count) = (
        object.iter().filter(counted).count(),
        old.iter().filter(counted).count(),
    );
    new_count != old_count
        || object
            .iter()
            .filter(counted)
            .any(|(key, value)| old.get(key) != Some(value))
}

/// Whether two objects differ only in managedFields.
pub fn differ_in_managers_alone(object: &Object, old: &Object) -> bool {
    let is_managers = |key: &Key| key.as_str() == "managedFields";
    let same = |new: &Object, old: &Object, skips: &dyn Fn(&Key) -> bool| {
        let counted = |map: &Object| map.keys().filter(|key| !skips(key)).count();
        counted(new) == counted(old)
            && new
                .iter()
                .all(|(key, value)| skips(key) || old.get(key) == Some(value))
    };
    let (Some(metadata), Some(was)) = (metadata(object), metadata(old)) else {
        return false;
    };
    same(object, old, &|key| key.as_str() == "metadata") && same(metadata, was, &is_managers)
}

/// Whether two objects differ in their annotations.
pub fn annotations_differ(object: &Object, old: &Object) -> bool {
    let annotations = |object: &Object| {
        let annotations = metadata(object).and_then(|metadata| metadata.get("annotations"));
        annotations.cloned()
    };
    annotations(object) != annotations(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(json: machinery::json::Value) -> Object {
        json.as_object().unwrap().clone()
    }

    #[test]
    fn a_name_is_generated_once() {
        let mut one = object(machinery::json::json!({"metadata": {"generateName": "web-"}}));
        assert!(generate_name(&mut one, &crate::RandomNameSuffixes));
        assert!(text(&one, "name").starts_with("web-"));
        assert!(!generate_name(&mut one, &crate::RandomNameSuffixes));
    }

    #[test]
    fn a_client_cannot_set_metadata_of_the_server() {
        let mut new = object(machinery::json::json!({"metadata": {
            "name": "a", "uid": "mine", "deletionTimestamp": "2020-01-01T00:00:00Z",
            "resourceVersion": "4"}}));
        reset_for_create(&mut new);
        assert_eq!(text(&new, "uid"), "", "mutating admission sees no UID");
        set(&mut new, "uid", "of a webhook");
        identify(&mut new, Timestamp::UNIX_EPOCH);
        assert_eq!(text(&new, "uid").len(), 36);
        assert_eq!(text(&new, "creationTimestamp"), "1970-01-01T00:00:00Z");
        assert!(!is_deleting(&new) && text(&new, "resourceVersion").is_empty());
    }

    #[test]
    fn status_and_metadata_do_not_count_for_the_generation() {
        let old = object(machinery::json::json!({"spec": {"a": 1}, "metadata": {}, "status": {}}));
        let same = object(machinery::json::json!({"metadata": {"name": "x"}, "spec": {"a": 1}}));
        let other = object(machinery::json::json!({"spec": {"a": 2}}));
        assert!(!spec_differs(&same, &old));
        assert!(
            spec_differs(&other, &old) && spec_differs(&object(machinery::json::json!({})), &old)
        );
    }
}
