//! Whether a schema is structural: every field has one type in one place, and value validations
//! (`allOf` and so on) only narrow values. Only structural schemas can prune and default.

use crate::tree::{entries, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::pattern::Pattern;
use machinery::{Object, Value};

/// Why a schema cannot be converted to a structural one.
pub(super) fn unreadable(schema: &Value) -> Option<String> {
    if !schema.is_object() {
        return None;
    }
    let not_empty = |name: &str| match &schema[name] {
        Value::Null => false,
        Value::String(s) => !s.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    for name in [
        "id",
        "$schema",
        "$ref",
        "patternProperties",
        "dependencies",
        "additionalItems",
        "definitions",
    ] {
        if not_empty(name) || (name == "additionalItems" && is_set(&schema[name])) {
            let name = name.strip_prefix("$s").map_or(name, |_| "schema");
            return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
        }
    }
    let nested = std::iter::once(&schema["not"]).chain(
        ["allOf", "anyOf", "oneOf"]
            .iter()
            .flat_map(|n| list(&schema[*n])),
    );
    if let Some(why) = nested.into_iter().find_map(unreadable) {
        return Some(why);
    }
    if schema["items"].is_array() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    unreadable(&schema["items"])
        .or_else(|| entries(&schema["properties"]).find_map(|(_, s)| unreadable(s)))
        .or_else(|| unreadable(&schema["additionalProperties"]))
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Every violation of the structural rules, sorted.
pub(super) fn check(schema: &Value, path: &Path) -> Errors {
    let mut errors = Vec::new();
    check_level(schema, Level::Root, path, &mut errors);
    check_complete(schema, schema, path, path, &mut errors);
    errors.sort_by_cached_key(ToString::to_string);
    errors
}

fn check_level(schema: &Value, level: Level, path: &Path, errors: &mut Errors) {
    let kind = text(&schema["type"]);
    if kind == "array" && !is_set(&schema["items"]) {
        errors.push(Error::required(&path.child("items"), "must be specified"));
    }
    if is_set(&schema["items"]) {
        check_level(&schema["items"], Level::Item, &path.child("items"), errors);
    }
    for (name, field) in entries(&schema["properties"]) {
        let at = path.child("properties");
        let at = at.key(name);
        check_level(field, Level::Field, &at, errors);
    }
    let (others, at) = (
        &schema["additionalProperties"],
        path.child("additionalProperties"),
    );
    if is_set(others) && level == Level::Root {
        errors.push(Error::forbidden(&at, "must not be used at the root"));
    }
    if others.is_object() {
        check_level(others, Level::Field, &at, errors);
    }
    check_int_or_string(schema, path, errors);
    let pattern = is_int_or_string(&schema["anyOf"]);
    let first = list(&schema["allOf"]).first();
    let pattern_in_first = first.is_some_and(|first| is_int_or_string(&first["anyOf"]));
    check_values(schema, pattern, pattern_in_first, path, errors);
    check_type(schema, level, path, errors);
    check_resource(schema, level, path, errors);
}

fn check_int_or_string(schema: &Value, path: &Path, errors: &mut Errors) {
    if !truth(&schema["x-kubernetes-int-or-string"]) {
        return;
    }
    for name in [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ] {
        if truth(&schema[name]) {
            let detail = "must be false if x-kubernetes-int-or-string is true";
            errors.push(Error::invalid(&path.child(name), true, detail));
        }
    }
}

fn check_type(schema: &Value, level: Level, path: &Path, errors: &mut Errors) {
    let (kind, at) = (text(&schema["type"]), path.child("type"));
    let embedded = truth(&schema["x-kubernetes-embedded-resource"]);
    let open = truth(&schema["x-kubernetes-int-or-string"])
        || truth(&schema["x-kubernetes-preserve-unknown-fields"]);
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => Error::required(&at, detail),
            kind => Error::invalid(&at, kind, detail),
        });
    } else if kind.is_empty() && !open {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(Error::required(&at, detail));
    }
    if embedded && is_set(&schema["additionalProperties"]) {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(Error::forbidden(
            &path.child("additionalProperties"),
            detail,
        ));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(Error::invalid(&at, kind, "must be object at the root"));
    }
}

/// The rules for API objects, at the root and where one is embedded.
fn check_resource(schema: &Value, level: Level, path: &Path, errors: &mut Errors) {
    let embedded = truth(&schema["x-kubernetes-embedded-resource"]);
    let whole = level == Level::Root || embedded;
    let fields = &schema["properties"];
    let at = path.child("properties");
    for name in ["kind", "apiVersion"] {
        if whole && is_set(&fields[name]) && fields[name]["type"] != "string" {
            let given = text(&fields[name]["type"]);
            let at = at.key(name);
            let at = at.child("type");
            errors.push(Error::invalid(&at, given, "must be string"));
        }
    }
    let metadata = &fields["metadata"];
    if is_set(metadata) {
        let at = at.key("metadata");
        if whole && metadata["type"] != "object" {
            let given = text(&metadata["type"]);
            errors.push(Error::invalid(&at.child("type"), given, "must be object"));
        }
        if level == Level::Root && !says_names_only(metadata) {
            let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(Error::forbidden(&at, detail));
        }
    }
    let preserves = truth(&schema["x-kubernetes-preserve-unknown-fields"]);
    if embedded && !preserves && entries(fields).next().is_none() {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(Error::required(&at, detail));
    }
}

