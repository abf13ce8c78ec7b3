//! Encodes JSON as protobuf.

use super::wire::{BYTES, FIXED64, put_bytes, put_integer, put_message, put_tag, put_varint};
use super::{MAGIC, is_wrapped_list};
use crate::quantity::Quantity;
use crate::schema::{self, Field, Member, Shape, Type};
use crate::{Object, Value, duration, time};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// A whole body: prefix, envelope and the object's message.
pub fn encode(schema: &'static Type, object: &Object) -> Vec<u8> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    envelope(text("apiVersion"), text("kind"), &message(schema, object))
}

/// A body around an encoded message.
pub fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = type_meta(api_version, kind);
    out.reserve(raw.len() + 32);
    put_bytes(&mut out, 2, raw);
    put_encodings(&mut out);
    out
}

/// The beginning of a body: its type.
fn type_meta(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(kind.len() + api_version.len() + 64);
    out.extend_from_slice(MAGIC);
    put_message(&mut out, 1, |out| {
        put_bytes(out, 1, api_version.as_bytes());
        put_bytes(out, 2, kind.as_bytes());
    });
    out
}

/// The end of a body: its content encoding and content type, both empty.
fn put_encodings(out: &mut Vec<u8>) {
    put_bytes(out, 3, b"");
    put_bytes(out, 4, b"");
}

/// The object's own message.
pub fn message(schema: &'static Type, object: &Object) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    fields(schema, object, &mut out);
    out
}

/// The bytes before and after the items of a list's body; `sizes` are those of the items' messages.
pub fn list_frame(
    api_version: &str,
    kind: &str,
    metadata: &Object,
    sizes: impl Iterator<Item = usize>,
) -> (Vec<u8>, Vec<u8>) {
    let mut list = Vec::new();
    if let Some(schema) = schema::lookup("meta/v1.ListMeta") {
        put_message(&mut list, 1, |out| fields(schema, metadata, out));
    }
    let mut prefix = Vec::with_capacity(16);
    let items: usize = sizes
        .map(|size| {
            prefix.clear();
            put_item_prefix(&mut prefix, size);
            prefix.len() + size
        })
        .sum();
    let mut head = type_meta(api_version, kind);
    put_tag(&mut head, 2, BYTES);
    put_varint(&mut head, (list.len() + items) as u64);
    head.extend_from_slice(&list);
    let mut tail = Vec::new();
    put_encodings(&mut tail);
    (head, tail)
}

fn put_item_prefix(out: &mut Vec<u8>, size: usize) {
    put_tag(out, 2, BYTES);
    put_varint(out, size as u64);
}

/// One item of the list.
pub fn list_item(message: &[u8], out: &mut impl bytes::BufMut) {
    let mut prefix = Vec::with_capacity(16);
    put_item_prefix(&mut prefix, message.len());
    out.put_slice(&prefix);
    out.put_slice(message);
}

/// The message of a watch event around an object's whole body.
pub fn watch_event(kind: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 32);
    put_bytes(&mut out, 1, kind.as_bytes());
    put_message(&mut out, 2, |out| put_bytes(out, 1, body));
    out
}

fn number_of(schema: &'static Type, member: &Member) -> u32 {
    match member {
        Member::Field(at) => schema.fields[*at].number,
        Member::Inline { number, .. } => *number,
    }
}

fn fields(schema: &'static Type, object: &Object, out: &mut Vec<u8>) {
    let mut members: Vec<&Member> = schema.members.iter().collect();
    members.sort_by_key(|m| number_of(schema, m));
    for member in members {
        match member {
            // apiVersion and kind are in the envelope.
            Member::Inline { number: 0, .. } => {}
            Member::Inline { number, of } => {
                put_message(out, *number, |out| fields(of.get(), object, out));
            }
            Member::Field(at) => {
                let entry = &schema.fields[*at];
                if entry.number != 0
                    && let Some(value) = object.get(entry.name)
                {
                    field(entry, value, out);
                }
            }
        }
    }
}

