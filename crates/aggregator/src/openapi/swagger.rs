//! The part of an aggregated server's OpenAPI v2 document for one group and version: its paths, and
//! the definitions and parameters that they reference.

use std::{collections::BTreeSet, sync::Arc};

use kinds::tree;
use machinery::{Object, Value};
use sha2::{Digest, Sha256};

/// The parts of a document that are referred to by name.
const NAMED: [&str; 2] = ["definitions", "parameters"];

/// Maximum bytes of the part for one group and version: all parts are merged into one document.
const LARGEST_PART: usize = 8 << 20;

/// The part for one group and version.
#[derive(Debug, Clone, PartialEq)]
pub struct Swagger {
    /// `info`, `paths`, `definitions` and `parameters`.
    pub document: Arc<Value>,
    /// Changes with the document.
    pub hash: String,
}

/// Extracts the paths below a prefix, with what they reference.
pub(super) fn read(body: &[u8], prefix: &str) -> Result<Swagger, String> {
    let whole: Object =
        machinery::json::from_slice(body).map_err(|error| format!("/openapi/v2: {error}"))?;
    let mut paths = Object::new();
    for (path, item) in tree::entries(tree::get(&whole, "paths")) {
        if path.as_str().starts_with(prefix) {
            paths.insert(path.clone(), item.clone());
        }
    }
    let paths = Value::Object(paths);
    let mut document = Object::new();
    let wanted = references(&whole, &paths);
    for part in NAMED {
        let mut kept = Object::new();
        for (name, item) in tree::entries(tree::get(&whole, part)) {
            if wanted.contains(&(part.to_owned(), name.as_str().to_owned())) {
                kept.insert(name.clone(), item.clone());
            }
        }
        document.insert(part, Value::Object(kept));
    }
    document.insert("paths", paths);
    document.insert("info", tree::get(&whole, "info").clone());
    let document = Value::Object(document);
    let text = document.to_string();
    if text.len() > LARGEST_PART {
        return Err(format!(
            "/openapi/v2: the part of {prefix} is larger than {LARGEST_PART} bytes"
        ));
    }
    let digest = Sha256::digest(text.as_bytes());
    let hash = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    let document = Arc::new(document);
    Ok(Swagger { document, hash })
}

/// The referenced parts and names, transitively.
fn references(whole: &Object, paths: &Value) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![paths];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(fields) => {
                let named = fields.get("$ref").and_then(Value::as_str).and_then(parse);
                if let Some((part, name)) = named
                    && found.insert((part.to_owned(), name.to_owned()))
                {
                    waiting.push(&tree::get(whole, part)[name]);
                }
                waiting.extend(fields.iter().map(|(_, value)| value));
            }
            _ => {}
        }
    }
    found
}

/// The part and name of a reference.
fn parse(reference: &str) -> Option<(&str, &str)> {
    let (part, name) = reference.strip_prefix("#/")?.split_once('/')?;
    NAMED.contains(&part).then_some((part, name))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn only_definitions_used_by_the_paths_of_a_version_are_kept() {
        let whole = json!({"swagger": "2.0",
            "paths": {
                "/apis/a.b/v1/things": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Thing"}}},
                    "parameters": [{"$ref": "#/parameters/limit"}]}},
                "/apis/a.b/v10/others": {"get": {"schema": {"$ref": "#/definitions/Other"}}},
                "/apis/apps/v1/deployments": {}},
            "definitions": {
                "Thing": {"properties": {"self": {"$ref": "#/definitions/Thing"}, "meta": {"$ref": "#/definitions/Meta"}}},
                "Meta": {"type": "object"}, "Other": {"type": "object"}},
            "parameters": {"limit": {"name": "limit"}, "unused": {}}});
        let kept = read(whole.to_string().as_bytes(), "/apis/a.b/v1/").unwrap();
        let names = |part: &str| {
            let entries = tree::entries(&kept.document[part]);
            entries
                .map(|(name, _)| name.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("paths"), ["/apis/a.b/v1/things"]);
        assert_eq!(names("definitions"), ["Thing", "Meta"]);
        assert_eq!(names("parameters"), ["limit"]);
        assert!(read(b"[]", "/apis/a.b/v1/").is_err());
    }

    #[test]
    fn a_huge_part_is_refused() {
        let whole = json!({"paths": {"/apis/a.b/v1/things": {"x": "y".repeat(LARGEST_PART)}}});
        let whole = whole.to_string();
        assert!(read(whole.as_bytes(), "/apis/a.b/v1/").is_err());
        assert!(read(whole.as_bytes(), "/apis/a.b/v2/").is_ok());
    }
}
