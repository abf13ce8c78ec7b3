//! Lists: Kubernetes' own library and the common one.

use std::cmp::Ordering;

use super::{
    Row,
    convert::int,
    operators::elements,
    strings::{index_of, last_index_of},
};
use crate::{
    ast::op,
    functions::lookup,
    meter,
    value::{Error, List, Result, Value},
};

/// The overloads that a function has for lists of each ordered type.
macro_rules! ordered {
    ($name:literal, $suffix:literal, $result:literal) => {
        &[
            (
                concat!(".list_int_", $name, $suffix),
                concat!("list(int) -> ", $result),
            ),
            (
                concat!(".list_uint_", $name, $suffix),
                concat!("list(uint) -> ", $result),
            ),
            (
                concat!(".list_double_", $name, $suffix),
                concat!("list(double) -> ", $result),
            ),
            (
                concat!(".list_bool_", $name, $suffix),
                concat!("list(bool) -> ", $result),
            ),
            (
                concat!(".list_duration_", $name, $suffix),
                concat!("list(duration) -> ", $result),
            ),
            (
                concat!(".list_timestamp_", $name, $suffix),
                concat!("list(timestamp) -> ", $result),
            ),
            (
                concat!(".list_string_", $name, $suffix),
                concat!("list(string) -> ", $result),
            ),
            (
                concat!(".list_bytes_", $name, $suffix),
                concat!("list(bytes) -> ", $result),
            ),
        ]
    };
}

macro_rules! extremes {
    ($name:literal) => {
        &[
            (concat!(".list_int_", $name, "_int"), "list(int) -> int"),
            (concat!(".list_uint_", $name, "_uint"), "list(uint) -> uint"),
            (
                concat!(".list_double_", $name, "_double"),
                "list(double) -> double",
            ),
            (concat!(".list_bool_", $name, "_bool"), "list(bool) -> bool"),
            (
                concat!(".list_duration_", $name, "_duration"),
                "list(duration) -> duration",
            ),
            (
                concat!(".list_timestamp_", $name, "_timestamp"),
                "list(timestamp) -> timestamp",
            ),
            (
                concat!(".list_string_", $name, "_string"),
                "list(string) -> string",
            ),
            (
                concat!(".list_bytes_", $name, "_bytes"),
                "list(bytes) -> bytes",
            ),
        ]
    };
}

