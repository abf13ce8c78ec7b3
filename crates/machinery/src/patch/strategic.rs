//! Strategic merge patch: a merge patch that knows, from the schema table, which lists are merged
//! by element and how elements are known. Directives: `$patch`, `$retainKeys`,
//! `$setElementOrder/field`, `$deleteFromPrimitiveList/field`.

use crate::json::Key;
use crate::schema::{Patch, Shape, Type};
use crate::text::plain;
use crate::{Object, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A directive is written in no way that is known: a bad request.
    #[error("{0}")]
    Malformed(&'static str),
    /// The patch does not fit: upstream has no code of its own for it.
    #[error("{0}")]
    Unfit(String),
}

const BAD_RETAIN_KEYS: &str = "invalid patch format of retainKeys";

/// The object after the patch.
pub fn apply(schema: &'static Type, target: &Object, patch: &Object) -> Result<Object, Error> {
    merge_map(Some(schema), target.clone(), patch.clone())
}

/// What is known about the values of a map or list.
fn below(schema: Option<&'static Type>, name: &str) -> (Option<Shape>, Patch) {
    match schema.and_then(|s| s.field(name)) {
        Some(field) => (Some(field.shape), field.patch.clone()),
        None => (None, Patch::default()),
    }
}

fn type_of(shape: Option<Shape>) -> Option<&'static Type> {
    match shape {
        Some(Shape::Struct(id)) => Some(id.get()),
        Some(Shape::List(element)) => type_of(Some(*element)),
        Some(Shape::Map(element)) => type_of(Some(*element)),
        _ => None,
    }
}

