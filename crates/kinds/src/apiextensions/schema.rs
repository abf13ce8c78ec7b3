//! The OpenAPI v3 schema of a custom resource: which keywords it may use, and how they fit
//! together. CEL rules are compiled elsewhere.

use super::structural;
use crate::shown::{GoField, GoType, shown};
use crate::tree::{entries, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

pub(super) const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];

/// Which rules apply; a schema that violated a rule before may keep doing so.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub known_types: bool,
    pub structural: bool,
    pub atomic_sets: bool,
    pub keys_present: bool,
}

impl Rules {
    pub(super) const ALL: Self = Self {
        known_types: true,
        structural: true,
        atomic_sets: true,
        keys_present: true,
    };
}

/// Whether this schema or a nested one satisfies `is`.
pub(super) fn has(schema: &Value, is: &dyn Fn(&Value) -> bool) -> bool {
    if !schema.is_object() {
        return false;
    }
    is(schema) || children(schema).iter().any(|(_, child)| has(child, is))
}

/// The direct subschemas, with their keywords.
fn children(schema: &Value) -> Vec<(&'static str, &Value)> {
    let mut found = Vec::new();
    let mut one = |name: &'static str| {
        let value = &schema[name];
        match value {
            Value::Object(_) => found.push((name, value)),
            Value::Array(items) => found.extend(items.iter().map(|item| (name, item))),
            _ => {}
        }
    };
    for name in ["items", "allOf", "anyOf", "oneOf", "not"] {
        one(name);
    }
    for name in [
        "properties",
        "patternProperties",
        "definitions",
        "dependencies",
    ] {
        found.extend(entries(&schema[name]).map(|(_, child)| (name, child)));
    }
    for name in ["additionalProperties", "additionalItems"] {
        if schema[name].is_object() {
            found.push((name, &schema[name]));
        }
    }
    found
}

pub(super) fn has_unknown_type(schema: &Value) -> bool {
    has(schema, &|s| {
        let kind = text(&s["type"]);
        !kind.is_empty() && !TYPES.contains(&kind)
    })
}

pub(super) fn has_loose_set(schema: &Value) -> bool {
    has(schema, &|s| {
        s["x-kubernetes-list-type"] == "set" && loose_item(s).is_some()
    })
}

pub(super) fn has_absent_keys(schema: &Value) -> bool {
    has(schema, &|s| {
        let mut errors = Vec::new();
        check_keys(s, &Path::default(), &mut errors);
        !errors.is_empty()
    })
}

pub(super) fn is_structural(schema: &Value) -> bool {
    structural::unreadable(schema).is_none()
        && structural::check(schema, &Path::default()).is_empty()
}

