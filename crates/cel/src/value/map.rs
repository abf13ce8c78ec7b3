//! Maps and objects: of an object in place, and new ones.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use machinery::json;

use super::{Error, Library, List, Result, Text, Value};
use crate::{
    decl::{Decl, DeclKind, Field, escape, unescape},
    env::JSON_PATCH,
    meter,
};

#[derive(Debug, Clone)]
pub enum Map<'a> {
    Json {
        map: &'a json::Map,
        decl: Option<&'a Decl>,
    },
    Owned(Arc<OwnedMap<'a>>),
}

/// A new map, in insertion order.
#[derive(Debug, Clone, Default)]
pub struct OwnedMap<'a> {
    /// The type of a constructed object.
    pub(super) object: Option<Arc<str>>,
    entries: Vec<(Value<'a>, Value<'a>)>,
    index: HashMap<Key, usize>,
    /// The value that is selected by a missing key.
    otherwise: Option<Arc<Value<'a>>>,
    /// Whether a comprehension made it. As fields of constructed objects, such maps are never equal to others.
    is_of_comprehension: bool,
    /// How deep the deepest value is.
    pub(super) depth: u32,
}

/// A key of a map. As upstream, numbers of different types are different keys, and new lists and maps, quantities and URLs are
/// only equal to themselves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    /// The bits of the number.
    Double(u64),
    String(String),
    /// Only an element of a set; upstream has no maps with such keys.
    Bytes(Arc<[u8]>),
    Duration(i64),
    /// Seconds, nanoseconds and the offset of the zone.
    Timestamp(i64, u32, i32),
    Type(String),
    Null,
    /// An optional without a value.
    None,
    Address(IpAddr),
    Network(IpNet),
    /// The address of a value, which its entry keeps.
    Place(usize),
}

impl Key {
    pub(super) fn new(value: &Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Uint(value) => Self::Uint(*value),
            Value::Double(value) if value.is_nan() => return None,
            // Both zeros are equal.
            Value::Double(value) => Self::Double((value + 0.0).to_bits()),
            Value::String(value) => Self::String(value.to_string()),
            Value::Bytes(value) => Self::Bytes(value.clone()),
            Value::Duration(nanos) => Self::Duration(*nanos),
            Value::Timestamp(time) => Self::Timestamp(time.seconds, time.nanos, time.offset),
            Value::Type(t) => Self::Type(t.runtime_name().to_owned()),
            Value::Null => Self::Null,
            Value::Optional(None) => Self::None,
            Value::Library(Library::Ip(address)) => Self::Address(*address),
            Value::Library(Library::Cidr(network)) => Self::Network(*network),
            Value::List(List::Owned(items)) => Self::Place(Arc::as_ptr(items).addr()),
            Value::List(List::Joined(parts)) => Self::Place(Arc::as_ptr(parts).addr()),
            Value::Map(Map::Owned(map)) => Self::Place(Arc::as_ptr(map).addr()),
            Value::Library(Library::Quantity(amount)) => Self::Place(Arc::as_ptr(amount).addr()),
            Value::Library(Library::Url(url)) => Self::Place(Arc::as_ptr(url).addr()),
            _ => return None,
        })
    }

    /// The keys of other types that a lookup with this one finds: integers find integers, and a double both.
    fn others(value: &Value<'_>) -> [Option<Self>; 2] {
        match value {
            Value::Int(value) => [u64::try_from(*value).ok().map(Self::Uint), None],
            Value::Uint(value) => [i64::try_from(*value).ok().map(Self::Int), None],
            Value::Double(value) if value.fract() == 0.0 => {
                let whole = *value as i128;
                let (int, uint) = (i64::try_from(whole), u64::try_from(whole));
                [int.ok().map(Self::Int), uint.ok().map(Self::Uint)]
            }
            _ => [None, None],
        }
    }
}

impl<'a> OwnedMap<'a> {
    /// Makes it the result of a comprehension.
    pub(crate) fn of_comprehension(mut self) -> Self {
        self.is_of_comprehension = true;
        self
    }

    /// Adds an entry; a duplicate key is an error.
    pub fn insert(&mut self, key: Value<'a>, value: Value<'a>) -> Result<()> {
        if self.get(&key).is_some() {
            return Err(Error::new(format!(
                "insert failed: key {} already exists",
                key.display()
            )));
        }
        let index = Key::new(&key);
        self.push(index, key, value)
    }

