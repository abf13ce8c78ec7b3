//! Values of an evaluation. What comes from an object is read in place: lists, maps and strings
//! borrow from its JSON, and only what expressions make themselves is allocated.

use std::{cmp::Ordering, collections::HashMap, fmt, ops::Deref, sync::Arc};

use machinery::json;

use crate::{
    decl::{Decl, DeclKind, ListSemantics},
    functions::{convert, library::Library},
    meter,
    types::Type,
};

/// Why an evaluation has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub message: String,
    /// The evaluation as a whole ends: nothing can absorb this error.
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

#[derive(Debug, Clone)]
pub enum List<'a> {
    Json {
        items: &'a [json::Value],
        element: Option<&'a Decl>,
        semantics: &'a ListSemantics,
    },
    Owned(Arc<Items<'a>>),
    /// Two lists after each other, without a copy.
    Joined(Arc<Joined<'a>>),
}

/// Elements that an expression made.
#[derive(Debug, Clone, Default)]
pub struct Items<'a> {
    values: Vec<Value<'a>>,
    /// How deep the deepest of them is.
    depth: u32,
}

#[derive(Debug)]
pub struct Joined<'a> {
    parts: [List<'a>; 2],
    len: usize,
    depth: u32,
    /// How many lists are joined on the longest way to an element.
    joints: u32,
}

impl<'a> Items<'a> {
    fn new(values: Vec<Value<'a>>) -> Self {
        let depth = values.iter().map(Value::depth).max().unwrap_or(0);
        Self { values, depth }
    }

    pub(crate) fn push(&mut self, value: Value<'a>) {
        self.depth = self.depth.max(value.depth());
        self.values.push(value);
    }
}

#[derive(Debug, Clone)]
pub enum Map<'a> {
    Json {
        map: &'a json::Map,
        decl: Option<&'a Decl>,
    },
    Owned(Arc<OwnedMap<'a>>),
}

/// A map that an expression made, in the order of insertion.
#[derive(Debug, Clone, Default)]
pub struct OwnedMap<'a> {
    /// The type, for an object that an expression constructed.
    object: Option<Arc<str>>,
    entries: Vec<(Value<'a>, Value<'a>)>,
    index: HashMap<Key, usize>,
    /// How deep the deepest value is.
    depth: u32,
}

/// A key of a map; whole numbers are equal whatever their type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Bool(bool),
    Whole(i128),
    /// The bits of a number that is not whole.
    Double(u64),
    String(String),
    Duration(i64),
    Timestamp(i64, u32),
    Type(String),
    Null,
}

impl Key {
    fn new(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Whole(i128::from(*value)),
            Value::Uint(value) => Self::Whole(i128::from(*value)),
            Value::Double(value) if value.fract() == 0.0 && value.abs() < 1e19 => {
                Self::Whole(*value as i128)
            }
            Value::Double(value) => Self::Double(value.to_bits()),
            Value::String(value) => Self::String(value.to_string()),
            Value::Duration(nanos) => Self::Duration(*nanos),
            Value::Timestamp(time) => Self::Timestamp(time.seconds, time.nanos),
            Value::Type(t) => Self::Type(t.runtime_name().to_owned()),
            Value::Null => Self::Null,
            _ => return None,
        })
    }
}

impl<'a> OwnedMap<'a> {
    /// Adds an entry; a key that is there already is an error.
    pub fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> Result<()> {
        let index = Key::new(&key);
        if index.as_ref().is_some_and(|it| self.index.contains_key(it)) {
            return Err(Error::new(format!(
                "insert failed: key {} already exists",
                key.display()
            )));
        }
        self.push(index, key, value)
    }

    /// Adds an entry whose key is not there. Lists, maps and the like have no index: as keys each of them is another
    /// one, and no lookup finds it.
    fn push(&mut self, index: Option<Key>, key: Value<'a>, value: Value<'a>) -> Result<()> {
        if matches!(key, Value::Bytes(_)) {
            return Err(Error::new("unsupported key type: bytes"));
        }
        if let Some(index) = index {
            self.index.insert(index, self.entries.len());
        }
        self.depth = self.depth.max(value.depth()).max(key.depth());
        self.entries.push((key, value));
        Ok(())
    }