/// Formats that have no meaning for their type.
pub(super) fn unknown_formats(schema: &Value) -> Vec<String> {
    const TEXT: &[&str] = &[
        "bsonobjectid",
        "uri",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "cidr",
        "mac",
        "uuid",
        "uuid3",
        "uuid4",
        "uuid5",
        "isbn",
        "isbn10",
        "isbn13",
        "creditcard",
        "ssn",
        "hexcolor",
        "rgbcolor",
        "byte",
        "password",
        "date",
        "duration",
        "datetime",
        "k8sshortname",
        "k8slongname",
    ];
    let mut found = Vec::new();
    if !schema.is_object() {
        return found;
    }
    let format = text(&schema["format"]);
    let known = match text(&schema["type"]) {
        "" | "string" => TEXT.contains(&format.replace('-', "").as_str()),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !known {
        found.push(format.to_owned());
    }
    for (_, child) in children(schema) {
        found.extend(unknown_formats(child));
    }
    found
}

/// Validates the schema of one version, or the shared one. `path` is the schema's path.
pub(super) fn check(
    schema: &Value,
    has_status: bool,
    rules: Rules,
    path: &Path,
    errors: &mut Errors,
) {
    if !is_set(schema) {
        return;
    }
    let mut found = Vec::new();
    let at = path.child("openAPIV3Schema");
    if has_status {
        check_root(schema, &at, &mut found);
    }
    if truth(&schema["nullable"]) {
        let detail = "nullable cannot be true at the root";
        found.push(Error::forbidden(&at.child("nullable"), detail));
    }
    let unreadable = structural::unreadable(schema).filter(|_| rules.structural);
    if rules.structural && unreadable.is_none() {
        found.extend(structural::check(schema, &at));
    }
    let place = SchemaPosition {
        root: true,
        defaults: Ok(()),
        in_metadata: false,
    };
    check_schema(schema, &place, rules, &at, &mut found);
    if let Some(why) = unreadable.filter(|_| found.is_empty()) {
        found.push(Error::invalid(&at, "", why));
    }
    errors.append(&mut found);
}

/// With a status subresource, the root schema may use only a few keywords.
fn check_root(schema: &Value, path: &Path, errors: &mut Errors) {
    for GoField(name, go, _) in SCHEMA {
        let value = &schema[*name];
        let zero = match value {
            Value::Null => true,
            Value::String(s) => s.is_empty(),
            Value::Bool(b) => !b,
            _ => false,
        };
        if zero && *name != "x-kubernetes-preserve-unknown-fields" || value.is_null() {
            continue;
        }
        if *name == "type" {
            if value != "object" {
                let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
                errors.push(Error::invalid(&path.child("type"), value.clone(), detail));
                return;
            }
        } else if !AT_ROOT.contains(go) {
            let detail = format!(
                "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
                AT_ROOT.join(" ")
            );
            errors.push(Error::invalid(path, shown_schema(schema), detail));
            return;
        }
    }
}

const AT_ROOT: &[&str] = &[
    "Description",
    "Type",
    "Format",
    "Title",
    "Maximum",
    "ExclusiveMaximum",
    "Minimum",
    "ExclusiveMinimum",
    "MaxLength",
    "MinLength",
    "Pattern",
    "MaxItems",
    "MinItems",
    "UniqueItems",
    "MultipleOf",
    "Required",
    "Items",
    "Properties",
    "ExternalDocs",
    "Example",
    "XPreserveUnknownFields",
    "XValidations",
];

/// The position of a schema within its object.
struct SchemaPosition {
    root: bool,
    /// Whether defaults are allowed, or why not.
    defaults: Result<(), String>,
    in_metadata: bool,
}

impl SchemaPosition {
    fn below(&self) -> Self {
        Self {
            root: false,
            defaults: self.defaults.clone(),
            in_metadata: self.in_metadata,
        }
    }
}

fn check_schema(
    schema: &Value,
    place: &SchemaPosition,
    rules: Rules,
    path: &Path,
    errors: &mut Errors,
) {
    check_keywords(schema, place, rules, path, errors);
    if truth(&schema["uniqueItems"]) {
        let detail =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(Error::forbidden(&path.child("uniqueItems"), detail));
    }
    check_fields(schema, place, rules, path, errors);
    let below = place.below();
    if is_set(&schema["not"]) {
        check_schema(&schema["not"], &below, rules, &path.child("not"), errors);
    }
    for name in ["allOf", "oneOf", "anyOf"] {
        for (i, nested) in list(&schema[name]).iter().enumerate() {
            check_schema(nested, &below, rules, &path.child(name).index(i), errors);
        }
    }
    for (name, nested) in entries(&schema["definitions"]) {
        let at = path.child("definitions");
        let at = at.key(name);
        check_schema(nested, &below, rules, &at, errors);
    }
    match &schema["items"] {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                check_schema(item, &below, rules, &path.child("items").index(i), errors);
            }
        }
        Value::Object(_) => {
            check_schema(
                &schema["items"],
                &below,
                rules,
                &path.child("items"),
                errors,
            );
        }
        _ => {}
    }
    for (name, nested) in entries(&schema["dependencies"]) {
        if nested.is_object() {
            let at = path.child("dependencies");
            let at = at.key(name);
            check_schema(nested, &below, rules, &at, errors);
        }
    }
    check_extensions(schema, rules, path, errors);
    for (i, rule) in list(&schema["x-kubernetes-validations"]).iter().enumerate() {
        let at = path.child("x-kubernetes-validations");
        let at = at.index(i);
        check_rule(schema, rule, &at, errors);
    }
}

