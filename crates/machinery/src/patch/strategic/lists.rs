//! Lists merged by element, and their order: elements in the patch follow its order, the others
//! keep their relative position.

use super::{
    BAD_ORDER, DIRECTIVE, Error, LIST, MAP, MergeType, ORDER, directed_field, go_type, merge_map,
    unknown_directive, without_directives, wrong_type,
};
use crate::json::Key;
use crate::text::plain;
use crate::{Object, Value};
use indexmap::IndexSet;
use std::collections::{HashMap, HashSet};

/// Merges a list whose order the patch sets, with `$setElementOrder/` and its name. Both are
/// removed from the patch.
pub(super) fn merge_ordered(
    place: MergeType,
    target: &mut Object,
    patch: &mut Object,
    directive: &Key,
) -> Result<(), Error> {
    let order = patch.shift_remove(directive).unwrap_or_default();
    let Value::Array(order) = order else {
        return Err(wrong_type(LIST, &order));
    };
    let name = directed_field(directive, ORDER).ok_or(BAD_ORDER)?;
    let list_in = |map: &Object| match map.get(&name) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list.clone())),
        Some(other) => Err(wrong_type(LIST, other)),
    };
    let (old, mut new) = (list_in(target)?, list_in(patch)?);
    let (element, strategy) = place.list(&name)?;
    let named = new.as_deref().unwrap_or_default();
    check_order(named, &order, strategy.key)?;
    let before = old.clone().unwrap_or_default();
    let kind = element_type(&before, named)?;
    let merged = match (old, &mut new) {
        (None, None) => return Ok(()),
        (Some(old), None) => old,
        (None, Some(new)) => new.iter_mut().filter_map(without_directives).collect(),
        (Some(old), Some(new)) if strategy.merge => merge(element, old, new, strategy.key, false)?,
        (Some(_), Some(new)) => new.clone(),
    };
    let kind =
        kind.ok_or_else(|| Error::Unfit("no elements in any of the given slices".to_owned()))?;
    let listed = in_order(merged, &order, &before, key_of(kind, strategy.key))?;
    patch.shift_remove(&name);
    target.insert(name, Value::Array(listed));
    Ok(())
}

/// The merged list, or the list without the patch's elements if the patch lists deletions.
pub(super) fn merge(
    place: MergeType,
    mut old: Vec<Value>,
    patch: &mut [Value],
    key: Option<&'static str>,
    deletes: bool,
) -> Result<Vec<Value>, Error> {
    let Some(kind) = element_type(&old, patch)? else {
        return Ok(old);
    };
    if kind != MAP {
        if deletes {
            let gone: HashSet<&Value> = patch.iter().collect();
            old.retain(|value| !gone.contains(value));
            return Ok(old);
        }
        let merged: IndexSet<&Value> = old.iter().chain(patch.iter()).collect();
        let merged = merged.into_iter().cloned().collect();
        return in_order(merged, patch, &old, None);
    }
    let Some(key) = key else {
        return Err(Error::Unfit(
            "cannot merge lists without merge key for struct".to_owned(),
        ));
    };
    let replaces = obey(&mut old, patch, key)?;
    let is_plain = |value: &&mut Value| value.get(DIRECTIVE).is_none();
    if replaces {
        let rest: Vec<Value> = patch
            .iter_mut()
            .filter(is_plain)
            .map(|v| v.clone())
            .collect();
        return in_order(rest.clone(), &[], &rest, Some(key));
    }
    let mut merged = old.clone();
    let mut places = places(old.iter().map(|value| value.get(key)));
    for value in patch.iter_mut().filter(is_plain) {
        let Value::Object(new) = value else { continue };
        let id = new.get(key).ok_or_else(|| no_key(new, key))?.clone();
        match places.get(&id).copied() {
            Some(at) => {
                let known = match merged[at].take() {
                    Value::Object(known) => known,
                    _ => Object::new(),
                };
                merged[at] = Value::Object(merge_map(place, known, new)?);
            }
            None => {
                places.insert(id, merged.len());
                merged.push(Value::Object(new.clone()));
            }
        }
    }
    let named = patch.iter_mut().filter(is_plain).map(|v| v.clone());
    in_order(merged, &named.collect::<Vec<_>>(), &old, Some(key))
}

