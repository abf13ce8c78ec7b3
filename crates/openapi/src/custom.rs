//! Custom resources in OpenAPI documents: their schemas with the common object fields.

use machinery::json::json;
use machinery::{Object, Value, openapi::Dialect};

use super::{
    document::{LIST_META, OBJECT_META},
    operation::reference,
};
use registry::Resource;

/// `com.example.v1.Widget`.
pub(super) fn name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    let kind = &resource.kind.names().kind;
    parts.extend([resource.version.as_str(), kind.as_str()]);
    parts.join(".")
}

/// The definition of a custom resource. `about` describes the common object fields.
pub(super) fn definition(
    dialect: Dialect,
    resource: &Resource,
    schema: &Value,
    about: &dyn Fn(&str) -> Value,
) -> Value {
    let mut out = shape(dialect, schema, about);
    let kind = resource.kind.names().kind.as_str();
    mark(&mut out, resource, kind);
    out
}

/// The definition of its lists.
pub(super) fn list(dialect: Dialect, resource: &Resource, about: &dyn Fn(&str) -> Value) -> Value {
    let kind = resource.kind.names().kind.as_str();
    let items = json!({
        "description": format!("List of {}.", resource.plural),
        "type": "array",
        "items": reference(dialect, &name(resource)),
    });
    let mut out = json!({
        "description": format!("{kind}List is a list of {kind}"),
        "type": "object",
        "required": ["items"],
        "properties": {"items": items},
    });
    out["properties"]["metadata"] = metadata(dialect, LIST_META, Value::Null);
    put_type(&mut out, about);
    mark(&mut out, resource, &format!("{kind}List"));
    out
}

fn mark(schema: &mut Value, resource: &Resource, kind: &str) {
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": resource.group, "kind": kind, "version": resource.version}]);
    let fields = resource.kind.selectable_names().into_iter();
    let fields: Vec<Value> = fields.map(|path| json!({"fieldPath": path})).collect();
    if !fields.is_empty() {
        schema["x-kubernetes-selectable-fields"] = fields.into();
    }
}

fn shape(dialect: Dialect, schema: &Value, about: &dyn Fn(&str) -> Value) -> Value {
    let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    // OpenAPI v2 clients treat objects with properties as closed.
    if dialect == Dialect::V2 && open {
        return json!({"type": "object"});
    }
    let mut out = match dialect {
        Dialect::V3 => newer(schema),
        Dialect::V2 => older(schema),
    };
    if !out.is_object() {
        out = json!({});
    }
    out["type"] = "object".into();
    embed(dialect, &mut out, about);
    put_object(dialect, &mut out, about);
    out
}

/// Adds the common object fields.
fn put_object(dialect: Dialect, schema: &mut Value, about: &dyn Fn(&str) -> Value) {
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema["properties"] = json!({});
    }
    schema["properties"]["metadata"] = metadata(dialect, OBJECT_META, about("metadata"));
    put_type(schema, about);
}

fn put_type(schema: &mut Value, about: &dyn Fn(&str) -> Value) {
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = match about(field) {
            Value::Null => json!({"type": "string"}),
            about => json!({"type": "string", "description": about}),
        };
    }
}

fn metadata(dialect: Dialect, definition: &str, about: Value) -> Value {
    let target = reference(dialect, definition);
    let mut out = match dialect {
        Dialect::V3 => json!({"allOf": [target]}),
        Dialect::V2 => target,
    };
    if about.is_string() {
        out["description"] = about;
    }
    out
}

/// Adds them to embedded resources, too.
fn embed(dialect: Dialect, schema: &mut Value, about: &dyn Fn(&str) -> Value) {
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    for key in ["items", "additionalProperties"] {
        if let Some(below) = object.get_mut(key) {
            embed(dialect, below, about);
        }
    }
    let properties = object.get_mut("properties").and_then(Value::as_object_mut);
    for (_, below) in properties.into_iter().flatten() {
        embed(dialect, below, about);
    }
    let flag = |key: &str| object.get(key) == Some(&Value::Bool(true));
    let closed = dialect == Dialect::V3 || !flag("x-kubernetes-preserve-unknown-fields");
    if !flag("x-kubernetes-embedded-resource") || !closed {
        return;
    }
    let required = object.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for field in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == field) {
                required.push(field.into());
            }
        }
    }
    put_object(dialect, schema, about);
}

/// A schema for OpenAPI v3; `x-kubernetes-int-or-string` becomes `anyOf`.
fn newer(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else {
        return schema.clone();
    };
    let mut out = Object::new();
    for (key, value) in object {
        let value = below(key, value, newer);
        out.insert(key.clone(), value);
    }
    let either = object.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    if either && !out.contains_key("anyOf") && !out.contains_key("allOf") {
        let both = json!([{"type": "integer"}, {"type": "string"}]);
        out.insert("anyOf".to_owned(), both);
    }
    Value::Object(out)
}

