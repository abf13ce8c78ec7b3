//! Decodes protobuf to JSON. The result is not normalised yet: zeros are as sent.

use super::wire::{Reader, Wire};
use super::{Error, MAGIC, MAX_DEPTH, is_wrapped_list};
use crate::schema::{self, Member, Shape, Type};
use crate::{Object, Value, duration, time};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The content of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    /// The object's message.
    pub raw: &'a [u8],
}

/// Decodes a body's envelope.
pub fn decode(body: &[u8]) -> Result<Decoded<'_>, Error> {
    if body.is_empty() {
        return Err(Error::NoData);
    }
    let message = body.strip_prefix(MAGIC).ok_or(Error::Magic)?;
    if message.is_empty() {
        return Err(Error::NoBody);
    }
    let mut reader = Reader::new(message);
    let mut out = Decoded {
        api_version: "",
        kind: "",
        raw: &[],
    };
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let mut meta = Reader::new(bytes);
                while let Some((number, wire)) = meta.next()? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => out.api_version = utf8(text, "apiVersion")?,
                        (2, Wire::Bytes(text)) => out.kind = utf8(text, "kind")?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(raw)) => out.raw = raw,
            (1..=4, wire) if !matches!(wire, Wire::Bytes(_)) => {
                let names = ["TypeMeta", "Raw", "ContentEncoding", "ContentType"];
                let field = names[number as usize - 1].to_owned();
                let wire = wire.kind();
                return Err(Error::WrongWireType { wire, field });
            }
            _ => {}
        }
    }
    Ok(out)
}

/// The object in a message of a known type, with apiVersion and kind first.
pub fn decode_message(schema: &'static Type, decoded: &Decoded<'_>) -> Result<Object, Error> {
    let mut object = Object::new();
    for (name, value) in [("apiVersion", decoded.api_version), ("kind", decoded.kind)] {
        if !value.is_empty() {
            object.insert(name.to_owned(), value.into());
        }
    }
    fields(schema, decoded.raw, &mut object, 0)?;
    Ok(object)
}

fn utf8<'a>(bytes: &'a [u8], field: &str) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::Text(field.to_owned()))
}

fn fields(
    schema: &'static Type,
    bytes: &[u8],
    object: &mut Object,
    depth: usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::Depth);
    }
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        let found = schema.members.iter().find(|m| match m {
            Member::Field(at) => schema.fields[*at].number == number,
            Member::Inline { number: inline, .. } => *inline == number,
        });
        match found {
            Some(Member::Field(at)) => {
                let entry = &schema.fields[*at];
                let wrong = |wire: Wire<'_>| Error::WrongWireType {
                    wire: wire.kind(),
                    field: entry.name.to_owned(),
                };
                match (entry.shape, wire) {
                    (Shape::List(element), Wire::Bytes(bytes)) if is_wrapped_list(entry) => {
                        let items = wrapped(*element, bytes, entry.name, depth + 1)?;
                        object.insert(entry.name.to_owned(), items);
                    }
                    (Shape::List(element), wire) => {
                        let slot = object
                            .entry(entry.name)
                            .or_insert_with(|| Value::Array(Vec::new()));
                        let Value::Array(list) = slot else {
                            return Err(wrong(wire));
                        };
                        append(*element, wire, entry.name, depth + 1, list)?;
                    }
                    (Shape::Map(element), Wire::Bytes(bytes)) => {
                        let slot = object
                            .entry(entry.name)
                            .or_insert_with(|| Object::new().into());
                        let Value::Object(map) = slot else {
                            return Err(wrong(wire));
                        };
                        let (key, value) = pair(*element, bytes, entry.name, depth + 1)?;
                        map.insert(key, value);
                    }
                    (shape, wire) => {
                        let value = one(shape, wire, entry.name, depth + 1)?;
                        object.insert(entry.name.to_owned(), value);
                    }
                }
            }
            Some(Member::Inline { of, .. }) => {
                let Wire::Bytes(bytes) = wire else {
                    return Err(Error::WrongWireType {
                        wire: wire.kind(),
                        field: of.get().name.to_owned(),
                    });
                };
                fields(of.get(), bytes, object, depth + 1)?;
            }
            // A field of a newer version: ignored.
            None => {}
        }
    }
    Ok(())
}

