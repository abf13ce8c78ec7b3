//! The cost of calls, by their arguments.

use super::{REGEX_LENGTH, STRING_TRAVERSAL};
use crate::{
    ast::op,
    functions::library::Library,
    meter,
    value::{Error, Result, Value},
};

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

/// How the cost of a call is computed. Chosen when an expression is compiled: by the overload if
/// the checker found exactly one, otherwise by the function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    Fixed(u64),
    /// Traverses the text of an argument with this factor.
    Text(f64),
    Selector,
    Traversal,
    Regex,
    Product,
    Validate,
    Contains {
        network: bool,
        text: bool,
    },
    Equality,
    Shorter,
    Longer,
    Elements,
    /// Compares every element of one list with every one of another.
    Pairs(u64),
    /// Compares every element of a list with every other.
    SelfCompare(usize),
    Flatten,
    /// The size of the resulting list.
    Made,
    Joined,
}

impl Rule {
    pub fn new(function: &str, overload: &str) -> Self {
        Self::by_overload(overload)
            .or_else(|| Self::by_function(function, overload))
            .unwrap_or_else(|| Self::standard(overload))
    }

    /// Lists and sets are costed by overload only.
    fn by_overload(overload: &str) -> Option<Self> {
        Some(match overload {
            "list_slice" | "lists_range" | "list_reverse" => Self::Made,
            "list_flatten" | "list_flatten_int" => Self::Flatten,
            "list_distinct" => Self::SelfCompare(0),
            "list_sets_contains_list" | "list_sets_intersects_list" => Self::Pairs(1),
            "list_sets_equivalent_list" => Self::Pairs(2),
            _ if overload.ends_with("_sortByAssociatedKeys") => Self::SelfCompare(1),
            _ if overload.starts_with("list_") && overload.ends_with("_sort") => {
                Self::SelfCompare(0)
            }
            _ => return None,
        })
    }

    fn by_function(function: &str, overload: &str) -> Option<Self> {
        Some(match function {
            "check" => Self::Fixed(350_000),
            "fieldSelector" | "labelSelector" => Self::Selector,
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => Self::Traversal,
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
            | "isCIDR" => Self::Text(1.0),
            "ip" if overload == "cidr_ip" => Self::Fixed(1),
            "ip" => Self::Text(1.0),
            "replace" | "split" | "ip.isCanonical" => Self::Text(2.0),
            "join" => Self::Joined,
            "find" | "findAll" => Self::Regex,
            "containsIP" => Self::Contains {
                network: false,
                text: overload == "cidr_contains_ip_string",
            },
            "containsCIDR" => Self::Contains {
                network: true,
                text: overload == "cidr_contains_cidr_string",
            },
            "validate" => Self::Validate,
            op::EQUALS => Self::Equality,
            op::NOT_EQUALS => Self::Shorter,
            _ => return None,
        })
    }

    fn standard(overload: &str) -> Self {
        match overload {
            "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string"
            | "strings_quote" | "string_format" => Self::Text(1.0),
            "in_list" => Self::Elements,
            "add_string" | "add_bytes" => Self::Longer,
            "matches_string" => Self::Regex,
            "contains_string" => Self::Product,
            _ => {
                let ordered = ["less_", "greater_"]
                    .iter()
                    .any(|o| overload.starts_with(o));
                let texts = ["_string", "_bytes"].iter().any(|t| overload.ends_with(t));
                match ordered && texts {
                    true => Self::Shorter,
                    false => Self::Fixed(1),
                }
            }
        }
    }

    /// Whether the cost is that of comparing the elements of this argument.
    pub fn compares(self, at: usize) -> bool {
        matches!(self, Self::SelfCompare(compared) if compared == at)
    }