fn check_fields(
    schema: &Value,
    place: &SchemaPosition,
    rules: Rules,
    path: &Path,
    errors: &mut Errors,
) {
    let (fields, others) = (&schema["properties"], &schema["additionalProperties"]);
    if is_set(others) {
        let at = path.child("additionalProperties");
        let both = entries(fields).next().is_some();
        if both && (others.is_object() || !truth(others)) {
            let detail = "additionalProperties and properties are mutual exclusive";
            errors.push(Error::forbidden(&at, detail));
        }
        let mut below = place.below();
        if place.in_metadata {
            let why = "inside additionalProperties applying to object metadata";
            below.defaults = Err(why.to_owned());
        }
        if others.is_object() {
            check_schema(others, &below, rules, &at, errors);
        }
    }
    let whole = place.root || truth(&schema["x-kubernetes-embedded-resource"]);
    for (name, field) in entries(fields) {
        let mut below = place.below();
        if whole && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            below.in_metadata = true;
            if place.root {
                below.defaults = Err(format!("in top-level {name}"));
            }
        }
        check_schema(
            field,
            &below,
            rules,
            &path.child("properties").key(name),
            errors,
        );
    }
}

fn check_keywords(
    schema: &Value,
    place: &SchemaPosition,
    rules: Rules,
    path: &Path,
    errors: &mut Errors,
) {
    let kind = text(&schema["type"]);
    if rules.known_types && !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, TYPES));
    }
    if let (Some(_), Err(why)) = (schema.get("default"), &place.defaults) {
        let detail = format!("must not be set {why}");
        errors.push(Error::forbidden(&path.child("default"), detail));
    }
    if !text(&schema["id"]).is_empty() {
        errors.push(Error::forbidden(&path.child("id"), "id is not supported"));
    }
    for name in [
        "additionalItems",
        "patternProperties",
        "definitions",
        "dependencies",
        "$ref",
    ] {
        let empty = entries(&schema[name]).next().is_none();
        let lenient = matches!(name, "patternProperties" | "definitions") && empty;
        if is_set(&schema[name]) && !lenient {
            let detail = format!("{name} is not supported");
            errors.push(Error::forbidden(&path.child(name), detail));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(Error::forbidden(&path.child("type"), detail));
    }
    if !list(&schema["items"]).is_empty() {
        let detail = "items must be a schema object and not an array";
        errors.push(Error::forbidden(&path.child("items"), detail));
    }
    if place.in_metadata && truth(&schema["x-kubernetes-embedded-resource"]) {
        let at = path.child("x-kubernetes-embedded-resource");
        errors.push(Error::forbidden(
            &at,
            "must not be used inside of resource meta",
        ));
    }
}