fn field(field: &Field, value: &Value, out: &mut Vec<u8>) {
    match (field.shape, value) {
        (_, Value::Null) if !matches!(field.shape, Shape::Time | Shape::MicroTime) => {}
        (Shape::List(element), Value::Array(items)) if is_wrapped_list(field) => {
            put_message(out, field.number, |out| {
                items.iter().for_each(|v| one(*element, 1, v, out))
            });
        }
        (Shape::List(element), Value::Array(items)) => {
            items
                .iter()
                .for_each(|v| one(*element, field.number, v, out));
        }
        (Shape::Map(element), Value::Object(map)) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|e| e.0);
            for (key, value) in entries {
                put_message(out, field.number, |out| {
                    put_bytes(out, 1, key.as_bytes());
                    one(*element, 2, value, out);
                });
            }
        }
        (shape, value) => one(shape, field.number, value, out),
    }
}

/// One value under a number.
fn one(shape: Shape, number: u32, value: &Value, out: &mut Vec<u8>) {
    match shape {
        Shape::String => put_bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Shape::Bool => put_integer(out, number, i64::from(value.as_bool().unwrap_or_default())),
        Shape::Int32 | Shape::Int64 => put_integer(out, number, value.as_i64().unwrap_or_default()),
        Shape::Float64 => {
            put_tag(out, number, FIXED64);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes());
        }
        Shape::Bytes => {
            let bytes = BASE64
                .decode(value.as_str().unwrap_or_default())
                .unwrap_or_default();
            put_bytes(out, number, &bytes);
        }
        Shape::Quantity => put_message(out, number, |out| {
            let text = value.as_str().unwrap_or("0");
            debug_assert!(text.parse::<Quantity>().is_ok());
            put_bytes(out, 1, text.as_bytes());
        }),
        Shape::IntOrString => put_message(out, number, |out| {
            put_integer(out, 1, i64::from(value.is_string()));
            put_integer(out, 2, value.as_i64().unwrap_or_default());
            put_bytes(out, 3, value.as_str().unwrap_or_default().as_bytes());
        }),
        Shape::Time => moment(number, value.as_str().map(time::parse), out),
        Shape::MicroTime => moment(number, value.as_str().map(time::parse_micro), out),
        Shape::Duration => put_message(out, number, |out| {
            let nanos = value.as_str().and_then(|text| duration::nanos(text).ok());
            put_integer(out, 1, nanos.unwrap_or_default());
        }),
        Shape::Raw | Shape::FieldsV1 | Shape::Json | Shape::Any => {
            put_message(out, number, |out| {
                put_bytes(out, 1, value.to_string().as_bytes())
            });
        }
        Shape::PropsOrBool | Shape::PropsOrArray | Shape::PropsOrStrings => {
            put_message(out, number, |out| props(shape, value, out));
        }
        Shape::Struct(id) => put_message(out, number, |out| {
            if let Value::Object(map) = value {
                fields(id.get(), map, out);
            }
        }),
        // A list in a map is a message that contains the items.
        Shape::List(element) => put_message(out, number, |out| {
            value
                .as_array()
                .into_iter()
                .flatten()
                .for_each(|v| one(*element, 1, v, out));
        }),
        Shape::Map(_) => {}
    }
}

fn moment(number: u32, parsed: Option<Result<time::Moment, String>>, out: &mut Vec<u8>) {
    put_message(out, number, |out| {
        if let Some(Ok(moment)) = parsed {
            put_integer(out, 1, moment.seconds);
            put_integer(out, 2, i64::from(moment.nanos));
        }
    });
}

fn props(shape: Shape, value: &Value, out: &mut Vec<u8>) {
    let Some(schema) = schema::lookup("apiextensions/v1.JSONSchemaProps") else {
        return;
    };
    match (shape, value) {
        (Shape::PropsOrBool, Value::Bool(allows)) => put_integer(out, 1, i64::from(*allows)),
        (Shape::PropsOrBool, Value::Object(map)) => {
            put_integer(out, 1, 1);
            put_message(out, 2, |out| fields(schema, map, out));
        }
        (_, Value::Object(map)) => put_message(out, 1, |out| fields(schema, map, out)),
        (Shape::PropsOrArray, Value::Array(list)) => {
            for item in list.iter().filter_map(Value::as_object) {
                put_message(out, 2, |out| fields(schema, item, out));
            }
        }
        (Shape::PropsOrStrings, Value::Array(list)) => {
            for item in list.iter().filter_map(Value::as_str) {
                put_tag(out, 2, BYTES);
                put_varint(out, item.len() as u64);
                out.extend_from_slice(item.as_bytes());
            }
        }
        _ => {}
    }
}