    /// The cost of a call, or `None` if it depends on the result.
    pub fn before(self, args: &[Value<'_>]) -> Option<u64> {
        let size = |at: usize| args.get(at).map_or(1, Value::size);
        let text = |at: usize| traversed(size(at), STRING_TRAVERSAL);
        let regex = |text: usize, pattern: u64| {
            let text = ((1.0 + size(text) as f64) * STRING_TRAVERSAL).ceil() as u64;
            text.saturating_mul(traversed(pattern, REGEX_LENGTH))
        };
        let shorter = || traversed(smaller(args), STRING_TRAVERSAL);
        Some(match self {
            Self::Fixed(cost) => cost,
            Self::Text(times) => traversed(size(0), times * STRING_TRAVERSAL),
            Self::Selector => {
                let length = size(1);
                LIST + traversed(length, STRING_TRAVERSAL) + traversed(traversed(length, 0.5), 50.0)
            }
            Self::Traversal => args.first().map_or(0, traversal),
            Self::Regex => regex(0, size(1)),
            Self::Product => text(0).saturating_mul(text(1)),
            Self::Validate => match args.first() {
                Some(Value::Library(Library::Format(format))) => regex(1, format.pattern_size),
                _ => 1,
            },
            Self::Contains {
                network,
                text: is_text,
            } => {
                let twice = traversed(2 * size(0), STRING_TRAVERSAL);
                let masked = if network { text(0) + 1 } else { 0 };
                let parsed = if is_text { text(1) } else { 0 };
                twice + masked + parsed
            }
            Self::Equality if matches!(args.first(), Some(Value::Library(_))) => 1,
            Self::Equality if matches!(args.first(), Some(Value::Map(map)) if map.object().is_some()) => {
                1
            }
            Self::Equality | Self::Shorter => shorter(),
            Self::Longer => traversed(size(0).saturating_add(size(1)), STRING_TRAVERSAL),
            Self::Elements => size(1),
            Self::Pairs(factor) => {
                let pairs = size(0).saturating_mul(size(1));
                pairs.saturating_mul(factor).saturating_add(1)
            }
            Self::SelfCompare(at) => {
                let first = match args.get(at) {
                    Some(Value::List(list)) => list.get(0).and_then(Result::ok),
                    _ => None,
                };
                let factor = match first {
                    Some(Value::String(_) | Value::Bytes(_)) => 2.0 + STRING_TRAVERSAL,
                    _ => 2.0,
                };
                allocating(factor, size(at).saturating_mul(size(at)))
            }
            Self::Flatten => {
                let depth = match args.get(1) {
                    Some(Value::Int(depth)) => *depth as f64,
                    _ => 1.0,
                };
                // A negative depth fails, and reduces the cost, as upstream.
                let product = (size(0) as f64 * depth) as i64;
                product.wrapping_add(1 + LIST as i64) as u64
            }
            Self::Made | Self::Joined => return None,
        })
    }

    /// The cost of a call by its result.
    pub fn after(self, result: Option<&Value<'_>>) -> u64 {
        let size = result.map_or(1, Value::size);
        match self {
            Self::Joined => traversed(size, 2.0 * STRING_TRAVERSAL),
            Self::Made => allocating(1.0, size),
            _ => 1,
        }
    }
}

/// The size of the smaller one of two arguments. Characters are only counted where that decides.
fn smaller(args: &[Value<'_>]) -> u64 {
    match args {
        [Value::String(a), Value::String(b)] => {
            let (less, more) = if a.len() <= b.len() { (a, b) } else { (b, a) };
            let size = less.chars().count();
            // A character has at most four bytes.
            match size <= more.len() / 4 {
                true => size as u64,
                false => size.min(more.chars().count()) as u64,
            }
        }
        [a, b] => a.size().min(b.size()),
        [one] => one.size().min(1),
        _ => 1,
    }
}

/// Upstream's cost of comparing elements panics for anything but a list, also for an error, and
/// the panic ends the evaluation.
pub fn not_a_list<T>(go_type: &str) -> Result<T> {
    let has_add = matches!(
        go_type,
        "types.Int"
            | "types.Uint"
            | "types.Double"
            | "types.String"
            | "types.Bytes"
            | "types.Duration"
            | "types.Timestamp"
    );
    let missing = if has_add { "Contains" } else { "Add" };
    Err(Error {
        message: format!(
            "internal error: interface conversion: {go_type} is not traits.Lister: missing method {missing}"
        ),
        fatal: true,
    })
}

/// Making a list, and traversing one of a size.
fn allocating(factor: f64, size: u64) -> u64 {
    ((size as f64 * factor) as u64).saturating_add(1 + LIST)
}

/// Traversing a value as a tree.
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
