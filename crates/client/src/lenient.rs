//! Reads objects into generated types as Go reads them into its own: a null or an absent field is the
//! zero value of its type, and unknown fields are skipped.
//!
//! The generated types refuse a null in a field that OpenAPI calls required, and miss required times
//! that are absent. Go writes such nulls itself (a zero `Time`, a nil slice without `omitempty`), so
//! the API server stores them, and an informer must not lose the object. The generated types say at
//! each place what they expect; this deserializer hands out the zero value there. Places that hold
//! any JSON (RawExtension, custom resources) get their nulls unchanged.

use std::collections::BTreeSet;

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer, MapAccess, SeqAccess,
        Visitor, value::StrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Map, Value};

/// Go's zero time; the API server writes it back as null.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Decodes an object. The strict way is tried first: it is the fast one and fits nearly always.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    serde_json::from_str(text).or_else(|_| from_value(&serde_json::from_str(text)?))
}

/// Fields that a type cannot do without, and that are absent, become its zero value. Only the type
/// knows which these are: it is asked again with each that it misses.
fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    let mut missed = Missed::default();
    loop {
        let lenient = Lenient {
            value: value.clone(),
            missed: &missed,
        };
        let error = match T::deserialize(lenient) {
            Ok(object) => return Ok(object),
            Err(error) => error,
        };
        let text = error.to_string();
        let field = text
            .strip_prefix("missing field `")
            .and_then(|rest| rest.split('`').next());
        match field {
            Some(field) if missed.insert(field.to_owned()) => {}
            _ => return Err(error),
        }
    }
}

type Missed = BTreeSet<String>;

struct Lenient<'a> {
    value: Value,
    missed: &'a Missed,
}

macro_rules! zero_for_null {
    ($($method:ident: $visit:ident($zero:expr);)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match self.value {
                Value::Null => visitor.$visit($zero),
                value => value.$method(visitor),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Lenient<'_> {
    type Error = Error;

    zero_for_null! {
        deserialize_bool: visit_bool(false);
        deserialize_i8: visit_i8(0);
        deserialize_i16: visit_i16(0);
        deserialize_i32: visit_i32(0);
        deserialize_i64: visit_i64(0);
        deserialize_u8: visit_u8(0);
        deserialize_u16: visit_u16(0);
        deserialize_u32: visit_u32(0);
        deserialize_u64: visit_u64(0);
        deserialize_f32: visit_f32(0.0);
        deserialize_f64: visit_f64(0.0);
        deserialize_str: visit_str("");
        deserialize_string: visit_str("");
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.value.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let zero = match (&self.value, name) {
            (Value::Null, "Time" | "MicroTime") => ZERO_TIME,
            (Value::Null, "Quantity") => "0",
            _ => return visitor.visit_newtype_struct(self),
        };
        let zero: StrDeserializer<'_, Error> = zero.into_deserializer();
        visitor.visit_newtype_struct(zero)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let missed = self.missed;
        let items = |items: Vec<Value>| Items {
            items: items.into_iter(),
            missed,
        };
        match self.value {
            Value::Null => visitor.visit_seq(items(Vec::new())),
            Value::Array(all) => visitor.visit_seq(items(all)),
            other => other.deserialize_seq(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_map(Fields::new(Map::new(), &[], self.missed)),
            Value::Object(map) => visitor.visit_map(Fields::new(map, &[], self.missed)),
            other => other.deserialize_map(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_map(Fields::new(Map::new(), fields, self.missed)),
            Value::Object(mut map) => {
                map.retain(|_, value| !value.is_null());
                visitor.visit_map(Fields::new(map, fields, self.missed))
            }
            other => other.deserialize_struct(name, fields, visitor),
        }
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

struct Items<'a> {
    items: std::vec::IntoIter<Value>,
    missed: &'a Missed,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let missed = self.missed;
        let item = self.items.next().map(|value| Lenient { value, missed });
        item.map(|item| seed.deserialize(item)).transpose()
    }
}

/// The entries of an object, and a null for each known field that is absent and was missed.
struct Fields<'a> {
    entries: serde_json::map::IntoIter,
    absent: std::vec::IntoIter<&'static str>,
    value: Option<Value>,
    missed: &'a Missed,
}

impl<'a> Fields<'a> {
    fn new(map: Map<String, Value>, known: &'static [&'static str], missed: &'a Missed) -> Self {
        let is_absent = |name: &&&str| missed.contains(**name) && !map.contains_key(**name);
        let absent: Vec<_> = known.iter().filter(is_absent).copied().collect();
        Self {
            entries: map.into_iter(),
            absent: absent.into_iter(),
            value: None,
            missed,
        }
    }
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let absent = || Some((self.absent.next()?.to_owned(), Value::Null));
        let Some((key, value)) = self.entries.next().or_else(absent) else {
            return Ok(None);
        };
        self.value = Some(value);
        seed.deserialize(Value::String(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = self.value.take();
        let value = value.ok_or_else(|| Error::custom("a value was asked for before its key"))?;
        seed.deserialize(Lenient {
            value,
            missed: self.missed,
        })
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

    fn read<T: DeserializeOwned>(value: &Value) -> T {
        from_str(&value.to_string()).unwrap()
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
    fn what_is_of_another_type_is_still_refused() {
        assert!(from_str::<Pod>(r#"{"metadata": 7}"#).is_err());
        assert!(from_str::<Pod>(r#"{"spec": {"containers": {}}}"#).is_err());
    }
}