/// A value of a schema's keyword, transformed if it is a schema itself.
fn below(key: &str, value: &Value, change: fn(&Value) -> Value) -> Value {
    match key {
        "items" | "additionalProperties" => change(value),
        "properties" => {
            let properties = value.as_object().into_iter().flatten();
            Value::Object(properties.map(|(k, v)| (k.clone(), change(v))).collect())
        }
        _ => value.clone(),
    }
}

/// A schema without what OpenAPI v2 cannot express. Clients would reject objects for keywords they
/// do not understand, so the schema becomes more permissive.
fn older(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else {
        return schema.clone();
    };
    let flag = |key: &str| object.get(key) == Some(&Value::Bool(true));
    let (nullable, open) = (
        flag("nullable"),
        flag("x-kubernetes-preserve-unknown-fields"),
    );
    let kind = object.get("type").and_then(Value::as_str);
    let untyped = nullable || open && matches!(kind, Some("object" | "array"));
    let mut out = Object::new();
    for (key, value) in object {
        let dropped = match key.as_str() {
            "oneOf" | "anyOf" | "allOf" | "not" | "nullable" | "default" => true,
            "type" => untyped || flag("x-kubernetes-int-or-string"),
            "items" | "properties" => nullable || open,
            "required" => null_values(object),
            _ => false,
        };
        if !dropped {
            out.insert(key.clone(), below(key, value, older));
        }
    }
    demand_no_nulls(object, &mut out);
    Value::Object(out)
}

fn is_nullable(schema: Option<&Value>) -> bool {
    schema.and_then(|schema| schema.get("nullable")) == Some(&Value::Bool(true))
}

fn null_values(object: &Object) -> bool {
    is_nullable(object.get("additionalProperties"))
}

/// Nullable properties are not required.
fn demand_no_nulls(object: &Object, out: &mut Object) {
    if !out.contains_key("properties") {
        return;
    }
    let properties = object.get("properties");
    let optional = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        is_nullable(properties.and_then(|all| all.get(name)))
    };
    if let Some(required) = out.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !optional(name));
        if required.is_empty() {
            out.shift_remove("required");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(dialect: Dialect, schema: &Value) -> Value {
        let mut out = shape(dialect, schema, &|_| Value::Null);
        // The common fields are not tested here.
        if let Some(properties) = out.get_mut("properties").and_then(Value::as_object_mut) {
            for field in ["apiVersion", "kind", "metadata"] {
                properties.shift_remove(field);
            }
        }
        out
    }

    #[test]
    fn openapi_v2_omits_what_v2_cannot_express() {
        let schema = json!({"type": "object", "required": ["size", "none"], "properties": {
            "size": {"x-kubernetes-int-or-string": true, "anyOf": []},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {}},
            "none": {"type": "array", "nullable": true, "items": {"type": "string"}, "description": "d"},
            "named": {"type": "string", "default": "x", "title": "t", "pattern": "^x"},
            "map": {"type": "object", "additionalProperties": {"type": "string", "nullable": true}},
            "list": {"type": "array", "items": {"type": "string", "nullable": true}}}});
        let expected = json!({"type": "object", "required": ["size"], "properties": {
            "size": {"x-kubernetes-int-or-string": true},
            "free": {"x-kubernetes-preserve-unknown-fields": true},
            "none": {"description": "d"},
            "named": {"type": "string", "title": "t", "pattern": "^x"},
            "map": {"type": "object", "additionalProperties": {}},
            "list": {"type": "array", "items": {}}}});
        assert_eq!(published(Dialect::V2, &schema), expected);
    }

    #[test]
    fn openapi_v3_publishes_int_or_string() {
        let schema = json!({"type": "object", "properties": {
            "size": {"x-kubernetes-int-or-string": true}, "n": {"type": "string", "nullable": true}}});
        let mut expected = schema.clone();
        expected["properties"]["size"]["anyOf"] = json!([{"type": "integer"}, {"type": "string"}]);
        assert_eq!(published(Dialect::V3, &schema), expected);
    }

    #[test]
    fn whole_objects_inside_have_the_fields_of_all_objects() {
        let schema = json!({"type": "object", "properties": {
            "closed": {"type": "object", "x-kubernetes-embedded-resource": true},
            "open": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}});
        for (dialect, inner) in [(Dialect::V2, false), (Dialect::V3, true)] {
            let out = published(dialect, &schema);
            let closed = &out["properties"]["closed"];
            assert_eq!(closed["required"], json!(["kind", "apiVersion"]));
            assert!(closed["properties"]["metadata"].is_object());
            assert_eq!(out["properties"]["open"].get("properties").is_some(), inner);
        }
    }

    #[test]
    fn preserving_unknown_fields_becomes_a_plain_object_in_openapi_v2() {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": {"type": "object"}}});
        let about = |_: &str| Value::Null;
        assert_eq!(
            shape(Dialect::V2, &schema, &about),
            json!({"type": "object"})
        );
        let newer = shape(Dialect::V3, &schema, &about);
        assert!(newer["properties"]["spec"].is_object() && newer["properties"]["kind"].is_object());
        assert_eq!(newer["x-kubernetes-preserve-unknown-fields"], true);
    }
}
