//! Names of entries: those of the schema table are static and never copied.

use crate::schema;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// The name of an entry of a map.
#[derive(Clone)]
pub struct Key(Repr);

#[derive(Clone)]
enum Repr {
    Static(&'static str),
    Owned(Box<str>),
}

impl Key {
    /// A static name.
    pub const fn fixed(name: &'static str) -> Self {
        Self(Repr::Static(name))
    }

    /// A copy of a name, unless it is one of the schema table.
    pub fn new(name: &str) -> Self {
        match schema::name(name) {
            Some(name) => Self::fixed(name),
            None => Self(Repr::Owned(name.into())),
        }
    }

    /// Whether it is this name. Names of equal length mostly differ in the last byte, which is
    /// cheaper to check than comparing memory.
    #[inline]
    pub(super) fn is(&self, name: &str) -> bool {
        let (own, name) = (self.as_str().as_bytes(), name.as_bytes());
        own.len() == name.len() && own.last() == name.last() && own == name
    }

    /// The name.
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Static(name) => name,
            Repr::Owned(name) => name,
        }
    }
}

impl Deref for Key {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&'static str> for Key {
    fn from(name: &'static str) -> Self {
        Self::fixed(name)
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        Self(Repr::Owned(name.into()))
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Self {
        Self::new(name)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        match key.0 {
            Repr::Static(name) => name.to_owned(),
            Repr::Owned(name) => name.into(),
        }
    }
}

impl From<&Key> for String {
    fn from(key: &Key) -> Self {
        key.as_str().to_owned()
    }
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialEq<str> for Key {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Key {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Key {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<Key> for str {
    fn eq(&self, other: &Key) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<Key> for &str {
    fn eq(&self, other: &Key) -> bool {
        *self == other.as_str()
    }
}

impl PartialEq<Key> for String {
    fn eq(&self, other: &Key) -> bool {
        self == other.as_str()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
