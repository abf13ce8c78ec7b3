//! Custom resources in OpenAPI documents: their own schemas with the fields that all objects have.

use machinery::openapi::Dialect;
use serde_json::{Map, Value, json};

use super::document::OBJECT_META;
use crate::Resource;

/// `com.example.v1.Widget`.
pub(super) fn name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    let kind = &resource.kind.names().kind;
    parts.extend([resource.version.as_str(), kind.as_str()]);
    parts.join(".")
}

/// A custom resource's definition. `about` describes the fields that all objects have.
pub(super) fn definition(dialect: Dialect, schema: &Value, about: &dyn Fn(&str) -> Value) -> Value {
    let mut schema = match dialect {
        Dialect::V3 => schema.clone(),
        Dialect::V2 => older(schema),
    };
    let Some(object) = schema.as_object_mut() else {
        return schema;
    };
    object.entry("type").or_insert_with(|| "object".into());
    let properties = object.entry("properties").or_insert_with(|| json!({}));
    let text = |field: &str| match about(field) {
        Value::Null => json!({"type": "string"}),
        about => json!({"type": "string", "description": about}),
    };
    properties["apiVersion"] = text("apiVersion");
    properties["kind"] = text("kind");
    let mut metadata = match dialect {
        Dialect::V3 => json!({"allOf": [{"$ref": format!("#/components/schemas/{OBJECT_META}")}]}),
        Dialect::V2 => json!({"$ref": format!("#/definitions/{OBJECT_META}")}),
    };
    if let about @ Value::String(_) = about("metadata") {
        metadata["description"] = about;
    }
    properties["metadata"] = metadata;
    schema
}

/// A schema without what the older form cannot say. Clients of that form would refuse objects for
/// what they do not understand, so that less is said instead.
fn older(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else {
        return schema.clone();
    };
    let flag = |key: &str| object.get(key) == Some(&Value::Bool(true));
    let open = flag("x-kubernetes-preserve-unknown-fields") || flag("nullable");
    let mut out = Map::new();
    for (key, value) in object {
        let value = match key.as_str() {
            "oneOf" | "anyOf" | "allOf" | "not" | "nullable" | "example" | "externalDocs" => {
                continue;
            }
            "type" | "items" | "properties" | "additionalProperties" | "required" if open => {
                continue;
            }
            "type" if flag("x-kubernetes-int-or-string") => continue,
            "items" | "additionalProperties" => older(value),
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                Value::Object(properties.map(|(k, v)| (k.clone(), older(v))).collect())
            }
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_form_says_less() {
        let schema = json!({"type": "object", "properties": {
            "size": {"x-kubernetes-int-or-string": true, "type": "string", "anyOf": []},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {}},
            "list": {"type": "array", "items": {"type": "string", "nullable": true}}}});
        let expected = json!({"type": "object", "properties": {
            "size": {"x-kubernetes-int-or-string": true},
            "free": {"x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "items": {}}}});
        assert_eq!(older(&schema), expected);
        let whole = definition(Dialect::V2, &schema, &|_| Value::Null);
        assert_eq!(
            whole["properties"]["metadata"]["$ref"],
            format!("#/definitions/{OBJECT_META}")
        );
    }
}
