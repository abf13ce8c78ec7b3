//! Strategic merge patch: a merge patch that knows, from the schema table, which lists are merged
//! by element and by which key. Directives: `$patch`, `$retainKeys`, `$setElementOrder/field`,
//! `$deleteFromPrimitiveList/field`.
//!
//! Directives apply where the object has a value. Values only in the patch are taken as they are,
//! except that maps with `$patch` and nulls in maps are dropped.

mod lists;

use crate::json::Key;
use crate::schema::{Patch, Shape, Type};
use crate::text::{plain, quote};
use crate::{Object, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A directive has an unknown form: a bad request.
    #[error("{0}")]
    Malformed(&'static str),
    /// Lists of lists cannot be merged.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// The patch does not match the object: upstream has no error code of its own for it.
    #[error("{0}")]
    Unfit(String),
}

const BAD_RETAIN_KEYS: Error = Error::Malformed("invalid patch format of retainKeys");
const BAD_ORDER: Error = Error::Malformed("invalid patch format of setElementOrder list");
const BAD_DELETION: Error = Error::Malformed("invalid patch format of primitive list");

/// The object after the patch. Processed parts are removed from the patch, so that an error about
/// the result shows the rest.
pub fn apply(schema: &'static Type, target: &Object, patch: &mut Object) -> Result<Object, Error> {
    merge_map(MergeType::Struct(schema), target.clone(), patch)
}

/// The type at the current position of the merge.
#[derive(Debug, Clone, Copy)]
enum MergeType {
    Struct(&'static Type),
    /// A struct without accessible fields, by its name.
    Closed(&'static str),
    /// A type without fields, by its Go name.
    Without(&'static str),
}

impl MergeType {
    fn for_shape(shape: Shape) -> Self {
        match shape {
            Shape::Struct(id) => Self::Struct(id.get()),
            Shape::Raw => Self::Closed("RawExtension"),
            Shape::FieldsV1 => Self::Closed("FieldsV1"),
            Shape::Json => Self::Closed("JSON"),
            Shape::PropsOrBool => Self::Closed("JSONSchemaPropsOrBool"),
            Shape::PropsOrArray => Self::Closed("JSONSchemaPropsOrArray"),
            Shape::PropsOrStrings => Self::Closed("JSONSchemaPropsOrStringArray"),
            Shape::Map(_) => Self::Without("map"),
            Shape::List(_) => Self::Without("slice"),
            _ => Self::Without("interface"),
        }
    }

    /// A field to merge into.
    fn field(self, name: &str) -> Result<(Shape, &'static Patch), Error> {
        let (field, holder) = match self {
            Self::Struct(schema) => (schema.field(name), schema.name),
            Self::Closed(holder) => (None, holder),
            Self::Without(kind) => {
                return Err(Error::Unfit(format!(
                    "merging an object in json but data type is not struct, instead is: {kind}"
                )));
            }
        };
        let missing = || {
            let name = quote(name);
            Error::Unfit(format!(
                "unable to find api field in struct {holder} for the json field {name}"
            ))
        };
        let field = field.ok_or_else(missing)?;
        Ok((field.shape, &field.patch))
    }

    /// A list field, and the type of its elements.
    fn list(self, name: &str) -> Result<(MergeType, &'static Patch), Error> {
        let (shape, strategy) = self.field(name)?;
        match shape {
            Shape::List(Shape::List(_)) => {
                Err(Error::Unfit("unexpected slice of slice".to_owned()))
            }
            Shape::List(element) => Ok((Self::for_shape(*element), strategy)),
            Shape::PropsOrArray | Shape::PropsOrStrings => Ok((Self::for_shape(shape), strategy)),
            _ => Err(Error::Unfit(
                "expected slice or array type, but got: struct".to_owned(),
            )),
        }
    }
}

fn merge_map(place: MergeType, mut target: Object, patch: &mut Object) -> Result<Object, Error> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.shift_remove(DIRECTIVE);
                Ok(patch.clone())
            }
            Some("delete") => Ok(Object::new()),
            _ => Err(unknown_directive(directive, patch)),
        };
    }
    retain_keys(&mut target, patch)?;
    for name in names_with(patch, ORDER) {
        lists::merge_ordered(place, &mut target, patch, &name)?;
    }
    for name in names_with(patch, DELETE_FROM) {
        let field = directed_field(&name, DELETE_FROM).ok_or(BAD_DELETION)?;
        if let Some(value) = patch.get_mut(&name) {
            merge_field(place, &mut target, &field.into(), value, true)?;
        }
    }
    for (name, value) in patch.iter_mut() {
        if !name.starts_with(DELETE_FROM) {
            merge_field(place, &mut target, name, value, false)?;
        }
    }
    Ok(target)
}

