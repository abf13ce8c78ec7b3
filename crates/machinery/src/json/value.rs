//! Any JSON value.

use super::{Key, Map, Number};
use std::borrow::Cow;
use std::fmt;

/// Any JSON value.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Value>),
    Object(Map),
}

static NULL: Value = Value::Null;

impl Value {
    /// How deeply objects and arrays are nested; 0 for other values.
    pub fn depth(&self) -> usize {
        match self {
            Value::Object(map) => 1 + map.values().map(Value::depth).max().unwrap_or(0),
            Value::Array(list) => 1 + list.iter().map(Value::depth).max().unwrap_or(0),
            _ => 0,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    pub fn is_boolean(&self) -> bool {
        matches!(self, Value::Bool(_))
    }

    pub fn is_number(&self) -> bool {
        matches!(self, Value::Number(_))
    }

    pub fn is_string(&self) -> bool {
        matches!(self, Value::String(_))
    }

    pub fn is_array(&self) -> bool {
        matches!(self, Value::Array(_))
    }

    pub fn is_object(&self) -> bool {
        matches!(self, Value::Object(_))
    }

    pub fn is_i64(&self) -> bool {
        matches!(self, Value::Number(n) if n.is_i64())
    }

    pub fn is_u64(&self) -> bool {
        matches!(self, Value::Number(n) if n.is_u64())
    }

    pub fn is_f64(&self) -> bool {
        matches!(self, Value::Number(n) if n.is_f64())
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Number(n) => n.as_i64(),
            _ => None,
        }
    }

    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Number(n) => n.as_u64(),
            _ => None,
        }
    }

    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Number(n) => n.as_f64(),
            _ => None,
        }
    }

    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Value::Number(n) => Some(n),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&Vec<Value>> {
        match self {
            Value::Array(list) => Some(list),
            _ => None,
        }
    }

    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Value>> {
        match self {
            Value::Array(list) => Some(list),
            _ => None,
        }
    }

    #[inline]
    pub fn as_object(&self) -> Option<&Map> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_object_mut(&mut self) -> Option<&mut Map> {
        match self {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    /// The value at a name or index.
    #[inline]
    pub fn get<I: Index>(&self, index: I) -> Option<&Value> {
        index.look(self)
    }

    /// As [`Value::get`], mutable.
    pub fn get_mut<I: Index>(&mut self, index: I) -> Option<&mut Value> {
        index.reach(self)
    }

    /// Takes the value and leaves null.
    pub fn take(&mut self) -> Value {
        std::mem::take(self)
    }

    /// The value at a JSON pointer (RFC 6901).
    pub fn pointer(&self, pointer: &str) -> Option<&Value> {
        tokens(pointer)?.try_fold(self, |value, token| match value {
            Value::Object(map) => map.get(&token),
            Value::Array(list) => list.get(place(&token)?),
            _ => None,
        })
    }

    /// As [`Value::pointer`], mutable.
    pub fn pointer_mut(&mut self, pointer: &str) -> Option<&mut Value> {
        tokens(pointer)?.try_fold(self, |value, token| match value {
            Value::Object(map) => map.get_mut(&token),
            Value::Array(list) => list.get_mut(place(&token)?),
            _ => None,
        })
    }
}

fn tokens(pointer: &str) -> Option<impl Iterator<Item = String>> {
    let rest = match pointer {
        "" => None,
        pointer => Some(pointer.strip_prefix('/')?),
    };
    let tokens = rest.into_iter().flat_map(|rest| rest.split('/'));
    Some(tokens.map(|token| token.replace("~1", "/").replace("~0", "~")))
}

fn place(token: &str) -> Option<usize> {
    if token.starts_with('+') || (token.starts_with('0') && token.len() > 1) {
        return None;
    }
    token.parse().ok()
}

/// An index in brackets: a name or a number.
pub trait Index {
    fn look<'a>(&self, value: &'a Value) -> Option<&'a Value>;
    fn reach<'a>(&self, value: &'a mut Value) -> Option<&'a mut Value>;
    /// The value, created if possible.
    fn make<'a>(&self, value: &'a mut Value) -> &'a mut Value;
}

impl Index for str {
    #[inline]
    fn look<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        value.as_object()?.get(self)
    }

    fn reach<'a>(&self, value: &'a mut Value) -> Option<&'a mut Value> {
        value.as_object_mut()?.get_mut(self)
    }

    fn make<'a>(&self, value: &'a mut Value) -> &'a mut Value {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(map) => map.entry(Key::new(self)).or_insert(Value::Null),
            other => panic!("no entry named {self} in {other}"),
        }
    }
}

impl Index for usize {
    fn look<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        value.as_array()?.get(*self)
    }

    fn reach<'a>(&self, value: &'a mut Value) -> Option<&'a mut Value> {
        value.as_array_mut()?.get_mut(*self)
    }

    fn make<'a>(&self, value: &'a mut Value) -> &'a mut Value {
        match value {
            Value::Array(list) => &mut list[*self],
            other => panic!("no element {self} in {other}"),
        }
    }
}

macro_rules! index_as_text {
    ($($type:ty),*) => {$(
        impl Index for $type {
            #[inline]
            fn look<'a>(&self, value: &'a Value) -> Option<&'a Value> {
                str::look(self, value)
            }

            fn reach<'a>(&self, value: &'a mut Value) -> Option<&'a mut Value> {
                str::reach(self, value)
            }

            fn make<'a>(&self, value: &'a mut Value) -> &'a mut Value {
                str::make(self, value)
            }
        }
    )*};
}
index_as_text!(String, Key);

