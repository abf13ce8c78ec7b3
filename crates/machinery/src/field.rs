//! Field paths, and validation errors in Kubernetes' words.

use crate::json::Value;
use crate::text;
use std::{collections::HashSet, fmt};

/// A path such as `spec.template.spec.containers[0].image` or `metadata.labels[app]`.
///
/// Validation makes a path for every field it checks and prints hardly any, so a path is only its
/// last step and a reference to its parent; its text is made when an [`Error`] is created.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    /// A field, or several with dots between them.
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// A path that starts with a field, or with several as in `spec.template`; empty for the object itself.
    #[inline]
    pub const fn new(name: &'a str) -> Self {
        Self {
            parent: None,
            step: Step::Field(name),
        }
    }

    #[inline]
    const fn step(&'a self, step: Step<'a>) -> Self {
        Self {
            parent: Some(self),
            step,
        }
    }

    /// A field below this one, or several as in `httpGet.port`.
    #[inline]
    pub const fn child(&'a self, name: &'a str) -> Self {
        self.step(Step::Field(name))
    }

    /// An element of a list.
    #[inline]
    pub const fn index(&'a self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    /// An entry of a map.
    #[inline]
    pub const fn key(&'a self, key: &'a str) -> Self {
        self.step(Step::Key(key))
    }

    fn write(&self, text: &mut String) {
        if let Some(parent) = self.parent {
            parent.write(text);
        }
        match self.step {
            Step::Field(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Step::Index(index) => {
                text.push('[');
                text.push_str(&index.to_string());
                text.push(']');
            }
            Step::Key(key) => {
                text.push('[');
                text.push_str(key);
                text.push(']');
            }
        }
    }

    /// The path as owned text.
    pub fn to_path_buf(&self) -> PathBuf {
        let mut text = String::new();
        self.write(&mut text);
        PathBuf(text)
    }
}

impl Default for Path<'_> {
    fn default() -> Self {
        Self::new("")
    }
}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_path_buf(), f)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_path_buf(), f)
    }
}

/// The text of a [`Path`].
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathBuf(String);

impl PathBuf {
    /// A path that continues from here.
    pub fn as_path(&self) -> Path<'_> {
        Path::new(&self.0)
    }

    /// The text, which is empty for the object itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for PathBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.as_str() {
            "" => "<nil>",
            path => path,
        })
    }
}

impl From<&str> for PathBuf {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// The type of an error; the names are those in `status.details.causes[].reason`.
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
    /// `FieldValueTooShort`
    TooShort,
    /// `FieldValueTooMany`
    TooMany,
    /// `FieldValueTooFew`
    TooFew,
    /// `InternalError`
    Internal,
    /// `FieldValueTypeInvalid`
    TypeInvalid,
}

impl ErrorKind {
    /// The machine-readable reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooShort => "FieldValueTooShort",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotFound => "Not found",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooShort => "Too short",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::Internal => "Internal error",
        }
    }

    fn prints_value(self) -> bool {
        !matches!(
            self,
            Self::Required | Self::Forbidden | Self::TooLong | Self::TooShort | Self::Internal
        )
    }
}

/// An error of one field. `Display` gives Kubernetes' message.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// The type of the error.
    pub kind: ErrorKind,
    /// The field.
    pub path: PathBuf,
    /// The invalid value as printed; `None` for types that print none.
    pub value: Option<Value>,
    /// What is expected.
    pub detail: String,
}

/// All errors of an object.
pub type Errors = Vec<Error>;

impl Error {
    fn new(kind: ErrorKind, path: &Path, value: Option<Value>, detail: impl Into<String>) -> Self {
        Self {
            kind,
            path: path.to_path_buf(),
            value,
            detail: detail.into(),
        }
    }

