//! The older document as protobuf: the message that clients know as `openapi.v2.Document`.

use machinery::{Object, Value};

/// How a value is written.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Texts,
    Flag,
    Integer,
    Double,
    /// Any value, as text of its own.
    Any,
    Anys,
    Message(&'static Message),
    Messages(&'static Message),
    /// Names and messages; the names become entries of a list inside the message, under this number.
    Named(u32, &'static Message),
    /// One text or several, inside a message of their own.
    OneOrMore,
    /// A schema inside a message of its own.
    Items,
    /// A schema or a flag.
    SchemaOrFlag,
    /// A parameter of a path or a query.
    Parameters,
    /// Answers by code.
    Responses,
}

struct Message {
    fields: &'static [(&'static str, u32, Form)],
    /// Where fields that start with `x-` go.
    extensions: u32,
}

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Form::Text),
        ("info", 2, Form::Message(&INFO)),
        ("paths", 8, Form::Named(2, &PATH)),
        ("definitions", 9, Form::Named(1, &SCHEMA)),
    ],
    extensions: 16,
};

static INFO: Message = Message {
    fields: &[
        ("title", 1, Form::Text),
        ("version", 2, Form::Text),
        ("description", 3, Form::Text),
    ],
    extensions: 7,
};

static PATH: Message = Message {
    fields: &[
        ("get", 2, Form::Message(&OPERATION)),
        ("put", 3, Form::Message(&OPERATION)),
        ("post", 4, Form::Message(&OPERATION)),
        ("delete", 5, Form::Message(&OPERATION)),
        ("options", 6, Form::Message(&OPERATION)),
        ("head", 7, Form::Message(&OPERATION)),
        ("patch", 8, Form::Message(&OPERATION)),
        ("parameters", 9, Form::Parameters),
    ],
    extensions: 10,
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Form::Texts),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("produces", 6, Form::Texts),
        ("consumes", 7, Form::Texts),
        ("parameters", 8, Form::Parameters),
        ("responses", 9, Form::Responses),
        ("schemes", 10, Form::Texts),
        ("deprecated", 11, Form::Flag),
    ],
    extensions: 13,
};

static RESPONSE: Message = Message {
    fields: &[("description", 1, Form::Text)],
    extensions: 5,
};

static BODY: Message = Message {
    fields: &[
        ("description", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 5, Form::Message(&SCHEMA)),
    ],
    extensions: 6,
};

static QUERY: Message = Message {
    fields: &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 6, Form::Text),
        ("format", 7, Form::Text),
        ("uniqueItems", 20, Form::Flag),
    ],
    extensions: 23,
};

static IN_PATH: Message = Message {
    fields: &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 5, Form::Text),
        ("format", 6, Form::Text),
        ("uniqueItems", 19, Form::Flag),
    ],
    extensions: 22,
};

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Form::Text),
        ("format", 2, Form::Text),
        ("title", 3, Form::Text),
        ("description", 4, Form::Text),
        ("default", 5, Form::Any),
        ("multipleOf", 6, Form::Double),
        ("maximum", 7, Form::Double),
        ("exclusiveMaximum", 8, Form::Flag),
        ("minimum", 9, Form::Double),
        ("exclusiveMinimum", 10, Form::Flag),
        ("maxLength", 11, Form::Integer),
        ("minLength", 12, Form::Integer),
        ("pattern", 13, Form::Text),
        ("maxItems", 14, Form::Integer),
        ("minItems", 15, Form::Integer),
        ("uniqueItems", 16, Form::Flag),
        ("maxProperties", 17, Form::Integer),
        ("minProperties", 18, Form::Integer),
        ("required", 19, Form::Texts),
        ("enum", 20, Form::Anys),
        ("additionalProperties", 21, Form::SchemaOrFlag),
        ("type", 22, Form::OneOrMore),
        ("items", 23, Form::Items),
        ("allOf", 24, Form::Messages(&SCHEMA)),
        ("properties", 25, Form::Named(1, &SCHEMA)),
    ],
    extensions: 31,
};

/// The whole document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let none = Object::new();
    message(&DOCUMENT, document.as_object().unwrap_or(&none))
}

fn message(message: &Message, object: &Object) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, number, form) in message.fields {
        if let Some(value) = object.get(*name) {
            field(&mut out, *number, *form, value);
        }
    }
    let extensions = object.iter().filter(|(key, _)| key.starts_with("x-"));
    for (key, value) in extensions {
        bytes(&mut out, message.extensions, &named(key, &any(value)));
    }
    out
}

fn object_message(message_type: &Message, value: &Value) -> Vec<u8> {
    value
        .as_object()
        .map(|object| message(message_type, object))
        .unwrap_or_default()
}