pub(super) const ROWS: &[Row] = &[
    (
        "isSorted",
        is_sorted,
        ordered!("is_sorted", "_bool", "bool"),
    ),
    (
        "sum",
        sum,
        &[
            (".list_int_sum_int", "list(int) -> int"),
            (".list_uint_sum_uint", "list(uint) -> uint"),
            (".list_double_sum_double", "list(double) -> double"),
            (".list_duration_sum_duration", "list(duration) -> duration"),
        ],
    ),
    (
        "max",
        |args| extreme(args, "max", Ordering::Less),
        extremes!("max"),
    ),
    (
        "min",
        |args| extreme(args, "min", Ordering::Greater),
        extremes!("min"),
    ),
    (
        "indexOf",
        |args| find(args, false),
        &[
            (".list_a_index_of_int", "list(A), A -> int"),
            (".string_index_of_string", "string, string -> int"),
            (".string_index_of_string_int", "string, string, int -> int"),
        ],
    ),
    (
        "lastIndexOf",
        |args| find(args, true),
        &[
            (".list_a_last_index_of_int", "list(A), A -> int"),
            (".string_last_index_of_string", "string, string -> int"),
            (
                ".string_last_index_of_string_int",
                "string, string, int -> int",
            ),
        ],
    ),
    (
        "slice",
        slice,
        &[(".list_slice", "list(A), int, int -> list(A)")],
    ),
    (
        "flatten",
        flatten,
        &[
            (".list_flatten", "list(list(A)) -> list(A)"),
            (".list_flatten_int", "list(dyn), int -> list(dyn)"),
        ],
    ),
    (
        "sort",
        sort,
        &[
            (".list_int_sort", "list(int) -> list(int)"),
            (".list_uint_sort", "list(uint) -> list(uint)"),
            (".list_double_sort", "list(double) -> list(double)"),
            (".list_bool_sort", "list(bool) -> list(bool)"),
            (
                ".list_google.protobuf.Duration_sort",
                "list(duration) -> list(duration)",
            ),
            (
                ".list_google.protobuf.Timestamp_sort",
                "list(timestamp) -> list(timestamp)",
            ),
            (".list_string_sort", "list(string) -> list(string)"),
            (".list_bytes_sort", "list(bytes) -> list(bytes)"),
        ],
    ),
    (
        "@sortByAssociatedKeys",
        sort_by,
        &[
            (
                ".list_int_sortByAssociatedKeys",
                "list(A), list(int) -> list(A)",
            ),
            (
                ".list_uint_sortByAssociatedKeys",
                "list(A), list(uint) -> list(A)",
            ),
            (
                ".list_double_sortByAssociatedKeys",
                "list(A), list(double) -> list(A)",
            ),
            (
                ".list_bool_sortByAssociatedKeys",
                "list(A), list(bool) -> list(A)",
            ),
            (
                ".list_google.protobuf.Duration_sortByAssociatedKeys",
                "list(A), list(duration) -> list(A)",
            ),
            (
                ".list_google.protobuf.Timestamp_sortByAssociatedKeys",
                "list(A), list(timestamp) -> list(A)",
            ),
            (
                ".list_string_sortByAssociatedKeys",
                "list(A), list(string) -> list(A)",
            ),
            (
                ".list_bytes_sortByAssociatedKeys",
                "list(A), list(bytes) -> list(A)",
            ),
        ],
    ),
    ("lists.range", range, &[("lists_range", "int -> list(int)")]),
    (
        "reverse",
        reverse,
        &[(".list_reverse", "list(A) -> list(A)")],
    ),
    (
        "distinct",
        distinct,
        &[(".list_distinct", "list(A) -> list(A)")],
    ),
];

fn list<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v List<'a>> {
    match args.first() {
        Some(Value::List(list)) => Ok(list),
        _ => Err(Error::no_such_overload()),
    }
}

/// Whether a value is ordered.
fn comparable<'a>(value: Value<'a>) -> Result<Value<'a>> {
    match value {
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Duration(_)
        | Value::Timestamp(_)
        | Value::String(_)
        | Value::Bytes(_) => Ok(value),
        _ => Err(Error::no_such_overload()),
    }
}

fn is_sorted<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut before: Option<Value<'a>> = None;
    for item in list(args)?.iter() {
        let item = comparable(item?)?;
        // Values that cannot be compared count as sorted.
        if let Some(before) = before
            && before.compare(&item).is_ok_and(Ordering::is_gt)
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let add = lookup(op::ADD).ok_or_else(Error::no_such_overload)?.call;
    let items = elements(list(args)?)?;
    let zero = match items.first() {
        Some(Value::Uint(_)) => Value::Uint(0),
        Some(Value::Double(_)) => Value::Double(0.0),
        Some(Value::Duration(_)) => Value::Duration(0),
        Some(Value::Int(_)) | None => Value::Int(0),
        Some(_) => return Err(Error::no_such_overload()),
    };
    let mut items = items.into_iter();
    items.try_fold(zero, |total, item| add(&[total, item]))
}

fn extreme<'a>(args: &[Value<'a>], name: &str, replace: Ordering) -> Result<Value<'a>> {
    let mut best: Option<Value<'a>> = None;
    for item in list(args)?.iter() {
        let item = comparable(item?)?;
        best = Some(match best {
            // An incomparable value does not replace the best so far.
            Some(best) if best.compare(&item).ok() != Some(replace) => best,
            _ => item,
        });
    }
    best.ok_or_else(|| Error::new(format!("{name} called on empty list")))
}