    /// The value has a form that is not allowed.
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, Some(value.into()), detail)
    }

    /// The value has the wrong type.
    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::TypeInvalid, path, Some(value.into()), detail)
    }

    /// A value is missing; `detail` may be empty.
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, path, None, detail)
    }

    /// The value occurs twice where it must be unique.
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, path, Some(value.into()), "")
    }

    /// The value names something that does not exist.
    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::NotFound, path, Some(value.into()), "")
    }

    /// The value is not in an enumeration.
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<String> = supported.iter().map(|v| text::quote(v)).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorKind::NotSupported, path, Some(value.into()), detail)
    }

    /// The field may not be set, or not be changed.
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, path, None, detail)
    }

    /// More bytes than allowed.
    pub fn too_long(path: &Path, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(
            ErrorKind::TooLong,
            path,
            None,
            format!("may not be more than {max} {unit}"),
        )
    }

    /// More characters than allowed.
    pub fn too_long_characters(path: &Path, max: usize) -> Self {
        let unit = if max == 1 { "character" } else { "characters" };
        Self::new(
            ErrorKind::TooLong,
            path,
            None,
            format!("may not be more than {max} {unit}"),
        )
    }

    /// More items than allowed.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorKind::TooMany,
            path,
            Some(actual.into()),
            format!("must have at most {max} {unit}"),
        )
    }

    /// Fewer items than needed.
    pub fn too_few(path: &Path, actual: usize, min: usize) -> Self {
        let unit = if min == 1 { "item" } else { "items" };
        Self::new(
            ErrorKind::TooFew,
            path,
            Some(actual.into()),
            format!("must have at least {min} {unit}"),
        )
    }

    /// An error of the validation itself.
    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, path, None, detail)
    }

    /// The message without the path, as in a cause.
    pub fn body(&self) -> String {
        let mut out = String::from(self.kind.title());
        if self.kind.prints_value() {
            match &self.value {
                None => {}
                Some(Value::String(s)) => {
                    out.push_str(": ");
                    out.push_str(&text::quote(s));
                }
                Some(number @ Value::Number(_)) => {
                    out.push_str(": ");
                    out.push_str(&text::plain(number));
                }
                Some(other) => {
                    out.push_str(": ");
                    out.push_str(&text::json(other));
                }
            }
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

impl std::error::Error for Error {}

/// Several errors on one line, deduplicated, in brackets if there is more than one.
pub fn aggregate(errors: &[Error]) -> String {
    let mut lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let mut seen = HashSet::with_capacity(lines.len());
    lines.retain(|line| seen.insert(line.clone()));
    match lines.len() {
        1 => lines.remove(0),
        _ => format!("[{}]", lines.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_prints_as_kubernetes_prints_it() {
        let path = Path::new("spec.containers[0].name");
        let cases = [
            (
                Error::required(&path, ""),
                "spec.containers[0].name: Required value",
            ),
            (
                Error::invalid(&path, "A", "must be lower case"),
                "spec.containers[0].name: Invalid value: \"A\": must be lower case",
            ),
            (
                Error::invalid(&path, 70000, "too big"),
                "spec.containers[0].name: Invalid value: 70000: too big",
            ),
            (
                Error::not_supported(&path, "x", &["Always", "Never"]),
                "spec.containers[0].name: Unsupported value: \"x\": supported values: \"Always\", \"Never\"",
            ),
            (
                Error::duplicate(&path, crate::json::json!({"a": "<b>"})),
                "spec.containers[0].name: Duplicate value: {\"a\":\"\\u003cb\\u003e\"}",
            ),
            (
                Error::too_long(&path, 63),
                "spec.containers[0].name: Too long: may not be more than 63 bytes",
            ),
            (
                Error::too_many(&path, 3, 1),
                "spec.containers[0].name: Too many: 3: must have at most 1 item",
            ),
            (
                Error::forbidden(&path, "may not be set"),
                "spec.containers[0].name: Forbidden: may not be set",
            ),
        ];
        for (error, line) in cases {
            assert_eq!(error.to_string(), line);
        }
    }

    #[test]
    fn a_path_is_written_step_by_step() {
        let object = Path::default();
        for (path, text) in [
            (object.to_path_buf(), ""),
            (object.child("spec").to_path_buf(), "spec"),
            (object.index(0).child("name").to_path_buf(), "[0].name"),
            (
                Path::new("spec.template").child("spec").to_path_buf(),
                "spec.template.spec",
            ),
            (
                Path::new("spec")
                    .child("containers")
                    .index(12)
                    .child("name")
                    .to_path_buf(),
                "spec.containers[12].name",
            ),
            (
                Path::new("metadata")
                    .child("labels")
                    .key("a.b/c")
                    .to_path_buf(),
                "metadata.labels[a.b/c]",
            ),
        ] {
            assert_eq!(path.as_str(), text);
            assert_eq!(
                path.as_path().child("x").to_path_buf().as_str(),
                match text {
                    "" => "x".to_owned(),
                    text => format!("{text}.x"),
                }
            );
        }
        assert_eq!(object.to_string(), "<nil>");
        assert_eq!(object.child("a").to_string(), "a");
    }

    #[test]
    fn the_same_finding_is_named_once() {
        let e = Error::required(&Path::new("a"), "");
        assert_eq!(aggregate(&[e.clone(), e.clone()]), "a: Required value");
        let other = Error::required(&Path::new("b"), "");
        assert_eq!(
            aggregate(&[e, other]),
            "[a: Required value, b: Required value]"
        );
    }
}