    /// Adds an entry with a new key. Lists and maps of an object and the like have no index: as keys they are all
    /// distinct, and no lookup finds them.
    fn push(&mut self, index: Option<Key>, key: Value<'a>, value: Value<'a>) -> Result<()> {
        // Upstream cannot hash these.
        if matches!(
            key,
            Value::Bytes(_) | Value::Library(Library::Semver(_) | Library::Format(_))
        ) {
            let why = "internal error: a value of this type cannot be the key of a map";
            return Err(Error::new(why.to_owned()));
        }
        if let Some(index) = index {
            self.index.insert(index, self.entries.len());
        }
        self.depth = self.depth.max(value.depth()).max(key.depth());
        self.entries.push((key, value));
        Ok(())
    }

    /// Sets an entry of a literal: the last of duplicate keys counts.
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

    /// The fields of a `JSONPatch`. Rejects fields that it does not have, and fields other than
    /// `value` that are no strings: the checker lets values of type `dyn` pass. An empty string is
    /// an unset field.
    pub(crate) fn patch(self) -> Result<Self> {
        let mut patch = Self::default();
        for (key, value) in self.entries {
            let name = key.display();
            match (&*name, &value) {
                ("value", _) => patch.set(key, value)?,
                ("op" | "path" | "from", Value::String(text)) if text.is_empty() => {}
                ("op" | "path" | "from", Value::String(_)) => patch.set(key, value)?,
                ("op" | "path" | "from", _) => {
                    let found = value.go_native_type();
                    let message =
                        format!("unexpected type {found} for JSONPatchType '{name}' field");
                    return Err(Error::new(message));
                }
                _ => {
                    let message = format!("unexpected JSONPatchType field: {name}");
                    return Err(Error::new(message));
                }
            }
        }
        patch.object = self.object;
        Ok(patch)
    }

    /// Makes missing keys select this value; `in` still reports them as missing.
    pub(crate) fn otherwise(mut self, value: Value<'a>) -> Self {
        self.otherwise = Some(Arc::new(value));
        self
    }

    /// The type, for an object that an expression constructed.
    pub fn object(&self) -> Option<&Arc<str>> {
        self.object.as_ref()
    }

