//! Equality as of Kubernetes' types: empty lists and maps equal absent ones, zeros equal absent
//! numbers and strings, quantities are equal by amount; a pointer to an empty struct differs from a
//! nil pointer.

use crate::tree::list;
use machinery::Value;
use machinery::quantity::Quantity;
use machinery::schema::{self, Field, Shape, Type};

/// Two values of a type in the schema table, such as `core/v1.PodSpec`.
pub(crate) fn equal(schema: &str, a: &Value, b: &Value) -> bool {
    a == b || schema::lookup(schema).is_some_and(|schema| equal_structs(schema, a, b))
}

fn equal_structs(schema: &Type, a: &Value, b: &Value) -> bool {
    let each = |field: &Field| equal_fields(field, &a[field.name], &b[field.name]);
    schema.fields.iter().all(each)
}

/// Two values of a field.
pub fn equal_fields(field: &Field, a: &Value, b: &Value) -> bool {
    (!field.is_pointer() || a.is_null() == b.is_null()) && equal_shapes(field.shape, a, b)
}

fn equal_shapes(shape: Shape, a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    match shape {
        Shape::Struct(id) => equal_structs(id.get(), a, b),
        Shape::List(element) => {
            let (a, b) = (list(a), list(b));
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal_shapes(*element, a, b))
        }
        Shape::Map(element) => {
            let size = |map: &Value| map.as_object().map_or(0, machinery::Object::len);
            let each = |(key, value): (&_, &Value)| {
                b.get(key)
                    .is_some_and(|other| equal_shapes(*element, value, other))
            };
            size(a) == size(b) && crate::tree::entries(a).all(each)
        }
        Shape::Quantity => match (amount(a), amount(b)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        },
        _ => is_zero(a) && is_zero(b),
    }
}

fn amount(value: &Value) -> Option<Quantity> {
    match value {
        Value::Null => Some(Quantity::ZERO),
        value => value.as_str()?.parse().ok(),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn empty_lists_and_zero_values_equal_absent_ones_but_pointers_differ() {
        let same = |a: Value, b: Value| equal("core/v1.PodSpec", &a, &b);
        assert!(same(
            json!({"tolerations": [], "nodeSelector": {}}),
            json!({})
        ));
        assert!(same(
            json!({"hostNetwork": false, "nodeName": ""}),
            json!({})
        ));
        assert!(!same(json!({"affinity": {}}), json!({})));
        assert!(!same(json!({"priority": 0}), json!({})));
        let cpu =
            |amount: &str| json!({"containers": [{"resources": {"limits": {"cpu": amount}}}]});
        assert!(same(cpu("1000m"), cpu("1")));
        assert!(!same(cpu("1"), cpu("2")));
        assert!(!same(
            json!({"nodeSelector": {"a": "b"}}),
            json!({"nodeSelector": {"c": "b"}})
        ));
    }
}