fn says_names_only(metadata: &Value) -> bool {
    let names = |v: &Value| entries(v).all(|(k, _)| matches!(k.as_str(), "name" | "generateName"));
    entries(metadata).all(|(key, value)| match key.as_str() {
        "type" | "default" => true,
        "properties" => names(value),
        _ => is_zero(value),
    })
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Bool(b) => !b,
        Value::String(s) => s.is_empty(),
        other => crate::tree::is_empty(other),
    }
}

fn is_int_or_string(any_of: &Value) -> bool {
    *any_of == json!([{"type": "integer"}, {"type": "string"}])
}

/// The value validations: beside a type they may not specify types.
fn check_values(
    schema: &Value,
    skip_any: bool,
    skip_first: bool,
    path: &Path,
    errors: &mut Errors,
) {
    if !skip_any {
        for (i, nested) in list(&schema["anyOf"]).iter().enumerate() {
            check_nested(nested, false, &path.child("anyOf").index(i), errors);
        }
    }
    for (i, nested) in list(&schema["allOf"]).iter().enumerate() {
        check_nested(
            nested,
            skip_first && i == 0,
            &path.child("allOf").index(i),
            errors,
        );
    }
    for (i, nested) in list(&schema["oneOf"]).iter().enumerate() {
        check_nested(nested, false, &path.child("oneOf").index(i), errors);
    }
    if is_set(&schema["not"]) {
        check_nested(&schema["not"], false, &path.child("not"), errors);
    }
    let pattern = text(&schema["pattern"]);
    if let Err(why) = Pattern::new(pattern) {
        let detail = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(Error::invalid(&path.child("pattern"), pattern, detail));
    }
}

fn check_nested(schema: &Value, skip_any: bool, path: &Path, errors: &mut Errors) {
    check_values(schema, skip_any, false, path, errors);
    if is_set(&schema["items"]) {
        check_nested(&schema["items"], false, &path.child("items"), errors);
    }
    for (name, field) in entries(&schema["properties"]) {
        check_nested(field, false, &path.child("properties").key(name), errors);
    }
    let is_specified = |name: &str| !is_zero(&schema[name]);
    let forbidden = [
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        (
            "x-kubernetes-preserve-unknown-fields",
            "must be false to be structural",
        ),
        (
            "x-kubernetes-embedded-resource",
            "must be false to be structural",
        ),
        (
            "x-kubernetes-int-or-string",
            "must be false to be structural",
        ),
        (
            "x-kubernetes-list-map-keys",
            "must be empty to be structural",
        ),
        (
            "x-kubernetes-list-type",
            "must be undefined to be structural",
        ),
        (
            "x-kubernetes-map-type",
            "must be undefined to be structural",
        ),
        ("x-kubernetes-validations", "must be empty to be structural"),
    ];
    for (name, detail) in forbidden {
        let there = match name {
            "default" | "x-kubernetes-list-type" | "x-kubernetes-map-type" => is_set(&schema[name]),
            "additionalProperties" => schema[name].is_object() || truth(&schema[name]),
            _ => is_specified(name),
        };
        if there {
            errors.push(Error::forbidden(&path.child(name), detail));
        }
    }
    if is_set(&schema["properties"]["metadata"]) {
        let at = path.child("properties");
        let at = at.key("metadata");
        let detail = "must not be specified in a nested context";
        errors.push(Error::forbidden(&at, detail));
    }
}

/// Every field that a value validation names must exist in the structure.
fn check_complete(
    values: &Value,
    schema: &Value,
    at: &Path,
    value_path: &Path,
    errors: &mut Errors,
) {
    if is_set(&values["not"]) {
        check_nested_complete(&values["not"], schema, at, &value_path.child("not"), errors);
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (i, nested) in list(&values[name]).iter().enumerate() {
            check_nested_complete(nested, schema, at, &value_path.child(name).index(i), errors);
        }
    }
}

fn check_nested_complete(
    values: &Value,
    schema: &Value,
    at: &Path,
    value_path: &Path,
    errors: &mut Errors,
) {
    let missing = |at: &Path, value_path: &Path| {
        Error::required(at, format!("because it is defined in {value_path}"))
    };
    check_complete(values, schema, at, value_path, errors);
    let (items, items_at) = (value_path.child("items"), at.child("items"));
    match (is_set(&values["items"]), is_set(&schema["items"])) {
        (true, true) => {
            check_nested_complete(
                &values["items"],
                &schema["items"],
                &items_at,
                &items,
                errors,
            );
        }
        (true, false) => errors.push(missing(&items_at, &items)),
        (false, _) => {}
    }
    let (at, value_path) = (at.child("properties"), value_path.child("properties"));
    for (name, nested) in entries(&values["properties"]) {
        let (at, value_path) = (at.key(name), value_path.key(name));
        match schema["properties"].get(name) {
            Some(field) => check_nested_complete(nested, field, &at, &value_path, errors),
            None => errors.push(missing(&at, &value_path)),
        }
    }
}

