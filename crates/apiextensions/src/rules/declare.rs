//! CEL declarations of a structural schema: types, field names, and maximum sizes in a request.

use std::{collections::HashMap, sync::Arc};

use cel::{Decl, DeclKind, Field, ListSemantics, escape};
use machinery::Value;

/// Maximum bytes of a request. Part of the API: it decides which rules are too expensive.
const LARGEST_REQUEST: u64 = 3 * 1024 * 1024;

/// A declared schema.
#[derive(Debug, Clone)]
pub(super) struct Declared {
    pub(super) decl: Arc<Decl>,
    /// The minimum bytes of JSON of a value.
    smallest: u64,
}

impl Declared {
    /// The maximum number of such values in one request.
    pub(super) fn most_in_request(&self) -> u64 {
        LARGEST_REQUEST / (self.smallest + 1)
    }
}

/// The declaration of a schema; `None` if rules cannot access it. `root` marks the root of a custom
/// or embedded resource, whose apiVersion, kind and name are always declared.
pub(super) fn declare(schema: &Value, root: bool, name: &str) -> Option<Declared> {
    if schema["x-kubernetes-int-or-string"] == true {
        let longest = bounded_length(schema).unwrap_or(LARGEST_REQUEST - 2);
        return Some(scalar(DeclKind::Dyn, longest, 1));
    }
    match schema["type"].as_str()? {
        "array" => list(schema, name),
        "object" => object(schema, root, name),
        "string" => Some(string(schema)),
        "boolean" => Some(scalar(DeclKind::Bool, u64::MAX, 4)),
        "number" => Some(scalar(DeclKind::Double, u64::MAX, 1)),
        "integer" => Some(scalar(DeclKind::Int, u64::MAX, 1)),
        _ => None,
    }
}

/// The declaration of a version of a custom resource, with the common metadata.
pub fn declare_resource(schema: &Value, name: &str, metadata: Arc<Decl>) -> Option<Decl> {
    let declared = declare(schema, true, name)?;
    let mut decl = (*declared.decl).clone();
    if let DeclKind::Object { fields, .. } = &mut decl.kind {
        let json: Arc<str> = "metadata".into();
        fields.insert(
            json.clone(),
            Field {
                json,
                decl: metadata,
            },
        );
    }
    Some(decl)
}

fn scalar(kind: DeclKind, max_elements: u64, smallest: u64) -> Declared {
    Declared {
        decl: Arc::new(Decl::new(kind, max_elements)),
        smallest,
    }
}

fn limit(schema: &Value, key: &str) -> Option<u64> {
    let limit = schema[key].as_i64()?;
    Some(u64::try_from(limit).unwrap_or(0))
}

/// Lengths are given in characters, of up to four bytes each.
fn bounded_length(schema: &Value) -> Option<u64> {
    limit(schema, "maxLength").map(|length| length.saturating_mul(4))
}

fn string(schema: &Value) -> Declared {
    match schema["format"].as_str() {
        Some("byte") => {
            let longest = limit(schema, "maxLength").unwrap_or(LARGEST_REQUEST - 2);
            scalar(DeclKind::Bytes, longest, 2)
        }
        Some("duration") => scalar(DeclKind::Duration, 32, 3),
        Some("date") => scalar(DeclKind::Timestamp, 12, 12),
        Some("date-time") => scalar(DeclKind::Timestamp, 32, 21),
        _ => {
            let values = schema["enum"]
                .as_array()
                .filter(|values| !values.is_empty());
            let longest_value = || {
                let lengths = values?.iter().filter_map(Value::as_str).map(str::len);
                Some(lengths.max().unwrap_or(0) as u64)
            };
            let longest = bounded_length(schema)
                .or_else(longest_value)
                .unwrap_or(LARGEST_REQUEST - 2);
            scalar(DeclKind::String, longest, 2)
        }
    }
}

fn list(schema: &Value, name: &str) -> Option<Declared> {
    let items = schema.get("items").filter(|items| items.is_object())?;
    let element = declare(items, is_embedded(items), &format!("{name}.@idx"))?;
    let most =
        limit(schema, "maxItems").unwrap_or_else(|| (LARGEST_REQUEST - 2) / (element.smallest + 1));
    let keys = || {
        let keys = schema["x-kubernetes-list-map-keys"].as_array();
        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
        keys.map(|key| escape(key).unwrap_or_default().into())
            .collect()
    };
    let semantics = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListSemantics::Set,
        Some("map") => ListSemantics::Map(keys()),
        _ => ListSemantics::Atomic,
    };
    let element = element.decl;
    Some(scalar(DeclKind::List { element, semantics }, most, 2))
}

pub(super) fn is_embedded(schema: &Value) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}

fn object(schema: &Value, root: bool, name: &str) -> Option<Declared> {
    let others = &schema["additionalProperties"];
    if others.is_object() && !root {
        let value = declare(others, is_embedded(others), &format!("{name}.@elem"))?;
        let most = limit(schema, "maxProperties")
            .unwrap_or_else(|| (LARGEST_REQUEST - 2) / (value.smallest + 6));
        return Some(scalar(DeclKind::map(value.decl), most, 2));
    }
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut fields = HashMap::new();
    // Even an empty object is `{}`.
    let mut smallest = 2;
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if root && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        let below = format!("{name}.{}", key.as_str());
        let Some(declared) = declare(property, is_embedded(property), &below) else {
            continue;
        };
        if required.contains(&key.as_str()) && property["default"].is_null() {
            smallest += key.len() as u64 + declared.smallest + 4;
        }
        if let Some(escaped) = escape(key) {
            let json = key.as_str().into();
            let decl = declared.decl;
            fields.insert(escaped.into(), Field { json, decl });
        }
    }
    if root {
        fields.extend(type_and_metadata(schema, name));
    }
    let kind = DeclKind::Object {
        name: name.into(),
        fields,
    };
    Some(scalar(kind, u64::MAX, smallest))
}

/// The fields of every resource, whatever its schema says.
fn type_and_metadata(schema: &Value, name: &str) -> HashMap<Arc<str>, Field> {
    let text = |schema: &Value| match schema["type"].as_str() {
        Some("string") => string(schema).decl,
        _ => Arc::new(Decl::new(DeclKind::String, LARGEST_REQUEST - 2)),
    };
    let field = |json: &str, decl: Arc<Decl>| {
        let json: Arc<str> = json.into();
        (json.clone(), Field { json, decl })
    };
    let metadata = &schema["properties"]["metadata"]["properties"];
    let inner = ["name", "generateName"].map(|key| field(key, text(&metadata[key])));
    let metadata = DeclKind::Object {
        name: format!("{name}.metadata").into(),
        fields: inner.into(),
    };
    let metadata = Arc::new(Decl::new(metadata, u64::MAX));
    HashMap::from([
        field("apiVersion", text(&schema["properties"]["apiVersion"])),
        field("kind", text(&schema["properties"]["kind"])),
        field("metadata", metadata),
    ])
}
