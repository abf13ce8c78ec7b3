//! Objects as Go's types would keep them: fields in the schema's order, zero and empty values kept
//! or dropped by presence, quantities, times and base64 in canonical form, unknown fields recorded
//! and dropped, wrong types rejected in Go's words.

use crate::decode::Findings;
use crate::json::{Key, Number};
use crate::quantity;
use crate::schema::{self, Field, Presence, Shape, Type};
use crate::{Object, Value, duration, time};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD as BASE64};
use std::fmt::Write as _;

const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Normalises a whole object of a type.
pub fn object(
    schema: &'static Type,
    value: Value,
    findings: &mut Findings,
) -> Result<Object, String> {
    normalise(schema, value, Words::Json, findings)
}

/// As [`object`], for a tree that was built and not parsed: errors are worded differently, and
/// numbers fit if their value does.
pub fn converted(
    schema: &'static Type,
    value: Value,
    findings: &mut Findings,
) -> Result<Object, String> {
    normalise(schema, value, Words::Conversion, findings)
}

fn normalise(
    schema: &'static Type,
    value: Value,
    words: Words,
    findings: &mut Findings,
) -> Result<Object, String> {
    let mut walk = Walk {
        at: "",
        path: Vec::new(),
        words,
        findings,
        misfit: None,
        ended: false,
    };
    match value {
        Value::Object(map) => walk.root(schema, map),
        Value::Null => walk.root(schema, Object::new()),
        other => Err(format!(
            "json: cannot unmarshal {} into Go value of type {}.{}",
            kind_of(&other),
            schema.version(),
            schema.name
        )),
    }
}

/// Normalises a custom resource: only its metadata has a schema here.
pub fn unstructured(value: Value, findings: &mut Findings) -> Result<Object, String> {
    let Value::Object(mut map) = value else {
        return Err(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            kind_of(&value)
        ));
    };
    let mut out = Object::with_capacity(map.len());
    for name in ["apiVersion", "kind"] {
        if let Some(value) = map.shift_remove(name) {
            out.insert(name, value);
        }
    }
    let metadata = map.shift_remove("metadata").unwrap_or(Value::Null);
    let metadata = self::metadata(metadata, "metadata", findings)?;
    out.insert("metadata", metadata);
    map.sort_keys();
    for (key, mut value) in map {
        sort(&mut value);
        out.insert(key, value);
    }
    Ok(out)
}

/// Normalises the metadata of a custom resource, or of an object within one; `at` is its path.
pub fn metadata(metadata: Value, at: &str, findings: &mut Findings) -> Result<Value, String> {
    let Some(schema) = schema::lookup("meta/v1.ObjectMeta") else {
        return Ok(metadata);
    };
    let mut walk = Walk {
        at,
        path: Vec::new(),
        words: Words::Json,
        findings,
        misfit: None,
        ended: false,
    };
    match metadata {
        Value::Null => Ok(Value::Object(Object::new())),
        Value::Object(mut map) => {
            sort_map(&mut map);
            walk.root(schema, map).map(Value::Object)
        }
        other => Err(format!(
            "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
            kind_of(&other)
        )),
    }
}

/// Sorts the keys of all maps.
pub fn sort(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(sort);
            sort_map(map);
        }
        Value::Array(list) => list.iter_mut().for_each(sort),
        _ => {}
    }
}

pub(crate) fn sort_map(map: &mut Object) {
    if !map.keys().is_sorted() {
        map.sort_keys();
    }
}

/// Go's name of a JSON value's type, for errors.
fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    }
}

#[derive(Debug)]
enum Step {
    /// A field, and the types it is inlined through.
    Field(&'static str, &'static str),
    Index(usize),
    Key(Key),
}

/// The wording of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    /// Go's JSON decoder.
    Json,
    /// Kubernetes' conversion of trees.
    Conversion,
}

struct Walk<'a> {
    /// The prefix of an unknown field's path.
    at: &'a str,
    path: Vec<Step>,
    words: Words,
    findings: &'a mut Findings,
    /// The first value of a wrong type. Go's decoder continues after it, and reports it only if no
    /// worse error follows: a text that its type cannot parse.
    misfit: Option<String>,
    /// Whether a worse error occurred.
    ended: bool,
}

/// The position of a value, for errors about its type.
#[derive(Clone, Copy)]
struct FieldPosition<'a> {
    owner: &'a Type,
    field: &'a Field,
}

