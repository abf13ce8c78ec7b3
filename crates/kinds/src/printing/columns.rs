//! Printed columns and the cells that fill them.

use std::borrow::Cow;

use crate::Column;
use crate::tree::{entries, get, list, name, text};
use machinery::{Object, Value, labels, time};

/// The name column every kind starts with.
pub const NAME: Column = Column {
    name: Cow::Borrowed("Name"),
    kind: Cow::Borrowed("string"),
    format: Cow::Borrowed("name"),
    description: Cow::Borrowed("Name of the object."),
    priority: 0,
};

/// The age column.
pub const AGE: Column = Column {
    name: Cow::Borrowed("Age"),
    kind: Cow::Borrowed("string"),
    format: Cow::Borrowed(""),
    description: Cow::Borrowed("Time since the object was created."),
    priority: 0,
};

/// A column that is always shown.
pub const fn column(name: &'static str, kind: &'static str, description: &'static str) -> Column {
    formatted(name, kind, "", description, 0)
}

/// A column with a format.
pub const fn formatted(
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    description: &'static str,
    priority: i32,
) -> Column {
    Column {
        name: Cow::Borrowed(name),
        kind: Cow::Borrowed(kind),
        format: Cow::Borrowed(format),
        description: Cow::Borrowed(description),
        priority,
    }
}

/// A column of `-o wide`.
pub const fn wide(name: &'static str, kind: &'static str, description: &'static str) -> Column {
    formatted(name, kind, "", description, 1)
}

/// The object's age.
pub fn age(object: &Object, now: i64) -> Value {
    Value::from(time::age(
        get(object, "metadata")["creationTimestamp"].as_str(),
        now,
    ))
}

/// Time since a timestamp field.
pub fn since(value: &Value, now: i64) -> String {
    match value.as_str() {
        Some(text) => match time::parse(text).or_else(|_| time::parse_micro(text)) {
            Ok(moment) => time::human_duration(now - moment.seconds),
            Err(_) => "<unknown>".to_owned(),
        },
        None => "<unknown>".to_owned(),
    }
}

/// The object's name.
pub fn name_cell(object: &Object) -> Value {
    Value::from(name(object))
}

/// Name and age: the columns of a kind that shows nothing else.
pub const NAME_AGE: &[Column] = &[NAME, AGE];

/// The cells of [`NAME_AGE`].
pub fn name_age(object: &Object, now: i64) -> Vec<Value> {
    vec![name_cell(object), age(object, now)]
}

/// Name and creation time: the columns of a kind without columns of its own.
pub const NAME_CREATED: &[Column] = &[NAME, column("Created At", "date", "When it was created.")];

/// The cells of [`NAME_CREATED`].
pub fn name_created(object: &Object, _: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        get(object, "metadata")["creationTimestamp"].clone(),
    ]
}

/// `<none>` for an empty text.
pub fn or_none(text: &str) -> String {
    if text.is_empty() {
        "<none>".to_owned()
    } else {
        text.to_owned()
    }
}

/// Names and images of containers, separated by commas.
pub fn containers(pod_spec: &Value) -> (String, String) {
    let join = |field: &str| {
        list(&pod_spec["containers"])
            .iter()
            .map(|c| text(&c[field]))
            .collect::<Vec<_>>()
            .join(",")
    };
    (join("name"), join("image"))
}

/// A `LabelSelector` in a cell.
pub fn selector(value: &Value) -> String {
    match labels::Selector::from_label_selector(Some(value).filter(|v| v.is_object())) {
        Ok(selector) => or_none(&selector.to_string()),
        Err(_) => "<error>".to_owned(),
    }
}

/// A map of labels in a cell: `a=b,c=d`.
pub fn labels(map: &Value) -> String {
    let pairs: Vec<String> = entries(map)
        .map(|(k, v)| format!("{k}={}", text(v)))
        .collect();
    or_none(&pairs.join(","))
}

/// The first few items, and how many more there are.
pub fn first_of(items: &[String], max: usize) -> String {
    if items.is_empty() {
        return "<unset>".to_owned();
    }
    let shown = items[..items.len().min(max)].join(",");
    if items.len() > max {
        format!("{shown} + {} more...", items.len() - max)
    } else {
        shown
    }
}
