//! Paths to fields, and what is wrong with them, in Kubernetes' words.

use std::fmt;

/// A path such as `spec.template.spec.containers[0].image` or `metadata.labels[app]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(String);

impl Path {
    /// A path that starts with a field name; empty for the object itself.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// A field below this one.
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            Self::new(name)
        } else {
            Self(format!("{}.{name}", self.0))
        }
    }

    /// An element of a list.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of a map.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// What kind of wrong; the names are those in `status.details.causes[].reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// `FieldValueRequired`
    Required,
    /// `FieldValueDuplicate`
    Duplicate,
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueNotFound`
    NotFound,
    /// `FieldValueNotSupported`
    NotSupported,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueTooLong`
    TooLong,
    /// `FieldValueTooMany`
    TooMany,
    /// `InternalError`
    Internal,
    /// `FieldValueTypeInvalid`
    TypeInvalid,
}

/// One wrong field. `Display` gives the line that Kubernetes prints.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// What kind of wrong.
    pub kind: ErrorKind,
    /// Where.
    pub path: Path,
    /// The offending value, as it is printed; empty where the kind prints none.
    pub value: Option<serde_json::Value>,
    /// What would be right.
    pub detail: String,
}

/// All that is wrong with an object.
pub type Errors = Vec<Error>;
