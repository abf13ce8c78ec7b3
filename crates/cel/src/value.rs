//! Values of an evaluation. Values of an object are read in place: lists, maps and strings borrow
//! from its JSON, and only new values are allocated.

mod list;
mod map;

use std::{cmp::Ordering, fmt, ops::Deref, sync::Arc};

use machinery::json;

use crate::{
    decl::{Decl, DeclKind},
    env::{JSON_PATCH, PATCH_FIELDS},
    functions::{convert, library::Library},
    meter,
    types::Type,
};

/// The error of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub message: String,
    /// Ends the whole evaluation: nothing can absorb this error.
    pub fatal: bool,
}

impl Error {
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            fatal: false,
        }
    }

    pub fn no_such_overload() -> Self {
        Self::new("no such overload")
    }

    pub fn no_such_key(key: impl fmt::Display) -> Self {
        Self::new(format!("no such key: {key}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

pub use crate::functions::timestamp::Timestamp;
pub use list::{Items, Joined, List};
pub use map::{Map, OwnedMap};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    /// Nanoseconds.
    Duration(i64),
    Timestamp(Timestamp),
    List(List<'a>),
    Map(Map<'a>),
    Type(Type),
    Optional(Option<Arc<Value<'a>>>),
    Library(Library),
}

/// A string that borrows where it can.
#[derive(Debug, Clone)]
pub enum Text<'a> {
    Borrowed(&'a str),
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

// A value is moved several times in each step of an evaluation.
const _: () = assert!(size_of::<Value<'_>>() <= 48);

/// Maximum nesting of new values: everything that walks them recurses.
const DEEPEST: u32 = 150;
/// About the memory of a copy of an entry of a JSON object.
fn entry_bytes((key, value): (&json::Key, &json::Value)) -> usize {
    size_of::<json::Key>() + key.len() + json_bytes(value)
}

fn json_bytes(value: &json::Value) -> usize {
    let below = match value {
        json::Value::String(text) => text.len(),
        json::Value::Array(items) => items.iter().map(json_bytes).sum(),
        json::Value::Object(map) => map.iter().map(entry_bytes).sum(),
        _ => 0,
    };
    size_of::<json::Value>() + below
}

impl<'a> Value<'a> {
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Shared(text.into()))
    }

    pub fn list(items: Vec<Value<'a>>) -> Self {
        Self::List(List::Owned(Arc::new(Items::new(items))))
    }

    pub fn some(value: Value<'a>) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    /// The nesting depth of new lists, maps and optionals.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::List(List::Owned(items)) => items.depth + 1,
            Self::List(List::Joined(joined)) => joined.depth,
            Self::Map(Map::Owned(map)) => map.depth + 1,
            Self::Optional(Some(value)) => value.depth() + 1,
            _ => 0,
        }
    }

    /// The value, unless it is nested too deep.
    #[inline]
    pub(crate) fn shallow(self) -> Result<Self> {
        match self.depth() <= DEEPEST {
            true => Ok(self),
            false => Err(Error {
                message: format!("value nesting limit exceeded: {DEEPEST}"),
                fatal: true,
            }),
        }
    }

    pub const NONE: Value<'static> = Value::Optional(None);

    /// A JSON value as its schema reads it, or as it is without one.
    pub fn from_json(value: &'a json::Value, decl: Option<&'a Decl>) -> Result<Self> {
        use json::Value as Json;
        Ok(match value {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => Self::from_number(number, decl)?,
            Json::String(text) => Self::from_text(text, decl)?,
            Json::Array(items) => Self::List(List::json(items, decl)),
            Json::Object(map) => Self::Map(Map::Json { map, decl }),
        })
    }

    /// A JSON number as its schema reads it.
    pub fn from_number(number: &json::Number, decl: Option<&Decl>) -> Result<Self> {
        let kind = decl.map(|decl| &decl.kind);
        let float = number.as_f64().unwrap_or_default();
        Ok(match (kind, number.as_i64()) {
            (Some(DeclKind::Double), _) => Self::Double(float),
            (_, Some(whole)) => Self::Int(whole),
            (Some(DeclKind::Int), None) => Self::Int(float as i64),
            _ => Self::Double(float),
        })
    }

    /// A JSON string as its schema reads it.
    pub fn from_text(text: &'a str, decl: Option<&Decl>) -> Result<Self> {
        Ok(match decl.map(|decl| &decl.kind) {
            Some(DeclKind::Bytes) => Self::Bytes(convert::base64(text)?.into()),
            Some(DeclKind::Duration) => Self::Duration(convert::schema_duration(text)?),
            Some(DeclKind::Timestamp) => Self::Timestamp(convert::schema_time(text)?),
            _ => Self::String(Text::Borrowed(text)),
        })
    }

    /// The value as JSON; an error if it has no JSON form.
    pub fn to_json(&self) -> Result<json::Value> {
        meter::counted(|| self.json())
    }

    fn json(&self) -> Result<json::Value> {
        meter::memory(size_of::<Self>())?;
        Ok(match self {
            Self::Null | Self::Optional(None) => json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Uint(value) => (*value).into(),
            Self::Double(value) => (*value).into(),
            Self::String(text) => {
                meter::memory(text.len())?;
                json::Value::from(&**text)
            }
            Self::Library(Library::Lost(why)) => return Err(Error::new(&**why)),
            Self::Bytes(_) | Self::Duration(_) | Self::Timestamp(_) | Self::Library(_) => {
                let text = convert::to_text(self)?;
                meter::memory(text.len())?;
                json::Value::from(text.as_str())
            }
            Self::Optional(Some(value)) => value.json()?,
            Self::List(list) => {
                let items = list.iter().map(|item| item?.json());
                json::Value::Array(items.collect::<Result<_>>()?)
            }
            Self::Map(Map::Json { map, .. }) => {
                meter::memory(map.iter().map(entry_bytes).sum())?;
                json::Value::Object((*map).clone())
            }
            Self::Map(map) => {
                let mut object = json::Map::default();
                for entry in map.iter() {
                    let (key, value) = entry?;
                    let Value::String(key) = key else {
                        return Err(Error::new(format!(
                            "unsupported key type: {}",
                            key.type_of()
                        )));
                    };
                    object.insert(json::Key::new(&key), value.json()?);
                }
                json::Value::Object(object)
            }
            Self::Type(t) => return Err(Error::new(format!("type {t} is no JSON value"))),
        })
    }

    pub fn type_of(&self) -> Type {
        match self {
            Self::Null => Type::Null,
            Self::Bool(_) => Type::Bool,
            Self::Int(_) => Type::Int,
            Self::Uint(_) => Type::Uint,
            Self::Double(_) => Type::Double,
            Self::String(_) => Type::String,
            Self::Bytes(_) => Type::Bytes,
            Self::Duration(_) => Type::Duration,
            Self::Timestamp(_) => Type::Timestamp,
            Self::List(_) => Type::list(Type::Dyn),
            Self::Map(Map::Owned(map)) if map.object.is_some() => {
                Type::Struct(map.object.clone().unwrap_or_default())
            }
            Self::Map(_) => Type::map(Type::Dyn, Type::Dyn),
            Self::Type(_) => Type::Type(Arc::new(Type::Dyn)),
            Self::Optional(_) => Type::optional(Type::Dyn),
            Self::Library(value) => value.type_of(),
        }
    }

    /// As error messages show a value.
    pub fn display(&self) -> String {
        convert::to_text(self).unwrap_or_else(|_| self.type_of().to_string())
    }

    /// Number of characters, bytes, elements or entries; one for everything else.
    pub fn size(&self) -> u64 {
        match self {
            Self::String(text) => text.chars().count() as u64,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::List(list) => list.len() as u64,
            Self::Map(map) if map.is_constructed() => 1,
            Self::Map(map) => map.len() as u64,
            Self::Optional(Some(value)) => value.size(),
            Self::Library(value) => value.size(),
            _ => 1,
        }
    }

    /// Whether two values are equal; incomparable ones are not.
    pub fn is_equal(&self, other: &Value<'a>) -> Result<bool> {
        match self.equals(other) {
            Err(error) if !error.fatal => Ok(false),
            result => result,
        }
    }

    /// CEL equality: numbers of different types compare by value, other different types are
    /// unequal. Library values and values with a schema only compare with their own type.
    pub fn equals(&self, other: &Value<'a>) -> Result<bool> {
        meter::work(1)?;
        Ok(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::String(a), Self::String(b)) => {
                meter::work(a.len().min(b.len()) / 64)?;
                **a == **b
            }
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Duration(a), Self::Duration(b)) => a == b,
            (Self::Timestamp(a), Self::Timestamp(b)) => a == b,
            (Self::List(a), Self::List(b)) => a.equals(b)?,
            (Self::Map(a), Self::Map(b)) => a.equals(b)?,
            (Self::Type(a), Self::Type(b)) => same_kind(a, b),
            (Self::Optional(None), Self::Optional(None)) => true,
            (Self::Optional(Some(a)), Self::Optional(Some(b))) => a.equals(b)?,
            (_, Self::Null) => false,
            (Self::Library(Library::Lost(why)), _) | (_, Self::Library(Library::Lost(why))) => {
                return Err(Error::new(&**why));
            }
            // Checks and decisions cannot be compared.
            (Self::Library(Library::Check(_) | Library::Decision(_)), _) => {
                return Err(Error::no_such_overload());
            }
            // As upstream: a calculated quantity must be on the left.
            (Self::Library(Library::Quantity(_)), Self::Library(Library::Quantity(b)))
                if b.is_calculated() =>
            {
                return Err(Error::no_such_overload());
            }
            (Self::Library(a), Self::Library(b)) if a.type_of() == b.type_of() => a == b,
            (Self::Library(_), _) => return Err(Error::no_such_overload()),
            (Self::List(list), _) if list.is_described() => {
                return Err(Error::no_such_overload());
            }
            (Self::Map(map), _) if map.is_described() => return Err(Error::no_such_overload()),
            _ => numbers(self, other) == Some(Ordering::Equal),
        })
    }

    /// Whether fields of constructed objects are equal. As upstream, which compares their Go values deeply: numbers of
    /// different types differ, and so do different lists, whatever their elements.
    pub(super) fn is_identical(&self, other: &Value<'a>) -> Result<bool> {
        match (self, other) {
            (Self::List(List::Owned(a)), Self::List(List::Owned(b))) => Ok(Arc::ptr_eq(a, b)),
            (Self::List(_), _) => Ok(false),
            (Self::Map(a), Self::Map(b)) if a.object() == b.object() => {
                meter::work(1)?;
                a.is_identical(b)
            }
            (Self::Map(_), _) => Ok(false),
            (Self::Optional(Some(a)), Self::Optional(Some(b))) => a.is_identical(b),
            _ if std::mem::discriminant(self) != std::mem::discriminant(other) => Ok(false),
            (Self::Library(Library::Quantity(a)), Self::Library(Library::Quantity(b))) => {
                Ok(a.is_identical(**b))
            }
            (Self::Library(_), _) if self.display() != other.display() => Ok(false),
            _ => match self.equals(other) {
                Err(error) if !error.fatal => Ok(false),
                result => result,
            },
        }
    }

    /// The order of two comparable values.
    pub fn compare(&self, other: &Value<'a>) -> Result<Ordering> {
        let order = match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::String(a), Self::String(b)) => Some((**a).cmp(&**b)),
            (Self::Bytes(a), Self::Bytes(b)) => Some(a.cmp(b)),
            (Self::Duration(a), Self::Duration(b)) => Some(a.cmp(b)),
            (Self::Timestamp(a), Self::Timestamp(b)) => Some(a.cmp(b)),
            (Self::Double(a), other) if a.is_nan() && is_number(other) => {
                return Err(Error::new("NaN values cannot be ordered"));
            }
            (other, Self::Double(b)) if b.is_nan() && is_number(other) => {
                return Err(Error::new("NaN values cannot be ordered"));
            }
            _ => numbers(self, other),
        };
        order.ok_or_else(Error::no_such_overload)
    }

    /// `value.field` or `value[key]` of a map, an object or a list.
    pub fn get(&self, key: &Value<'a>) -> Result<Value<'a>> {
        if let Some(name) = self.unknown_patch_field(key) {
            return Err(Error::new(format!("unsupported indexer: {name}")));
        }
        match self.lookup(key)? {
            Some(value) => Ok(value),
            None => match self {
                Self::Map(map) if map.is_patch() => match key {
                    Self::String(name) if &**name == "value" => Ok(Self::Null),
                    _ => Ok(Self::text("")),
                },
                Self::List(_) => {
                    let at = key.display();
                    Err(Error::new(format!("index out of bounds: {at}")))
                }
                _ => Err(Error::no_such_key(key.display())),
            },
        }
    }

    /// A field of a value whose type is a constructed object's: null if it is not set.
    pub(crate) fn field(&self, name: &Value<'a>) -> Result<Option<Value<'a>>> {
        match self {
            Self::Map(map) => match map.get(name)? {
                Some(value) if map.is_opaque() => match value.converted_field() {
                    Err(error) if !error.fatal => {
                        let name = name.display();
                        Err(Error::new(format!("cannot get field {name:?}")))
                    }
                    found => found.map(Some),
                },
                found => Ok(found),
            },
            _ => Ok(None),
        }
    }

    /// A field of a constructed object as upstream selects it: converted to Go's types and back, with the elements of
    /// new lists and maps.
    fn converted_field(&self) -> Result<Value<'a>> {
        let inner = match self {
            Self::Optional(Some(inner)) => return inner.converted_field(),
            inner => inner,
        };
        match inner {
            Self::List(list @ (List::Owned(_) | List::Joined(_))) => {
                meter::work(list.len())?;
                let items = list.iter().map(|item| item?.converted());
                Ok(Self::list(items.collect::<Result<_>>()?))
            }
            Self::Map(Map::Owned(map)) if !inner.is_object() => {
                meter::work(inner.size() as usize)?;
                let mut fields = OwnedMap::default();
                for entry in Map::Owned(map.clone()).iter() {
                    let (key, value) = entry?;
                    if !matches!(key, Self::String(_)) {
                        let (key, go) = (key.display(), key.go_type());
                        let why = format!("map key {key:?} is of type {go}, not string");
                        return Err(Error::new(why));
                    }
                    fields.set(key, value.converted()?)?;
                }
                Ok(Self::Map(Map::Owned(Arc::new(fields))))
            }
            inner => inner.converted(),
        }
    }

    fn is_object(&self) -> bool {
        matches!(self, Self::Map(map) if map.is_constructed())
    }

    /// The value as upstream converts it to Go's types and back, as where an attribute begins with an optional:
    /// without optionals around it, a constructed object as a map, a type as its name. Some have no way back.
    pub(crate) fn converted(&self) -> Result<Value<'a>> {
        Ok(match self {
            Self::Optional(Some(inner)) => return inner.converted(),
            Self::Optional(None) => Self::Null,
            Self::Type(t) => Self::text(t.runtime_name()),
            Self::Library(library) => match library.lost() {
                Some(why) => Self::Library(Library::Lost(why.into())),
                None => self.clone(),
            },
            Self::Map(map) if map.is_opaque() => {
                meter::work(map.len())?;
                let mut fields = OwnedMap::default();
                for entry in map.iter() {
                    let (name, value) = entry?;
                    match value.converted_field() {
                        Ok(value) => fields.set(name, value)?,
                        Err(error) if error.fatal => return Err(error),
                        Err(error) => {
                            let name = name.display();
                            let why = format!("fail to convert field {name:?}: {error}");
                            return Ok(Self::Library(Library::Lost(why.into())));
                        }
                    }
                }
                Self::Map(Map::Owned(Arc::new(fields)))
            }
            other => other.clone(),
        })
    }

    /// The value, or the error that it stands for.
    pub(crate) fn found(self) -> Result<Self> {
        match self {
            Self::Library(Library::Lost(why)) => Err(Error::new(&*why)),
            value => Ok(value),
        }
    }

    /// The key, if this is a `JSONPatch` without such a field.
    fn unknown_patch_field<'k>(&self, key: &'k Value<'a>) -> Option<&'k str> {
        match (self, key) {
            (Self::Map(map), Self::String(name)) if map.is_patch() => {
                Some(&**name).filter(|name| !PATCH_FIELDS.contains(name))
            }
            _ => None,
        }
    }

    /// The name of the type in Go, which some of upstream's messages contain.
    pub(crate) fn go_type(&self) -> &'static str {
        match self {
            Self::Null => "types.Null",
            Self::Bool(_) => "types.Bool",
            Self::Int(_) => "types.Int",
            Self::Uint(_) => "types.Uint",
            Self::Double(_) => "types.Double",
            Self::String(_) => "types.String",
            Self::Bytes(_) => "types.Bytes",
            Self::Duration(_) => "types.Duration",
            Self::Timestamp(_) => "types.Timestamp",
            Self::List(_) => "*types.baseList",
            Self::Map(map) => match map.object().map(|name| &**name) {
                None => "*types.baseMap",
                Some(JSON_PATCH) => "*mutation.JSONPatchVal",
                Some(_) => "*dynamic.ObjectVal",
            },
            Self::Type(_) => "*types.Type",
            Self::Optional(_) => "*types.Optional",
            Self::Library(library) => library.go_type(),
        }
    }

    /// The name of the Go type that this value has outside of an evaluation.
    fn go_native_type(&self) -> &'static str {
        match self {
            Self::Null => "structpb.NullValue",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int64",
            Self::Uint(_) => "uint64",
            Self::Double(_) => "float64",
            Self::Bytes(_) => "[]uint8",
            Self::Duration(_) => "time.Duration",
            Self::Timestamp(_) => "time.Time",
            Self::List(_) => "[]interface {}",
            Self::Map(_) => "map[string]interface {}",
            other => other.go_type(),
        }
    }

    /// The value of a key in a map, an object or a list; `None` in anything else.
    pub fn lookup(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        if let Some(name) = self.unknown_patch_field(key) {
            return Err(Error::new(format!("unsupported field: {name}")));
        }
        match self {
            Self::Map(map) => map.select(key),
            Self::List(list) => {
                let at = list_index(key)?;
                let found = usize::try_from(at).ok().and_then(|at| list.get(at));
                found.transpose()
            }
            _ => Ok(None),
        }
    }
}

