//! Paths to fields, and what is wrong with them, in Kubernetes' words.

use crate::json::Value;
use crate::text;
use std::{cell::Cell, fmt};

/// Room for the text of nearly every path.
const INLINE: usize = 102;

/// A path such as `spec.template.spec.containers[0].image` or `metadata.labels[app]`.
///
/// Validation makes a path for everything it looks at and needs hardly any, so the text stands in
/// the path itself, without an allocation, unless it is very long; and it is not written at all
/// before something is found ([`found`]).
#[derive(Clone)]
pub struct Path(Text);

#[derive(Clone)]
enum Text {
    /// Nobody will read it.
    Unwritten,
    Short {
        length: u8,
        bytes: [u8; INLINE],
    },
    Long(String),
}

thread_local! {
    /// Whether paths are not written here and now.
    static UNWRITTEN: Cell<bool> = const { Cell::new(false) };
}

/// What a check finds. Most objects are as they should be, so it looks without paths first; only
/// when it has found something does it look again, to say where. What it finds may not depend on
/// the text of paths.
pub fn found<T>(check: impl Fn() -> Vec<T>) -> Vec<T> {
    struct Written(bool);
    impl Drop for Written {
        fn drop(&mut self) {
            UNWRITTEN.set(self.0);
        }
    }
    let before = Written(UNWRITTEN.replace(true));
    let found = check();
    drop(before);
    debug_assert_eq!(found.len(), check().len(), "a check depends on paths");
    match found.is_empty() {
        true => found,
        false => check(),
    }
}

impl Path {
    /// A path that starts with a field name; empty for the object itself.
    pub fn new(name: &str) -> Self {
        if UNWRITTEN.get() {
            return Self(Text::Unwritten);
        }
        Self::of(&[name.as_bytes()])
    }

    fn of(parts: &[&[u8]]) -> Self {
        let mut bytes = [0; INLINE];
        let mut length = 0;
        for part in parts {
            match bytes.get_mut(length..length + part.len()) {
                Some(room) => room.copy_from_slice(part),
                // Whole strings are put together: nothing is lost.
                None => {
                    let text = String::from_utf8_lossy(&parts.concat()).into_owned();
                    return Self(Text::Long(text));
                }
            }
            length += part.len();
        }
        let length = length as u8;
        Self(Text::Short { length, bytes })
    }

    /// A field below this one.
    #[inline]
    pub fn child(&self, name: &str) -> Self {
        match self.0 {
            Text::Unwritten => Self(Text::Unwritten),
            _ => self.written_child(name),
        }
    }

    fn written_child(&self, name: &str) -> Self {
        if let Text::Short { length, bytes } = &self.0
            && *length > 0
        {
            // The whole room is copied: that is known beforehand, and the text's length is not.
            let (start, end) = (usize::from(*length), usize::from(*length) + 1 + name.len());
            let mut bytes = *bytes;
            if let Some([dot, room @ ..]) = bytes.get_mut(start..end) {
                *dot = b'.';
                room.copy_from_slice(name.as_bytes());
                let length = end as u8;
                return Self(Text::Short { length, bytes });
            }
        }
        match self.bytes() {
            b"" => Self::new(name),
            parent => Self::of(&[parent, b".", name.as_bytes()]),
        }
    }

    /// An element of a list.
    pub fn index(&self, index: usize) -> Self {
        match index {
            _ if matches!(self.0, Text::Unwritten) => Self(Text::Unwritten),
            0 => Self::of(&[self.bytes(), b"[0]"]),
            index => self.key(&index.to_string()),
        }
    }

    /// An entry of a map.
    pub fn key(&self, key: &str) -> Self {
        if matches!(self.0, Text::Unwritten) {
            return Self(Text::Unwritten);
        }
        Self::of(&[self.bytes(), b"[", key.as_bytes(), b"]"])
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Unwritten => b"",
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(text) => text.as_bytes(),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Unwritten => "",
            // Whole strings were put together: they are text.
            Text::Short { .. } => std::str::from_utf8(self.bytes()).unwrap_or_default(),
            Text::Long(text) => text,
        }
    }
}

impl Default for Path {
    fn default() -> Self {
        Self::new("")
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Path {}

impl PartialOrd for Path {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Path {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl std::hash::Hash for Path {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.as_str() {
            "" => "<nil>",
            path => path,
        })
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Self {
        Self::new(text)
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

/// One wrong field. `Display` gives the line that Kubernetes prints.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// What kind of wrong.
    pub kind: ErrorKind,
    /// Where.
    pub path: Path,
    /// The offending value, as it is printed; empty where the kind prints none.
    pub value: Option<Value>,
    /// What would be right.
    pub detail: String,
}

/// All that is wrong with an object.
pub type Errors = Vec<Error>;

impl Error {
    fn new(kind: ErrorKind, path: &Path, value: Option<Value>, detail: impl Into<String>) -> Self {
        Self {
            kind,
            path: path.clone(),
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

    /// The value is none of an enumeration's.
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

    /// Something went wrong while checking.
    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, path, None, detail)
    }

    /// The line without its path, as it stands in a cause's message.
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

/// Several findings on one line: each once, in brackets when there is more than one.
pub fn aggregate(errors: &[Error]) -> String {
    let mut seen: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let line = error.to_string();
        if !seen.contains(&line) {
            seen.push(line);
        }
    }
    match seen.len() {
        1 => seen.remove(0),
        _ => format!("[{}]", seen.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_prints_as_kubernetes_prints_it() {
        let path = Path::new("spec").child("containers").index(0).child("name");
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