impl<T: Index + ?Sized> Index for &T {
    #[inline]
    fn look<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        (**self).look(value)
    }

    fn reach<'a>(&self, value: &'a mut Value) -> Option<&'a mut Value> {
        (**self).reach(value)
    }

    fn make<'a>(&self, value: &'a mut Value) -> &'a mut Value {
        (**self).make(value)
    }
}

impl<I: Index> std::ops::Index<I> for Value {
    type Output = Value;

    /// Null if absent.
    #[inline]
    fn index(&self, index: I) -> &Value {
        index.look(self).unwrap_or(&NULL)
    }
}

impl<I: Index> std::ops::IndexMut<I> for Value {
    fn index_mut(&mut self, index: I) -> &mut Value {
        index.make(self)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match f.alternate() {
            true => super::to_string_pretty(self),
            false => super::to_string(self),
        };
        f.write_str(&text.map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::Bool(b) => write!(f, "Bool({b})"),
            Value::Number(n) => fmt::Debug::fmt(n, f),
            Value::String(text) => write!(f, "String({text:?})"),
            Value::Array(list) => {
                f.write_str("Array ")?;
                fmt::Debug::fmt(list, f)
            }
            Value::Object(map) => {
                f.write_str("Object ")?;
                fmt::Debug::fmt(map, f)
            }
        }
    }
}

macro_rules! numbers {
    ($($type:ty => $as:ident, $wide:ty);* $(;)?) => {$(
        impl From<$type> for Value {
            fn from(n: $type) -> Self {
                Value::Number(n.into())
            }
        }

        impl PartialEq<$type> for Value {
            fn eq(&self, other: &$type) -> bool {
                <$wide>::try_from(*other).is_ok_and(|n| self.$as() == Some(n))
            }
        }

        impl PartialEq<$type> for &Value {
            fn eq(&self, other: &$type) -> bool {
                **self == *other
            }
        }

        impl PartialEq<Value> for $type {
            fn eq(&self, other: &Value) -> bool {
                other == self
            }
        }
    )*};
}
numbers! {
    i8 => as_i64, i64; i16 => as_i64, i64; i32 => as_i64, i64; i64 => as_i64, i64;
    isize => as_i64, i64;
    u8 => as_u64, u64; u16 => as_u64, u64; u32 => as_u64, u64; u64 => as_u64, u64;
    usize => as_u64, u64;
}

impl From<f64> for Value {
    /// Values without a JSON form become null.
    fn from(f: f64) -> Self {
        Number::from_f64(f).map_or(Value::Null, Value::Number)
    }
}

impl PartialEq<f64> for Value {
    fn eq(&self, other: &f64) -> bool {
        self.as_f64() == Some(*other)
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Self {
        Value::Bool(b)
    }
}

impl PartialEq<bool> for Value {
    fn eq(&self, other: &bool) -> bool {
        self.as_bool() == Some(*other)
    }
}

impl PartialEq<bool> for &Value {
    fn eq(&self, other: &bool) -> bool {
        self.as_bool() == Some(*other)
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == Some(*other)
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == Some(other)
    }
}

impl PartialEq<Value> for str {
    fn eq(&self, other: &Value) -> bool {
        other == self
    }
}

impl PartialEq<Value> for &str {
    fn eq(&self, other: &Value) -> bool {
        other == *self
    }
}

impl PartialEq<Value> for String {
    fn eq(&self, other: &Value) -> bool {
        other == self
    }
}

impl From<Number> for Value {
    fn from(n: Number) -> Self {
        Value::Number(n)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(text)
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(text: Cow<'_, str>) -> Self {
        Value::String(text.into_owned())
    }
}

impl From<Key> for Value {
    fn from(key: Key) -> Self {
        Value::String(key.into())
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Value::Object(map)
    }
}

impl From<()> for Value {
    fn from((): ()) -> Self {
        Value::Null
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(list: Vec<T>) -> Self {
        list.into_iter().collect()
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(list: [T; N]) -> Self {
        list.into_iter().collect()
    }
}

impl<T: Clone + Into<Value>> From<&[T]> for Value {
    fn from(list: &[T]) -> Self {
        list.iter().cloned().collect()
    }
}

impl<T: Into<Value>> FromIterator<T> for Value {
    fn from_iter<I: IntoIterator<Item = T>>(list: I) -> Self {
        Value::Array(list.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Key>, V: Into<Value>> FromIterator<(K, V)> for Value {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        Value::Object(entries.map(|(key, value)| (key, value.into())).collect())
    }
}

impl From<serde_json::Value> for Value {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(b) => Value::Bool(b),
            serde_json::Value::Number(n) => Value::Number(n),
            serde_json::Value::String(text) => Value::String(text),
            serde_json::Value::Array(list) => list.into_iter().collect(),
            serde_json::Value::Object(map) => map.into_iter().collect(),
        }
    }
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(b) => Self::Bool(b),
            Value::Number(n) => Self::Number(n),
            Value::String(text) => Self::String(text),
            Value::Array(list) => list.into_iter().collect(),
            Value::Object(map) => map.into_iter().collect(),
        }
    }
}

impl From<serde_json::Map<String, serde_json::Value>> for Map {
    fn from(map: serde_json::Map<String, serde_json::Value>) -> Self {
        map.into_iter().map(|(k, v)| (k, v.into())).collect()
    }
}

impl From<Map> for serde_json::Map<String, serde_json::Value> {
    fn from(map: Map) -> Self {
        map.into_iter().map(|(k, v)| (k.into(), v.into())).collect()
    }
}
