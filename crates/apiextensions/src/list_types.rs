//! List types set and map: no duplicate values or keys.

use std::collections::HashMap;

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
};

use super::{
    structural::{ListType, Schema},
    validate::MAX_ERRORS,
    view::View,
    walk,
};

pub(super) fn check(schema: &Schema, object: &Object, errors: &mut Errors) {
    let mut visit = |schema: &Schema, value: View<'_>, path: &Path| {
        if let View::List(items) = value {
            match &schema.list_type {
                ListType::Atomic => {}
                ListType::Set => check_unique(items, path, errors),
                ListType::Map(keys) => check_keys(items, keys, path, errors),
            }
        }
    };
    walk::each(schema, View::Map(object), &Path::new(""), &mut visit);
}

/// Duplicates are not reported if there were duplicates before.
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

/// Reports a duplicate once, at its first repetition.
fn check_unique(items: &[Value], path: &Path, errors: &mut Errors) {
    let mut seen: HashMap<&Value, usize> = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let times = seen.entry(item).or_default();
        *times += 1;
        if *times == 2 && errors.len() < MAX_ERRORS {
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
