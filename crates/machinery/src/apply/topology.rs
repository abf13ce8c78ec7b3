//! Merge topology for apply: which maps and lists are granular, and which are atomic.

use crate::Value;
use crate::json::write;
use crate::schema::{Presence, Shape, Topology, Type};
use std::borrow::Cow;

/// The source of an object's topology.
#[derive(Debug, Clone, Copy)]
pub enum Root<'a> {
    /// The schema table.
    Typed(&'static Type),
    /// The OpenAPI schema of a custom resource.
    Custom(&'a Value),
    /// No schema: maps are granular, lists atomic.
    Unknown,
}

/// A position in an object's topology.
#[derive(Debug, Clone, Copy)]
pub(super) enum Node<'a> {
    Struct(&'static Type),
    Field(Shape, &'static Topology),
    /// A schema, and whether it is within one that preserves unknown fields.
    Custom(&'a Value, bool),
    /// The root of a custom resource; its metadata is that of all objects.
    CustomRoot(&'a Value),
    Unknown,
    UnknownRoot,
}

/// How apply treats a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form<'a> {
    /// Atomic.
    Leaf,
    /// Granular by entry.
    Map,
    /// A list of distinct scalars.
    Set,
    /// A list of objects keyed by these fields.
    Keyed(Cow<'a, [&'a str]>),
}

/// The type of value at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Map,
    List,
    Text,
    Number,
    Truth,
    /// A string, number or boolean.
    Any,
    /// Any value.
    Anything,
}

const PLAIN: &Topology = &Topology::Default;

impl<'a> Node<'a> {
    pub(super) fn root(root: Root<'a>) -> Self {
        match root {
            Root::Typed(schema) => Node::Struct(schema),
            Root::Custom(schema) => Node::CustomRoot(schema),
            Root::Unknown => Node::UnknownRoot,
        }
    }

    pub(super) fn form(self, value: Option<&Value>) -> Form<'a> {
        match self {
            Node::Struct(schema) if schema.atomic => Form::Leaf,
            Node::Struct(_) | Node::CustomRoot(_) | Node::UnknownRoot => Form::Map,
            Node::Field(shape, topology) => form_of_field(shape, topology, value),
            Node::Custom(schema, _) => form_of_custom(schema, value),
            Node::Unknown => form_of_unknown(value),
        }
    }

    /// The type of value expected there.
    pub(super) fn expects(self) -> Scalar {
        match self {
            Node::Struct(_) | Node::CustomRoot(_) | Node::UnknownRoot => Scalar::Map,
            Node::Field(shape, _) => match shape {
                Shape::Struct(_) | Shape::Map(_) | Shape::FieldsV1 => Scalar::Map,
                Shape::List(_) => Scalar::List,
                Shape::String | Shape::Bytes => Scalar::Text,
                Shape::Bool => Scalar::Truth,
                Shape::Int32 | Shape::Int64 | Shape::Float64 => Scalar::Number,
                Shape::Quantity
                | Shape::IntOrString
                | Shape::Time
                | Shape::MicroTime
                | Shape::Duration => Scalar::Any,
                _ => Scalar::Anything,
            },
            Node::Custom(schema, _) if schema["x-kubernetes-int-or-string"] == true => Scalar::Any,
            Node::Custom(schema, _) => match schema["type"].as_str() {
                Some("object") => Scalar::Map,
                Some("array") => Scalar::List,
                Some("string") => Scalar::Text,
                Some("boolean") => Scalar::Truth,
                Some("integer" | "number") => Scalar::Number,
                _ => Scalar::Anything,
            },
            Node::Unknown => Scalar::Anything,
        }
    }

    /// Whether it is an atomic map or list.
    pub(super) fn is_whole(self) -> bool {
        matches!(self.expects(), Scalar::Map | Scalar::List) && self.form(None) == Form::Leaf
    }

    /// The field or entry of a name.
    pub(super) fn child(self, name: &str) -> Node<'a> {
        match self {
            Node::Struct(schema) => child_of(schema, name),
            Node::Field(Shape::Struct(id), _) => child_of(id.get(), name),
            Node::Field(Shape::Map(element), _) => Node::Field(*element, PLAIN),
            Node::Custom(schema, _) if name == "metadata" && is_embedded(schema) => metadata(),
            Node::Custom(schema, open) => custom_child(schema, open, name),
            Node::CustomRoot(_) | Node::UnknownRoot if name == "metadata" => metadata(),
            Node::CustomRoot(schema) => custom_child(schema, false, name),
            _ => Node::Unknown,
        }
    }

    /// Whether an entry is empty and will not be stored; until then its kind can tell it from an
    /// absent one.
    pub(super) fn passes_over(self, name: &str, value: &Value) -> bool {
        let empty = match value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let schema = match self {
            Node::Struct(schema) => schema,
            Node::Field(Shape::Struct(id), _) => id.get(),
            _ => return false,
        };
        empty && schema.field(name).is_some_and(|field| field.sent)
    }

    /// The elements of a list.
    pub(super) fn element(self) -> Node<'a> {
        match self {
            Node::Field(Shape::List(element), _) => Node::Field(*element, PLAIN),
            Node::Custom(schema, open) => {
                Node::Custom(&schema["items"], open || keeps_unknown(schema))
            }
            _ => Node::Unknown,
        }
    }

    /// Whether a name is a declared field, as opposed to a map entry.
    pub(super) fn declares(self, name: &str) -> bool {
        match self {
            Node::Struct(schema) => schema.field(name).is_some(),
            Node::Field(Shape::Struct(id), _) => id.get().field(name).is_some(),
            Node::CustomRoot(schema) => schema["properties"].get(name).is_some() || is_own(name),
            Node::Custom(schema, _) => {
                schema["properties"].get(name).is_some() || is_own(name) && is_embedded(schema)
            }
            _ => false,
        }
    }

    /// Whether a field or entry of this name is allowed.
    pub(super) fn takes(self, name: &str) -> bool {
        let is_root = matches!(self, Node::Struct(_) | Node::CustomRoot(_));
        match self {
            _ if is_root && is_own(name) => true,
            Node::Struct(_) | Node::Field(Shape::Struct(_), _) => self.declares(name),
            Node::Custom(_, true) => true,
            Node::Custom(schema, _) | Node::CustomRoot(schema) => {
                let fields = schema["properties"].as_object();
                let open = keeps_unknown(schema)
                    || match schema.get("additionalProperties") {
                        Some(more) => *more != false,
                        // A schema without properties accepts any field.
                        None => fields.is_none_or(crate::Object::is_empty) && !is_embedded(schema),
                    }
                    || schema["type"].as_str() != Some("object");
                let embedded = is_own(name) && is_embedded(schema);
                open || embedded || schema["properties"].get(name).is_some()
            }
            _ => true,
        }
    }

    /// The default of a key field that an element omits.
    pub(super) fn default_of(self, key: &str) -> Option<Value> {
        match self.element() {
            Node::Field(Shape::Struct(id), _) => {
                let field = id.get().field(key)?;
                match field.default {
                    Some(default) => crate::json::from_str(default).ok(),
                    // A field that is always serialized has its zero value.
                    None if field.presence == Presence::Always => field.zero().cloned(),
                    None => None,
                }
            }
            Node::Custom(schema, _) => schema["properties"][key].get("default").cloned(),
            _ => None,
        }
    }
}