    fn get(&self, key: &Value<'a>) -> Option<&Value<'a>> {
        let found = self.get_exactly(key);
        found.or_else(|| {
            let mut others = Key::others(key).into_iter().flatten();
            let at = others.find_map(|other| self.index.get(&other))?;
            self.entries.get(*at).map(|(_, value)| value)
        })
    }

    /// The value of a key of the same type.
    fn get_exactly(&self, key: &Value<'a>) -> Option<&Value<'a>> {
        let at = self.index.get(&Key::new(key)?)?;
        self.entries.get(*at).map(|(_, value)| value)
    }
}

impl<'a> Map<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Json { map, .. } => map.len(),
            Self::Owned(map) => map.entries.len(),
        }
    }

    /// The type of a constructed object.
    pub fn object(&self) -> Option<&Arc<str>> {
        match self {
            Self::Owned(map) => map.object.as_ref(),
            Self::Json { .. } => None,
        }
    }

    /// Whether it has a schema.
    pub(super) fn is_described(&self) -> bool {
        matches!(self, Self::Json { decl, .. } if decl.is_some())
    }

    /// Whether it is a constructed object.
    pub(crate) fn is_constructed(&self) -> bool {
        self.object().is_some()
    }

    /// Whether it is a constructed object, and no `JSONPatch`: without its type, nothing is known of its fields.
    pub(super) fn is_opaque(&self) -> bool {
        self.is_constructed() && !self.is_patch()
    }

    /// Whether it is a constructed `JSONPatch`.
    pub(crate) fn is_patch(&self) -> bool {
        self.object().is_some_and(|name| &**name == JSON_PATCH)
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
                    Some(DeclKind::Object { fields, .. }) => match find_field(fields, name) {
                        Some(field) => (&*field.json, Some(&*field.decl)),
                        None => return Ok(None),
                    },
                    Some(DeclKind::Map { value, .. }) => (&**name, Some(&**value)),
                    _ => (&**name, None),
                };
                let is_object = matches!(decl.map(|d| &d.kind), Some(DeclKind::Object { .. }));
                // A null field of an object counts as absent.
                let found = map
                    .get(name)
                    .filter(|value| !(is_object && value.is_null()));
                found
                    .map(|value| Value::from_json(value, inner))
                    .transpose()
            }
        }
    }

    /// The value that a key selects.
    pub(super) fn select(&self, key: &Value<'a>) -> Result<Option<Value<'a>>> {
        if self.is_opaque() {
            return Ok(None);
        }
        Ok(match (self.get(key)?, self) {
            (None, Self::Owned(map)) => map.otherwise.as_deref().cloned(),
            (found, _) => found,
        })
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = Result<(Value<'a>, Value<'a>)>> + '_> {
        match self {
            Self::Owned(map) => Box::new(map.entries.iter().cloned().map(Ok)),
            Self::Json { map, decl } => {
                let map: &'a json::Map = map;
                let value = match decl.map(|decl| &decl.kind) {
                    Some(DeclKind::Map { value, .. }) => Some(&**value),
                    _ => None,
                };
                Box::new(map.iter().map(move |(key, inner)| {
                    let key = Value::String(Text::Borrowed(key.as_str()));
                    Ok((key, Value::from_json(inner, value)?))
                }))
            }
        }
    }

    /// Whether both have the same keys and values, of the same types, and come from the same place: an object or an
    /// expression.
    pub(super) fn is_identical(&self, other: &Map<'a>) -> Result<bool> {
        if self.len() != other.len() {
            return Ok(false);
        }
        match (self, other) {
            (Self::Json { map: a, .. }, Self::Json { map: b, .. }) => same_fields(a, b),
            (Self::Owned(a), Self::Owned(b)) => {
                if a.is_of_comprehension != b.is_of_comprehension {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get_exactly(key) {
                        Some(found) if value.is_identical(found)? => {}
                        _ => return Ok(false),
                    }
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    pub(super) fn equals(&self, other: &Map<'a>) -> Result<bool> {
        let object = |map: &Map<'a>| match map {
            Self::Owned(map) => map.object.clone(),
            _ => None,
        };
        if self.len() != other.len() || object(self) != object(other) {
            return Ok(false);
        }
        if object(self).is_some() && !self.is_patch() {
            return self.is_identical(other);
        }
        if let Self::Json { map, decl } = self
            && let Some(DeclKind::Object { fields, .. }) = decl.map(|decl| &decl.kind)
        {
            return self.has_equal_fields(map, fields, other);
        }
        for entry in self.iter() {
            let (key, value) = entry?;
            match other.get(&key)? {
                None => return Ok(false),
                Some(found) => match value.equals(&found) {
                    Ok(true) => {}
                    // As upstream: in new maps, incomparable values are ignored.
                    Err(error) if !error.fatal && !self.is_described() => {}
                    different => return different,
                },
            }
        }
        Ok(true)
    }
}

impl<'a> Map<'a> {
    /// Equality of an object with a schema: declared fields are compared as expressions see them, others as JSON. As
    /// upstream, fields whose names expressions cannot use are not compared.
    fn has_equal_fields(
        &self,
        map: &'a json::Map,
        fields: &Fields,
        other: &Map<'a>,
    ) -> Result<bool> {
        for (key, value) in map.iter() {
            meter::work(1)?;
            let is_declared = declared(fields, key.as_str()).is_some();
            let is_same = match other {
                _ if is_declared => {
                    let name = Value::String(Text::Borrowed(key.as_str()));
                    match (self.get(&name)?, other.get(&name)?) {
                        (Some(mine), Some(theirs)) => mine.equals(&theirs)?,
                        (mine, theirs) => mine.is_none() && theirs.is_none(),
                    }
                }
                Self::Json { map: theirs, .. } => match theirs.get(key.as_str()) {
                    Some(theirs) => same_json(value, theirs)?,
                    None => false,
                },
                Self::Owned(_) => return Err(Error::no_such_overload()),
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

type Fields = HashMap<Arc<str>, Field>;

/// The field of a name in expressions; of values of any type, properties may be selected as they are.
fn find_field<'f>(fields: &'f Fields, name: &str) -> Option<&'f Field> {
    fields
        .get(name)
        .or_else(|| declared(fields, &unescape(name)?))
}

/// The field of a property.
fn declared<'f>(fields: &'f Fields, property: &str) -> Option<&'f Field> {
    let plain = fields
        .get(property)
        .filter(|field| &*field.json == property);
    plain.or_else(|| fields.get(&*escape(property)?))
}

fn same_fields(a: &json::Map, b: &json::Map) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (key, value) in a.iter() {
        match b.get(key.as_str()) {
            Some(other) if same_json(value, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn same_json(a: &json::Value, b: &json::Value) -> Result<bool> {
    meter::work(1)?;
    match (a, b) {
        (json::Value::Object(a), json::Value::Object(b)) => same_fields(a, b),
        (json::Value::Array(a), json::Value::Array(b)) => {
            for (a, b) in a.iter().zip(b) {
                if !same_json(a, b)? {
                    return Ok(false);
                }
            }
            Ok(a.len() == b.len())
        }
        (a, b) => Ok(a == b),
    }
}
