//! The functions of templates, and how values are printed and tested.

use std::cmp::Ordering;

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Number, Value};

use super::printf::printf;

const NAMES: &[&str] = &[
    "and",
    "or",
    "not",
    "len",
    "index",
    "slice",
    "print",
    "printf",
    "println",
    "html",
    "js",
    "urlquery",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "exists",
    "base64decode",
];

/// Whether there is such a function.
pub(super) fn is_known(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Calls a function.
pub(super) fn call(name: &str, arguments: Vec<Option<Value>>) -> Result<Value> {
    let values: Vec<Value> = arguments
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect();
    let argument = |at: usize| {
        values
            .get(at)
            .with_context(|| format!("wrong number of args for {name}"))
    };
    let joined = || values.iter().map(text).collect::<String>();
    Ok(match name {
        "and" | "or" => values.last().cloned().context("wrong number of args")?,
        "not" => Value::Bool(!truth(argument(0)?)),
        "len" => length(argument(0)?)?.into(),
        "index" => index(argument(0)?, &values[1..])?,
        "slice" => slice(argument(0)?, &values[1..])?,
        "print" => print(&values).into(),
        "println" => {
            let texts: Vec<String> = values.iter().map(nested).collect();
            format!("{}\n", texts.join(" ")).into()
        }
        "printf" => printf(&text(argument(0)?), &values[1..]).into(),
        "html" => escape_html(&joined()).into(),
        "js" => escape_js(&joined()).into(),
        "urlquery" => crate::discovery::encode(&joined())
            .replace("%20", "+")
            .into(),
        "eq" => {
            let first = argument(0)?;
            argument(1)?;
            let mut is_equal = false;
            for other in &values[1..] {
                is_equal |= compare(first, other)? == Some(Ordering::Equal);
            }
            is_equal.into()
        }
        "ne" => (compare(argument(0)?, argument(1)?)? != Some(Ordering::Equal)).into(),
        "lt" => (order(argument(0)?, argument(1)?)? == Ordering::Less).into(),
        "le" => (order(argument(0)?, argument(1)?)? != Ordering::Greater).into(),
        "gt" => (order(argument(0)?, argument(1)?)? == Ordering::Greater).into(),
        "ge" => (order(argument(0)?, argument(1)?)? != Ordering::Less).into(),
        "exists" => exists(argument(0)?, &values[1..]).into(),
        "base64decode" => {
            let encoded = text(argument(0)?);
            let bytes = BASE64_STANDARD
                .decode(encoded.trim())
                .context("base64 decode failed")?;
            String::from_utf8_lossy(&bytes).into_owned().into()
        }
        other => bail!("function {other:?} not defined"),
    })
}

/// Whether a value is true: not empty, not zero, not null.
pub(super) fn truth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A value as Go prints it.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".into(),
        Value::String(text) => text.clone(),
        other => nested(other),
    }
}

/// A value within others.
pub(super) fn nested(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(nested).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_str());
            let pairs: Vec<String> = pairs
                .iter()
                .map(|(key, value)| format!("{key}:{}", nested(value)))
                .collect();
            format!("map[{}]", pairs.join(" "))
        }
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => number.to_string(),
            (_, Some(number), _) => number.to_string(),
            (_, _, number) => machinery::text::float(number.unwrap_or_default()),
        },
        Value::Bool(flag) => flag.to_string(),
    }
}

/// The Go type of a JSON value.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn length(value: &Value) -> Result<usize> {
    match value {
        Value::String(text) => Ok(text.len()),
        Value::Array(items) => Ok(items.len()),
        Value::Object(map) => Ok(map.len()),
        other => bail!("len of type {}", type_name(other)),
    }
}

fn index(value: &Value, keys: &[Value]) -> Result<Value> {
    let mut value = value.clone();
    for key in keys {
        value = match &value {
            Value::Object(map) => map.get(&text(key)).cloned().unwrap_or_default(),
            Value::Array(items) => {
                let at = key
                    .as_u64()
                    .with_context(|| format!("cannot index slice with {}", text(key)))?;
                let item = items.get(usize::try_from(at)?);
                item.with_context(|| format!("index out of range: {at}"))?
                    .clone()
            }
            Value::String(text) => {
                let at = key.as_u64().context("cannot index string with this key")?;
                let byte = text.as_bytes().get(usize::try_from(at)?);
                Value::from(*byte.with_context(|| format!("index out of range: {at}"))?)
            }
            other => bail!("can't index item of type {}", type_name(other)),
        };
    }
    Ok(value)
}

fn slice(value: &Value, bounds: &[Value]) -> Result<Value> {
    let bound = |at: usize, default: usize| match bounds.get(at) {
        Some(bound) => Ok(usize::try_from(
            bound.as_u64().context("slice bounds are numbers")?,
        )?),
        None => anyhow::Ok(default),
    };
    let size = length(value)?;
    let (start, end) = (bound(0, 0)?, bound(1, size)?);
    let bad = || format!("slice bounds out of range [{start}:{end}]");
    match value {
        Value::String(text) => Ok(text.get(start..end).with_context(bad)?.into()),
        Value::Array(items) => Ok(items.get(start..end).with_context(bad)?.to_vec().into()),
        other => bail!("can't slice item of type {}", type_name(other)),
    }
}

/// Go's Print: spaces between operands if neither is a string.
fn print(values: &[Value]) -> String {
    let mut out = String::new();
    for (at, value) in values.iter().enumerate() {
        if at > 0 && !value.is_string() && !values[at - 1].is_string() {
            out.push(' ');
        }
        out.push_str(&nested(value));
    }
    out
}

fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() == b.is_f64() => Ok(number_order(a, b)),
        (Value::String(a), Value::String(b)) => Ok(Some(a.cmp(b))),
        (Value::Bool(a), Value::Bool(b)) => Ok((a == b).then_some(Ordering::Equal)),
        (Value::Null, Value::Null) => Ok(Some(Ordering::Equal)),
        (Value::Null, _) | (_, Value::Null) => Ok(None),
        _ => bail!(
            "incompatible types for comparison: {} and {}",
            type_name(a),
            type_name(b)
        ),
    }
}

/// Integers are compared exactly.
fn number_order(a: &Number, b: &Number) -> Option<Ordering> {
    let integer = |number: &Number| {
        let signed = number.as_i64().map(i128::from);
        signed.or_else(|| number.as_u64().map(i128::from))
    };
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64().partial_cmp(&b.as_f64()),
    }
}

fn order(a: &Value, b: &Value) -> Result<Ordering> {
    match (a, b) {
        (Value::Bool(_), _) | (Value::Null, _) => bail!("invalid type for comparison"),
        _ => compare(a, b)?.context("incompatible types for comparison"),
    }
}

fn exists(value: &Value, path: &[Value]) -> bool {
    let mut value = value;
    for key in path {
        let next = match value {
            Value::Object(map) => map.get(&text(key)),
            Value::Array(items) => key
                .as_u64()
                .and_then(|at| items.get(usize::try_from(at).ok()?)),
            _ => None,
        };
        match next {
            Some(next) => value = next,
            None => return false,
        }
    }
    true
}

fn escape_js(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => out.extend(['\\', c]),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

fn escape_html(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
