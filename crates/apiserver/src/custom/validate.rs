//! Whether a custom object keeps to its schema, in Kubernetes' words.

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
};

use super::{
    ratchet,
    structural::{Others, Schema},
};

/// Everything that is wrong with an object.
pub(crate) fn object(schema: &Schema, object: &Object) -> Errors {
    let mut errors = Errors::new();
    let value = Value::Object(object.clone());
    check(schema, &value, None, &Path::new(""), true, &mut errors);
    list_types(schema, &value, &Path::new(""), true, &mut errors);
    errors
}

/// Everything that is wrong with a value that stands alone.
pub(crate) fn value(schema: &Schema, value: &Value) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("");
    check(schema, value, None, &path, schema.embedded, &mut errors);
    list_types(schema, value, &path, schema.embedded, &mut errors);
    errors
}

/// Everything that an update makes wrong: what was wrong before and has not changed is let pass, so
/// that a schema may become stricter while objects are in use.
pub(crate) fn update(schema: &Schema, object: &Object, old: &Object) -> Errors {
    let mut errors = Errors::new();
    let value = Value::Object(object.clone());
    let old = Value::Object(old.clone());
    check(
        schema,
        &value,
        Some(&old),
        &Path::new(""),
        true,
        &mut errors,
    );
    let mut duplicates = Errors::new();
    list_types(schema, &value, &Path::new(""), true, &mut duplicates);
    if !duplicates.is_empty() {
        let mut before = Errors::new();
        list_types(schema, &old, &Path::new(""), true, &mut before);
        if before.is_empty() {
            errors.extend(duplicates);
        }
    }
    errors
}

/// Checks a value that a field or an item is; `old` is what it was, if that is known.
fn check(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path,
    whole: bool,
    errors: &mut Errors,
) {
    let before = errors.len();
    check_value(schema, value, old, path, whole, errors);
    if errors.len() > before && old.is_some_and(|old| ratchet::same(schema, value, old)) {
        errors.truncate(before);
    }
}

fn check_value(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path,
    whole: bool,
    errors: &mut Errors,
) {
    if value.is_null() && (schema.nullable || schema.kind.is_empty()) {
        return;
    }
    if !fits(schema, value) {
        let text = format!(
            "{path} in body must be of type {}: {:?}",
            wanted(schema),
            kind_of(value)
        );
        errors.push(Error::type_invalid(path, kind_of(value), text));
        return;
    }
    check_enum(schema, value, path, errors);
    match value {
        Value::String(text) => check_text(schema, text, path, errors),
        Value::Number(_) => check_number(schema, value, path, errors),
        Value::Array(items) => check_items(schema, items, old, path, errors),
        Value::Object(object) => check_object(schema, object, old, path, whole, errors),
        _ => {}
    }
    check_combinations(schema, value, old, path, errors);
}

fn wanted(schema: &Schema) -> &str {
    if schema.int_or_string {
        "integer,string"
    } else {
        &schema.kind
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn fits(schema: &Schema, value: &Value) -> bool {
    let kind = kind_of(value);
    if schema.int_or_string {
        return matches!(kind, "integer" | "string");
    }
    match schema.kind.as_str() {
        "" => true,
        "number" => matches!(kind, "integer" | "number"),
        "integer" => kind == "integer" || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        wanted => wanted == kind,
    }
}

fn check_enum(schema: &Schema, value: &Value, path: &Path, errors: &mut Errors) {
    let Some(allowed) = schema.rules.get("enum").and_then(Value::as_array) else {
        return;
    };
    if !allowed.contains(value) {
        let texts: Vec<String> = allowed
            .iter()
            .map(|value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            })
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        errors.push(Error::not_supported(path, value.clone(), &texts));
    }
}

fn limit(schema: &Schema, key: &str) -> Option<f64> {
    schema.rules.get(key)?.as_f64()
}

fn flag(schema: &Schema, key: &str) -> bool {
    schema
        .rules
        .get(key)
        .and_then(Value::as_bool)
        .unwrap_or(false)
}

fn check_text(schema: &Schema, text: &str, path: &Path, errors: &mut Errors) {
    let length = text.chars().count();
    if let Some(most) = limit(schema, "maxLength").filter(|most| length as f64 > *most) {
        errors.push(Error::too_long(path, most as usize));
    }
    let mut invalid =
        |why: String| errors.push(Error::invalid(path, text, format!("{path} in body {why}")));
    if let Some(least) = limit(schema, "minLength").filter(|least| (length as f64) < *least) {
        invalid(format!("should be at least {least} chars long"));
    }
    if let Some(pattern) = schema
        .pattern
        .as_ref()
        .filter(|pattern| !pattern.is_match(text))
    {
        invalid(format!("should match '{pattern}'"));
    }
    let format = schema
        .rules
        .get("format")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !has_format(format, text) {
        invalid(format!("must be of type {format}: {text:?}"));
    }
}

/// Formats that are checked; others are only told.
fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "uuid" => uuid::Uuid::parse_str(text).is_ok(),
        "byte" => {
            use base64::{Engine, engine::general_purpose::STANDARD};
            STANDARD.decode(text).is_ok()
        }
        _ => true,
    }
}

