//! Converts an OpenAPI v2 document to v3, for a server that has only v2.

use machinery::json::json;
use machinery::{Object, Value};

const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Fields of an operation that are equal in both versions.
const SAME: [&str; 5] = [
    "description",
    "summary",
    "tags",
    "deprecated",
    "operationId",
];
/// Fields of a parameter without a schema.
const SIMPLE: [&str; 3] = ["type", "format", "uniqueItems"];

/// A document with `info`, `paths`, `definitions` and `parameters`, converted to v3.
pub(super) fn v3(older: &Value) -> Value {
    let mut paths = Object::new();
    for (path, item) in entries(&older["paths"]) {
        paths.insert(path, path_item(item, &older["parameters"]));
    }
    let schemas = entries(&older["definitions"]).map(|(name, item)| (name, schema(item)));
    let schemas: Object = schemas.collect();
    json!({
        "openapi": "3.0.0",
        "info": older["info"],
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn entries(value: &Value) -> impl Iterator<Item = (String, &Value)> {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(name, value)| (name.as_str().to_owned(), value))
}

/// The named fields of an object.
fn take<'a>(from: &'a Value, names: &'a [&str]) -> impl Iterator<Item = (String, Value)> + 'a {
    let known = entries(from).filter(|(name, _)| names.contains(&name.as_str()));
    known.map(|(name, value)| (name, value.clone()))
}

fn extensions(from: &Value) -> impl Iterator<Item = (String, Value)> + '_ {
    let known = entries(from).filter(|(name, _)| name.starts_with("x-"));
    known.map(|(name, value)| (name, value.clone()))
}

fn path_item(older: &Value, shared: &Value) -> Value {
    let mut item: Object = extensions(older).collect();
    for (name, value) in entries(older) {
        if METHODS.contains(&name.as_str()) {
            item.insert(name, operation(value, shared));
        } else if name == "parameters" {
            let parameters = list(value).map(|one| parameter(resolve(one, shared)));
            item.insert(name, parameters.collect::<Vec<_>>().into());
        }
    }
    Value::Object(item)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Resolves a parameter reference.
fn resolve<'a>(parameter: &'a Value, shared: &'a Value) -> &'a Value {
    let reference = parameter["$ref"].as_str();
    let name = reference.and_then(|text| text.strip_prefix("#/parameters/"));
    name.map_or(parameter, |name| &shared[name])
}

fn operation(older: &Value, shared: &Value) -> Value {
    let mut operation: Object = take(older, &SAME).chain(extensions(older)).collect();
    let parameters = list(&older["parameters"]).map(|one| resolve(one, shared));
    let (bodies, others): (Vec<_>, Vec<_>) = parameters.partition(|one| one["in"] == "body");
    if let Some(body) = bodies.first() {
        let content = content(&older["consumes"], &body["schema"]);
        operation.insert("requestBody", json!({"content": content}));
    }
    if !others.is_empty() {
        let others: Vec<Value> = others.into_iter().map(parameter).collect();
        operation.insert("parameters", others.into());
    }
    let mut responses = Object::new();
    for (code, response) in entries(&older["responses"]) {
        let mut made: Object = take(response, &["description"]).collect();
        if response["schema"].is_object() {
            let content = content(&older["produces"], &response["schema"]);
            made.insert("content", content);
        }
        responses.insert(code, Value::Object(made));
    }
    operation.insert("responses", Value::Object(responses));
    Value::Object(operation)
}

/// The schema for each media type.
fn content(media: &Value, of: &Value) -> Value {
    let media = list(media).filter_map(Value::as_str);
    let content: Object = media
        .map(|media| (media.to_owned(), json!({"schema": schema(of)})))
        .collect();
    Value::Object(content)
}

fn parameter(older: &Value) -> Value {
    let fields = ["name", "description", "in", "required", "allowEmptyValue"];
    let mut parameter: Object = take(older, &fields).chain(extensions(older)).collect();
    let values = match older["schema"].is_object() {
        true => schema(&older["schema"]),
        false => Value::Object(take(older, &SIMPLE).collect()),
    };
    parameter.insert("schema", values);
    Value::Object(parameter)
}

/// A schema with references to components. Fields beside a reference take effect only around it.
fn schema(older: &Value) -> Value {
    match older {
        Value::Array(items) => items.iter().map(schema).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let mut made = Object::new();
            for (name, value) in fields {
                let target = value
                    .as_str()
                    .filter(|_| name.as_str() == "$ref")
                    .and_then(|text| text.strip_prefix("#/definitions/"));
                let Some(target) = target else {
                    made.insert(name.clone(), schema(value));
                    continue;
                };
                let reference = format!("#/components/schemas/{target}");
                if fields.len() == 1 {
                    made.insert("$ref", reference.into());
                } else {
                    made.insert("allOf", json!([{"$ref": reference}]));
                }
            }
            Value::Object(made)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_document_becomes_a_newer_one() {
        let older = json!({
            "info": {"title": "t", "version": "1"},
            "paths": {"/apis/a.b/v1/things": {
                "parameters": [{"$ref": "#/parameters/pretty"}],
                "post": {
                    "operationId": "create", "consumes": ["*/*"], "produces": ["application/json"],
                    "x-kubernetes-action": "post",
                    "parameters": [
                        {"in": "body", "name": "body", "required": true, "schema": {"$ref": "#/definitions/Thing"}},
                        {"in": "query", "name": "dryRun", "type": "string", "uniqueItems": true}],
                    "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Thing"}},
                        "401": {"description": "Unauthorized"}}}}},
            "parameters": {"pretty": {"in": "query", "name": "pretty", "type": "string"}},
            "definitions": {"Thing": {"properties": {
                "metadata": {"description": "d", "$ref": "#/definitions/Meta"},
                "all": {"items": {"$ref": "#/definitions/Meta"}},
                "$ref": {"type": "string"}}}},
        });
        let thing = json!({"schema": {"$ref": "#/components/schemas/Thing"}});
        let expected = json!({
            "openapi": "3.0.0",
            "info": {"title": "t", "version": "1"},
            "paths": {"/apis/a.b/v1/things": {
                "parameters": [{"in": "query", "name": "pretty", "schema": {"type": "string"}}],
                "post": {
                    "operationId": "create", "x-kubernetes-action": "post",
                    "requestBody": {"content": {"*/*": thing}},
                    "parameters": [{"in": "query", "name": "dryRun", "schema": {"type": "string", "uniqueItems": true}}],
                    "responses": {"200": {"description": "OK", "content": {"application/json": thing}},
                        "401": {"description": "Unauthorized"}}}}},
            "components": {"schemas": {"Thing": {"properties": {
                "metadata": {"description": "d", "allOf": [{"$ref": "#/components/schemas/Meta"}]},
                "all": {"items": {"$ref": "#/components/schemas/Meta"}},
                "$ref": {"type": "string"}}}}},
        });
        assert_eq!(v3(&older), expected);
    }
}
