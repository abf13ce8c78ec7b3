//! A borrowed value: also of a whole object, which is not a `Value` itself.

use machinery::json::Number;
use machinery::{Object, Value};

#[derive(Clone, Copy)]
pub(super) enum View<'a> {
    Null,
    Bool(bool),
    Number(&'a Number),
    Text(&'a str),
    List(&'a [Value]),
    Map(&'a Object),
}

impl<'a> From<&'a Value> for View<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(b) => Self::Bool(*b),
            Value::Number(n) => Self::Number(n),
            Value::String(s) => Self::Text(s),
            Value::Array(list) => Self::List(list),
            Value::Object(map) => Self::Map(map),
        }
    }
}

impl View<'_> {
    pub(super) fn to_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(b) => b.into(),
            Self::Number(n) => Value::Number(n.clone()),
            Self::Text(s) => s.into(),
            Self::List(list) => list.to_vec().into(),
            Self::Map(map) => Value::Object(map.clone()),
        }
    }

    /// The JSON type, and Go's format for numbers.
    pub(super) fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Null => ("null", ""),
            Self::Bool(_) => ("boolean", ""),
            Self::Number(n) if n.is_i64() => ("integer", "int64"),
            Self::Number(_) => ("number", "float64"),
            Self::Text(_) => ("string", ""),
            Self::List(_) => ("array", ""),
            Self::Map(_) => ("object", ""),
        }
    }

    /// Whether this equals a value of an enumeration; null never does. Numbers are converted to the
    /// other's type, as Go does.
    pub(super) fn is_like(self, allowed: &Value) -> bool {
        match (self, allowed) {
            (Self::Null, _) | (_, Value::Null) => false,
            (Self::Number(n), Value::Number(allowed)) => match (n.as_f64(), allowed.as_i64()) {
                (Some(f), Some(i)) if !n.is_i64() => f as i64 == i,
                _ => n == allowed || n.as_f64() == allowed.as_f64(),
            },
            (Self::Bool(b), Value::Bool(allowed)) => b == *allowed,
            (Self::Text(s), Value::String(allowed)) => s == allowed,
            (Self::List(list), Value::Array(allowed)) => list == allowed.as_slice(),
            (Self::Map(map), Value::Object(allowed)) => map == allowed,
            _ => false,
        }
    }
}