fn merge_field(
    place: MergeType,
    target: &mut Object,
    name: &Key,
    value: &mut Value,
    deletes: bool,
) -> Result<(), Error> {
    if value.is_null() {
        target.shift_remove(name);
        return Ok(());
    }
    let merged = match (target.get_mut(name), &mut *value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let (shape, strategy) = place.field(name)?;
            Value::Object(if strategy.replace {
                new.clone()
            } else {
                merge_map(MergeType::for_shape(shape), std::mem::take(old), new)?
            })
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let (element, strategy) = place.list(name)?;
            Value::Array(if strategy.merge || deletes {
                lists::merge(element, std::mem::take(old), new, strategy.key, deletes)?
            } else {
                new.clone()
            })
        }
        // Nothing to delete from.
        _ if deletes => return Ok(()),
        (old, _) => {
            if old
                .as_deref()
                .is_none_or(|old| go_type(old) != go_type(value))
            {
                discard_nulls(value);
            }
            match without_directives(value) {
                Some(value) => value,
                None => {
                    target.shift_remove(name);
                    return Ok(());
                }
            }
        }
    };
    target.insert(name.clone(), merged);
    Ok(())
}

/// Only the named keys are kept, and the patch sets no others.
fn retain_keys(target: &mut Object, patch: &mut Object) -> Result<(), Error> {
    let Some(list) = patch.shift_remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(list) = list else {
        return Err(BAD_RETAIN_KEYS);
    };
    let keep = |key: &str| list.iter().any(|k| k == key);
    let is_directive = |key: &str| key.starts_with(ORDER) || key.starts_with(DELETE_FROM);
    let strange = patch
        .iter()
        .any(|(k, v)| !is_directive(k) && !v.is_null() && !keep(k));
    if strange {
        return Err(BAD_RETAIN_KEYS);
    }
    target.retain(|key, _| keep(key));
    Ok(())
}

fn names_with(patch: &Object, prefix: &str) -> Vec<Key> {
    let names = patch.keys().filter(|name| name.starts_with(prefix));
    names.cloned().collect()
}

/// The field of a directive.
fn directed_field(name: &str, directive: &str) -> Option<String> {
    let (prefix, field) = name.split_once('/')?;
    (prefix == directive).then(|| field.to_owned())
}

/// Drops nulls in maps that have no counterpart in the object.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// A value only in the patch; `None` if it is just a directive.
fn without_directives(value: &mut Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            map.retain(|_, value| match without_directives(value) {
                Some(kept) => {
                    *value = kept;
                    true
                }
                None => false,
            });
            Some(Value::Object(map.clone()))
        }
        Value::Array(list) => {
            let kept = list.iter_mut().filter_map(without_directives);
            Some(Value::Array(kept.collect()))
        }
        other => Some(other.clone()),
    }
}

fn unknown_directive(directive: &Value, patch: &Object) -> Error {
    let shown = match directive {
        Value::String(text) => text.clone(),
        other => misprinted(other),
    };
    let patch = plain(&Value::Object(patch.clone()));
    Error::Unfit(format!("unknown patch type: {shown} in map: {patch}"))
}