/// The schema at a path such as `.spec.replicas`, and the path's parts; `by_key` allows brackets.
pub(super) fn find<'a>(
    path: &str,
    schema: &'a Value,
    by_key: bool,
) -> Result<(Vec<String>, &'a Value), String> {
    let mut schema = schema;
    let mut parts = Vec::new();
    let mut tokens = tokens(path).into_iter();
    let end = || "unexpected end of JSON path".to_owned();
    while let Some(token) = tokens.next() {
        let name = match token.as_str() {
            "." => tokens.next().ok_or_else(end)?,
            "[" if !by_key => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let token = tokens.next().ok_or_else(end)?;
                let name = token.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
                let Some(name) = name.filter(|_| token.len() > 1) else {
                    return Err(format!("expected single quoted string but got {token}"));
                };
                let close = tokens.next().ok_or_else(end)?;
                if close != "]" {
                    return Err(format!("expected ] but got {close}"));
                }
                name.replace("\\'", "'").replace("\\\\", "\\")
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        let none = || "does not refer to a valid field".to_owned();
        let fields: Option<&Object> = schema["properties"].as_object().filter(|p| !p.is_empty());
        schema = match fields {
            Some(fields) => fields.get(&name).ok_or_else(none)?,
            None => Some(&schema["additionalProperties"])
                .filter(|s| s.is_object())
                .ok_or_else(none)?,
        };
        parts.push(name);
    }
    Ok((parts, schema))
}

/// The tokens of a path: dots, brackets, and the text between them.
fn tokens(path: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    let mut escaped = false;
    for c in path.chars() {
        if quoted {
            word.push(c);
            if c == '\'' && !escaped {
                quoted = false;
                found.push(std::mem::take(&mut word));
            }
            escaped = c == '\\';
            continue;
        }
        match c {
            '.' | '[' | ']' => {
                if !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                }
                found.push(c.to_string());
            }
            '\'' if word.is_empty() => {
                quoted = true;
                word.push(c);
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        found.push(word);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;

    fn errors_of(schema: Value) -> Vec<String> {
        lines(check(&schema, &Path::new("s")))
    }

    #[test]
    fn every_field_has_a_type_in_one_place() {
        let none: [&str; 0] = [];
        let rich = json!({"type": "object", "properties": {
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "any": {"x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {"type": "string"}}},
            "oneOf": [{"required": ["port"]}, {"properties": {"list": {"maxItems": 1}}}]});
        assert_eq!(errors_of(rich), none);
        for (schema, line) in [
            (
                json!({}),
                "s.type: Required value: must not be empty at the root",
            ),
            (
                json!({"type": "string"}),
                "s.type: Invalid value: \"string\": must be object at the root",
            ),
            (
                json!({"type": "object", "properties": {"a": {}}}),
                "s.properties[a].type: Required value: must not be empty for specified object fields",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array"}}}),
                "s.properties[a].items: Required value: must be specified",
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "string"}}),
                "s.additionalProperties: Forbidden: must not be used at the root",
            ),
            (
                json!({"type": "object", "anyOf": [{"description": "x"}]}),
                "s.anyOf[0].description: Forbidden: must be empty to be structural",
            ),
            (
                json!({"type": "object", "not": {"properties": {"a": {}}}}),
                "s.properties[a]: Required value: because it is defined in s.not.properties[a]",
            ),
            (
                json!({"type": "object", "properties": {"metadata": {"type": "object", "description": "x"}}}),
                "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ),
            (
                json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
                "s.properties[kind].type: Invalid value: \"integer\": must be string",
            ),
        ] {
            assert_eq!(errors_of(schema), [line]);
        }
        let pattern = errors_of(
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
        );
        assert!(pattern[0].starts_with("s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: "));
    }

    #[test]
    fn unsupported_schema_keywords_are_reported() {
        assert_eq!(unreadable(&json!({"type": "object"})), None);
        assert_eq!(
            unreadable(&json!({"properties": {"a": {"id": "x"}}})),
            Some("OpenAPIV3Schema 'id' is not supported".to_owned())
        );
        assert_eq!(
            unreadable(&json!({"items": [{}]})),
            Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned())
        );
    }

    #[test]
    fn paths_lead_to_fields() {
        let schema = json!({"properties": {"spec": {"properties": {"a.b": {"type": "string"}},
            "type": "object"}, "m": {"additionalProperties": {"type": "integer"}}}});
        assert_eq!(
            find(".spec['a.b']", &schema, true).unwrap().1["type"],
            "string"
        );
        assert_eq!(find(".m.x", &schema, true).unwrap().1["type"], "integer");
        for (path, why) in [
            ("spec", "expected [ or . but got: spec"),
            (".spec.x", "does not refer to a valid field"),
            (".", "unexpected end of JSON path"),
            (".spec['a.b']", "array notation is not allowed"),
        ] {
            assert_eq!(find(path, &schema, false).unwrap_err(), why, "{path}");
        }
    }
}
