//! Values as Kubernetes prints them in errors: its internal structs with Go's names and no
//! omissions.

use machinery::{Object, Value};

/// A field of such a struct: its name in the API, its name in GoType, and what it holds.
pub(crate) struct GoField(pub &'static str, pub &'static str, pub GoType);

/// The type of a field, which determines what is printed if it is absent.
pub(crate) enum GoType {
    /// A pointer, list or map whose content is printed as in the API; null if absent.
    Plain,
    Text,
    Int,
    Bool,
    /// A pointer to a struct.
    Pointer(&'static [GoField]),
    /// A list of structs.
    List(&'static [GoField]),
}

/// A struct, printed.
pub(crate) fn shown(value: &Value, fields: &[GoField]) -> Value {
    let mut out = Object::new();
    for GoField(name, go, holds) in fields {
        let value = &value[*name];
        let printed = match holds {
            GoType::Text if value.is_null() => Value::from(""),
            GoType::Int if value.is_null() => Value::from(0),
            GoType::Bool if value.is_null() => Value::from(false),
            GoType::Pointer(fields) if value.is_object() => shown(value, fields),
            GoType::List(fields) => each(value, fields),
            _ => value.clone(),
        };
        out.insert((*go).to_owned(), printed);
    }
    Value::Object(out)
}

/// A list of structs, printed; null when absent.
pub(crate) fn each(value: &Value, fields: &[GoField]) -> Value {
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
        const INNER: &[GoField] = &[
            GoField("name", "Name", GoType::Text),
            GoField("on", "On", GoType::Bool),
        ];
        const OUTER: &[GoField] = &[
            GoField("list", "List", GoType::List(INNER)),
            GoField("at", "At", GoType::Pointer(INNER)),
            GoField("count", "Count", GoType::Int),
        ];
        assert_eq!(
            shown(&json!({"list": [{"name": "a"}]}), OUTER).to_string(),
            r#"{"List":[{"Name":"a","On":false}],"At":null,"Count":0}"#
        );
    }
}