/// Rejects keys that cannot select anything.
pub(crate) fn invalid_qualifier(key: &Value<'_>) -> Result<()> {
    match key {
        Value::String(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Bool(_)
        | Value::Double(_)
        | Value::Library(Library::Pattern(_)) => Ok(()),
        other => Err(Error::new(format!(
            "invalid qualifier type: {}",
            other.go_type()
        ))),
    }
}

fn list_index(key: &Value<'_>) -> Result<i64> {
    match key {
        Value::Int(at) => Ok(*at),
        Value::Uint(at) if i64::try_from(*at).is_ok() => Ok(*at as i64),
        Value::Double(at) if at.fract() == 0.0 && at.abs() < 9e18 => Ok(*at as i64),
        Value::Uint(_) | Value::Double(_) => Err(Error::new(format!(
            "unsupported index value {} in list",
            key.display()
        ))),
        other => Err(Error::new(format!(
            "unsupported index type '{}' in list",
            other.type_of()
        ))),
    }
}

fn is_number(value: &Value<'_>) -> bool {
    matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_))
}

/// The order of two numbers of any types.
fn numbers(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    use Value::{Double, Int, Uint};
    match (a, b) {
        (Int(a), Int(b)) => Some(a.cmp(b)),
        (Uint(a), Uint(b)) => Some(a.cmp(b)),
        (Int(a), Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Uint(a), Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Double(a), Double(b)) => a.partial_cmp(b),
        (Double(a), Int(b)) => a.partial_cmp(&(*b as f64)),
        (Int(a), Double(b)) => (*a as f64).partial_cmp(b),
        (Double(a), Uint(b)) => a.partial_cmp(&(*b as f64)),
        (Uint(a), Double(b)) => (*a as f64).partial_cmp(b),
        _ => None,
    }
}

/// Types as values are compared without their parameters.
fn same_kind(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::List(_), Type::List(_))
        | (Type::Map(..), Type::Map(..))
        | (Type::Type(_), Type::Type(_))
        | (Type::Optional(_), Type::Optional(_)) => true,
        (a, b) => a == b,
    }
}