/// Repeated numbers may be separate or packed.
fn append(
    element: Shape,
    wire: Wire<'_>,
    name: &str,
    depth: usize,
    list: &mut Vec<Value>,
) -> Result<(), Error> {
    let numeric = matches!(element, Shape::Bool | Shape::Int32 | Shape::Int64);
    if let (true, Wire::Bytes(packed)) = (numeric, wire) {
        let mut reader = Reader::new(packed);
        while !reader.is_empty() {
            let value = reader.varint()?;
            list.push(one(element, Wire::Varint(value), name, depth)?);
        }
        return Ok(());
    }
    list.push(one(element, wire, name, depth)?);
    Ok(())
}

fn wrapped(element: Shape, bytes: &[u8], name: &str, depth: usize) -> Result<Value, Error> {
    let mut list = Vec::new();
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        if number == 1 {
            append(element, wire, name, depth, &mut list)?;
        }
    }
    Ok(Value::Array(list))
}

fn pair(element: Shape, bytes: &[u8], name: &str, depth: usize) -> Result<(String, Value), Error> {
    let (mut key, mut value) = (String::new(), None);
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => utf8(text, name)?.clone_into(&mut key),
            (2, wire) => value = Some(one(element, wire, name, depth)?),
            _ => {}
        }
    }
    Ok((key, value.unwrap_or_else(|| schema::zero_of(element))))
}

fn one(shape: Shape, wire: Wire<'_>, name: &str, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::Depth);
    }
    Ok(match (shape, wire) {
        (Shape::String, Wire::Bytes(text)) => utf8(text, name)?.into(),
        (Shape::Bool, Wire::Varint(n)) => (n != 0).into(),
        (Shape::Int32, Wire::Varint(n)) => (n as i32).into(),
        (Shape::Int64, Wire::Varint(n)) => (n as i64).into(),
        (Shape::Float64, Wire::Fixed64(bits)) => f64::from_bits(bits).into(),
        (Shape::Bytes, Wire::Bytes(bytes)) => BASE64.encode(bytes).into(),
        (Shape::Quantity, Wire::Bytes(bytes)) => match text_at(bytes, 1)? {
            "" => "0".into(),
            text => text.into(),
        },
        (Shape::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (Shape::Time, Wire::Bytes(bytes)) => match moment(bytes)? {
            Some(moment) => time::format(moment.seconds).into(),
            None => Value::Null,
        },
        (Shape::MicroTime, Wire::Bytes(bytes)) => match moment(bytes)? {
            Some(moment) => time::format_micro(moment).into(),
            None => Value::Null,
        },
        (Shape::Duration, Wire::Bytes(bytes)) => duration::format(integer_at(bytes, 1)?).into(),
        (Shape::Raw | Shape::FieldsV1 | Shape::Json | Shape::Any, Wire::Bytes(bytes)) => {
            raw(bytes_at(bytes, 1)?, name, depth)?
        }
        (Shape::PropsOrBool | Shape::PropsOrArray | Shape::PropsOrStrings, Wire::Bytes(bytes)) => {
            props(shape, bytes, name, depth)?
        }
        (Shape::Struct(id), Wire::Bytes(bytes)) => {
            let mut object = Object::new();
            fields(id.get(), bytes, &mut object, depth)?;
            Value::Object(object)
        }
        (Shape::List(element), Wire::Bytes(bytes)) => wrapped(*element, bytes, name, depth)?,
        (_, wire) => {
            return Err(Error::WrongWireType {
                wire: wire.kind(),
                field: name.to_owned(),
            });
        }
    })
}

fn bytes_at(message: &[u8], number: u32) -> Result<&[u8], Error> {
    let mut reader = Reader::new(message);
    let mut found: &[u8] = &[];
    while let Some((n, wire)) = reader.next()? {
        if let (true, Wire::Bytes(bytes)) = (n == number, wire) {
            found = bytes;
        }
    }
    Ok(found)
}

fn text_at(message: &[u8], number: u32) -> Result<&str, Error> {
    utf8(bytes_at(message, number)?, "string")
}