impl Walk<'_> {
    fn path_with(&self, last: &str) -> String {
        let mut out = self.at.to_owned();
        for step in &self.path {
            match step {
                Step::Index(i) => {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "[{i}]");
                    continue;
                }
                _ if out.is_empty() => {}
                _ => out.push('.'),
            }
            match step {
                Step::Field(name, _) => out.push_str(name),
                Step::Key(name) => out.push_str(name),
                Step::Index(_) => {}
            }
        }
        if !out.is_empty() {
            out.push('.');
        }
        out.push_str(last);
        out
    }

    fn mismatch(&self, what: &str, place: FieldPosition<'_>, type_name: &str) -> String {
        let mut path = String::new();
        for step in &self.path {
            if let Step::Field(name, inlined) = step {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(inlined);
                path.push_str(name);
            }
        }
        format!(
            "json: cannot unmarshal {what} into Go struct field {}.{path} of type {type_name}",
            place.owner.name
        )
    }

    fn root(&mut self, schema: &'static Type, map: Object) -> Result<Object, String> {
        let object = self.fields(schema, map)?;
        match self.misfit.take() {
            Some(misfit) => Err(misfit),
            None => Ok(object),
        }
    }

    fn fields(&mut self, schema: &'static Type, map: Object) -> Result<Object, String> {
        let mut slots: Vec<(usize, Value)> = Vec::with_capacity(map.len());
        for (key, value) in map {
            let Some(position) = schema.position(&key) else {
                let path = self.path_with(&key);
                self.findings.unknown(&path);
                continue;
            };
            let field = &schema.fields[position];
            if value.is_null() {
                continue;
            }
            self.path.push(Step::Field(field.name, field.inlined));
            let place = FieldPosition {
                owner: schema,
                field,
            };
            let depth = self.path.len();
            let value = match self.value(field.shape, value, place) {
                Ok(value) => value,
                Err(why) if !self.ended && is_misfit(field.shape, &why) => {
                    self.misfit.get_or_insert(why);
                    self.path.truncate(depth - 1);
                    continue;
                }
                Err(why) => {
                    self.ended = true;
                    return Err(why);
                }
            };
            self.path.pop();
            if is_kept(field, &value) {
                slots.push((position, value));
            }
        }
        Ok(in_order(schema, slots))
    }

    fn value(
        &mut self,
        shape: Shape,
        value: Value,
        place: FieldPosition<'_>,
    ) -> Result<Value, String> {
        let wrong = |walk: &Self, value: &Value| {
            Err(match walk.words {
                Words::Json => walk.mismatch(&kind_of(value), place, &type_read(shape, place)),
                Words::Conversion => unconverted(shape, value, place),
            })
        };
        Ok(match (shape, value) {
            (_, Value::Null) => schema::zero_of(shape),
            (Shape::String, value @ Value::String(_)) => value,
            (Shape::Bool, value @ Value::Bool(_)) => value,
            (Shape::Int32, Value::Number(n)) => {
                self.integer(n, i32::MIN.into(), i32::MAX.into(), "int32", place)?
            }
            (Shape::Int64, Value::Number(n)) => {
                self.integer(n, i64::MIN, i64::MAX, "int64", place)?
            }
            (Shape::Float64, Value::Number(n)) => float(n),
            (Shape::Bytes, Value::String(text)) => match (bytes(text), self.words) {
                (Err(why), Words::Conversion) => {
                    return Err(format!("error decoding from json: {why}"));
                }
                (bytes, _) => bytes?,
            },
            (Shape::Quantity, value) => quantity(&value, place.field)?,
            (Shape::IntOrString, value @ Value::String(_)) => value,
            (Shape::IntOrString, Value::Number(n)) => match n.as_i64() {
                Some(i) if i32::try_from(i).is_ok() => Value::from(i),
                _ => {
                    let given = format!("number {n}");
                    return Err(match self.words {
                        Words::Json => self.mismatch(&given, place, "int32"),
                        Words::Conversion => {
                            format!("json: cannot unmarshal {given} into Go value of type int32")
                        }
                    });
                }
            },
            (Shape::Time, Value::String(text)) => time(&text)?,
            (Shape::MicroTime, Value::String(text)) => micro_time(&text)?,
            (Shape::Duration, Value::String(text)) => duration(text)?,
            (Shape::Raw | Shape::FieldsV1 | Shape::Any | Shape::Json, value) => value,
            (Shape::PropsOrBool, value @ Value::Bool(_)) => value,
            (
                Shape::PropsOrBool | Shape::PropsOrArray | Shape::PropsOrStrings,
                Value::Object(map),
            ) => self.props(map)?,
            (Shape::PropsOrBool, _) => return Err("boolean or JSON schema expected".to_owned()),
            (Shape::PropsOrArray, Value::Array(list)) if !list.is_empty() => {
                let mut out = Vec::with_capacity(list.len());
                for (i, value) in list.into_iter().enumerate() {
                    self.path.push(Step::Index(i));
                    match value {
                        Value::Object(map) => out.push(self.props(map)?),
                        other => return wrong(self, &other),
                    }
                    self.path.pop();
                }
                Value::Array(out)
            }
            (Shape::PropsOrStrings, value @ Value::Array(_)) => value,
            // Anything else is read as null.
            (Shape::PropsOrArray | Shape::PropsOrStrings, _) => Value::Null,
            (Shape::Struct(id), Value::Object(map)) => Value::Object(self.fields(id.get(), map)?),
            (Shape::List(element), Value::Array(list)) => self.list(*element, list, place)?,
            (Shape::Map(element), Value::Object(map)) => self.map(*element, map, place)?,
            (_, value) => return wrong(self, &value),
        })
    }

    fn list(
        &mut self,
        element: Shape,
        list: Vec<Value>,
        place: FieldPosition<'_>,
    ) -> Result<Value, String> {
        let mut out = Vec::with_capacity(list.len());
        for (i, value) in list.into_iter().enumerate() {
            self.path.push(Step::Index(i));
            out.push(self.value(element, value, place)?);
            self.path.pop();
        }
        Ok(Value::Array(out))
    }

    fn map(
        &mut self,
        element: Shape,
        mut map: Object,
        place: FieldPosition<'_>,
    ) -> Result<Value, String> {
        // The common map of strings is checked in place.
        if element == Shape::String && map.values().all(Value::is_string) {
            sort_map(&mut map);
            return Ok(Value::Object(map));
        }
        let mut out = Object::with_capacity(map.len());
        for (key, value) in map {
            self.path.push(Step::Key(key));
            let value = match (element, value) {
                // Null is empty bytes.
                (Shape::Bytes, Value::Null) => Value::from(""),
                (_, value) => self.value(element, value, place)?,
            };
            if let Some(Step::Key(key)) = self.path.pop() {
                out.insert(key, value);
            }
        }
        sort_map(&mut out);
        Ok(Value::Object(out))
    }

    fn props(&mut self, map: Object) -> Result<Value, String> {
        match schema::lookup("apiextensions/v1.JSONSchemaProps") {
            Some(props) => self.fields(props, map).map(Value::Object),
            None => Ok(Value::Object(map)),
        }
    }

    fn integer(
        &self,
        n: Number,
        min: i64,
        max: i64,
        type_name: &str,
        place: FieldPosition<'_>,
    ) -> Result<Value, String> {
        let whole = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15);
        match (n.as_i64(), self.words, whole) {
            (Some(i), ..) if (min..=max).contains(&i) => Ok(Value::Number(n)),
            // Larger values are truncated, as Go's integer conversion does.
            (Some(i), Words::Conversion, _) if min == i64::from(i32::MIN) => {
                Ok(Value::from(i as i32))
            }
            (None, Words::Conversion, Some(f)) => Ok(Value::from(f as i64)),
            (None, Words::Conversion, None) => {
                Err(format!("cannot convert float64 to {type_name}"))
            }
            _ => Err(self.mismatch(&format!("number {n}"), place, type_name)),
        }
    }
}