fn check_number(schema: &Schema, value: &Value, path: &Path, errors: &mut Errors) {
    let Some(number) = value.as_f64() else { return };
    let mut invalid = |why: String| {
        errors.push(Error::invalid(
            path,
            value.clone(),
            format!("{path} in body {why}"),
        ))
    };
    if let Some(most) = limit(schema, "maximum") {
        if flag(schema, "exclusiveMaximum") && number >= most {
            invalid(format!("should be less than {most}"));
        } else if number > most {
            invalid(format!("should be less than or equal to {most}"));
        }
    }
    if let Some(least) = limit(schema, "minimum") {
        if flag(schema, "exclusiveMinimum") && number <= least {
            invalid(format!("should be greater than {least}"));
        } else if number < least {
            invalid(format!("should be greater than or equal to {least}"));
        }
    }
    if let Some(step) = limit(schema, "multipleOf").filter(|step| *step > 0.0)
        && (number / step).fract() != 0.0
    {
        invalid(format!("should be a multiple of {step}"));
    }
}

fn check_items(
    schema: &Schema,
    items: &[Value],
    old: Option<&Value>,
    path: &Path,
    errors: &mut Errors,
) {
    if let Some(most) = limit(schema, "maxItems").filter(|most| items.len() as f64 > *most) {
        errors.push(Error::too_many(path, items.len(), most as usize));
    }
    if let Some(least) = limit(schema, "minItems").filter(|least| (items.len() as f64) < *least) {
        let why = format!("{path} in body should have at least {least} items");
        errors.push(Error::invalid(path, items.len(), why));
    }
    let Some(below) = &schema.items else { return };
    for (index, item) in items.iter().enumerate() {
        let old = old.and_then(|old| ratchet::item(schema, item, old));
        let path = path.index(index);
        check(below, item, old, &path, below.embedded, errors);
    }
}

/// What is wrong with the sets and maps among lists.
fn list_types(schema: &Schema, value: &Value, path: &Path, whole: bool, errors: &mut Errors) {
    match value {
        Value::Array(items) => {
            check_list_type(schema, items, path, errors);
            let Some(below) = &schema.items else { return };
            for (index, item) in items.iter().enumerate() {
                list_types(below, item, &path.index(index), below.embedded, errors);
            }
        }
        Value::Object(object) => {
            for (key, value) in object.iter().filter(|(key, _)| !(whole && is_own(key))) {
                match (schema.properties.get(key.as_str()), &schema.others) {
                    (Some(below), _) => {
                        list_types(below, value, &path.child(key), below.embedded, errors);
                    }
                    (None, Others::Of(below)) => {
                        list_types(below, value, &path.key(key), below.embedded, errors);
                    }
                    (None, _) => {}
                }
            }
        }
        _ => {}
    }
}

/// What every whole object has, and the schema says nothing about.
fn is_own(field: &str) -> bool {
    matches!(field, "apiVersion" | "kind" | "metadata")
}

/// Sets have no duplicates, maps no two items of the same keys.
fn check_list_type(schema: &Schema, items: &[Value], path: &Path, errors: &mut Errors) {
    let kind = schema
        .rules
        .get("x-kubernetes-list-type")
        .and_then(Value::as_str);
    let keys = schema
        .rules
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array);
    let identity = |item: &Value| -> Value {
        match (kind, keys) {
            (Some("map"), Some(keys)) => {
                let keys = keys.iter().filter_map(Value::as_str);
                Value::Object(
                    keys.map(|key| (key.to_owned(), item[key].clone()))
                        .collect(),
                )
            }
            _ => item.clone(),
        }
    };
    if !matches!(kind, Some("set" | "map")) {
        return;
    }
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let identity = identity(item);
        if seen.contains(&identity) {
            errors.push(Error::duplicate(&path.index(index), identity));
        } else {
            seen.push(identity);
        }
    }
}

