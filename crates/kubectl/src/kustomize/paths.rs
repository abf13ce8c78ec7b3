//! Paths of replacements and variables, such as `spec.containers.[name=web].image` or `metadata.annotations.[a.b/c]`.

use anyhow::{Result, anyhow, bail};
use regex::Regex;
use serde_json::{Map, Value, json};

use super::fieldspec;
use crate::json::str_of;

/// What is created at the end of a missing path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Create {
    No,
    Scalar,
    Map,
    List,
}

impl Create {
    /// A container for a value's type.
    pub(super) fn like(value: &Value) -> Self {
        match value {
            Value::Object(_) => Self::Map,
            Value::Array(_) => Self::List,
            _ => Self::Scalar,
        }
    }

    fn empty(self, next: Option<&String>) -> Value {
        match next {
            Some(step) if is_match(step) || is_index(step) => json!([]),
            Some(_) => json!({}),
            None => match self {
                Self::Map => json!({}),
                Self::List => json!([]),
                _ => Value::Null,
            },
        }
    }
}

/// The steps of a path; brackets protect dots in a key, and are kept around matches of list
/// elements.
pub(super) fn steps(path: &str) -> Vec<String> {
    let parts = fieldspec::split(path, '.');
    let mut steps = Vec::new();
    let mut parts = parts.into_iter();
    while let Some(part) = parts.next() {
        if !part.starts_with('[') || part.ends_with(']') {
            steps.push(part);
            continue;
        }
        let mut joined = part;
        for more in parts.by_ref() {
            joined.push('.');
            joined.push_str(&more);
            if more.ends_with(']') {
                break;
            }
        }
        match joined.contains('=') {
            true => steps.push(joined),
            false => steps.push(joined.trim_matches(['[', ']']).to_owned()),
        }
    }
    steps
}

fn is_match(step: &str) -> bool {
    step.starts_with('[') && step.ends_with(']')
}

fn is_index(step: &str) -> bool {
    step.parse::<usize>().is_ok()
}

/// The field and the pattern of `[name=web]`; an empty field for scalar elements.
fn split_match(step: &str) -> Result<(&str, Regex)> {
    let inner = step.trim_start_matches('[').trim_end_matches(']');
    let (field, pattern) = inner.split_once('=').ok_or_else(|| {
        anyhow!("list path element must contain fieldName=fieldValue for element to match")
    })?;
    Ok((field, Regex::new(pattern)?))
}

/// The text of a scalar.
pub(super) fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The value at a path: the first of several matches.
pub(super) fn lookup<'a>(value: &'a Value, steps: &[String]) -> Result<Option<&'a Value>> {
    let mut value = value;
    for step in steps {
        let next = match value {
            Value::Array(items) if is_index(step) => {
                items.get(step.parse::<usize>().unwrap_or_default())
            }
            Value::Array(items) if step == "-" => items.last(),
            Value::Array(items) if is_match(step) => {
                let (field, pattern) = split_match(step)?;
                items.iter().find(|item| fits(item, field, &pattern))
            }
            Value::Object(map) => map.get(step.as_str()),
            Value::Null => None,
            _ => bail!(
                "wrong node kind: expected {} but got another one",
                "MappingNode"
            ),
        };
        match next {
            Some(next) => value = next,
            None => return Ok(None),
        }
    }
    Ok(Some(value))
}

fn fits(item: &Value, field: &str, pattern: &Regex) -> bool {
    match field {
        "" => pattern.is_match(&scalar_text(item)),
        field => item
            .get(field)
            .is_some_and(|value| pattern.is_match(&scalar_text(value))),
    }
}

type Set<'a> = &'a mut dyn FnMut(&mut Value) -> Result<()>;

/// Calls a function with all values at a path; returns how many there were.
pub(super) fn visit(
    value: &mut Value,
    steps: &[String],
    create: Create,
    set: Set<'_>,
) -> Result<usize> {
    let Some((step, rest)) = steps.split_first() else {
        set(value)?;
        return Ok(1);
    };
    if is_index(step) || is_match(step) || step == "*" {
        return visit_list(value, step, rest, create, set);
    }
    let map = match value {
        Value::Object(map) => map,
        Value::Null if create != Create::No => {
            *value = json!({});
            match value {
                Value::Object(map) => map,
                _ => return Ok(0),
            }
        }
        Value::Null => return Ok(0),
        Value::String(_) => return visit_text(value, steps, create, set),
        _ => bail!("wrong node kind: expected MappingNode"),
    };
    visit_field(map, step, rest, create, set)
}