fn check_extensions(schema: &Value, rules: Rules, path: &Path, errors: &mut Errors) {
    const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
    if schema[PRESERVE] == false {
        let detail = "must be true or undefined";
        errors.push(Error::invalid(&path.child(PRESERVE), false, detail));
    }
    for (extension, kind) in [
        ("x-kubernetes-map-type", "object"),
        ("x-kubernetes-list-type", "array"),
    ] {
        let given = text(&schema["type"]);
        if is_set(&schema[extension]) && given != kind {
            let (at, detail) = (
                path.child("type"),
                format!("must be {kind} if {extension} is specified"),
            );
            errors.push(match given {
                "" => Error::required(&at, detail),
                given => Error::invalid(&at, given, detail),
            });
        } else if extension == "x-kubernetes-list-type"
            && rules.atomic_sets
            && schema[extension] == "set"
            && let Some(name) = loose_item(schema)
        {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let at = path.child("items");
            let at = at.child(name);
            let printed = schema["items"]["x-kubernetes-list-type"].clone();
            errors.push(Error::invalid(&at, printed, detail));
        }
        let types: &[&str] = match kind {
            "object" => &["atomic", "granular"],
            _ => &["atomic", "set", "map"],
        };
        let value = text(&schema[extension]);
        if is_set(&schema[extension]) && !types.contains(&value) {
            errors.push(Error::not_supported(&path.child(extension), value, types));
        }
    }
    check_list_map(schema, path, errors);
    if rules.keys_present {
        check_keys(schema, path, errors);
    }
}

/// The keyword because of which the items of a set are not atomic.
fn loose_item(schema: &Value) -> Option<&'static str> {
    let item = &schema["items"];
    let (list_type, map_type) = ("x-kubernetes-list-type", "x-kubernetes-map-type");
    match text(&item["type"]) {
        "array" if is_set(&item[list_type]) && item[list_type] != "atomic" => Some(list_type),
        "object" if item[map_type] != "atomic" => Some(map_type),
        _ => None,
    }
}

fn check_list_map(schema: &Value, path: &Path, errors: &mut Errors) {
    const TYPE: &str = "x-kubernetes-list-type";
    const KEYS: &str = "x-kubernetes-list-map-keys";
    let (kind, keys) = (&schema[TYPE], list(&schema[KEYS]));
    if !keys.is_empty() && kind != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(match kind {
            Value::Null => Error::required(&path.child(TYPE), detail),
            kind => Error::invalid(&path.child(TYPE), kind.clone(), detail),
        });
    }
    if kind != "map" {
        return;
    }
    if keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.push(Error::required(&path.child(KEYS), detail));
    }
    let (item, at) = (&schema["items"], path.child("items"));
    if !is_set(item) {
        let detail = "must have a schema if x-kubernetes-list-type is map";
        errors.push(Error::required(&at, detail));
        return;
    }
    if item.is_array() {
        let printed: Value = list(item).iter().map(shown_schema).collect();
        let printed = json!({"Schema": null, "JSONSchemas": printed});
        let detail = "must only have a single schema if x-kubernetes-list-type is map";
        errors.push(Error::invalid(&at, printed, detail));
        return;
    }
    if item["type"] != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(Error::invalid(
            &at.child("type"),
            text(&item["type"]),
            detail,
        ));
        return;
    }
    for (i, key) in keys.iter().enumerate() {
        let all = || schema[KEYS].clone();
        match item["properties"].get(text(key)) {
            Some(field) if matches!(text(&field["type"]), "array" | "object") => {
                let at = at.child("properties");
                let at = at.key(text(key));
                let at = at.child("type");
                let detail =
                    "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(Error::invalid(&at, "object", detail));
            }
            Some(_) => {}
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(Error::invalid(&path.child(KEYS), all(), detail));
            }
        }
        if keys[..i].contains(key) {
            let detail = "must not contain duplicate entries";
            errors.push(Error::invalid(&path.child(KEYS), all(), detail));
        }
    }
}

/// The keys of a list's items must be required or have defaults.
fn check_keys(schema: &Value, path: &Path, errors: &mut Errors) {
    let (item, kind) = (&schema["items"], text(&schema["x-kubernetes-list-type"]));
    if !item.is_object() || !matches!(kind, "set" | "map") {
        return;
    }
    let at = path.child("items");
    if truth(&item["nullable"]) {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(Error::forbidden(&at.child("nullable"), detail));
    }
    if kind != "map" {
        return;
    }
    for key in list(&schema["x-kubernetes-list-map-keys"]) {
        let Some(field) = item["properties"].get(text(key)) else {
            continue;
        };
        let at = at.child("properties");
        let at = at.key(text(key));
        if !list(&item["required"]).contains(key) && field.get("default").is_none() {
            let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(Error::required(&at.child("default"), detail));
        }
        if truth(&field["nullable"]) {
            let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(Error::forbidden(&at.child("nullable"), detail));
        }
    }
}