fn merge_map(
    schema: Option<&'static Type>,
    mut target: Object,
    mut patch: Object,
) -> Result<Object, Error> {
    if let Some(directive) = patch.get(DIRECTIVE).cloned() {
        let shown = match directive.as_str() {
            Some("replace") => {
                patch.shift_remove(DIRECTIVE);
                return without_directives(patch);
            }
            Some("delete") => return Ok(Object::new()),
            Some(other) => other.to_owned(),
            None => misprinted(&directive),
        };
        let patch = plain(&Value::Object(patch));
        return Err(Error::Unfit(format!(
            "unknown patch type: {shown} in map: {patch}"
        )));
    }
    retain_keys(&mut target, &mut patch)?;
    let orders = take_prefixed(&mut patch, ORDER);
    for (name, values) in take_prefixed(&mut patch, DELETE_FROM) {
        delete_from(&mut target, &name, &values)?;
    }
    let mut ordered: Vec<(String, Vec<Value>)> = Vec::new();
    for (name, order) in orders {
        let Value::Array(order) = order else {
            let kind = go_type(&order);
            let why = format!("expected a []interface {{}}, but received a {kind}");
            return Err(Error::Unfit(why));
        };
        check_order(&name, &order, &patch, below(schema, &name).1.key)?;
        ordered.push((name, order));
    }
    // Where elements stood before, for those that the patch does not order.
    let before: Vec<Vec<Value>> = ordered
        .iter()
        .map(|(name, _)| {
            target
                .get(name)
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    for (name, value) in patch {
        merge_field(schema, &mut target, name, value)?;
    }
    for ((name, order), before) in ordered.into_iter().zip(before) {
        let key = below(schema, &name).1.key;
        if let Some(Value::Array(list)) = target.get_mut(&name) {
            *list = in_order(std::mem::take(list), &order, &before, key);
        }
    }
    Ok(target)
}

fn merge_field(
    schema: Option<&'static Type>,
    target: &mut Object,
    name: Key,
    value: Value,
) -> Result<(), Error> {
    if value.is_null() {
        target.shift_remove(&name);
        return Ok(());
    }
    let (shape, strategy) = below(schema, &name);
    let merged = match (target.shift_remove_keeping_place(&name), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            if strategy.replace && !new.contains_key(DIRECTIVE) {
                Value::Object(without_directives(new)?)
            } else {
                Value::Object(merge_map(
                    type_of(shape).filter(|_| is_struct(shape)),
                    old,
                    new,
                )?)
            }
        }
        (Some(Value::Array(old)), Value::Array(new)) if strategy.merge => {
            merge_list(type_of(shape), old, new, strategy.key)?
        }
        (_, Value::Array(new)) if strategy.merge => {
            merge_list(type_of(shape), Vec::new(), new, strategy.key)?
        }
        (_, value) => clean(value)?,
    };
    target.insert(name, merged);
    Ok(())
}

fn is_struct(shape: Option<Shape>) -> bool {
    matches!(shape, Some(Shape::Struct(_)))
}

/// Taking a value out while its key keeps its place in the order.
trait TakeInPlace {
    fn shift_remove_keeping_place(&mut self, name: &str) -> Option<Value>;
}

impl TakeInPlace for Object {
    fn shift_remove_keeping_place(&mut self, name: &str) -> Option<Value> {
        self.get_mut(name).map(Value::take)
    }
}

fn retain_keys(target: &mut Object, patch: &mut Object) -> Result<(), Error> {
    let Some(list) = patch.shift_remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(list) = list else {
        return Err(Error::Malformed(BAD_RETAIN_KEYS));
    };
    let keep = |key: &str| list.iter().any(|k| k == key);
    let strange = patch
        .iter()
        .any(|(k, v)| !k.starts_with('$') && !v.is_null() && !keep(k));
    if strange {
        return Err(Error::Malformed(BAD_RETAIN_KEYS));
    }
    target.retain(|key, _| keep(key));
    Ok(())
}

fn take_prefixed(patch: &mut Object, prefix: &str) -> Vec<(String, Value)> {
    let names: Vec<Key> = patch
        .keys()
        .filter(|k| k.starts_with(prefix))
        .cloned()
        .collect();
    names
        .into_iter()
        .filter_map(|name| {
            let value = patch.shift_remove(&name)?;
            Some((name[prefix.len()..].to_owned(), value))
        })
        .collect()
}

fn delete_from(target: &mut Object, name: &str, values: &Value) -> Result<(), Error> {
    // What is no list deletes nothing.
    let Value::Array(values) = values else {
        return Ok(());
    };
    if let Some(Value::Array(list)) = target.get_mut(name) {
        list.retain(|v| !values.contains(v));
    }
    Ok(())
}

fn merge_list(
    element: Option<&'static Type>,
    mut target: Vec<Value>,
    patch: Vec<Value>,
    key: Option<&'static str>,
) -> Result<Value, Error> {
    // What the patch names stands in its order, also when it does not ask for one.
    let (before, named) = (target.clone(), patch.clone());
    let Some(key) = key else {
        for value in patch {
            if !target.contains(&value) {
                target.push(value);
            }
        }
        return Ok(Value::Array(in_order(target, &named, &before, None)));
    };
    if patch.iter().any(|v| v[DIRECTIVE] == "replace") {
        let rest = patch
            .into_iter()
            .filter(|v| v[DIRECTIVE] != "replace")
            .map(clean);
        return rest.collect::<Result<_, _>>().map(Value::Array);
    }
    // Deletions first: the same patch may delete an element and add another under its key.
    for removal in patch.iter().filter(|v| v[DIRECTIVE] == "delete") {
        let id = removal.get(key).ok_or_else(|| no_key(removal, key))?;
        target.retain(|v| v.get(key) != Some(id));
    }
    for value in patch {
        if value[DIRECTIVE] == "delete" {
            continue;
        }
        let Value::Object(new) = value else {
            let shown = [Value::Array(target), Value::Array(vec![value])];
            return Err(Error::Unfit(format!(
                "list element types are not identical: {}",
                plain(&Value::Array(shown.to_vec()))
            )));
        };
        let Some(id) = new.get(key).cloned() else {
            return Err(no_key(&Value::Object(new), key));
        };
        match target.iter_mut().find(|v| v.get(key) == Some(&id)) {
            Some(slot) => {
                let old = match slot.take() {
                    Value::Object(old) => old,
                    _ => Object::new(),
                };
                *slot = Value::Object(merge_map(element, old, new)?);
            }
            None => target.push(Value::Object(merge_map(element, Object::new(), new)?)),
        }
    }
    let named: Vec<Value> = named
        .into_iter()
        .filter(|value| value.get(DIRECTIVE).is_none())
        .collect();
    Ok(Value::Array(in_order(target, &named, &before, Some(key))))
}

fn no_key(value: &Value, key: &str) -> Error {
    let shown = plain(value);
    Error::Unfit(format!(
        "map: {shown} does not contain declared merge key: {key}"
    ))
}

/// What Go's `%s` makes of a value that is no text.
fn misprinted(value: &Value) -> String {
    match value {
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(truth) => format!("%!s(bool={truth})"),
        Value::Number(n) if n.is_i64() => format!("%!s(int64={n})"),
        Value::Number(n) => format!("%!s(float64={n})"),
        other => plain(other),
    }
}

/// What Go calls the type of a value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Elements that the patch sets stand in the order that it asks for.
fn check_order(
    name: &str,
    order: &[Value],
    patch: &Object,
    key: Option<&'static str>,
) -> Result<(), Error> {
    let Some(Value::Array(list)) = patch.get(name) else {
        return Ok(());
    };
    let id = |v: &Value| key.map_or_else(|| v.clone(), |k| v[k].clone());
    let mut wanted = order.iter();
    let fits = list
        .iter()
        .filter(|v| v.get(DIRECTIVE).is_none())
        .all(|v| wanted.any(|o| id(o) == id(v)));
    if fits {
        return Ok(());
    }
    let shown = |list: &[Value]| plain(&Value::Array(list.to_vec()));
    Err(Error::Unfit(format!(
        "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
        shown(list),
        shown(order)
    )))
}

/// Elements that the patch orders follow its order; the others stay where they stood among them.
fn in_order(
    list: Vec<Value>,
    order: &[Value],
    before: &[Value],
    key: Option<&'static str>,
) -> Vec<Value> {
    let id = |v: &Value| key.map_or_else(|| v.clone(), |k| v[k].clone());
    let wanted: Vec<Value> = order.iter().map(id).collect();
    let stood: Vec<Value> = before.iter().map(id).collect();
    let place = |of: &[Value], v: &Value| of.iter().position(|o| *o == id(v));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|v| place(&wanted, v).is_some());
    named.sort_by_key(|v| place(&wanted, v));
    others.sort_by_key(|v| place(&stood, v).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (None, None) => return out,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(name)) => {
                matches!((place(&stood, other), place(&stood, name)), (Some(a), Some(b)) if a < b)
            }
        };
        out.extend(if other_first {
            others.next()
        } else {
            named.next()
        });
    }
}