/// The type's name in messages; the element's if the field is a list or map.
fn name_of(shape: Shape, place: FieldPosition<'_>) -> String {
    if shape == place.field.shape {
        return place.field.type_name.clone();
    }
    let name = place.field.type_name.as_str();
    let name = name
        .strip_prefix("[]")
        .or_else(|| Some(name.strip_prefix("map[")?.split_once(']')?.1))
        .unwrap_or(name);
    name.to_owned()
}

/// The type that the decoder was reading: times and durations are read as strings, IntOrString as a
/// number.
fn type_read(shape: Shape, place: FieldPosition<'_>) -> String {
    match shape {
        Shape::Time | Shape::MicroTime | Shape::Duration => "string".to_owned(),
        Shape::IntOrString => "int32".to_owned(),
        _ => name_of(shape, place),
    }
}

/// The fields of a type in its order, with those that are serialized even if unset.
pub(crate) fn in_order(schema: &'static Type, mut slots: Vec<(usize, Value)>) -> Object {
    if !slots.is_sorted_by_key(|s| s.0) {
        slots.sort_unstable_by_key(|s| s.0);
    }
    let mut out = Object::with_capacity(slots.len() + schema.always.len());
    let mut always = schema.always.iter().map(|&i| i as usize).peekable();
    let put_zero = |out: &mut Object, position: usize| {
        let field = &schema.fields[position];
        if let Some(zero) = field.zero() {
            out.push(Key::fixed(field.name), zero.clone());
        }
    };
    for (position, value) in slots {
        while let Some(unset) = always.next_if(|&a| a < position) {
            put_zero(&mut out, unset);
        }
        always.next_if_eq(&position);
        out.push(Key::fixed(schema.fields[position].name), value);
    }
    always.for_each(|unset| put_zero(&mut out, unset));
    out
}