    /// Sets an entry of a literal: the last one of a key counts.
    pub(crate) fn set(&mut self, key: Value<'a>, value: Value<'a>) -> Result<()> {
        let index = Key::new(&key);
        match index.as_ref().and_then(|index| self.index.get(index)) {
            None => self.push(index, key, value),
            Some(at) => {
                self.depth = self.depth.max(value.depth());
                self.entries[*at] = (key, value);
                Ok(())
            }
        }
    }

    /// Makes it an object of a type.
    pub fn named(mut self, object: Arc<str>) -> Self {
        self.object = Some(object);
        self
    }

    /// The type, for an object that an expression constructed.
    pub fn object(&self) -> Option<&Arc<str>> {
        self.object.as_ref()
    }

    fn get(&self, key: &Value<'a>) -> Option<&Value<'a>> {
        let at = self.index.get(&Key::new(key)?)?;
        self.entries.get(*at).map(|(_, value)| value)
    }
}

/// How deeply the values that an expression makes may nest: everything that walks them recurses.
const DEEPEST: u32 = 150;
/// The longest list that joining others may make: going through a longer one costs too much anyway.
const LONGEST: usize = 1_000_000;
/// Lists that are longer are joined without a copy,
const COPIED: usize = 64;
/// but not more than so many of them.
const JOINTS: u32 = 32;

const ATOMIC: &ListSemantics = &ListSemantics::Atomic;

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

    /// How many lists, maps and optionals of expressions are inside of each other.
    pub(crate) fn depth(&self) -> u32 {
        match self {
            Self::List(List::Owned(items)) => items.depth + 1,
            Self::List(List::Joined(joined)) => joined.depth,
            Self::Map(Map::Owned(map)) => map.depth + 1,
            Self::Optional(Some(value)) => value.depth() + 1,
            _ => 0,
        }
    }

    /// The value, unless it is nested too deeply.
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

    /// The JSON that the value is; what JSON cannot say is an error.
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
            Self::Bytes(_) | Self::Duration(_) | Self::Timestamp(_) | Self::Library(_) => {
                json::Value::from(convert::to_text(self)?.as_str())
            }
            Self::Optional(Some(value)) => value.json()?,
            Self::List(list) => {
                let items = list.iter().map(|item| item?.json());
                json::Value::Array(items.collect::<Result<_>>()?)
            }
            Self::Map(Map::Json { map, .. }) => json::Value::Object((*map).clone()),
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
            Self::Map(map) => map.len() as u64,
            Self::Optional(Some(value)) => value.size(),
            Self::Library(value) => value.size(),
            _ => 1,
        }
    }

    /// Whether two values are equal; those that cannot be compared are not.
    pub fn is_equal(&self, other: &Value<'a>) -> Result<bool> {
        match self.equals(other) {
            Err(error) if !error.fatal => Ok(false),
            result => result,
        }
    }

    /// Equality as the language has it: numbers of different types compare by value, different
    /// types are unequal. Values of libraries and those that a schema describes compare with their
    /// like alone.
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
            // Checks and decisions are made to be asked, not to be compared.
            (Self::Library(Library::Check(_) | Library::Decision(_)), _) => {
                return Err(Error::no_such_overload());
            }
            // As upstream: a calculated quantity stands on the left.
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

    /// The order of two values that have one.
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
        match self.lookup(key)? {
            Some(value) => Ok(value),
            None => match self {
                // A field of a constructed object that is not set is null.
                Self::Map(map) if map.is_constructed() => Ok(Self::Null),
                Self::List(_) => {
                    let at = key.display();
                    Err(Error::new(format!("index out of bounds: {at}")))
                }
                _ => Err(Error::no_such_key(key.display())),
            },
        }
    }

    /// What a key finds in a map, an object or a list; nothing in anything else.
    pub fn lookup(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        match self {
            Self::Map(map) => map.get(key),
            Self::List(list) => {
                let at = list_index(key)?;
                let found = usize::try_from(at).ok().and_then(|at| list.get(at));
                found.transpose()
            }
            _ => Ok(None),
        }
    }
}

