//! Checks that many kinds share.

use crate::tree::{entries, int, list, same, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format, labels};

/// What Kubernetes says about a field that may not change.
pub const IMMUTABLE: &str = "field is immutable";
/// What it says about a number below zero.
pub const NEGATIVE: &str = "must be greater than or equal to 0";

/// `Required value` when the text is empty.
pub fn required(value: &Value, path: &Path, errors: &mut Errors) {
    if text(value).is_empty() {
        errors.push(Error::required(path, ""));
    }
}

/// The value is one of these; empty is for the caller to have defaulted.
pub fn one_of(value: &Value, supported: &[&str], path: &Path, errors: &mut Errors) {
    if !supported.contains(&text(value)) {
        errors.push(Error::not_supported(path, text(value), supported));
    }
}

/// Not below zero.
pub fn non_negative(value: &Value, path: &Path, errors: &mut Errors) {
    if int(value) < 0 {
        errors.push(Error::invalid(path, int(value), NEGATIVE));
    }
}

/// Nothing changed.
pub fn immutable(value: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    if !same(value, old) {
        errors.push(Error::invalid(path, value.clone(), IMMUTABLE));
    }
}

/// A form's complaints as errors.
pub fn form(complaints: Vec<String>, value: &str, path: &Path, errors: &mut Errors) {
    errors.extend(
        complaints
            .into_iter()
            .map(|c| Error::invalid(path, value, c)),
    );
}

/// Keys and values of labels.
pub fn labels(value: &Value, path: &Path, errors: &mut Errors) {
    for (key, value) in entries(value) {
        form(format::qualified_name(key), key, path, errors);
        form(format::label_value(text(value)), text(value), path, errors);
    }
}

/// Keys of annotations and their total size.
pub fn annotations(value: &Value, path: &Path, errors: &mut Errors) {
    const LIMIT: usize = 256 * 1024;
    let mut size = 0;
    for (key, value) in entries(value) {
        form(
            format::qualified_name(&key.to_lowercase()),
            key,
            path,
            errors,
        );
        size += key.len() + text(value).len();
    }
    if size > LIMIT {
        errors.push(Error::too_long(path, LIMIT));
    }
}

/// A `LabelSelector`.
pub fn label_selector(value: &Value, path: &Path, errors: &mut Errors) {
    labels(&value["matchLabels"], &path.child("matchLabels"), errors);
    for (i, expression) in list(&value["matchExpressions"]).iter().enumerate() {
        requirement(expression, &path.child("matchExpressions").index(i), errors);
    }
}

fn requirement(value: &Value, path: &Path, errors: &mut Errors) {
    let values = list(&value["values"]);
    let at = path.child("values");
    match text(&value["operator"]) {
        "In" | "NotIn" => {
            if values.is_empty() {
                errors.push(Error::required(
                    &at,
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                errors.push(Error::forbidden(
                    &at,
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
        }
        other => {
            errors.push(Error::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            ));
        }
    }
    let key = text(&value["key"]);
    form(format::qualified_name(key), key, &path.child("key"), errors);
    for (i, value) in values.iter().enumerate() {
        form(
            format::label_value(text(value)),
            text(value),
            &at.index(i),
            errors,
        );
    }
}

/// The selector of a workload that must select its own template's labels.
pub fn workload_selector(spec: &Value, kind: &str, path: &Path, errors: &mut Errors) {
    let at = path.child("selector");
    let selector = &spec["selector"];
    if !selector.is_object() {
        errors.push(Error::required(&at, ""));
        return;
    }
    let before = errors.len();
    label_selector(selector, &at, errors);
    if list(&selector["matchExpressions"]).is_empty()
        && entries(&selector["matchLabels"]).next().is_none()
    {
        errors.push(Error::invalid(
            &at,
            selector.clone(),
            format!("empty selector is invalid for {kind}"),
        ));
    }
    if errors.len() > before {
        return;
    }
    let labels = spec["template"]["metadata"]["labels"].as_object();
    if let Ok(parsed) = labels::Selector::from_label_selector(Some(selector))
        && !parsed.matches_map(labels)
    {
        errors.push(Error::invalid(
            &path.child("template").child("metadata").child("labels"),
            spec["template"]["metadata"]["labels"].clone(),
            "`selector` does not match template `labels`",
        ));
    }
}

/// A count or a percentage that is not below zero.
pub fn count_or_percent(value: &Value, path: &Path, errors: &mut Errors) {
    match value {
        Value::String(s) => form(format::percent(s), s, path, errors),
        Value::Number(_) => non_negative(value, path, errors),
        _ => {}
    }
}

/// Above 100 percent is too much.
pub fn at_most_whole(value: &Value, path: &Path, errors: &mut Errors) {
    let percent = value
        .as_str()
        .and_then(|s| s.strip_suffix('%'))
        .and_then(|n| n.parse::<i64>().ok());
    if percent.is_some_and(|p| p > 100) {
        errors.push(Error::invalid(
            path,
            value.clone(),
            "must not be greater than 100%",
        ));
    }
}