/// Builds an object of a type from fields that come one by one, mostly in the type's order.
pub(crate) struct InOrder {
    schema: &'static Type,
    out: Object,
    /// The present fields, by position.
    kept: u128,
    /// The position after the last field.
    next: usize,
    is_sorted: bool,
}

impl InOrder {
    pub(crate) fn new(schema: &'static Type) -> Self {
        Self {
            schema,
            // Room for defaults, which are added later.
            out: Object::with_capacity(schema.fields.len().min(12)),
            kept: 0,
            next: 0,
            is_sorted: true,
        }
    }

    /// Adds a field that is not present yet, one of the first 128 of its type.
    pub(crate) fn push(&mut self, position: usize, value: Value) {
        self.is_sorted &= self.next <= position;
        self.next = position + 1;
        self.kept |= 1 << position;
        let name = self.schema.fields[position].name;
        self.out.push(Key::fixed(name), value);
    }

    /// The object, with the fields that are serialized even if unset.
    pub(crate) fn finish(mut self) -> Object {
        for &position in &self.schema.always {
            let position = usize::from(position);
            if position < 128
                && self.kept & (1 << position) == 0
                && let Some(zero) = self.schema.fields[position].zero()
            {
                self.push(position, zero.clone());
            }
        }
        if !self.is_sorted {
            self.out.sort_fields(self.schema);
        }
        self.out
    }
}

/// Whether a decoded object keeps the field: if it is serialized, or empty where presence matters.
pub(crate) fn is_kept(field: &Field, value: &Value) -> bool {
    !is_omitted(field, value) || (field.sent && !value.is_null())
}

/// Whether Go's decoder continues after this error: not if the type parses its values itself.
fn is_misfit(shape: Shape, why: &str) -> bool {
    match shape {
        Shape::List(item) | Shape::Map(item) => is_misfit(*item, why),
        Shape::IntOrString | Shape::Quantity | Shape::Time | Shape::MicroTime | Shape::Duration => {
            false
        }
        _ => why.contains(" into Go struct field ") || why.starts_with("illegal base64 data "),
    }
}

/// Whether Go omits this value from its JSON.
pub(crate) fn is_omitted(field: &Field, value: &Value) -> bool {
    match field.presence {
        Presence::Always | Presence::PointerNull => false,
        Presence::Pointer => value.is_null(),
        Presence::OmitZero => match value {
            Value::Null => true,
            Value::Object(map) => map.is_empty(),
            _ => false,
        },
        Presence::OmitEmpty => match (field.shape, value) {
            (Shape::Struct(_) | Shape::Quantity | Shape::IntOrString, _) => false,
            (Shape::Time | Shape::MicroTime | Shape::Duration, _) => false,
            (Shape::Raw | Shape::Json, _) => false,
            (_, Value::Null) => true,
            (_, Value::Bool(b)) => !b,
            (_, Value::Number(n)) => n.as_f64() == Some(0.0),
            (_, Value::String(s)) => s.is_empty(),
            (_, Value::Array(list)) => list.is_empty(),
            (_, Value::Object(map)) => map.is_empty(),
        },
    }
}

pub(crate) fn float(n: Number) -> Value {
    match n.as_f64() {
        // Go prints whole floats without a point.
        Some(f) if !n.is_i64() && f.fract() == 0.0 && f.abs() < 1e15 => Value::from(f as i64),
        _ => Value::Number(n),
    }
}