fn visit_field(
    map: &mut Map<String, Value>,
    step: &str,
    rest: &[String],
    create: Create,
    set: Set<'_>,
) -> Result<usize> {
    if !map.contains_key(step) {
        if create == Create::No {
            return Ok(0);
        }
        map.insert(step.to_owned(), create.empty(rest.first()));
    }
    match map.get_mut(step) {
        Some(field) => visit(field, rest, create, set),
        None => Ok(0),
    }
}

fn visit_list(
    value: &mut Value,
    step: &str,
    rest: &[String],
    create: Create,
    set: Set<'_>,
) -> Result<usize> {
    if let Value::String(_) = value {
        let mut steps = vec![step.to_owned()];
        steps.extend_from_slice(rest);
        return visit_text(value, &steps, create, set);
    }
    let Some(items) = value.as_array_mut() else {
        bail!("wrong node kind: expected SequenceNode");
    };
    if step == "*" {
        return items
            .iter_mut()
            .try_fold(0, |count, item| Ok(count + visit(item, rest, create, set)?));
    }
    if let Ok(at) = step.parse::<usize>() {
        if at == items.len() && create != Create::No {
            items.push(create.empty(rest.first()));
        }
        let count = items.len();
        let Some(item) = items.get_mut(at) else {
            bail!("index {at} specified but only {count} elements found");
        };
        return visit(item, rest, create, set);
    }
    let (field, pattern) = split_match(step)?;
    if create != Create::No && !items.iter().any(|item| fits(item, field, &pattern)) {
        items.push(match field {
            "" => json!(pattern.as_str()),
            field => json!({field: pattern.as_str()}),
        });
    }
    let mut count = 0;
    for item in items.iter_mut().filter(|item| fits(item, field, &pattern)) {
        // Scalars end the path.
        let rest = if field.is_empty() { &[] } else { rest };
        count += visit(item, rest, create, set)?;
    }
    Ok(count)
}

/// A string that contains JSON or YAML is treated as a document.
fn visit_text(value: &mut Value, steps: &[String], create: Create, set: Set<'_>) -> Result<usize> {
    let text = str_of(value).to_owned();
    let mut inner: Value = serde_saphyr::from_str(&text)?;
    if !inner.is_object() && !inner.is_array() {
        return Ok(0);
    }
    let count = visit(&mut inner, steps, create, set)?;
    if count > 0 {
        *value = json!(written_like(&inner, &text)?);
    }
    Ok(count)
}

/// JSON stays JSON, on one line or several; YAML stays YAML.
fn written_like(value: &Value, original: &str) -> Result<String> {
    if !original.trim_start().starts_with(['{', '[']) {
        return Ok(serde_saphyr::to_string(value)?.trim().to_owned());
    }
    if original.contains('\n') && original.contains("  ") {
        let sorted = crate::json::sorted(value);
        return Ok(crate::json::escape_html(serde_json::to_string_pretty(
            &sorted,
        )?));
    }
    Ok(crate::json::compact(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_keep_the_dots_of_keys_and_matches() {
        for (path, expected) in [
            ("metadata.name", vec!["metadata", "name"]),
            ("a.[b.c/d].e", vec!["a", "b.c/d", "e"]),
            (
                "spec.[name=com.foo].image",
                vec!["spec", "[name=com.foo]", "image"],
            ),
            (r"a.b\.c", vec!["a", "b.c"]),
        ] {
            assert_eq!(steps(path), expected);
        }
    }

    #[test]
    fn values_are_found_made_and_set_in_lists_and_in_text() {
        let mut object = json!({"l": [{"name": "a"}, {"name": "b"}], "t": "{\"x\": {\"y\": 1}}"});
        let mut put = |path: &str, create| {
            visit(&mut object, &steps(path), create, &mut |field| {
                *field = json!("v");
                Ok(())
            })
            .unwrap()
        };
        assert_eq!(put("l.[name=a].z", Create::No), 0);
        assert_eq!(put("l.[name=a].z", Create::Scalar), 1);
        assert_eq!(put("l.[name=c].z", Create::Scalar), 1);
        assert_eq!(put("l.*.name", Create::No), 3);
        assert_eq!(put("t.x.y", Create::No), 1);
        assert_eq!(
            object,
            json!({"l": [{"name": "v", "z": "v"}, {"name": "v"}, {"name": "v", "z": "v"}], "t": "{\"x\":{\"y\":\"v\"}}"})
        );
    }
}
