//! Documents of aggregated servers.

use std::{collections::HashMap, sync::Arc};

use machinery::{Object, Value};

/// The parts of a document that are referred to by name.
const NAMED: [&str; 2] = ["definitions", "parameters"];

/// The document of an aggregated server for its group and version.
#[derive(Clone)]
pub struct Remote {
    /// `apis/GROUP/VERSION`. It replaces this server's own document there.
    pub place: String,
    /// The URL of its OpenAPI v3 document, if it has one.
    pub url: Option<String>,
    /// Changes with the OpenAPI v2 document.
    pub hash: String,
    /// Its part of the OpenAPI v2 document: `info`, `paths`, `definitions` and `parameters`; `None`
    /// if it has none.
    pub document: Option<Arc<Value>>,
}

/// Merges documents of aggregated servers. Conflicting names get a suffix.
pub(super) fn merge(whole: &mut Value, remotes: &[Remote]) {
    for remote in remotes {
        let prefix = format!("/{}/", remote.place);
        if let Some(paths) = whole["paths"].as_object_mut() {
            paths.retain(|path, _| !path.as_str().starts_with(&prefix));
        }
        if let Some(document) = &remote.document {
            merge_one(whole, document);
        }
    }
}

/// References to parts by their former names, with the new ones.
type Renamed = HashMap<String, String>;

fn merge_one(whole: &mut Value, document: &Value) {
    let mut renamed = Renamed::new();
    for part in NAMED {
        for (name, item) in document[part].as_object().into_iter().flatten() {
            let free = free_name(&whole[part], name.as_str(), item);
            if free != name.as_str() {
                let reference = |name: &str| format!("#/{part}/{name}");
                renamed.insert(reference(name.as_str()), reference(&free));
            }
        }
    }
    for part in ["definitions", "parameters", "paths"] {
        if !whole[part].is_object() {
            whole[part] = Value::Object(Object::new());
        }
        for (name, item) in document[part].as_object().into_iter().flatten() {
            let own = format!("#/{part}/{}", name.as_str());
            let new = renamed.get(&own);
            let new = new.and_then(|new| new.strip_prefix(&*format!("#/{part}/")));
            let name = new.unwrap_or(name.as_str()).to_owned();
            let mut item = item.clone();
            rename(&mut item, &renamed);
            if let Some(known) = whole[part]
                .as_object_mut()
                .filter(|it| !it.contains_key(&name))
            {
                known.insert(name, item);
            }
        }
    }
}

/// A name without a conflict.
fn free_name(known: &Value, name: &str, item: &Value) -> String {
    let is_free = |name: &str| known.get(name).is_none_or(|taken| taken == item);
    if is_free(name) {
        return name.to_owned();
    }
    let mut names = (2..).map(|number| format!("{name}_v{number}"));
    names.find(|name| is_free(name)).unwrap_or_default()
}

/// Updates references to renamed parts.
fn rename(value: &mut Value, renamed: &Renamed) {
    if renamed.is_empty() {
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renamed)),
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                let new = match (key.as_str(), field.as_str()) {
                    ("$ref", Some(old)) => renamed.get(old),
                    _ => None,
                };
                match new {
                    Some(new) => *field = new.clone().into(),
                    None => rename(field, renamed),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn definitions_of_an_aggregated_server_are_added_under_distinct_names() {
        let mut whole = json!({
            "paths": {"/apis/a.b/v1/old": {}, "/apis/apps/v1/deployments": {}},
            "definitions": {"Meta": {"type": "object"}, "Same": {"type": "string"}},
        });
        let document = json!({
            "paths": {"/apis/a.b/v1/things": {"get": {"schema": {"$ref": "#/definitions/Thing"}}},
                "/apis/apps/v1/deployments": {"stolen": true}},
            "definitions": {
                "Thing": {"properties": {"meta": {"$ref": "#/definitions/Meta"}, "same": {"$ref": "#/definitions/Same"}}},
                "Meta": {"type": "array"}, "Same": {"type": "string"}},
            "parameters": {"limit": {"name": "limit"}},
        });
        let remote = Remote {
            place: "apis/a.b/v1".to_owned(),
            url: None,
            hash: "1".to_owned(),
            document: Some(Arc::new(document)),
        };
        merge(&mut whole, &[remote]);
        let expected = json!({
            "paths": {"/apis/apps/v1/deployments": {},
                "/apis/a.b/v1/things": {"get": {"schema": {"$ref": "#/definitions/Thing"}}}},
            "definitions": {"Meta": {"type": "object"}, "Same": {"type": "string"},
                "Thing": {"properties": {"meta": {"$ref": "#/definitions/Meta_v2"}, "same": {"$ref": "#/definitions/Same"}}},
                "Meta_v2": {"type": "array"}},
            "parameters": {"limit": {"name": "limit"}},
        });
        assert_eq!(whole, expected);
    }

    /// In quadratic time this would not end before the runner ends it.
    #[test]
    fn servers_with_many_conflicting_names_are_merged_in_linear_time() {
        let remote = |server: usize| {
            let named = |n: usize| {
                (
                    format!("D{n}"),
                    json!({"title": server, "$ref": format!("#/definitions/D{n}")}),
                )
            };
            let definitions: Object = (0..100_000).map(named).collect();
            Remote {
                place: format!("apis/a{server}.b/v1"),
                url: None,
                hash: server.to_string(),
                document: Some(Arc::new(json!({"definitions": definitions}))),
            }
        };
        let mut whole = json!({"paths": {}});
        merge(&mut whole, &[remote(1), remote(2)]);
        assert_eq!(whole["definitions"]["D7"]["$ref"], "#/definitions/D7");
        assert_eq!(whole["definitions"]["D7_v2"]["$ref"], "#/definitions/D7_v2");
    }
}