/// Keys that cannot select anything are refused.
pub(crate) fn invalid_qualifier(key: &Value<'_>) -> Result<()> {
    let name = match key {
        Value::String(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Bool(_)
        | Value::Double(_)
        | Value::Library(Library::Pattern(_)) => return Ok(()),
        Value::Null => "types.Null",
        Value::Bytes(_) => "types.Bytes",
        Value::Duration(_) => "types.Duration",
        Value::Timestamp(_) => "types.Timestamp",
        Value::List(_) => "*types.baseList",
        Value::Map(_) => "*types.baseMap",
        Value::Type(_) => "*types.Type",
        Value::Optional(_) => "*types.Optional",
        Value::Library(_) => "cel.Value",
    };
    Err(Error::new(format!("invalid qualifier type: {name}")))
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

/// The order of two numbers of whatever types.
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

impl<'a> List<'a> {
    /// A JSON list as its schema reads it.
    pub fn json(items: &'a [json::Value], decl: Option<&'a Decl>) -> Self {
        let (element, semantics) = match decl.map(|decl| &decl.kind) {
            Some(DeclKind::List { element, semantics }) => (Some(&**element), semantics),
            _ => (None, ATOMIC),
        };
        Self::Json {
            items,
            element,
            semantics,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Json { items, .. } => items.len(),
            Self::Owned(items) => items.values.len(),
            Self::Joined(joined) => joined.len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, at: usize) -> Option<Result<Value<'a>>> {
        match self {
            Self::Json { items, element, .. } => Some(Value::from_json(items.get(at)?, *element)),
            Self::Owned(items) => items.values.get(at).cloned().map(Ok),
            Self::Joined(joined) => {
                let [first, second] = &joined.parts;
                match at.checked_sub(first.len()) {
                    None => first.get(at),
                    Some(at) => second.get(at),
                }
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>>> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Whether a schema describes it.
    fn is_described(&self) -> bool {
        matches!(self, Self::Json { element, .. } if element.is_some())
    }

    pub fn contains(&self, wanted: &Value<'a>) -> Result<bool> {
        for item in self.iter() {
            if wanted.is_equal(&item?)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn semantics(&self) -> &ListSemantics {
        match self {
            Self::Json { semantics, .. } => semantics,
            Self::Owned(_) | Self::Joined(_) => ATOMIC,
        }
    }

    fn equals(&self, other: &List<'a>) -> Result<bool> {
        if self.len() != other.len() {
            return Ok(false);
        }
        match self.semantics() {
            ListSemantics::Atomic if other.semantics() != ATOMIC => other.equals(self),
            ListSemantics::Atomic => {
                for (a, b) in self.iter().zip(other.iter()) {
                    if !self.same_part(a?.equals(&b?))? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            // Neither sets nor maps care for order.
            ListSemantics::Set | ListSemantics::Map(_) => {
                for item in self.iter() {
                    if !other.contains(&item?)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Whether two elements are the same. As upstream: in lists that expressions make, elements that cannot be compared
    /// do not count.
    fn same_part(&self, equal: Result<bool>) -> Result<bool> {
        match equal {
            Err(error) if !error.fatal && !self.is_described() => Ok(true),
            equal => equal,
        }
    }

    /// `a + b`: sets keep each element once, map lists overwrite by key.
    pub fn concat(&self, other: &List<'a>) -> Result<List<'a>> {
        let len = self.len() + other.len();
        if len > LONGEST {
            return Err(meter::exceeded());
        }
        let joints = self.joints().max(other.joints()) + 1;
        if self.semantics() == ATOMIC && len > COPIED && joints <= JOINTS {
            let depth = |list: &Self| Value::List(list.clone()).depth();
            return Ok(List::Joined(Arc::new(Joined {
                parts: [self.clone(), other.clone()],
                len,
                depth: depth(self).max(depth(other)),
                joints,
            })));
        }
        meter::memory(len * size_of::<Value<'a>>())?;
        let mut items: Vec<Value<'a>> = self.iter().collect::<Result<_>>()?;
        for item in other.iter() {
            let item = item?;
            let place = match self.semantics() {
                ListSemantics::Atomic => None,
                ListSemantics::Set => position(&items, |old| old.equals(&item))?,
                ListSemantics::Map(keys) => position(&items, |old| same_keys(old, &item, keys))?,
            };
            match place {
                Some(at) => items[at] = item,
                None => items.push(item),
            }
        }
        Ok(List::Owned(Arc::new(Items::new(items))))
    }

    fn joints(&self) -> u32 {
        match self {
            Self::Joined(joined) => joined.joints,
            _ => 0,
        }
    }
}

fn position<'a>(
    items: &[Value<'a>],
    same: impl Fn(&Value<'a>) -> Result<bool>,
) -> Result<Option<usize>> {
    for (at, item) in items.iter().enumerate() {
        if same(item)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Whether two elements of a map list have the same keys.
fn same_keys<'a>(a: &Value<'a>, b: &Value<'a>, keys: &[Arc<str>]) -> Result<bool> {
    for key in keys {
        let key = Value::text(key.clone());
        let same = match (a.lookup(&key)?, b.lookup(&key)?) {
            (Some(a), Some(b)) => a.equals(&b)?,
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json { map, .. } => map.len(),
            Self::Owned(map) => map.entries.len(),
        }
    }

    /// The type of an object that an expression constructed.
    pub fn object(&self) -> Option<&Arc<str>> {
        match self {
            Self::Owned(map) => map.object.as_ref(),
            Self::Json { .. } => None,
        }
    }

    /// Whether a schema describes it.
    fn is_described(&self) -> bool {
        matches!(self, Self::Json { decl, .. } if decl.is_some())
    }

    /// Whether an expression constructed it as an object.
    fn is_constructed(&self) -> bool {
        self.object().is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        match self {
            Self::Owned(map) => Ok(map.get(key).cloned()),
            Self::Json { map, decl } => {
                let Value::String(name) = key else {
                    return match decl {
                        Some(_) => Err(Error::no_such_overload()),
                        None => Ok(None),
                    };
                };
                let (name, inner) = match decl.map(|decl| &decl.kind) {
                    Some(DeclKind::Object { fields, .. }) => match fields.get(&**name) {
                        Some(field) => (&*field.json, Some(&*field.decl)),
                        None => return Ok(None),
                    },
                    Some(DeclKind::Map { value }) => (&**name, Some(&**value)),
                    _ => (&**name, None),
                };
                let is_object = matches!(decl.map(|d| &d.kind), Some(DeclKind::Object { .. }));
                // A field of an object that is null is as good as absent.
                let found = map
                    .get(name)
                    .filter(|value| !(is_object && value.is_null()));
                found
                    .map(|value| Value::from_json(value, inner))
                    .transpose()
            }
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = Result<(Value<'a>, Value<'a>)>> + '_> {
        match self {
            Self::Owned(map) => Box::new(map.entries.iter().cloned().map(Ok)),
            Self::Json { map, decl } => {
                let map: &'a json::Map = map;
                let value = match decl.map(|decl| &decl.kind) {
                    Some(DeclKind::Map { value }) => Some(&**value),
                    _ => None,
                };
                Box::new(map.iter().map(move |(key, inner)| {
                    let key = Value::String(Text::Borrowed(key.as_str()));
                    Ok((key, Value::from_json(inner, value)?))
                }))
            }
        }
    }

    fn equals(&self, other: &Map<'a>) -> Result<bool> {
        let object = |map: &Map<'a>| match map {
            Self::Owned(map) => map.object.clone(),
            _ => None,
        };
        if self.len() != other.len() || object(self) != object(other) {
            return Ok(false);
        }
        for entry in self.iter() {
            let (key, value) = entry?;
            match other.get(&key)? {
                None => return Ok(false),
                Some(found) => match value.equals(&found) {
                    Ok(true) => {}
                    // As upstream: in maps that expressions make, values that cannot be compared do not count.
                    Err(error) if !error.fatal && !self.is_described() => {}
                    different => return different,
                },
            }
        }
        Ok(true)
    }
}