pub(crate) fn bytes(mut text: String) -> Result<Value, String> {
    let given = text.contains(['\r', '\n']).then(|| text.clone());
    if given.is_some() {
        text.retain(|c| c != '\r' && c != '\n');
    }
    match BASE64.decode(&text) {
        Ok(_) => Ok(Value::String(text)),
        // Go ignores bits after the last byte, and does not write them again.
        Err(base64::DecodeError::InvalidLastSymbol(..)) => {
            let decoded = LENIENT_BASE64.decode(&text).map_err(|e| e.to_string())?;
            Ok(Value::String(BASE64.encode(decoded)))
        }
        Err(_) => {
            let at = corrupt_at(given.as_deref().unwrap_or(&text));
            Err(format!("illegal base64 data at input byte {at}"))
        }
    }
}

/// The offset at which Go rejects invalid base64.
fn corrupt_at(text: &str) -> usize {
    let alphabet = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let letters: Vec<(usize, u8)> = text
        .bytes()
        .enumerate()
        .filter(|(_, b)| !matches!(b, b'\r' | b'\n'))
        .collect();
    for quantum in letters.chunks(4) {
        for (j, (at, byte)) in quantum.iter().enumerate() {
            match byte {
                b'=' if j < 2 => return *at,
                b'=' => {
                    // Two padding characters where two are missing, and nothing after them.
                    let second = quantum.get(j + 1);
                    return match (j, second) {
                        (2, None) => text.len(),
                        (2, Some((_, b'='))) | (3, _) => {
                            let behind = letters.iter().find(|(next, _)| next > &quantum[3].0);
                            behind.map_or(text.len(), |(next, _)| *next)
                        }
                        _ => *at,
                    };
                }
                b if alphabet(*b) => {}
                _ => return *at,
            }
        }
        if quantum.len() < 4 {
            return text.len() - quantum.len();
        }
    }
    text.len()
}

/// The error for a value of another type than expected in a tree.
fn unconverted(shape: Shape, value: &Value, place: FieldPosition<'_>) -> String {
    let (kind, integer) = match value {
        Value::Null => ("invalid", false),
        Value::Bool(_) => ("bool", false),
        Value::Number(n) if n.is_i64() => ("int64", true),
        Value::Number(_) => ("float64", false),
        Value::String(_) => ("string", false),
        Value::Array(_) => ("slice", false),
        Value::Object(_) => ("map", false),
    };
    match shape {
        Shape::Struct(_) => format!("cannot restore struct from: {kind}"),
        Shape::Map(_) => format!("cannot restore map from {kind}"),
        Shape::List(_) | Shape::Bytes => format!("cannot restore slice from {kind}"),
        Shape::String if integer => format!("cannot convert int64 to {}", name_of(shape, place)),
        Shape::String => "unrecognized type: string".to_owned(),
        Shape::Bool => "unrecognized type: bool".to_owned(),
        Shape::Int32 => "unrecognized type: int32".to_owned(),
        Shape::Int64 => "unrecognized type: int64".to_owned(),
        Shape::Float64 => "unrecognized type: float64".to_owned(),
        _ => format!(
            "json: cannot unmarshal {} into Go value of type {}",
            kind_of(value),
            type_read(shape, place)
        ),
    }
}

pub(crate) fn time(text: &str) -> Result<Value, String> {
    let moment = time::parse(text)?;
    Ok(match moment.is_zero() {
        true => Value::Null,
        false => time::format(moment.seconds).into(),
    })
}

pub(crate) fn micro_time(text: &str) -> Result<Value, String> {
    let moment = time::parse_micro(text)?;
    Ok(match moment.is_zero() {
        true => Value::Null,
        false => time::format_micro(moment).into(),
    })
}

/// In Go's format.
pub(crate) fn duration(text: String) -> Result<Value, String> {
    Ok(duration::format(duration::nanos(&text)?).into())
}

pub(crate) fn quantity(value: &Value, field: &Field) -> Result<Value, String> {
    // Resources are rounded up to thousandths.
    let finest = match field.type_name.as_str() {
        // The overhead of a runtime class is not rounded before it is added to a pod.
        "v1.ResourceList" if field.name != "podFixed" => quantity::MILLI,
        _ => quantity::FINEST,
    };
    let written;
    let text = match value {
        Value::String(text) => text.trim(),
        other => {
            written = other.to_string();
            &written
        }
    };
    match quantity::canonical(text, finest) {
        Ok(text) => Ok(Value::from(text.as_ref())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
