//! Lists that are sets or maps: no value, or no keys, come twice.

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
};

use super::structural::{ListType, Schema};

pub(super) fn check(schema: &Schema, object: &Object, errors: &mut Errors) {
    check_object(schema, object, &Path::new(""), errors);
}

/// Nothing is said when there were duplicates before.
pub(super) fn check_update(schema: &Schema, object: &Object, old: &Object, errors: &mut Errors) {
    let mut found = Errors::new();
    check(schema, object, &mut found);
    if !found.is_empty() {
        let mut before = Errors::new();
        check(schema, old, &mut before);
        if before.is_empty() {
            errors.extend(found);
        }
    }
}

fn check_object(schema: &Schema, object: &Object, path: &Path, errors: &mut Errors) {
    for (key, value) in object.iter() {
        if let Some(below) = schema.properties.get(key.as_str()) {
            check_value(below, value, &path.child(key), errors);
        } else if let Some(below) = schema.field(key) {
            check_value(below, value, &path.key(key), errors);
        }
    }
}

fn check_value(schema: &Schema, value: &Value, path: &Path, errors: &mut Errors) {
    match value {
        Value::Array(items) => {
            match &schema.list_type {
                ListType::Atomic => {}
                ListType::Set => check_unique(items, path, errors),
                ListType::Map(keys) => check_keys(items, keys, path, errors),
            }
            let Some(below) = &schema.items else { return };
            for (index, item) in items.iter().enumerate() {
                check_value(below, item, &path.index(index), errors);
            }
        }
        Value::Object(object) => check_object(schema, object, path, errors),
        _ => {}
    }
}

/// A value that comes again is told once, where it does so first.
fn check_unique(items: &[Value], path: &Path, errors: &mut Errors) {
    for (index, item) in items.iter().enumerate() {
        if items[..index].iter().filter(|other| *other == item).count() == 1 {
            errors.push(Error::duplicate(&path.index(index), item.clone()));
        }
    }
}

fn check_keys(items: &[Value], keys: &[String], path: &Path, errors: &mut Errors) {
    let no_object = |item: &Value| !item.is_null() && !item.is_object();
    if let Some(index) = items.iter().position(no_object) {
        let why = "must be an object for an array of list-type map";
        let at = path.index(index);
        errors.push(Error::invalid(&at, items[index].clone(), why));
        return;
    }
    let identity = |item: &Value| -> Value {
        let there = |key: &String| Some((key.clone(), item.get(key.as_str())?.clone()));
        Value::Object(keys.iter().filter_map(there).collect())
    };
    let identities: Vec<Value> = items.iter().map(identity).collect();
    check_unique(&identities, path, errors);
}
