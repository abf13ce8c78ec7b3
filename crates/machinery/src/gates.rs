//! Fields behind disabled feature gates. Clients may send them and become their managers; they are
//! dropped before the object is validated and stored.

use std::collections::HashSet;

use crate::schema::{Off, Shape, Type};
use crate::{Object, Value};

/// Drops fields behind disabled gates.
pub fn close(schema: &'static Type, object: &mut Object) {
    fields(schema, object);
}

/// Drops gated fields; returns whether the containing value is to be dropped, too.
fn fields(schema: &'static Type, object: &mut Object) -> bool {
    for &position in gated(schema) {
        let field = &schema.fields[usize::from(position)];
        let Some(held) = object.get_mut(field.name) else {
            continue;
        };
        let goes = field.off.is_some() || value(field.shape, held);
        if goes {
            object.shift_remove(field.name);
        }
        if goes && field.off == Some(Off::Hollow) && object.is_empty() {
            return true;
        }
    }
    false
}

fn value(shape: Shape, held: &mut Value) -> bool {
    match (shape, held) {
        (Shape::Struct(id), Value::Object(map)) => fields(id.get(), map),
        (Shape::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|held| _ = value(*element, held));
            false
        }
        (Shape::Map(element), Value::Object(map)) => {
            map.values_mut().for_each(|held| _ = value(*element, held));
            false
        }
        _ => false,
    }
}

/// The gated fields and those that lead to gated ones: few, so that most of an object is not
/// visited.
fn gated(schema: &'static Type) -> &'static [u16] {
    schema.gated.get_or_init(|| {
        let fields = (0_u16..).zip(&schema.fields);
        let closed = fields.filter(|(_, field)| {
            field.off.is_some() || leads_to_gate(field.shape, &mut HashSet::new())
        });
        closed.map(|(position, _)| position).collect()
    })
}

fn leads_to_gate(shape: Shape, seen: &mut HashSet<*const Type>) -> bool {
    match shape {
        Shape::Struct(id) => {
            let schema = id.get();
            seen.insert(std::ptr::from_ref(schema))
                && schema
                    .fields
                    .iter()
                    .any(|field| field.off.is_some() || leads_to_gate(field.shape, seen))
        }
        Shape::List(element) | Shape::Map(element) => leads_to_gate(*element, seen),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;
    use crate::schema;

    fn closed(name: &str, mut value: Value) -> Value {
        if let Value::Object(object) = &mut value {
            close(schema::lookup(name).unwrap(), object);
        }
        value
    }

    #[test]
    fn fields_of_disabled_feature_gates_are_dropped_at_any_depth() {
        let lifecycle =
            |lifecycle: Value| json!({"containers": [{"name": "c", "lifecycle": lifecycle}]});
        let without = json!({"containers": [{"name": "c"}]});
        for (given, left) in [
            (lifecycle(json!({"stopSignal": "SIGTERM"})), without),
            (lifecycle(json!({})), lifecycle(json!({}))),
            (
                lifecycle(json!({"stopSignal": "SIGTERM", "preStop": {}})),
                lifecycle(json!({"preStop": {}})),
            ),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}}]}),
                json!({"volumes": [{"name": "v", "projected": {"sources": [{}]}}]}),
            ),
            (json!({"schedulingGroup": {"podGroupName": "g"}}), json!({})),
        ] {
            let template = |spec: &Value| json!({"spec": {"template": {"spec": spec}}});
            let outcome = closed("apps/v1.Deployment", template(&given));
            assert_eq!(outcome, template(&left), "{given}");
        }
    }

    #[test]
    fn a_kind_without_gates_is_not_looked_at() {
        let config_map = schema::lookup("core/v1.ConfigMap").unwrap();
        assert!(gated(config_map).is_empty());
        let crd = schema::lookup("apiextensions/v1.CustomResourceDefinition").unwrap();
        assert!(gated(crd).is_empty());
    }
}
