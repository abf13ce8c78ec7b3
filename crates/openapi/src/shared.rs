//! Common parameters are listed once in the OpenAPI v2 document and referenced by operations.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, engine::general_purpose::URL_SAFE};
use machinery::json::json;
use machinery::{Object, Value};
use sha2::{Digest, Sha256};

const GENERIC: &str = "#/definitions/io.k8s.apimachinery";

/// Moves them out of paths.
pub(super) fn parameters(paths: &mut Object) -> Object {
    let mut shared = BTreeMap::new();
    replace(paths, |name, parameter| {
        shared.insert(name, parameter);
        true
    });
    shared.into_iter().collect()
}

/// References existing ones; the others stay inline.
pub(super) fn refer(paths: &mut Object, known: &BTreeSet<String>) {
    replace(paths, |name, _| known.contains(&name));
}

/// Replaces parameters by references if `take` accepts them.
fn replace(paths: &mut Object, mut take: impl FnMut(String, Value) -> bool) {
    for (_, item) in paths.iter_mut() {
        for (key, operation) in item.as_object_mut().into_iter().flatten() {
            let list = match key.as_str() {
                "parameters" => operation.as_array_mut(),
                _ => operation
                    .get_mut("parameters")
                    .and_then(Value::as_array_mut),
            };
            for parameter in list.into_iter().flatten().filter(|one| is_shared(one)) {
                let name = name(parameter);
                let target = json!({"$ref": format!("#/parameters/{name}")});
                if take(name, parameter.clone()) {
                    *parameter = target;
                }
            }
        }
    }
}

/// Except those that name a kind, and those that older clients expect at each operation.
fn is_shared(parameter: &Value) -> bool {
    let text = |key: &str| parameter.get(key).and_then(Value::as_str);
    match text("name") {
        Some("name" | "fieldValidation" | "dryRun") | None => false,
        Some("body") => {
            let schema = parameter
                .get("schema")
                .and_then(|schema| schema.get("$ref"));
            let schema = schema.and_then(Value::as_str);
            schema.is_some_and(|target| target.starts_with(GENERIC))
        }
        Some(_) => true,
    }
}

/// The parameter's name and a hash of everything about it.
fn name(parameter: &Value) -> String {
    let hash = Sha256::digest(parameter.to_string().as_bytes());
    let name = parameter.get("name").and_then(Value::as_str);
    format!(
        "{}-{}",
        name.unwrap_or_default(),
        URL_SAFE.encode(&hash[..6])
    )
}
