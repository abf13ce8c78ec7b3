//! Any object: every field, named in words, indented by nesting.

use serde_json::Value;

use crate::{
    json::{entries, list, str_of},
    output::gotemplate,
};

use super::text::Text;

const SKIPPED: &[&str] = &[
    "managedFields",
    "name",
    "namespace",
    "labels",
    "annotations",
];

pub(super) fn describe(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.field(0, "Namespace", str_of(&object["metadata"]["namespace"]));
    text.maps(object);
    for (key, value) in entries(object) {
        put(text, 0, key, value, key == "metadata");
    }
}

fn put(text: &mut Text, level: usize, key: &str, value: &Value, is_metadata: bool) {
    let name = heading(key);
    match value {
        Value::Object(_) => {
            text.line(level, &format!("{name}:"));
            for (key, value) in entries(value) {
                if !(is_metadata && SKIPPED.contains(&key)) {
                    put(text, level + 1, key, value, false);
                }
            }
        }
        Value::Array(_) => {
            text.line(level, &format!("{name}:"));
            for item in list(value) {
                match item {
                    Value::Object(_) => entries(item)
                        .into_iter()
                        .for_each(|(key, value)| put(text, level + 1, key, value, false)),
                    scalar => text.line(level + 1, &gotemplate::text_of(scalar)),
                }
            }
        }
        Value::Null => text.field(level, &name, "<nil>"),
        scalar => text.field(level, &name, &gotemplate::text_of(scalar)),
    }
}

/// `clusterIP` becomes `Cluster IP`; names with characters other than letters and dashes are
/// unchanged.
fn heading(key: &str) -> String {
    if key.chars().any(|c| !c.is_alphabetic() && c != '-') {
        return key.to_owned();
    }
    let name = |part: String| {
        let upper = part.to_uppercase();
        if ["API", "URL", "UID", "GUID"].contains(&upper.as_str()) {
            return upper;
        }
        match part.to_lowercase() == part {
            true => part[..1].to_uppercase() + &part[1..],
            false => part,
        }
    };
    let parts = with_plurals(parts(key));
    parts.into_iter().map(name).collect::<Vec<_>>().join(" ")
}

/// Splits at changes of case; a dash is a separate part.
fn parts(key: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let chars: Vec<char> = key.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let starts = match before {
            None => true,
            Some(before) if c == '-' || before == '-' => true,
            Some(before) => {
                let after_lower = c.is_uppercase() && !before.is_uppercase();
                let before_lower = c.is_uppercase()
                    && before.is_uppercase()
                    && chars.get(at + 1).is_some_and(|next| next.is_lowercase());
                after_lower || before_lower
            }
        };
        match parts.last_mut() {
            Some(part) if !starts => part.push(c),
            _ => parts.push(c.to_string()),
        }
    }
    parts
}

/// Joins an acronym and its plural suffix: `UR` and `Ls`.
fn with_plurals(parts: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut parts = parts.into_iter().peekable();
    while let Some(mut part) = parts.next() {
        let is_acronym = part.len() >= 2 && part.chars().all(char::is_uppercase);
        let begins = |next: &String| next.chars().next().is_some_and(char::is_uppercase);
        if is_acronym && let Some(next) = parts.next_if(|next| begins(next)) {
            part.push_str(&next);
        }
        joined.push(part);
    }
    joined
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_names_become_titles() {
        for (key, name) in [
            ("clusterIP", "Cluster IP"),
            ("type", "Type"),
            ("apiVersion", "API Version"),
            ("uid", "UID"),
            ("resourceVersion", "Resource Version"),
            ("nonResourceURLs", "Non Resource URLs"),
            ("x-kubernetes-int", "X - Kubernetes - Int"),
            ("a.b/c", "a.b/c"),
        ] {
            assert_eq!(heading(key), name);
        }
    }

    #[test]
    fn fields_nest_and_metadata_is_not_repeated() {
        let mut text = Text::default();
        let object = json!({"apiVersion": "x/v1", "kind": "Thing", "metadata": {"name": "t", "uid": "u"}, "spec": {"list": [{"a": 1}, {"a": 2}], "on": true}});
        describe(&mut text, &object);
        assert_eq!(
            text.finish(),
            "Name:         t\nNamespace:    \nLabels:       <none>\nAnnotations:  <none>\nAPI Version:  x/v1\nKind:         Thing\nMetadata:\n  UID:  u\nSpec:\n  List:\n    A:  1\n    A:  2\n  On:   true\n"
        );
    }
}