/// The first index of each value.
fn places<'v>(values: impl Iterator<Item = Option<&'v Value>>) -> HashMap<Value, usize> {
    let mut places = HashMap::new();
    for (at, value) in values.enumerate() {
        if let Some(value) = value {
            places.entry(value.clone()).or_insert(at);
        }
    }
    places
}

/// Executes elements with directives; returns whether the patch replaces the list.
fn obey(old: &mut Vec<Value>, patch: &[Value], key: &str) -> Result<bool, Error> {
    let mut replaces = false;
    let mut gone: HashSet<&Value> = HashSet::new();
    for value in patch {
        let Value::Object(element) = value else {
            continue;
        };
        let Some(directive) = element.get(DIRECTIVE) else {
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let id = element.get(key).ok_or_else(|| no_key(element, key))?;
                gone.insert(id);
            }
            Some("replace") => replaces = true,
            Some("merge") => {
                let why = "merging lists cannot yet be specified in the patch";
                return Err(Error::Unfit(why.to_owned()));
            }
            _ => return Err(unknown_directive(directive, element)),
        }
    }
    if !gone.is_empty() {
        old.retain(|value| !value.get(key).is_some_and(|id| gone.contains(id)));
    }
    Ok(replaces)
}

fn no_key(element: &Object, key: &str) -> Error {
    let shown = plain(&Value::Object(element.clone()));
    Error::Unfit(format!(
        "map: {shown} does not contain declared merge key: {key}"
    ))
}

/// The common type of the elements; `None` if there are none.
fn element_type(old: &[Value], patch: &[Value]) -> Result<Option<&'static str>, Error> {
    let mut types = old.iter().chain(patch).map(go_type);
    let Some(first) = types.next() else {
        return Ok(None);
    };
    if first == LIST {
        return Err(Error::ListOfLists);
    }
    if types.all(|kind| kind == first) {
        return Ok(Some(first));
    }
    let shown = [Value::Array(old.to_vec()), Value::Array(patch.to_vec())];
    Err(Error::Unfit(format!(
        "list element types are not identical: {}",
        plain(&Value::Array(shown.to_vec()))
    )))
}

/// The merge key; only maps have one.
fn key_of(kind: &str, key: Option<&'static str>) -> Option<&'static str> {
    key.filter(|_| kind == MAP)
}

/// Elements in the patch must be in the order that it sets.
fn check_order(list: &[Value], order: &[Value], key: Option<&'static str>) -> Result<(), Error> {
    if list.is_empty() || order.is_empty() {
        return Ok(());
    }
    if let Some(other) = list.iter().find(|v| key.is_some() && !v.is_object()) {
        return Err(wrong_type(MAP, other));
    }
    let mut wanted = order.iter();
    for value in list.iter().filter(|v| v.get(DIRECTIVE).is_none()) {
        let mut found = false;
        for place in wanted.by_ref() {
            found = match key {
                Some(key) => keyed(value, key)? == keyed(place, key)?,
                None => value == place,
            };
            if found {
                break;
            }
        }
        if !found {
            let shown = |list: &[Value]| plain(&Value::Array(list.to_vec()));
            return Err(Error::Unfit(format!(
                "The order in patch list:\n{}\n doesn't match {ORDER} list:\n{}\n",
                shown(list),
                shown(order)
            )));
        }
    }
    Ok(())
}

/// The merge key's value of an element.
fn keyed<'a>(value: &'a Value, key: &str) -> Result<&'a Value, Error> {
    let Value::Object(element) = value else {
        return Err(wrong_type(MAP, value));
    };
    element.get(key).ok_or_else(|| no_key(element, key))
}

/// Elements named by the order follow it; the others keep their relative position.
fn in_order(
    list: Vec<Value>,
    order: &[Value],
    before: &[Value],
    key: Option<&'static str>,
) -> Result<Vec<Value>, Error> {
    if let Some(key) = key {
        for value in list.iter().chain(order).chain(before) {
            keyed(value, key)?;
        }
    }
    let wanted = places(order.iter().map(|v| Some(key.map_or(v, |k| &v[k]))));
    let stood = places(before.iter().map(|v| Some(key.map_or(v, |k| &v[k]))));
    let place = |of: &HashMap<Value, usize>, v: &Value| of.get(key.map_or(v, |k| &v[k])).copied();
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|v| place(&wanted, v).is_some());
    named.sort_by_key(|v| place(&wanted, v));
    others.sort_by_key(|v| place(&stood, v).unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (others.peek(), named.peek()) {
            (None, None) => return Ok(out),
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