fn without_directives(map: Object) -> Result<Object, Error> {
    match clean(Value::Object(map))? {
        Value::Object(map) => Ok(map),
        _ => Ok(Object::new()),
    }
}

/// A value that only the patch has: without directives and nulls.
fn clean(value: Value) -> Result<Value, Error> {
    Ok(match value {
        Value::Object(map) => {
            let mut out = Object::with_capacity(map.len());
            for (key, value) in map {
                if !key.starts_with('$') && !value.is_null() {
                    out.insert(key, clean(value)?);
                } else if key == "$ref" || key == "$schema" {
                    // Two real fields, of JSON schemas.
                    out.insert(key, value);
                }
            }
            Value::Object(out)
        }
        Value::Array(list) => Value::Array(
            list.into_iter()
                .filter(|v| v[DIRECTIVE] != "delete" && v[DIRECTIVE] != "replace")
                .map(clean)
                .collect::<Result<_, _>>()?,
        ),
        value => value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::schema;

    fn pod(target: Value, patch: Value) -> Result<Value, Error> {
        let schema = schema::lookup("core/v1.Pod").unwrap();
        let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
            panic!("no objects")
        };
        apply(schema, &target, &patch).map(Value::Object)
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
        let merged = apply(
            schema,
            target.as_object().unwrap(),
            patch.as_object().unwrap(),
        )
        .unwrap();
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