fn child_of<'a>(schema: &'static Type, name: &str) -> Node<'a> {
    match schema.field(name) {
        Some(field) => Node::Field(field.shape, &field.topology),
        None => Node::Unknown,
    }
}

fn metadata<'a>() -> Node<'a> {
    match crate::schema::lookup("meta/v1.ObjectMeta") {
        Some(schema) => Node::Struct(schema),
        None => Node::Unknown,
    }
}

fn form_of_field<'a>(shape: Shape, topology: &'static Topology, value: Option<&Value>) -> Form<'a> {
    match (shape, topology) {
        (_, Topology::Atomic) => Form::Leaf,
        // The field is granular although its type may be atomic.
        (Shape::Struct(_), Topology::Granular) => Form::Map,
        (Shape::Struct(id), _) if id.get().atomic => Form::Leaf,
        (Shape::Struct(_) | Shape::Map(_), _) => Form::Map,
        (Shape::List(_), Topology::Set) => Form::Set,
        (Shape::List(_), Topology::Keyed(keys)) => Form::Keyed(Cow::Borrowed(keys)),
        (Shape::Any, _) => form_of_unknown(value),
        _ => Form::Leaf,
    }
}

fn form_of_unknown<'a>(value: Option<&Value>) -> Form<'a> {
    match value {
        // Null may be an empty map or anything else.
        Some(Value::Object(_) | Value::Null) => Form::Map,
        _ => Form::Leaf,
    }
}

fn form_of_custom<'a>(schema: &'a Value, value: Option<&Value>) -> Form<'a> {
    if schema["x-kubernetes-preserve-unknown-fields"] == true
        && schema["properties"].is_null()
        && schema["type"].is_null()
    {
        return form_of_unknown(value);
    }
    match schema["type"].as_str() {
        Some("object") if schema["x-kubernetes-map-type"] == "atomic" => Form::Leaf,
        Some("object") => Form::Map,
        Some("array") => match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Form::Set,
            Some("map") => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array();
                Form::Keyed(
                    keys.into_iter()
                        .flatten()
                        .filter_map(Value::as_str)
                        .collect(),
                )
            }
            _ => Form::Leaf,
        },
        Some(_) => Form::Leaf,
        None => form_of_unknown(value),
    }
}

/// Whether it is a field of every object.
fn is_own(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Whether an object within a custom resource is an embedded resource.
fn is_embedded(schema: &Value) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}

fn custom_child<'a>(schema: &'a Value, open: bool, name: &str) -> Node<'a> {
    let open = open || keeps_unknown(schema);
    if let Some(property) = schema["properties"].get(name) {
        return Node::Custom(property, open);
    }
    match schema.get("additionalProperties") {
        Some(element @ Value::Object(_)) => Node::Custom(element, open),
        _ => Node::Unknown,
    }
}

/// Whether an object preserves unknown fields.
fn keeps_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

/// The step to an element of a keyed list: its keys, with their defaults. `None` if it has none of
/// them.
pub(super) fn key_step(node: Node<'_>, keys: &[&str], element: &Value) -> Option<String> {
    let mut sorted = Cow::Borrowed(keys);
    if !keys.is_sorted() {
        sorted.to_mut().sort_unstable();
    }
    let mut step = Vec::with_capacity(48);
    step.extend_from_slice(b"k:{");
    for key in sorted.iter() {
        let default;
        let value = match element.get(*key) {
            // An explicit null is not replaced by the default.
            Some(value) => value,
            None => {
                default = node.default_of(key);
                match &default {
                    Some(value) => value,
                    None => continue,
                }
            }
        };
        if step.len() > 3 {
            step.push(b',');
        }
        write::text(&mut step, key);
        step.push(b':');
        write::value(&mut step, value);
    }
    if step.len() == 3 {
        return None;
    }
    step.push(b'}');
    String::from_utf8(step).ok()
}
