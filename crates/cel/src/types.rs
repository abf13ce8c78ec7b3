//! Types of the checker, and how messages print them.

use std::{fmt, sync::Arc};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Dyn,
    /// A value of any type, like `Dyn`, except that comprehensions cannot iterate over it.
    Any,
    /// The type of an expression whose error was already reported.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<Type>),
    Map(Arc<Type>, Arc<Type>),
    Type(Arc<Type>),
    Optional(Arc<Type>),
    /// An object with declared fields, or a library value, by name.
    Struct(Arc<str>),
    /// A library value that is not an object.
    Opaque(&'static str),
    /// A type parameter of a signature (`A`), or a type variable of the checker.
    Param(Param),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Param {
    Named(char),
    Variable(u32),
}

impl Type {
    pub fn list(element: Type) -> Self {
        Self::List(Arc::new(element))
    }

    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new(key), Arc::new(value))
    }

    /// The name of a run-time value's type, without parameters.
    pub fn runtime_name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Any => "google.protobuf.Any",
            Self::Error => "error",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(_) => "list",
            Self::Map(..) => "map",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Struct(name) => name,
            Self::Opaque(name) => name,
            Self::Param(_) => "type_param",
        }
    }

    pub fn optional(value: Type) -> Self {
        Self::Optional(Arc::new(value))
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any)
    }

    pub fn is_dyn_or_error(&self) -> bool {
        self.is_dyn() || matches!(self, Self::Error)
    }

    /// The type inside of an optional, and whether it was one.
    pub fn unwrap_optional(&self) -> (&Type, bool) {
        match self {
            Self::Optional(inner) => (inner, true),
            other => (other, false),
        }
    }

    /// The type's name in messages about an expression's result.
    pub fn declared_name(&self) -> String {
        match self {
            Self::Any => "google.protobuf.Any".to_owned(),
            Self::Null => "null_type".to_owned(),
            Self::Duration => "google.protobuf.Duration".to_owned(),
            Self::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Self::List(element) => format!("list({})", element.declared_name()),
            Self::Map(key, value) => {
                format!("map({}, {})", key.declared_name(), value.declared_name())
            }
            Self::Type(inner) => format!("type({})", inner.declared_name()),
            Self::Optional(inner) => format!("optional_type({})", inner.declared_name()),
            other => other.to_string(),
        }
    }

    /// Parses a type of the function tables: `int`, `list(A)`, `map(string, dyn)`, `net.IP`.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim();
        if let Some((name, rest)) = text.split_once('(') {
            let params = split_arguments(rest.strip_suffix(')').unwrap_or(rest));
            let param = |at: usize| Self::parse(params.get(at).copied().unwrap_or("dyn"));
            return match name {
                "list" => Self::list(param(0)),
                "map" => Self::map(param(0), param(1)),
                "type" => Self::Type(Arc::new(param(0))),
                _ => Self::optional(param(0)),
            };
        }
        match text {
            "dyn" => Self::Dyn,
            "null" => Self::Null,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "uint" => Self::Uint,
            "double" => Self::Double,
            "string" => Self::String,
            "bytes" => Self::Bytes,
            "duration" => Self::Duration,
            "timestamp" => Self::Timestamp,
            "net.IP" => Self::Opaque("net.IP"),
            "net.CIDR" => Self::Opaque("net.CIDR"),
            name if name.len() == 1 => Self::Param(Param::Named(name.as_bytes()[0] as char)),
            name => Self::Struct(name.into()),
        }
    }
}

/// Splits at commas outside of parentheses.
pub(crate) fn split_arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(text[start..].trim());
    }
    parts
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Dyn => "dyn",
            Self::Any => "any",
            Self::Error => "!error!",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "duration",
            Self::Timestamp => "timestamp",
            Self::List(element) => return write!(f, "list({element})"),
            Self::Map(key, value) => return write!(f, "map({key}, {value})"),
            Self::Type(inner) if **inner == Self::optional(Self::Dyn) => "type(optional_type)",
            Self::Type(inner) if **inner == Self::Type(Arc::new(Self::Dyn)) => "type(type)",
            Self::Type(inner) => return write!(f, "type({inner})"),
            Self::Optional(inner) => return write!(f, "optional_type({inner})"),
            Self::Struct(name) => name,
            Self::Opaque(name) => name,
            Self::Param(Param::Named(name)) => return write!(f, "{name}"),
            Self::Param(Param::Variable(number)) => return write!(f, "_var{number}"),
        };
        f.write_str(name)
    }
}
