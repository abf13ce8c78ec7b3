//! Declarations of a schema: fields of objects by their names in expressions, how values are read
//! from JSON, and their maximum sizes.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use crate::{lexer::is_reserved, types::Type};

/// The type of a value of a schema.
#[derive(Debug, Clone)]
pub struct Decl {
    pub kind: DeclKind,
    /// The maximum number of elements, characters or bytes; unbounded values are limited by the
    /// size of a request.
    pub max_elements: u64,
}

#[derive(Debug, Clone)]
pub enum DeclKind {
    Dyn,
    /// A type that is never read from JSON.
    Plain(Type),
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List {
        element: Arc<Decl>,
        semantics: ListSemantics,
    },
    Map {
        value: Arc<Decl>,
        /// The maximum length of a key; 0 if the keys have no limit of their own.
        longest_key: u64,
    },
    Object {
        /// Unique within an environment.
        name: Arc<str>,
        fields: HashMap<Arc<str>, Field>,
    },
}

/// Equality and concatenation of a schema's lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListSemantics {
    Atomic,
    /// Equal in any order; concatenation deduplicates.
    Set,
    /// Elements are identified by these fields; concatenation overwrites.
    Map(Vec<Arc<str>>),
}

#[derive(Debug, Clone)]
pub struct Field {
    /// The name in JSON; expressions use the escaped form.
    pub json: Arc<str>,
    pub decl: Arc<Decl>,
}

impl DeclKind {
    /// A map whose keys have no length limit of their own.
    pub fn map(value: Arc<Decl>) -> Self {
        Self::Map {
            value,
            longest_key: 0,
        }
    }
}

impl Decl {
    pub fn new(kind: DeclKind, max_elements: u64) -> Self {
        Self { kind, max_elements }
    }

    pub fn dynamic() -> Self {
        Self::new(DeclKind::Dyn, u64::MAX)
    }

    /// The type that the checker sees.
    pub fn cel_type(&self) -> Type {
        match &self.kind {
            DeclKind::Dyn => Type::Dyn,
            DeclKind::Plain(plain) => plain.clone(),
            DeclKind::Bool => Type::Bool,
            DeclKind::Int => Type::Int,
            DeclKind::Double => Type::Double,
            DeclKind::String => Type::String,
            DeclKind::Bytes => Type::Bytes,
            DeclKind::Duration => Type::Duration,
            DeclKind::Timestamp => Type::Timestamp,
            DeclKind::List { element, .. } => Type::list(element.cel_type()),
            DeclKind::Map { value, .. } => Type::map(Type::String, value.cel_type()),
            DeclKind::Object { name, .. } => Type::Struct(name.clone()),
        }
    }

    /// The declaration at a path of fields, `@items` and `@values`.
    pub fn resolve(&self, path: &[Arc<str>]) -> Option<&Decl> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        match (&self.kind, &**first) {
            (DeclKind::List { element, .. }, "@items" | "@values") => element.resolve(rest),
            (DeclKind::Map { value, .. }, "@items" | "@values") => value.resolve(rest),
            // Values of type `Any` have the same size limit for every key.
            (DeclKind::Map { value, .. }, name)
                if !name.starts_with('@') && value.cel_type() == Type::Any =>
            {
                value.resolve(rest)
            }
            (DeclKind::Object { fields, .. }, name) => {
                let field = fields.get(name);
                let field = field.or_else(|| fields.get(&*escape_keyword(name)?));
                field?.decl.resolve(rest)
            }
            _ => None,
        }
    }

    /// Calls `visit` for every object in this declaration.
    pub fn for_each_object<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<str>, &'a Decl)) {
        match &self.kind {
            DeclKind::List { element, .. } => element.for_each_object(visit),
            DeclKind::Map { value, .. } => value.for_each_object(visit),
            DeclKind::Object { name, fields } => {
                visit(name, self);
                for field in fields.values() {
                    field.decl.for_each_object(visit);
                }
            }
            _ => {}
        }
    }
}

/// Whether a word is a keyword of the language: a property with such a name is escaped with underscores.
fn is_keyword(word: &str) -> bool {
    matches!(word, "true" | "false" | "null" | "in") || is_reserved(word)
}

/// The escaped name of a property in expressions, or `None` if it cannot be used.
pub fn escape(property: &str) -> Option<String> {
    if property.is_empty() || property.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    if let Some(escaped) = escape_keyword(property) {
        return Some(escaped);
    }
    let mut name = String::with_capacity(property.len());
    let mut rest = property;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("__") {
            name.push_str("__underscores__");
            rest = &rest[2..];
            continue;
        }
        match c {
            '.' => name.push_str("__dot__"),
            '-' => name.push_str("__dash__"),
            '/' => name.push_str("__slash__"),
            '_' => name.push('_'),
            c if c.is_ascii_alphanumeric() => name.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(name)
}

/// The escaped name of a property that is a reserved word.
pub(crate) fn escape_keyword(property: &str) -> Option<String> {
    is_keyword(property).then(|| format!("__{property}__"))
}

/// The property of an escaped name; `None` if it has an invalid escape sequence.
pub(crate) fn unescape(name: &str) -> Option<Cow<'_, str>> {
    if !name.contains("__") {
        return Some(Cow::Borrowed(name));
    }
    let mut property = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("__") {
        let (before, from) = rest.split_at(at);
        property.push_str(before);
        let within = &from[2..];
        let end = within.find('_').unwrap_or(within.len());
        let Some(after) = within[end..].strip_prefix("__").filter(|_| end > 0) else {
            // No sequence begins here: it has two underscores, one or more other characters, and two underscores.
            property.push('_');
            rest = &from[1..];
            continue;
        };
        property.push_str(match &within[..end] {
            "underscores" => "__",
            "dot" => ".",
            "dash" => "-",
            "slash" => "/",
            keyword if is_keyword(keyword) && end + 4 == name.len() => keyword,
            _ => return None,
        });
        rest = after;
    }
    property.push_str(rest);
    Some(Cow::Owned(property))
}

#[cfg(test)]
mod tests {
    use super::{escape, unescape};

    #[test]
    fn names_are_unescaped_as_upstream_unescapes_them() {
        for (name, property) in [
            ("replicas", Some("replicas")),
            ("namespace", Some("namespace")),
            ("__namespace__", Some("namespace")),
            ("x__dash__prop", Some("x-prop")),
            ("x-prop", Some("x-prop")),
            ("redact__underscores__d", Some("redact__d")),
            ("redact__d", Some("redact__d")),
            ("a__dot__b__slash__c", Some("a.b/c")),
            ("a__b__c", None),
            ("a__if__c", None),
            ("___dot__a", Some("_.a")),
            ("__", Some("__")),
            ("_____", Some("_____")),
            ("__dot_", Some("__dot_")),
        ] {
            assert_eq!(unescape(name).as_deref(), property, "{name}");
        }
    }

    #[test]
    fn properties_are_escaped_as_upstream_escapes_them() {
        for (property, name) in [
            ("replicas", Some("replicas")),
            ("namespace", Some("__namespace__")),
            ("x-prop", Some("x__dash__prop")),
            ("redact__d", Some("redact__underscores__d")),
            ("a.b/c", Some("a__dot__b__slash__c")),
            ("int", Some("int")),
            ("_", Some("_")),
            ("1a", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(escape(property).as_deref(), name, "{property}");
        }
    }
}
