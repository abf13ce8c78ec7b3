//! Decodes objects into generated types as Go does: a null or absent field is the zero value of its
//! type, and unknown fields are skipped.
//!
//! The generated types reject a null in a field that OpenAPI calls required, and absent required
//! times. Go writes such nulls itself (a zero `Time`, a nil slice without `omitempty`), so that the
//! API server stores them, and an informer must not lose the object. The zero values are filled in
//! by the schema table, and the object is decoded again. Fields with arbitrary JSON (RawExtension,
//! custom resources) keep their nulls.

use machinery::{
    json::{self, Error, Key, Map, Value},
    schema::{self, Field, Shape, Type},
};
use serde::de::DeserializeOwned;

/// Go's zero time; the API server writes it as null.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Decodes an object of a built-in type. Tries without changes first, which is fast and nearly
/// always works.
pub(crate) fn from_str<T: DeserializeOwned>(
    text: &str,
    find_type: fn() -> Option<&'static Type>,
) -> Result<T, Error> {
    json::from_str(text).or_else(|_| json::from_str(&completed(text, find_type())?))
}

/// The type for decoding only the metadata.
pub(crate) fn metadata_only() -> Option<&'static Type> {
    schema::lookup("meta/v1.PartialObjectMetadata")
}

/// The object's text with zero values in place of invalid nulls and missing fields.
fn completed(text: &str, object_type: Option<&'static Type>) -> Result<String, Error> {
    let mut object: Value = json::from_str(text)?;
    if let (Value::Object(fields), Some(object_type)) = (&mut object, object_type) {
        complete_struct(fields, object_type);
    }
    json::to_string(&object)
}

fn complete_struct(fields: &mut Map, struct_type: &Type) {
    fields.retain(|_, value| !value.is_null());
    for field in &struct_type.fields {
        match fields.get_mut(field.name) {
            Some(value) => complete(value, field.shape),
            None if is_missed(field) => {
                let mut value = Value::Null;
                complete(&mut value, field.shape);
                fields.insert(Key::new(field.name), value);
            }
            None => {}
        }
    }
}

/// Whether the generated type needs the field: other types have a zero value of their own.
fn is_missed(field: &Field) -> bool {
    field.required
        && matches!(
            field.shape,
            Shape::Time | Shape::MicroTime | Shape::Struct(_)
        )
}

/// Replaces nulls in a required value.
fn complete(value: &mut Value, shape: Shape) {
    if value.is_null() {
        *value = zero(shape);
    }
    match (value, shape) {
        (Value::Object(fields), Shape::Struct(id)) => complete_struct(fields, id.get()),
        (Value::Object(entries), Shape::Map(of)) => {
            entries.values_mut().for_each(|entry| complete(entry, *of));
        }
        (Value::Array(items), Shape::List(of)) => {
            items.iter_mut().for_each(|item| complete(item, *of));
        }
        _ => {}
    }
}

fn zero(shape: Shape) -> Value {
    match shape {
        Shape::Time | Shape::MicroTime => Value::from(ZERO_TIME),
        Shape::Bytes => Value::from(""),
        Shape::Struct(_) | Shape::Map(_) => Value::Object(Map::default()),
        Shape::List(_) => Value::Array(Vec::new()),
        other => schema::zero_of(other),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        apps::v1::ControllerRevision,
        core::v1::{Pod, Service},
        rbac::v1::ClusterRole,
    };
    use serde_json::json;

    use super::*;
    use crate::FromJson;

    fn read<T: FromJson>(value: &serde_json::Value) -> T {
        T::from_json(&value.to_string()).unwrap()
    }

    #[test]
    fn a_null_or_absent_required_time_is_the_zero_time() {
        for condition in [
            json!({"type": "Ready", "status": "True", "lastTransitionTime": null}),
            json!({"type": "Ready", "status": "True"}),
        ] {
            let service: Service = read(&json!({
                "metadata": {"name": "a", "unknown": {"deep": null}},
                "status": {"conditions": [condition], "loadBalancer": null},
            }));
            let conditions = service.status.unwrap().conditions.unwrap();
            assert_eq!(conditions[0].type_, "Ready");
            assert_eq!(conditions[0].last_transition_time.0.to_string(), ZERO_TIME);
        }
    }

    #[test]
    fn nulls_in_required_places_are_zero_values_of_their_types() {
        let pod: Pod = read(&json!({
            "metadata": {"name": "a", "ownerReferences": [{"kind": null, "uid": "u"}]},
            "spec": {"containers": null, "tolerations": [{"key": null}]},
            "status": {"containerStatuses": [{"name": "c", "ready": null, "restartCount": null}]},
        }));
        let owner = &pod.metadata.owner_references.unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("", "u"));
        assert!(pod.spec.unwrap().containers.is_empty());
        let status = &pod.status.unwrap().container_statuses.unwrap()[0];
        assert_eq!((status.ready, status.restart_count), (false, 0));
        let role: ClusterRole =
            read(&json!({"metadata": {"name": "a"}, "rules": [{"verbs": null}]}));
        assert!(role.rules.unwrap()[0].verbs.is_empty());
    }

    #[test]
    fn nulls_inside_raw_json_stay() {
        let data = json!({"spec": {"template": {"metadata": {"creationTimestamp": null}}}});
        let revision: ControllerRevision = read(&json!({
            "metadata": {"name": "a", "ownerReferences": [{"kind": null}]},
            "data": data,
            "revision": null,
        }));
        assert_eq!(revision.data.unwrap().0, data);
        assert_eq!(revision.revision, 0);
    }

    #[test]
    fn values_of_another_type_are_still_refused() {
        assert!(Pod::from_json(r#"{"metadata": 7}"#).is_err());
        assert!(Pod::from_json(r#"{"spec": {"containers": {}}}"#).is_err());
    }
}