fn check_object(
    schema: &Schema,
    object: &Object,
    old: Option<&Value>,
    path: &Path,
    whole: bool,
    errors: &mut Errors,
) {
    for name in schema
        .rules
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let name = name.as_str().unwrap_or_default();
        if !object.contains_key(name) {
            errors.push(Error::required(&path.child(name), ""));
        }
    }
    let count = object.len() as f64;
    if let Some(most) = limit(schema, "maxProperties").filter(|most| count > *most) {
        errors.push(Error::too_many(path, object.len(), most as usize));
    }
    if let Some(least) = limit(schema, "minProperties").filter(|least| count < *least) {
        let why = format!("{path} in body should have at least {least} properties");
        errors.push(Error::invalid(path, Value::Object(object.clone()), why));
    }
    for (key, value) in object.iter().filter(|(key, _)| !(whole && is_own(key))) {
        let old = old.and_then(|old| old.as_object()?.get(key));
        let below = match (schema.properties.get(key.as_str()), &schema.others) {
            (Some(below), _) => below,
            (None, Others::Of(below)) => below,
            (None, _) => continue,
        };
        let path = path.child(key);
        check(below, value, old, &path, below.embedded, errors);
    }
}

fn check_combinations(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    path: &Path,
    errors: &mut Errors,
) {
    let right = |schema: &Schema| {
        let mut found = Errors::new();
        check_value(schema, value, old, path, false, &mut found);
        found.is_empty()
    };
    for part in &schema.all_of {
        check_value(part, value, old, path, false, errors);
    }
    let mut invalid = |why: &str| {
        errors.push(Error::invalid(
            path,
            value.clone(),
            format!("{:?} {why}", path.as_str()),
        ))
    };
    if !schema.any_of.is_empty() && !schema.any_of.iter().any(right) {
        invalid("must validate at least one schema (anyOf)");
    }
    if !schema.one_of.is_empty() {
        match schema.one_of.iter().filter(|part| right(part)).count() {
            1 => {}
            0 => invalid("must validate one and only one schema (oneOf). Found none valid"),
            _ => {
                invalid("must validate one and only one schema (oneOf). Found more than one valid")
            }
        }
    }
    if schema.not.as_deref().is_some_and(right) {
        invalid("must not validate the schema (not)");
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn each_keyword_names_what_is_wrong() {
        let schema = Schema::read(
            &json!({"type": "object", "required": ["spec"], "properties": {
            "spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 5},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4},
                "mode": {"type": "string", "enum": ["on", "off"]},
                "port": {"x-kubernetes-int-or-string": true},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            }}}}),
        );
        let lines = |value: Value| -> Vec<String> {
            let errors = object(&schema, value.as_object().unwrap());
            errors
                .iter()
                .map(|error| format!("{} {:?}", error.path, error.kind))
                .collect()
        };
        assert!(lines(json!({"spec": {"size": 2, "port": "http", "tags": ["a", "b"]}})).is_empty());
        let cases = [
            (json!({}), "spec Required"),
            (json!({"spec": {}}), "spec.size Required"),
            (json!({"spec": {"size": "x"}}), "spec.size TypeInvalid"),
            (json!({"spec": {"size": 9}}), "spec.size Invalid"),
            (
                json!({"spec": {"size": 2, "name": "A"}}),
                "spec.name Invalid",
            ),
            (
                json!({"spec": {"size": 2, "name": "abcde"}}),
                "spec.name TooLong",
            ),
            (
                json!({"spec": {"size": 2, "mode": "up"}}),
                "spec.mode NotSupported",
            ),
            (
                json!({"spec": {"size": 2, "port": true}}),
                "spec.port TypeInvalid",
            ),
            (
                json!({"spec": {"size": 2, "tags": ["a", "a"]}}),
                "spec.tags[1] Duplicate",
            ),
        ];
        for (value, expected) in cases {
            assert_eq!(lines(value.clone()), [expected], "{value}");
        }
        let wrong = object(&schema, json!({"spec": {"size": "x"}}).as_object().unwrap());
        assert_eq!(
            wrong[0].to_string(),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\""
        );
    }
}