/// Go's `%s` of a value that is not a string.
fn misprinted(value: &Value) -> String {
    match value {
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(truth) => format!("%!s(bool={truth})"),
        Value::Number(n) if n.is_i64() => format!("%!s(int64={n})"),
        Value::Number(n) => format!("%!s(float64={n})"),
        other => plain(other),
    }
}

/// Go's name of a value's type.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => LIST,
        Value::Object(_) => MAP,
    }
}

const LIST: &str = "[]interface {}";
const MAP: &str = "map[string]interface {}";

fn wrong_type(expected: &str, value: &Value) -> Error {
    let given = go_type(value);
    Error::Unfit(format!("expected a {expected}, but received a {given}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::schema;

    fn pod(target: Value, patch: Value) -> Result<Value, Error> {
        let schema = schema::lookup("core/v1.Pod").unwrap();
        let (Value::Object(target), Value::Object(mut patch)) = (target, patch) else {
            panic!("no objects")
        };
        apply(schema, &target, &mut patch).map(Value::Object)
    }

    fn spec(target: Value, patch: Value) -> Value {
        pod(json!({"spec": target}), json!({"spec": patch})).unwrap()["spec"].clone()
    }

    #[test]
    fn lists_merge_by_their_key() {
        let merged = spec(
            json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "3"}]}),
        );
        assert_eq!(
            merged,
            json!({"containers": [
                {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]},
                {"name": "c", "image": "3"}, {"name": "b", "image": "1"}]})
        );
    }

    #[test]
    fn elements_are_deleted_and_lists_replaced_by_directive() {
        let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let deleted = spec(
            two.clone(),
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        );
        assert_eq!(deleted, json!({"containers": [{"name": "b"}]}));
        let replaced = spec(
            two,
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        );
        assert_eq!(replaced, json!({"containers": [{"name": "c"}]}));
        let map = spec(
            json!({"nodeSelector": {"a": "1"}}),
            json!({"nodeSelector": {"$patch": "replace", "b": "2"}}),
        );
        assert_eq!(map, json!({"nodeSelector": {"b": "2"}}));
    }

    #[test]
    fn the_patch_may_set_the_order() {
        let merged = spec(
            json!({"containers": [{"name": "a"}, {"name": "x"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
                   "containers": [{"name": "c"}]}),
        );
        let names: Vec<&str> = merged["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["x", "b", "c", "a"]);
    }

    #[test]
    fn scalars_in_lists_are_added_and_deleted() {
        let metadata = |target: Value, patch: Value| {
            pod(json!({"metadata": target}), json!({"metadata": patch})).unwrap()["metadata"]
                .clone()
        };
        assert_eq!(
            metadata(
                json!({"finalizers": ["a"]}),
                json!({"finalizers": ["b", "a"]})
            ),
            json!({"finalizers": ["b", "a"]})
        );
        assert_eq!(
            metadata(
                json!({"finalizers": ["a", "b"]}),
                json!({"$deleteFromPrimitiveList/finalizers": ["a"]})
            ),
            json!({"finalizers": ["b"]})
        );
    }

    #[test]
    fn keys_that_are_not_retained_go() {
        let schema = schema::lookup("apps/v1.Deployment").unwrap();
        let target = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        let mut patch = patch.as_object().unwrap().clone();
        let merged = apply(schema, target.as_object().unwrap(), &mut patch).unwrap();
        assert_eq!(merged["spec"]["strategy"], json!({"type": "Recreate"}));
    }

    #[test]
    fn nulls_remove_and_atomic_lists_are_replaced() {
        let merged = spec(
            json!({"hostname": "h", "containers": [{"name": "a", "command": ["x", "y"]}]}),
            json!({"hostname": null, "containers": [{"name": "a", "command": ["z"]}]}),
        );
        assert_eq!(
            merged,
            json!({"containers": [{"name": "a", "command": ["z"]}]})
        );
    }

    #[test]
    fn values_present_only_in_the_patch_are_copied_unchanged() {
        let metadata = |patch: Value| {
            pod(json!({"metadata": {}}), json!({"metadata": patch})).unwrap()["metadata"].clone()
        };
        let taken = [
            json!({"finalizers": ["a", "a"]}),
            json!({"ownerReferences": [{"uid": "u"}, {"uid": "u"}]}),
            json!({"ownerReferences": [null]}),
            json!({"labels": {"$retainKeys": ["a"], "a": "b"}}),
        ];
        for patch in taken {
            assert_eq!(metadata(patch.clone()), patch);
        }
        let cleaned = metadata(json!({"labels": {"a": null, "b": "c"},
            "annotations": {"$patch": "replace", "x": "y"},
            "ownerReferences": [{"uid": "u", "$patch": "delete"}, {"uid": "v", "name": null}]}));
        assert_eq!(
            cleaned,
            json!({"labels": {"b": "c"}, "ownerReferences": [{"uid": "v"}]})
        );
    }

    #[test]
    fn a_new_element_keeps_its_nulls_and_directives() {
        let merged = spec(
            json!({"containers": [{"name": "a"}]}),
            json!({"containers": [{"name": "b", "image": null, "$retainKeys": ["name"]}]}),
        );
        assert_eq!(
            merged,
            json!({"containers": [
                {"name": "b", "image": null, "$retainKeys": ["name"]}, {"name": "a"}]})
        );
    }

    #[test]
    fn applied_directives_and_nulls_are_removed_from_the_patch() {
        let schema = schema::lookup("core/v1.Pod").unwrap();
        let target = json!({"spec": {"containers": [{"name": "a"}]}});
        let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"name": "a"}], "nodeSelector": {"x": null, "y": "1"}}});
        let mut patch = patch.as_object().unwrap().clone();
        apply(schema, target.as_object().unwrap(), &mut patch).unwrap();
        let left = json!({"spec": {"nodeSelector": {"y": "1"}}});
        assert_eq!(Value::Object(patch), left);
    }

    #[test]
    fn patches_that_cannot_be_merged_are_refused_with_kubernetes_message() {
        let crd = schema::lookup("apiextensions/v1.CustomResourceDefinition").unwrap();
        let properties = json!({"properties": {"a": {"properties": {"b": {}}}}});
        let schemas = json!({"spec": {"conversion": {"webhook": {"clientConfig": properties}}}});
        let refused = |schema: &'static Type, target: &Value, patch: &Value| {
            let mut patch = patch.as_object().unwrap().clone();
            let outcome = apply(schema, target.as_object().unwrap(), &mut patch);
            outcome.unwrap_err().to_string()
        };
        assert_eq!(
            refused(crd, &schemas, &schemas),
            "unable to find api field in struct WebhookClientConfig for the json field \"properties\""
        );
        let pod = schema::lookup("core/v1.Pod").unwrap();
        let labels = json!({"metadata": {"labels": {"a": {"b": "c"}}}});
        assert_eq!(
            refused(pod, &labels, &labels),
            "merging an object in json but data type is not struct, instead is: map"
        );
        let old = json!({"spec": {"containers": [{"name": "a"}]}});
        let cases = [
            (
                json!({"containers": ["a"]}),
                "list element types are not identical: [[map[name:a]] [a]]",
            ),
            (
                json!({"containers": [{"name": "a", "$patch": "merge"}]}),
                "merging lists cannot yet be specified in the patch",
            ),
            (
                json!({"containers": [{"name": "a", "$patch": "x"}]}),
                "unknown patch type: x in map: map[$patch:x name:a]",
            ),
            (
                json!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}),
                "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
            ),
            (
                json!({"$setElementOrder": []}),
                "invalid patch format of setElementOrder list",
            ),
            (
                json!({"$deleteFromPrimitiveList": []}),
                "invalid patch format of primitive list",
            ),
        ];
        for (patch, why) in cases {
            assert_eq!(refused(pod, &old, &json!({"spec": patch})), why);
        }
    }

    #[test]
    fn an_element_without_its_key_is_refused() {
        let error = pod(
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": [{"image": "x"}]}}),
        )
        .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("does not contain declared merge key: name"),
            "{error}"
        );
    }
}
