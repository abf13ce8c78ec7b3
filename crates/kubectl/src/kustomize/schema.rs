//! The merge strategy of lists: by Kubernetes' schema, or by the document in `openapi`.

use machinery::schema::{Field, Shape, Topology, Type};
use serde_json::Value;

use crate::json::{list, str_of};

/// A position in a schema.
#[derive(Debug, Clone, Copy)]
pub(super) enum Schema<'a> {
    /// An object of a built-in type.
    Type(&'static Type),
    /// A field of one, or its content.
    Field(&'static Field, Shape),
    /// A node of an OpenAPI document, and its definitions.
    Document(&'a Value, &'a Value),
}

impl<'a> Schema<'a> {
    /// The schema of an object: from the document first, which may override built-in types.
    pub(super) fn for_object(object: &Value, document: Option<&'a Value>) -> Option<Self> {
        let definitions = document.map(|document| &document["definitions"]);
        let found = definitions.and_then(|definitions| {
            let nodes = definitions.as_object()?.values();
            let mut nodes = nodes.filter(|node| describes(node, object));
            Some(Self::Document(nodes.next()?, definitions))
        });
        found.or_else(|| crate::merge::schema_of(object).map(Self::Type))
    }

    pub(super) fn field(self, name: &str) -> Option<Self> {
        match self {
            Self::Type(own) => Some(field_of(own.field(name)?)),
            Self::Field(_, Shape::Struct(id)) => Some(field_of(id.get().field(name)?)),
            Self::Field(field, Shape::Map(values)) => Some(Self::Field(field, *values)),
            Self::Field(..) => None,
            Self::Document(node, definitions) => {
                let next = node["properties"]
                    .get(name)
                    .or_else(|| node.get("additionalProperties"))?;
                Some(Self::Document(resolve(next, definitions), definitions))
            }
        }
    }

    pub(super) fn elements(self) -> Option<Self> {
        match self {
            Self::Field(field, Shape::List(inner)) => Some(Self::Field(field, *inner)),
            Self::Document(node, definitions) => Some(Self::Document(
                resolve(node.get("items")?, definitions),
                definitions,
            )),
            _ => None,
        }
    }

    /// The merge keys of a list; empty for lists of scalars. `None`: it is replaced.
    pub(super) fn merge_keys(self) -> Option<Vec<&'a str>> {
        match self {
            Self::Field(field, Shape::List(_)) if field.patch.merge => match &field.topology {
                Topology::Keyed(keys) => Some(keys.clone()),
                _ => Some(field.patch.key.into_iter().collect()),
            },
            Self::Document(node, _) => {
                let strategy = str_of(&node["x-kubernetes-patch-strategy"]);
                if !strategy.split(',').any(|part| part == "merge") {
                    return None;
                }
                let keys: Vec<&str> = list(&node["x-kubernetes-list-map-keys"])
                    .filter_map(Value::as_str)
                    .collect();
                if !keys.is_empty() {
                    return Some(keys);
                }
                let key = node["x-kubernetes-patch-merge-key"].as_str();
                Some(key.into_iter().collect())
            }
            _ => None,
        }
    }
}

fn field_of<'a>(field: &'static Field) -> Schema<'a> {
    Schema::Field(field, field.shape)
}

fn describes(node: &Value, object: &Value) -> bool {
    let version = str_of(&object["apiVersion"]);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    list(&node["x-kubernetes-group-version-kind"]).any(|gvk| {
        str_of(&gvk["group"]) == group && gvk["version"] == version && gvk["kind"] == object["kind"]
    })
}

fn resolve<'a>(node: &'a Value, definitions: &'a Value) -> &'a Value {
    match node["$ref"].as_str() {
        Some(reference) => {
            let name = reference.rsplit('/').next().unwrap_or(reference);
            definitions.get(name).unwrap_or(node)
        }
        None => node,
    }
}
