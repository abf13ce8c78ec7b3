//! The documents themselves: which paths there are, which parameters they take, and of which kinds
//! they are.

use std::sync::Arc;

use machinery::openapi::{self, Dialect};
use serde_json::{Map, Value, json};

use super::{
    custom,
    descriptions::{All, describe},
    place,
};
use crate::{Resource, registry::Table};

pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// Whose words describe the fields that all objects have.
const ANY_KIND: &str = "io.k8s.api.core.v1.Pod";

pub(super) fn group_versions(table: &Table) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for resource in table.all() {
        let pair = (resource.group.clone(), resource.version.clone());
        if !all.contains(&pair) {
            all.push(pair);
        }
    }
    all
}

/// The document of one group version.
pub(super) fn v3(members: &[Arc<Resource>], group: &str, version: &str, all: &All<'_>) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": crate::health::VERSION.2},
        "paths": paths(Dialect::V3, members, group, version),
        "components": {"schemas": definitions(Dialect::V3, members, all)},
    })
}

/// Everything in one document of the older form.
pub(super) fn v2(table: &Table, all: &All<'_>) -> Value {
    let mut paths_of_all = Map::new();
    for (group, version) in group_versions(table) {
        let members = super::members(table, &group, &version);
        paths_of_all.extend(paths(Dialect::V2, &members, &group, &version));
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": crate::health::VERSION.2},
        "paths": paths_of_all,
        "definitions": definitions(Dialect::V2, table.all(), all),
    })
}

fn paths(
    dialect: Dialect,
    members: &[Arc<Resource>],
    group: &str,
    version: &str,
) -> Map<String, Value> {
    let mut paths = Map::new();
    for resource in members {
        let collection = match resource.namespaced() {
            true => format!(
                "/{}/namespaces/{{namespace}}/{}",
                place(group, version),
                resource.plural
            ),
            false => format!("/{}/{}", place(group, version), resource.plural),
        };
        let operations = [
            ("get", "list"),
            ("post", "create"),
            ("delete", "deletecollection"),
        ];
        insert(dialect, &mut paths, &collection, resource, &operations);
        let one = format!("{collection}/{{name}}");
        let operations = [
            ("get", "get"),
            ("put", "update"),
            ("patch", "patch"),
            ("delete", "delete"),
        ];
        insert(dialect, &mut paths, &one, resource, &operations);
    }
    paths
}

/// The definitions of kinds and of what they are made of.
fn definitions(dialect: Dialect, members: &[Arc<Resource>], all: &All<'_>) -> Map<String, Value> {
    let mut definitions = Map::new();
    let types = members.iter().filter_map(|resource| resource.schema);
    definitions.extend(openapi::definitions(dialect, types));
    if !definitions.contains_key(OBJECT_META)
        && let Some(meta) = machinery::schema::lookup("meta/v1.ObjectMeta")
    {
        definitions.extend(openapi::definitions(dialect, [meta]));
    }
    describe(&mut definitions, all);
    let about = |field: &str| {
        let text = all.get(ANY_KIND).and_then(|fields| fields.get(field));
        text.map_or(Value::Null, |text| (*text).into())
    };
    for resource in members {
        let name = match (resource.schema, &resource.definition) {
            (Some(schema), _) => openapi::name(schema),
            (None, Some(definition)) => {
                let name = custom::name(resource);
                let schema = custom::definition(dialect, definition.open_api(), &about);
                definitions.insert(name.clone(), schema);
                name
            }
            (None, None) => continue,
        };
        let kind = &resource.kind.names().kind;
        if let Some(schema) = definitions.get_mut(&name) {
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": resource.group, "kind": kind, "version": resource.version}]);
        }
    }
    definitions
}

fn insert(
    dialect: Dialect,
    paths: &mut Map<String, Value>,
    path: &str,
    resource: &Resource,
    operations: &[(&str, &str)],
) {
    let verbs = resource.kind.verbs();
    let mut item = Map::new();
    for (method, verb) in operations.iter().filter(|(_, verb)| verbs.contains(verb)) {
        item.insert((*method).to_owned(), operation(dialect, resource, verb));
    }
    if !item.is_empty() {
        let named = ["name", "namespace"]
            .iter()
            .filter(|name| path.contains(&format!("{{{name}}}")));
        let named: Vec<Value> = named.map(|name| parameter(dialect, name)).collect();
        if !named.is_empty() {
            item.insert("parameters".to_owned(), named.into());
        }
        paths.insert(path.to_owned(), Value::Object(item));
    }
}

fn operation(dialect: Dialect, resource: &Resource, verb: &str) -> Value {
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
    let parameters: Vec<Value> = names.iter().map(|name| parameter(dialect, name)).collect();
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

fn parameter(dialect: Dialect, name: &str) -> Value {
    let kind = match name {
        "allowWatchBookmarks" | "sendInitialEvents" | "watch" | "force" | "orphanDependents" => {
            "boolean"
        }
        "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    let in_path = matches!(name, "name" | "namespace");
    let mut parameter = match dialect {
        Dialect::V2 => json!({"name": name, "type": kind, "uniqueItems": true}),
        Dialect::V3 => json!({"name": name, "schema": {"type": kind, "uniqueItems": true}}),
    };
    parameter["in"] = if in_path { "path" } else { "query" }.into();
    if in_path {
        parameter["required"] = true.into();
    }
    parameter
}
