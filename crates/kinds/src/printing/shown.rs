//! Values as Kubernetes prints them in errors: its internal structs with Go's names and no
//! omissions.

use machinery::{Object, Value};

/// A field of such a struct: its name in the API, its name in Go, and what it holds.
pub(crate) struct Field(pub &'static str, pub &'static str, pub Go);

/// The type of a field, which determines what is printed if it is absent.
pub(crate) enum Go {
    /// A pointer, list or map whose content is printed as in the API; null if absent.
    Plain,
    Text,
    Int,
    Bool,
    /// A pointer to a struct.
    Pointer(&'static [Field]),
    /// A list of structs.
    List(&'static [Field]),
}

/// A struct, printed.
pub(crate) fn shown(value: &Value, fields: &[Field]) -> Value {
    let mut out = Object::new();
    for Field(name, go, holds) in fields {
        let value = &value[*name];
        let printed = match holds {
            Go::Text if value.is_null() => Value::from(""),
            Go::Int if value.is_null() => Value::from(0),
            Go::Bool if value.is_null() => Value::from(false),
            Go::Pointer(fields) if value.is_object() => shown(value, fields),
            Go::List(fields) => each(value, fields),
            _ => value.clone(),
        };
        out.insert((*go).to_owned(), printed);
    }
    Value::Object(out)
}

/// A list of structs, printed; null when absent.
pub(crate) fn each(value: &Value, fields: &[Field]) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| shown(item, fields)).collect(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn zero_values_are_printed() {
        const INNER: &[Field] = &[Field("name", "Name", Go::Text), Field("on", "On", Go::Bool)];
        const OUTER: &[Field] = &[
            Field("list", "List", Go::List(INNER)),
            Field("at", "At", Go::Pointer(INNER)),
            Field("count", "Count", Go::Int),
        ];
        assert_eq!(
            shown(&json!({"list": [{"name": "a"}]}), OUTER).to_string(),
            r#"{"List":[{"Name":"a","On":false}],"At":null,"Count":0}"#
        );
    }
}
