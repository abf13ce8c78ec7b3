//! `/openapi/v3`: which paths there are, which parameters they take, and of which kinds they are.

use std::sync::Arc;

use http::{HeaderMap, Response, StatusCode, header};
use machinery::openapi::{self, Dialect};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    Body, Resource,
    registry::{Table, api_version},
    respond,
};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The document at a path below `/openapi`; `None` when nothing is served there.
pub(crate) fn serve(table: &Table, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    if path == "/openapi/v2" {
        return Some(respond::json(&swagger(table)));
    }
    match path.strip_prefix("/openapi/v3")?.trim_matches('/') {
        "" => Some(respond::json(&index(table))),
        place => group_version(table, place, headers),
    }
}

/// Every group version with the place of its document.
fn index(table: &Table) -> Value {
    let mut paths = Map::new();
    for (group, version) in group_versions(table) {
        let place = place(&group, &version);
        let hash = hash(&document(table, &group, &version).to_string());
        let url = format!("/openapi/v3/{place}?hash={hash}");
        paths.insert(place, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

fn group_versions(table: &Table) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for resource in table.all() {
        let pair = (resource.group.clone(), resource.version.clone());
        if !all.contains(&pair) {
            all.push(pair);
        }
    }
    all
}

fn place(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", api_version(group, version))
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

fn group_version(table: &Table, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
    let found = group_versions(table)
        .into_iter()
        .find(|(g, v)| place(g, v) == path);
    let (group, version) = found?;
    let body = document(table, &group, &version).to_string();
    let etag = format!("\"{}\"", hash(&body));
    let known = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    let mut response = if known == Some(etag.as_str()) {
        respond::bytes(StatusCode::NOT_MODIFIED, respond::JSON, "")
    } else {
        respond::bytes(StatusCode::OK, respond::JSON, body)
    };
    // Hex digits between quotes are a valid header value.
    if let Ok(etag) = etag.parse() {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Some(response)
}

fn document(table: &Table, group: &str, version: &str) -> Value {
    let mut paths = Map::new();
    let of = |resource: &&Arc<Resource>| resource.group == group && resource.version == version;
    for resource in table.all().iter().filter(of) {
        let collection = match resource.namespaced() {
            true => format!(
                "/{}/namespaces/{{namespace}}/{}",
                place(group, version),
                resource.plural
            ),
            false => format!("/{}/{}", place(group, version), resource.plural),
        };
        let verbs = resource.kind.verbs();
        let operations = [
            ("get", "list"),
            ("post", "create"),
            ("delete", "deletecollection"),
        ];
        insert(&mut paths, &collection, resource, verbs, &operations);
        let one = format!("{collection}/{{name}}");
        let operations = [
            ("get", "get"),
            ("put", "update"),
            ("patch", "patch"),
            ("delete", "delete"),
        ];
        insert(&mut paths, &one, resource, verbs, &operations);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": crate::health::VERSION.2},
        "paths": paths,
        "components": {"schemas": schemas(table, group, version)},
    })
}

/// Everything in one document of the older form.
fn swagger(table: &Table) -> Value {
    let types = table.all().iter().filter_map(|resource| resource.schema);
    let mut definitions: Map<String, Value> = Map::new();
    definitions.extend(openapi::definitions(Dialect::V2, types));
    let mut paths = Map::new();
    for (group, version) in group_versions(table) {
        if let Value::Object(document) = &mut document(table, &group, &version)
            && let Some(Value::Object(of_version)) = document.remove("paths")
        {
            paths.extend(of_version);
        }
    }
    for resource in table.all() {
        let Some(schema) = resource.schema else {
            continue;
        };
        let kind = &resource.kind.names().kind;
        if let Some(definition) = definitions.get_mut(&openapi::name(schema)) {
            definition["x-kubernetes-group-version-kind"] =
                json!([{"group": resource.group, "kind": kind, "version": resource.version}]);
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": crate::health::VERSION.2},
        "paths": paths,
        "definitions": definitions,
    })
}

/// The definitions of a group version's kinds and of what they are made of.
fn schemas(table: &Table, group: &str, version: &str) -> Map<String, Value> {
    let mut all = Map::new();
    let members =
        |resource: &&Arc<Resource>| resource.group == group && resource.version == version;
    let members: Vec<&Arc<Resource>> = table.all().iter().filter(members).collect();
    let types = members.iter().filter_map(|resource| resource.schema);
    all.extend(openapi::definitions(Dialect::V3, types));
    for resource in members {
        let name = match (resource.schema, &resource.definition) {
            (Some(schema), _) => openapi::name(schema),
            (None, Some(definition)) => {
                let name = custom_name(resource);
                all.insert(name.clone(), custom_schema(definition.open_api()));
                name
            }
            (None, None) => continue,
        };
        let kind = &resource.kind.names().kind;
        if let Some(schema) = all.get_mut(&name) {
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": group, "kind": kind, "version": version}]);
        }
    }
    if all.keys().all(|name| name != OBJECT_META)
        && let Some(meta) = machinery::schema::lookup("meta/v1.ObjectMeta")
    {
        all.extend(openapi::definitions(Dialect::V3, [meta]));
    }
    all
}

/// `com.example.v1.Widget`.
fn custom_name(resource: &Resource) -> String {
    let mut parts: Vec<&str> = resource.group.split('.').rev().collect();
    let kind = &resource.kind.names().kind;
    parts.extend([resource.version.as_str(), kind.as_str()]);
    parts.join(".")
}

/// A custom resource's schema with the fields that all objects have.
fn custom_schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    let reference = json!({"allOf": [{"$ref": format!("#/components/schemas/{OBJECT_META}")}]});
    schema["properties"]["apiVersion"] = json!({"type": "string"});
    schema["properties"]["kind"] = json!({"type": "string"});
    schema["properties"]["metadata"] = reference;
    schema
}

fn insert(
    paths: &mut Map<String, Value>,
    path: &str,
    resource: &Resource,
    verbs: &[&str],
    operations: &[(&str, &str)],
) {
    let mut item = Map::new();
    for (method, verb) in operations.iter().filter(|(_, verb)| verbs.contains(verb)) {
        item.insert((*method).to_owned(), operation(resource, verb));
    }
    if !item.is_empty() {
        paths.insert(path.to_owned(), Value::Object(item));
    }
}

fn operation(resource: &Resource, verb: &str) -> Value {
    let names: &[&str] = match verb {
        "create" | "update" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &[
            "dryRun",
            "gracePeriodSeconds",
            "orphanDependents",
            "propagationPolicy",
        ],
        "list" | "deletecollection" => &[
            "allowWatchBookmarks",
            "continue",
            "fieldSelector",
            "labelSelector",
            "limit",
            "resourceVersion",
            "resourceVersionMatch",
            "sendInitialEvents",
            "timeoutSeconds",
            "watch",
        ],
        _ => &[],
    };
    let parameters: Vec<Value> = names.iter().map(|name| parameter(name)).collect();
    let action = match verb {
        "create" => "post",
        "update" => "put",
        other => other,
    };
    json!({
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind.names().kind,
        },
    })
}

fn parameter(name: &str) -> Value {
    let kind = match name {
        "allowWatchBookmarks" | "sendInitialEvents" | "watch" | "force" | "orphanDependents" => {
            "boolean"
        }
        "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}