fn check_rule(schema: &Value, rule: &Value, path: &Path, errors: &mut Errors) {
    let breaks = |text: &str| text.contains(['\n', '\r']);
    let (given, message) = (text(&rule["rule"]).trim(), text(&rule["message"]));
    if given.is_empty() {
        errors.push(Error::required(
            &path.child("rule"),
            "rule is not specified",
        ));
    } else if !message.is_empty() && message.trim().is_empty() {
        let detail = "must be non-empty if specified";
        errors.push(Error::invalid(&path.child("message"), message, detail));
    } else if breaks(message.trim()) {
        let detail = "must not contain line breaks";
        errors.push(Error::invalid(&path.child("message"), message, detail));
    } else if breaks(given) && message.trim().is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(Error::required(&path.child("message"), detail));
    }
    let expression = text(&rule["messageExpression"]);
    if !expression.is_empty() && expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(Error::required(&path.child("messageExpression"), detail));
    }
    if is_set(&rule["reason"]) {
        let reasons = [
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ];
        crate::check::one_of(&rule["reason"], &reasons, &path.child("reason"), errors);
    }
    let (field, at) = (text(&rule["fieldPath"]), path.child("fieldPath"));
    if !field.is_empty() && field.trim().is_empty() {
        errors.push(Error::invalid(&at, field, "must be non-empty if specified"));
    }
    if breaks(field) {
        errors.push(Error::invalid(&at, field, "must not contain line breaks"));
    }
    let readable = structural::unreadable(schema).is_none();
    if !field.is_empty() && readable && structural::find(field, schema, true).is_err() {
        errors.push(Error::invalid(&at, field, "must be a valid path"));
    }
}

