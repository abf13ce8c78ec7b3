//! The fast path from JSON to a normalised object: one pass along the schema, for valid documents.
//! Anything unusual (an unknown or duplicate field, a wrong type, a null within a list) ends it,
//! and the slow path reports the error.

use super::{MAX_DEPTH, Tree};
use crate::json::{self, Key, Number};
use crate::normalise::{self, InOrder};
use crate::schema::{Field, Shape, Type};
use crate::{Object, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;

/// The object, if the fast path succeeds.
pub(super) fn object(bytes: &[u8], schema: &'static Type) -> Option<Object> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut deserializer = json::Deserializer::from_str(text);
    let fields = Fields { schema, depth: 0 };
    let object = fields.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(object)
}

/// Ends the fast path. The message is never read.
fn no<E: Error>() -> E {
    E::custom("")
}

/// A struct.
struct Fields {
    schema: &'static Type,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Fields {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        if self.depth >= MAX_DEPTH {
            return Err(no());
        }
        let mut out = InOrder::new(self.schema);
        // Which fields were seen, by position; the largest types have some sixty.
        let mut seen = 0_u128;
        while let Some(position) = map.next_key_seed(Position(self.schema))? {
            let bit = 1_u128.checked_shl(position as u32).unwrap_or_default();
            if bit == 0 || seen & bit != 0 {
                return Err(no());
            }
            seen |= bit;
            let field = &self.schema.fields[position];
            let value = map.next_value_seed(Content {
                shape: field.shape,
                field,
                depth: self.depth + 1,
                may_be_null: true,
            })?;
            if !value.is_null() && normalise::is_kept(field, &value) {
                out.push(position, value);
            }
        }
        Ok(out.finish())
    }
}

/// The position of a field by its name.
struct Position(&'static Type);

impl<'de> DeserializeSeed<'de> for Position {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Position {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<usize, E> {
        self.0.position(name).ok_or_else(no)
    }
}

/// A value of a shape.
#[derive(Clone, Copy)]
struct Content {
    shape: Shape,
    field: &'static Field,
    depth: usize,
    /// Null means an absent field, but within lists and maps a zero value.
    may_be_null: bool,
}

impl Content {
    fn below(self, shape: Shape) -> Self {
        Self {
            shape,
            depth: self.depth + 1,
            may_be_null: false,
            ..self
        }
    }

    fn number<E: Error>(self, n: Number) -> Result<Value, E> {
        let fits = match self.shape {
            Shape::Int32 | Shape::IntOrString => {
                n.as_i64().is_some_and(|i| i32::try_from(i).is_ok())
            }
            Shape::Int64 => n.as_i64().is_some(),
            Shape::Float64 => return Ok(normalise::float(n)),
            Shape::Quantity => return self.quantity(&Value::Number(n)),
            _ => false,
        };
        fits.then_some(Value::Number(n)).ok_or_else(no)
    }

    fn quantity<E: Error>(self, value: &Value) -> Result<Value, E> {
        normalise::quantity(value, self.field).map_err(|_| no())
    }

    fn text<E: Error>(self, text: String) -> Result<Value, E> {
        match self.shape {
            Shape::String | Shape::IntOrString => Ok(Value::String(text)),
            Shape::Bytes => normalise::bytes(text).map_err(|_| no()),
            Shape::Quantity => self.quantity(&Value::String(text)),
            Shape::Time => normalise::time(&text).map_err(|_| no()),
            Shape::MicroTime => normalise::micro_time(&text).map_err(|_| no()),
            Shape::Duration => normalise::duration(text).map_err(|_| no()),
            _ => Err(no()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Content {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.shape {
            Shape::Raw | Shape::FieldsV1 | Shape::Any | Shape::Json => {
                let duplicate = Cell::new(false);
                let tree = Tree {
                    duplicate: &duplicate,
                    depth: self.depth,
                };
                let value = tree.deserialize(deserializer)?;
                let in_doubt = duplicate.get() || (value.is_null() && !self.may_be_null);
                if in_doubt { Err(no()) } else { Ok(value) }
            }
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Content {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the field's type")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.may_be_null.then_some(Value::Null).ok_or_else(no)
    }

    fn visit_bool<E: Error>(self, b: bool) -> Result<Value, E> {
        let fits = self.shape == Shape::Bool;
        fits.then_some(Value::Bool(b)).ok_or_else(no)
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<Value, E> {
        self.number(n.into())
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<Value, E> {
        self.number(n.into())
    }

    fn visit_f64<E: Error>(self, f: f64) -> Result<Value, E> {
        self.number(Number::from_f64(f).ok_or_else(no)?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.text(text.to_owned())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let Shape::List(element) = self.shape else {
            return Err(no());
        };
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self.below(*element))? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let element = match self.shape {
            Shape::Struct(id) => {
                let fields = Fields {
                    schema: id.get(),
                    depth: self.depth,
                };
                return fields.visit_map(map).map(Value::Object);
            }
            Shape::Map(element) => *element,
            _ => return Err(no()),
        };
        let mut out = Object::new();
        while let Some(key) = map.next_key::<Key>()? {
            let value = map.next_value_seed(self.below(element))?;
            if out.insert(key, value).is_some() {
                return Err(no());
            }
        }
        normalise::sort_map(&mut out);
        Ok(Value::Object(out))
    }
}