fn find<'a>(args: &[Value<'a>], last: bool) -> Result<Value<'a>> {
    let [Value::List(list), wanted] = args else {
        return if last {
            last_index_of(args)
        } else {
            index_of(args)
        };
    };
    let mut found = -1;
    for (at, item) in list.iter().enumerate() {
        if item?.is_equal(wanted)? {
            found = at as i64;
            if !last {
                break;
            }
        }
    }
    Ok(Value::Int(found))
}

fn slice<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (items, start, end) = (elements(list(args)?)?, int(args, 1)?, int(args, 2)?);
    let cannot = |why: String| Error::new(format!("cannot slice({start}, {end}), {why}"));
    if start < 0 || end < 0 {
        return Err(cannot("negative indexes not supported".into()));
    }
    if start > end {
        return Err(cannot(
            "start index must be less than or equal to end index".into(),
        ));
    }
    if end > items.len() as i64 {
        return Err(cannot(format!("list is length {}", items.len())));
    }
    Ok(Value::list(items[start as usize..end as usize].to_vec()))
}

fn flatten<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let depth = if args.len() > 1 { int(args, 1)? } else { 1 };
    if depth < 0 {
        return Err(Error::new("level must be non-negative"));
    }
    let mut flat = Vec::new();
    flatten_into(list(args)?, depth, &mut flat)?;
    Ok(Value::list(flat))
}

fn flatten_into<'a>(from: &List<'a>, depth: i64, into: &mut Vec<Value<'a>>) -> Result<()> {
    for item in from.iter() {
        meter::memory(size_of::<Value<'a>>())?;
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, into)?,
            item => into.push(item),
        }
    }
    Ok(())
}

/// A total order of values of one type: NaN comes after all numbers.
fn order(a: &Value<'_>, b: &Value<'_>) -> Ordering {
    let is_nan = |value: &Value<'_>| matches!(value, Value::Double(number) if number.is_nan());
    match (is_nan(a), is_nan(b)) {
        (false, false) => a.compare(b).unwrap_or(Ordering::Equal),
        (a, b) => a.cmp(&b),
    }
}

/// Sorts stably by keys.
fn sorted<'a>(mut keyed: Vec<(Value<'a>, Value<'a>)>) -> Result<Value<'a>> {
    if let Some((first, _)) = keyed.first() {
        let kind = first.type_of();
        if keyed.iter().any(|(key, _)| key.type_of() != kind) {
            return Err(Error::new("list elements must have the same type"));
        }
        if first.compare(first).is_err() {
            return Err(Error::new("list elements must be comparable"));
        }
    }
    keyed.sort_by(|(a, _), (b, _)| order(a, b));
    Ok(Value::list(
        keyed.into_iter().map(|(_, value)| value).collect(),
    ))
}

fn sort<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let items = elements(list(args)?)?;
    sorted(items.into_iter().map(|item| (item.clone(), item)).collect())
}

fn sort_by<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(items), Value::List(keys)] = args else {
        return Err(Error::no_such_overload());
    };
    let (items, keys) = (elements(items)?, elements(keys)?);
    sorted(keys.into_iter().zip(items).collect())
}

/// The maximum length of `lists.range`: a longer one would exceed the cost limit anyway.
const LONGEST_RANGE: i64 = 1_000_000;

fn range<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let end = int(args, 0)?;
    if end > LONGEST_RANGE {
        return Err(Error::new(format!("lists.range({end}) is too long")));
    }
    Ok(Value::list((0..end).map(Value::Int).collect()))
}

fn reverse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut items = elements(list(args)?)?;
    items.reverse();
    Ok(Value::list(items))
}

fn distinct<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut kept: Vec<Value<'a>> = Vec::new();
    'items: for item in list(args)?.iter() {
        let item = item?;
        for old in &kept {
            if old.is_equal(&item)? {
                continue 'items;
            }
        }
        kept.push(item);
    }
    Ok(Value::list(kept))
}