fn field(out: &mut Vec<u8>, number: u32, form: Form, value: &Value) {
    let list = || value.as_array().into_iter().flatten();
    match form {
        Form::Text => bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Form::Texts => {
            for text in list().filter_map(Value::as_str) {
                bytes(out, number, text.as_bytes());
            }
        }
        Form::Flag => integer(out, number, u64::from(value.as_bool().unwrap_or_default())),
        // Two's complement, as protobuf writes negative numbers.
        Form::Integer => integer(out, number, value.as_i64().unwrap_or_default() as u64),
        Form::Double => double(out, number, value.as_f64().unwrap_or_default()),
        Form::Any => bytes(out, number, &any(value)),
        Form::Anys => {
            for value in list() {
                bytes(out, number, &any(value));
            }
        }
        Form::Message(inner) => bytes(out, number, &object_message(inner, value)),
        Form::Items => {
            let mut item = Vec::new();
            bytes(&mut item, 1, &object_message(&SCHEMA, value));
            bytes(out, number, &item);
        }
        Form::Messages(inner) => {
            for value in list() {
                bytes(out, number, &object_message(inner, value));
            }
        }
        Form::Named(entry, inner) => {
            let mut entries = Vec::new();
            for (name, value) in value.as_object().into_iter().flatten() {
                bytes(
                    &mut entries,
                    entry,
                    &named(name, &object_message(inner, value)),
                );
            }
            bytes(out, number, &entries);
        }
        Form::OneOrMore => {
            let mut texts = Vec::new();
            for text in value
                .as_str()
                .into_iter()
                .chain(list().filter_map(Value::as_str))
            {
                bytes(&mut texts, 1, text.as_bytes());
            }
            bytes(out, number, &texts);
        }
        Form::SchemaOrFlag => {
            let mut item = Vec::new();
            match value {
                Value::Bool(flag) => integer(&mut item, 2, u64::from(*flag)),
                schema => bytes(&mut item, 1, &object_message(&SCHEMA, schema)),
            }
            bytes(out, number, &item);
        }
        Form::Parameters => {
            for value in list() {
                bytes(out, number, &parameter(value));
            }
        }
        Form::Responses => {
            let mut answers = Vec::new();
            for (code, value) in value.as_object().into_iter().flatten() {
                let mut answer = Vec::new();
                bytes(&mut answer, 1, &object_message(&RESPONSE, value));
                bytes(&mut answers, 1, &named(code, &answer));
            }
            bytes(out, number, &answers);
        }
    }
}

/// A parameter inside the three choices around it.
fn parameter(value: &Value) -> Vec<u8> {
    let place = value.get("in").and_then(Value::as_str).unwrap_or_default();
    let mut choice = Vec::new();
    if place == "body" {
        bytes(&mut choice, 1, &object_message(&BODY, value));
    } else {
        let mut inner = Vec::new();
        if place == "path" {
            bytes(&mut inner, 4, &object_message(&IN_PATH, value));
        } else {
            bytes(&mut inner, 3, &object_message(&QUERY, value));
        }
        bytes(&mut choice, 2, &inner);
    }
    let mut item = Vec::new();
    bytes(&mut item, 1, &choice);
    item
}

/// A name and a message.
fn named(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, name.as_bytes());
    bytes(&mut out, 2, value);
    out
}

/// Any value is carried as YAML, and JSON is YAML.
fn any(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 2, format!("{value}\n").as_bytes());
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    varint(out, u64::from(number) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn integer(out: &mut Vec<u8>, number: u32, value: u64) {
    varint(out, u64::from(number) << 3);
    varint(out, value);
}

fn double(out: &mut Vec<u8>, number: u32, value: f64) {
    varint(out, u64::from(number) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a message has under a number.
    fn get(mut message: &[u8], wanted: u64) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let read = |message: &mut &[u8]| {
            let mut value = 0u64;
            for shift in (0..).step_by(7) {
                let (byte, rest) = message.split_first().unwrap();
                *message = rest;
                value |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    return value;
                }
            }
            unreachable!("every number ends")
        };
        while !message.is_empty() {
            let tag = read(&mut message);
            let length = match tag & 7 {
                2 => read(&mut message) as usize,
                1 => 8,
                _ => {
                    let value = read(&mut message);
                    if tag >> 3 == wanted {
                        found.push(value.to_le_bytes().to_vec());
                    }
                    continue;
                }
            };
            let (value, rest) = message.split_at(length);
            message = rest;
            if tag >> 3 == wanted {
                found.push(value.to_vec());
            }
        }
        found
    }

    fn one(message: &[u8], path: &[u64]) -> Vec<u8> {
        path.iter().fold(message.to_vec(), |message, number| {
            get(&message, *number).remove(0)
        })
    }

    #[test]
    fn documents_become_messages() {
        let document = json!({"swagger": "2.0", "info": {"title": "T", "version": "v1"},
            "paths": {"/p": {"get": {"x-kubernetes-action": "list", "parameters": [
                {"name": "watch", "in": "query", "type": "boolean", "uniqueItems": true}],
                "responses": {"200": {"description": "OK"}}}}},
            "definitions": {"D": {"type": "object", "required": ["a"], "properties": {
                "a": {"type": "array", "items": {"$ref": "#/definitions/E"},
                      "x-kubernetes-list-map-keys": ["n"]},
                "m": {"type": "object", "additionalProperties": {"type": "string"}}}}}});
        let encoded = encode(&document);
        assert_eq!(one(&encoded, &[1]), b"2.0");
        assert_eq!(one(&encoded, &[2, 1]), b"T");
        let definition = one(&encoded, &[9, 1]);
        assert_eq!(one(&definition, &[1]), b"D");
        assert_eq!(one(&definition, &[2, 22, 1]), b"object");
        assert_eq!(one(&definition, &[2, 19]), b"a");
        let first = one(&definition, &[2, 25, 1]);
        assert_eq!(one(&first, &[1]), b"a");
        assert_eq!(one(&first, &[2, 23, 1, 1]), b"#/definitions/E");
        assert_eq!(one(&first, &[2, 31, 1]), b"x-kubernetes-list-map-keys");
        assert_eq!(one(&first, &[2, 31, 2, 2]), b"[\"n\"]\n");
        let maps = get(&one(&definition, &[2, 25]), 1).remove(1);
        assert_eq!(one(&maps, &[2, 21, 1, 22, 1]), b"string");
        let operation = one(&encoded, &[8, 2, 2, 2]);
        assert_eq!(one(&operation, &[8, 1, 2, 3, 4]), b"watch");
        assert_eq!(one(&operation, &[9, 1, 2, 1, 1]), b"OK");
        assert_eq!(one(&operation, &[13, 1]), b"x-kubernetes-action");
    }
}
