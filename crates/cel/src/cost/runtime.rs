//! What calls have cost, by their arguments.

use super::{REGEX_LENGTH, STRING_TRAVERSAL};
use crate::{ast::op, functions::library::Library, meter, value::Value};

/// A variable or a selection.
pub const SELECT: u64 = 1;
/// Making a list, a map.
pub const LIST: u64 = 10;
pub const MAP: u64 = 30;
/// Constructing an object.
pub const OBJECT: u64 = 40;

fn traversed(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// The cost of a call, or `None` if it hangs on the result.
pub fn before(function: &str, args: &[Value<'_>]) -> Option<u64> {
    let size = |at: usize| args.get(at).map_or(1, Value::size);
    let text = |at: usize| traversed(size(at), STRING_TRAVERSAL);
    let regex = |text: usize, pattern: u64| {
        ((1.0 + size(text) as f64) * STRING_TRAVERSAL).ceil() as u64
            * traversed(pattern, REGEX_LENGTH)
    };
    Some(match function {
        "join" => return None,
        "check" => 350_000,
        "fieldSelector" | "labelSelector" => {
            let length = size(1);
            LIST + traversed(length, STRING_TRAVERSAL) + traversed(traversed(length, 0.5), 50.0)
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            args.first().map_or(0, traversal)
        }
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "startsWith"
        | "endsWith"
        | "strings.quote"
        | "format" => text(0),
        "ip" => match args.first() {
            Some(Value::Library(_)) => 1,
            _ => text(0),
        },
        "replace" | "split" | "ip.isCanonical" => traversed(size(0), 2.0 * STRING_TRAVERSAL),
        "find" | "findAll" | "matches" => regex(0, size(1)),
        "contains" => text(0) * text(1),
        "containsIP" => 2 * text(0) + parsed(args, &text),
        "containsCIDR" => 3 * text(0) + 1 + parsed(args, &text),
        "validate" => match args.first() {
            Some(Value::Library(Library::Format(format))) => regex(1, format.pattern_size),
            _ => 1,
        },
        op::IN => match args.get(1) {
            Some(Value::List(list)) => list.len() as u64,
            _ => 1,
        },
        op::EQUALS | op::NOT_EQUALS => match args.first() {
            Some(Value::Library(_)) => 1,
            _ => traversed(size(0).min(size(1)), STRING_TRAVERSAL),
        },
        op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS => match args.first() {
            Some(Value::String(_) | Value::Bytes(_)) => {
                traversed(size(0).min(size(1)), STRING_TRAVERSAL)
            }
            _ => 1,
        },
        op::ADD => match args.first() {
            Some(Value::String(_) | Value::Bytes(_)) => {
                traversed(size(0) + size(1), STRING_TRAVERSAL)
            }
            _ => 1,
        },
        "bytes" | "string" => match args.first() {
            Some(Value::String(_)) if function == "bytes" => text(0),
            Some(Value::Bytes(_)) if function == "string" => text(0),
            _ => 1,
        },
        // Their work grows with the lists, quadratically at worst.
        "sets.contains" | "sets.intersects" => size(0).saturating_mul(size(1)),
        "sets.equivalent" => size(0).saturating_mul(size(1)).saturating_mul(2),
        "distinct" => size(0).saturating_mul(size(0)),
        "flatten" | "slice" | "sort" | "@sortByAssociatedKeys" | "reverse" => size(0),
        "lists.range" => match args.first() {
            Some(Value::Int(end)) => u64::try_from(*end).unwrap_or(0),
            _ => 1,
        },
        _ => 1,
    })
}

/// An address or network that is given as text is parsed.
fn parsed(args: &[Value<'_>], text: &dyn Fn(usize) -> u64) -> u64 {
    match args.get(1) {
        Some(Value::String(_)) => text(1),
        _ => 0,
    }
}

/// The cost of a call by its result.
pub fn after(function: &str, result: Option<&Value<'_>>) -> u64 {
    match (function, result) {
        ("join", Some(result)) => traversed(result.size(), 2.0 * STRING_TRAVERSAL),
        _ => 1,
    }
}

/// Walking through a value as a tree.
fn traversal(value: &Value<'_>) -> u64 {
    if meter::work(1).is_err() {
        return u64::MAX;
    }
    match value {
        Value::String(text) => (text.len() as f64 * STRING_TRAVERSAL) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * STRING_TRAVERSAL) as u64,
        Value::List(list) => list
            .iter()
            .map(|item| item.as_ref().map_or(1, traversal))
            .fold(0, u64::saturating_add),
        Value::Map(map) => map
            .iter()
            .map(|entry| {
                entry.map_or(1, |(key, value)| {
                    traversal(&key).saturating_add(traversal(&value))
                })
            })
            .fold(0, u64::saturating_add),
        _ => 1,
    }
}
