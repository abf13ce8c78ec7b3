//! Documents as protobuf: the messages `openapi.v2.Document` and `openapi.v3.Document`, encoded by
//! tables of their fields.

mod v2;
mod v3;

use machinery::{Object, Value};

/// The OpenAPI v2 document.
pub(super) fn v2(document: &Value) -> Vec<u8> {
    v2::DOCUMENT.encode(document)
}

/// The OpenAPI v3 document.
pub(super) fn v3(document: &Value) -> Vec<u8> {
    v3::DOCUMENT.encode(document)
}

/// The encoding of a value.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Texts,
    Flag,
    Integer,
    Double,
    /// Any value, as text.
    Any,
    Anys,
    Message(&'static Message),
    Messages(&'static Message),
    /// Names and messages; the names become entries of a list inside the message, under this
    /// number.
    Named(u32, &'static Message),
    /// One string or several, inside a message.
    OneOrMore,
    /// A message or a boolean.
    MessageOrFlag(&'static Message),
    /// A number, boolean or string; others are left out.
    Scalar,
    /// Lists of security requirements.
    Requirements,
}

enum Message {
    Fields {
        fields: &'static [(&'static str, u32, Form)],
        /// The field number of `x-` extensions.
        extensions: u32,
    },
    /// One of several messages, under its number, chosen by the value.
    Choice(fn(&Object) -> (u32, &'static Message)),
}

impl Message {
    fn encode(&self, value: &Value) -> Vec<u8> {
        let none = Object::new();
        let object = value.as_object().unwrap_or(&none);
        let mut out = Vec::new();
        match self {
            Self::Choice(choose) => {
                let (number, message) = choose(object);
                bytes(&mut out, number, &message.encode(value));
            }
            Self::Fields { fields, extensions } => {
                for (name, number, form) in *fields {
                    if let Some(value) = object.get(name) {
                        field(&mut out, *number, *form, value);
                    }
                }
                let own = object.iter().filter(|(key, _)| key.starts_with("x-"));
                for (key, value) in own {
                    bytes(&mut out, *extensions, &named(key, &any(value)));
                }
            }
        }
        out
    }
}

fn field(out: &mut Vec<u8>, number: u32, form: Form, value: &Value) {
    let list = || value.as_array().into_iter().flatten();
    let entries = |value: &Value, entry: u32, encode: &dyn Fn(&Value) -> Vec<u8>| {
        let mut entries = Vec::new();
        for (name, value) in value.as_object().into_iter().flatten() {
            bytes(&mut entries, entry, &named(name, &encode(value)));
        }
        entries
    };
    match form {
        Form::Text => bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Form::Texts => texts(out, number, value),
        Form::Flag => integer(out, number, u64::from(value.as_bool().unwrap_or_default())),
        // Two's complement, protobuf's form of negative numbers.
        Form::Integer => integer(out, number, value.as_i64().unwrap_or_default() as u64),
        Form::Double => double(out, number, value.as_f64().unwrap_or_default()),
        Form::Any => bytes(out, number, &any(value)),
        Form::Anys => list().for_each(|value| bytes(out, number, &any(value))),
        Form::Message(inner) => bytes(out, number, &inner.encode(value)),
        Form::Messages(inner) => {
            list().for_each(|value| bytes(out, number, &inner.encode(value)));
        }
        Form::Named(entry, inner) => {
            let inside = entries(value, entry, &|value| inner.encode(value));
            bytes(out, number, &inside);
        }
        Form::OneOrMore => {
            let mut inside = Vec::new();
            match value.as_str() {
                Some(text) => bytes(&mut inside, 1, text.as_bytes()),
                None => texts(&mut inside, 1, value),
            }
            bytes(out, number, &inside);
        }
        Form::MessageOrFlag(inner) => {
            let mut inside = Vec::new();
            match value {
                Value::Bool(flag) => integer(&mut inside, 2, u64::from(*flag)),
                value => bytes(&mut inside, 1, &inner.encode(value)),
            }
            bytes(out, number, &inside);
        }
        Form::Scalar => bytes(out, number, &scalar(value)),
        Form::Requirements => {
            for value in list() {
                let inside = entries(value, 1, &|value| {
                    let mut all = Vec::new();
                    texts(&mut all, 1, value);
                    all
                });
                bytes(out, number, &inside);
            }
        }
    }
}

fn texts(out: &mut Vec<u8>, number: u32, value: &Value) {
    let list = value.as_array().into_iter().flatten();
    for text in list.filter_map(Value::as_str) {
        bytes(out, number, text.as_bytes());
    }
}

fn scalar(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    match value {
        Value::Bool(flag) => integer(&mut out, 2, u64::from(*flag)),
        Value::Number(_) => double(&mut out, 1, value.as_f64().unwrap_or_default()),
        Value::String(text) => bytes(&mut out, 3, text.as_bytes()),
        _ => {}
    }
    out
}

/// A name and a message.
fn named(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, name.as_bytes());
    bytes(&mut out, 2, value);
    out
}

/// Any value is carried as YAML, and JSON is valid YAML.
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
    use machinery::json::json;

    use super::*;

    /// The fields of a message with a number.
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
        let encoded = v2(&document);
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

    #[test]
    fn newer_documents_become_messages() {
        let schema = json!({"$ref": "#/components/schemas/D"});
        let document = json!({"openapi": "3.0.0", "info": {"title": "T", "version": "1.36"},
            "paths": {"/p": {"post": {"operationId": "createD", "parameters": [
                {"name": "dryRun", "in": "query", "schema": {"type": "string", "uniqueItems": true}}],
                "requestBody": {"content": {"*/*": {"schema": schema}}, "required": true},
                "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
                "x-kubernetes-action": "post"}}},
            "components": {"schemas": {"D": {"type": "object", "nullable": true, "properties": {
                "a": {"type": "array", "items": {"type": "integer", "default": 3}},
                "m": {"allOf": [{"$ref": "#/components/schemas/E"}], "default": {}}}}},
                "securitySchemes": {"BearerToken": {"type": "apiKey", "in": "header"}}}});
        let encoded = v3(&document);
        assert_eq!(one(&encoded, &[1]), b"3.0.0");
        assert_eq!(one(&encoded, &[2, 6]), b"1.36");
        let operation = one(&encoded, &[4, 1, 2, 6]);
        assert_eq!(one(&operation, &[5]), b"createD");
        assert_eq!(one(&operation, &[6, 1, 1]), b"dryRun");
        assert_eq!(one(&operation, &[6, 1, 10, 1, 25]), b"string");
        assert_eq!(
            one(&operation, &[7, 1, 2, 1, 2, 1, 2, 1]),
            b"#/components/schemas/D"
        );
        assert_eq!(one(&operation, &[8, 2, 1]), b"200");
        assert_eq!(one(&operation, &[8, 2, 2, 1, 3, 1, 1]), b"application/json");
        assert_eq!(one(&operation, &[13, 1]), b"x-kubernetes-action");
        let definition = one(&encoded, &[5, 1, 1]);
        assert_eq!(one(&definition, &[1]), b"D");
        let list = one(&definition, &[2, 1, 31, 1]);
        assert_eq!(one(&list, &[1]), b"a");
        assert_eq!(one(&list, &[2, 1, 30, 1, 1, 33, 1]), 3f64.to_le_bytes());
        let wrapped = get(&one(&definition, &[2, 1, 31]), 1).remove(1);
        assert_eq!(one(&wrapped, &[2, 1, 26, 2, 1]), b"#/components/schemas/E");
        assert_eq!(
            one(&wrapped, &[2, 1, 33]),
            b"",
            "what is no scalar is left out"
        );
        assert_eq!(one(&encoded, &[5, 7, 1, 2, 1, 1]), b"apiKey");
    }
}