/// The fields of upstream's internal type, in its order.
const SCHEMA: &[GoField] = &[
    GoField("id", "ID", GoType::Text),
    GoField("$schema", "Schema", GoType::Text),
    GoField("$ref", "Ref", GoType::Plain),
    GoField("description", "Description", GoType::Text),
    GoField("type", "Type", GoType::Text),
    GoField("nullable", "Nullable", GoType::Bool),
    GoField("format", "Format", GoType::Text),
    GoField("title", "Title", GoType::Text),
    GoField("default", "Default", GoType::Plain),
    GoField("maximum", "Maximum", GoType::Plain),
    GoField("exclusiveMaximum", "ExclusiveMaximum", GoType::Bool),
    GoField("minimum", "Minimum", GoType::Plain),
    GoField("exclusiveMinimum", "ExclusiveMinimum", GoType::Bool),
    GoField("maxLength", "MaxLength", GoType::Plain),
    GoField("minLength", "MinLength", GoType::Plain),
    GoField("pattern", "Pattern", GoType::Text),
    GoField("maxItems", "MaxItems", GoType::Plain),
    GoField("minItems", "MinItems", GoType::Plain),
    GoField("uniqueItems", "UniqueItems", GoType::Bool),
    GoField("multipleOf", "MultipleOf", GoType::Plain),
    GoField("enum", "Enum", GoType::Plain),
    GoField("maxProperties", "MaxProperties", GoType::Plain),
    GoField("minProperties", "MinProperties", GoType::Plain),
    GoField("required", "Required", GoType::Plain),
    GoField("items", "Items", GoType::Plain),
    GoField("allOf", "AllOf", GoType::Plain),
    GoField("oneOf", "OneOf", GoType::Plain),
    GoField("anyOf", "AnyOf", GoType::Plain),
    GoField("not", "Not", GoType::Plain),
    GoField("properties", "Properties", GoType::Plain),
    GoField(
        "additionalProperties",
        "AdditionalProperties",
        GoType::Plain,
    ),
    GoField("patternProperties", "PatternProperties", GoType::Plain),
    GoField("dependencies", "Dependencies", GoType::Plain),
    GoField("additionalItems", "AdditionalItems", GoType::Plain),
    GoField("definitions", "Definitions", GoType::Plain),
    GoField("externalDocs", "ExternalDocs", GoType::Pointer(DOCS)),
    GoField("example", "Example", GoType::Plain),
    GoField(
        "x-kubernetes-preserve-unknown-fields",
        "XPreserveUnknownFields",
        GoType::Plain,
    ),
    GoField(
        "x-kubernetes-embedded-resource",
        "XEmbeddedResource",
        GoType::Bool,
    ),
    GoField("x-kubernetes-int-or-string", "XIntOrString", GoType::Bool),
    GoField("x-kubernetes-list-map-keys", "XListMapKeys", GoType::Plain),
    GoField("x-kubernetes-list-type", "XListType", GoType::Plain),
    GoField("x-kubernetes-map-type", "XMapType", GoType::Plain),
    GoField(
        "x-kubernetes-validations",
        "XValidations",
        GoType::List(RULE),
    ),
];
const DOCS: &[GoField] = &[
    GoField("description", "Description", GoType::Text),
    GoField("url", "URL", GoType::Text),
];
const RULE: &[GoField] = &[
    GoField("rule", "Rule", GoType::Text),
    GoField("message", "Message", GoType::Text),
    GoField("messageExpression", "MessageExpression", GoType::Text),
    GoField("reason", "Reason", GoType::Plain),
    GoField("fieldPath", "FieldPath", GoType::Text),
    GoField("optionalOldSelf", "OptionalOldSelf", GoType::Plain),
];

/// A schema as Kubernetes prints it in errors.
pub(super) fn shown_schema(schema: &Value) -> Value {
    let mut out = shown(schema, SCHEMA);
    let map = |value: &Value| -> Value {
        match value {
            Value::Object(fields) => {
                let mut named: Vec<(&machinery::json::Key, Value)> =
                    fields.iter().map(|(k, v)| (k, shown_schema(v))).collect();
                named.sort_by_key(|(name, _)| *name);
                let named: Object = named.into_iter().map(|(k, v)| (k.clone(), v)).collect();
                Value::Object(named)
            }
            other => other.clone(),
        }
    };
    let or_bool = |value: &Value| match value {
        Value::Bool(allows) => json!({"Allows": allows, "Schema": null}),
        Value::Object(_) => json!({"Allows": true, "Schema": shown_schema(value)}),
        other => other.clone(),
    };
    for (name, go) in [("allOf", "AllOf"), ("oneOf", "OneOf"), ("anyOf", "AnyOf")] {
        if let Value::Array(items) = &schema[name] {
            out[go] = items.iter().map(shown_schema).collect();
        }
    }
    for (name, go) in [
        ("properties", "Properties"),
        ("patternProperties", "PatternProperties"),
        ("definitions", "Definitions"),
    ] {
        out[go] = map(&schema[name]);
    }
    out["Items"] = match &schema["items"] {
        Value::Array(items) => {
            let items: Value = items.iter().map(shown_schema).collect();
            json!({"Schema": null, "JSONSchemas": items})
        }
        Value::Object(_) => json!({"Schema": shown_schema(&schema["items"]), "JSONSchemas": null}),
        _ => Value::Null,
    };
    if schema["not"].is_object() {
        out["Not"] = shown_schema(&schema["not"]);
    }
    out["AdditionalProperties"] = or_bool(&schema["additionalProperties"]);
    out["AdditionalItems"] = or_bool(&schema["additionalItems"]);
    out
}

#[cfg(test)]
mod tests;