fn integer_at(message: &[u8], number: u32) -> Result<i64, Error> {
    let mut reader = Reader::new(message);
    let mut found = 0;
    while let Some((n, wire)) = reader.next()? {
        if let (true, Wire::Varint(value)) = (n == number, wire) {
            found = value as i64;
        }
    }
    Ok(found)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, Error> {
    let (mut is_text, mut number, mut text) = (false, 0, "");
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.next()? {
        match (field, wire) {
            (1, Wire::Varint(kind)) => is_text = kind == 1,
            (2, Wire::Varint(n)) => number = n as i32,
            (3, Wire::Bytes(bytes)) => text = utf8(bytes, "strVal")?,
            _ => {}
        }
    }
    Ok(if is_text { text.into() } else { number.into() })
}

fn moment(bytes: &[u8]) -> Result<Option<time::Moment>, Error> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut moment = time::Moment {
        seconds: 0,
        nanos: 0,
    };
    let mut reader = Reader::new(bytes);
    while let Some((field, wire)) = reader.next()? {
        match (field, wire) {
            (1, Wire::Varint(n)) => moment.seconds = n as i64,
            (2, Wire::Varint(n)) => {
                moment.nanos = u32::try_from(n).unwrap_or_default().min(999_999_999)
            }
            _ => {}
        }
    }
    // Years with more than four digits are not representable.
    if !(-62_135_596_800..=253_402_300_799).contains(&moment.seconds) {
        return Err(Error::Value("time out of range".to_owned()));
    }
    Ok(Some(moment))
}

/// An embedded object: JSON, or a whole protobuf body.
fn raw(bytes: &[u8], name: &str, depth: usize) -> Result<Value, Error> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    if bytes.starts_with(MAGIC) {
        let inner = decode(bytes)?;
        let (group, version) = inner
            .api_version
            .split_once('/')
            .unwrap_or(("", inner.api_version));
        let schema = schema::lookup_kind(group, version, inner.kind)
            .ok_or_else(|| Error::Value(format!("unknown kind {} in field {name}", inner.kind)))?;
        let mut object = Object::new();
        object.insert("apiVersion".to_owned(), inner.api_version.into());
        object.insert("kind".to_owned(), inner.kind.into());
        fields(schema, inner.raw, &mut object, depth + 1)?;
        return Ok(Value::Object(object));
    }
    crate::json::from_slice(bytes).map_err(|e| Error::Value(format!("field {name}: {e}")))
}

fn props(shape: Shape, bytes: &[u8], name: &str, depth: usize) -> Result<Value, Error> {
    let Some(schema) = schema::lookup("apiextensions/v1.JSONSchemaProps") else {
        return Ok(Value::Null);
    };
    let read = |bytes: &[u8]| {
        let mut object = Object::new();
        fields(schema, bytes, &mut object, depth + 1).map(|()| Value::Object(object))
    };
    let (mut single, mut many, mut allows) = (None, Vec::new(), false);
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        match (shape, number, wire) {
            (Shape::PropsOrBool, 1, Wire::Varint(n)) => allows = n != 0,
            (Shape::PropsOrBool, 2, Wire::Bytes(b)) | (_, 1, Wire::Bytes(b)) => {
                single = Some(read(b)?)
            }
            (Shape::PropsOrArray, 2, Wire::Bytes(b)) => many.push(read(b)?),
            (Shape::PropsOrStrings, 2, Wire::Bytes(b)) => many.push(utf8(b, name)?.into()),
            _ => {}
        }
    }
    Ok(match (single, shape) {
        (Some(schema), _) => schema,
        (None, Shape::PropsOrBool) => allows.into(),
        (None, _) => Value::Array(many),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_without_anything_or_with_the_wrong_things_is_refused() {
        for (body, expected) in [
            (&b""[..], "empty data"),
            (b"k8s\0", "empty body"),
            (
                b"k8s\0\x01\x02",
                "proto: Unknown: illegal tag 0 (wire type 1)",
            ),
            (
                b"k8s\0\x20\x05",
                "proto: wrong wireType = 0 for field ContentType",
            ),
            (b"k8s\0\x12\x05", "unexpected EOF"),
        ] {
            assert_eq!(decode(body).unwrap_err().to_string(), expected, "{body:?}");
        }
    }
}
