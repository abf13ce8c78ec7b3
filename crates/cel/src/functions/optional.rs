//! Optional values.

use super::{Row, operators::elements, timestamp};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "optional.of",
        |args| Ok(Value::some(args[0].clone())),
        &[("optional_of", "A -> optional(A)")],
    ),
    (
        "optional.ofNonZeroValue",
        of_non_zero,
        &[("optional_ofNonZeroValue", "A -> optional(A)")],
    ),
    (
        "optional.none",
        |_| Ok(Value::NONE),
        &[("optional_none", " -> optional(A)")],
    ),
    ("value", value, &[(".optional_value", "optional(A) -> A")]),
    (
        "hasValue",
        has_value,
        &[(".optional_hasValue", "optional(A) -> bool")],
    ),
    // The interpreter evaluates the second argument only if needed.
    (
        "or",
        or,
        &[(
            ".optional_or_optional",
            "optional(A), optional(A) -> optional(A)",
        )],
    ),
    (
        "orValue",
        or_value,
        &[(".optional_orValue_value", "optional(A), A -> A")],
    ),
    (
        "first",
        |args| end(args, true),
        &[(".list_first", "list(A) -> optional(A)")],
    ),
    (
        "last",
        |args| end(args, false),
        &[(".list_last", "list(A) -> optional(A)")],
    ),
    (
        "optional.unwrap",
        unwrap,
        &[("optional_unwrap", "list(optional(A)) -> list(A)")],
    ),
    (
        "unwrapOpt",
        unwrap,
        &[(".optional_unwrapOpt", "list(optional(A)) -> list(A)")],
    ),
];

fn of_non_zero<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    use Value as V;
    let zero = match &args[0] {
        V::Null => true,
        V::Timestamp(time) => *time == timestamp::FIRST,
        V::Bool(value) => !value,
        V::Int(number) => *number == 0,
        V::Uint(number) => *number == 0,
        V::Double(number) => *number == 0.0,
        V::Duration(nanos) => *nanos == 0,
        V::Map(map) => map.is_empty() && !map.is_patch(),
        value @ (V::String(_) | V::Bytes(_) | V::List(_)) => value.size() == 0,
        _ => false,
    };
    Ok(match zero {
        true => V::NONE,
        false => V::some(args[0].clone()),
    })
}

fn value<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Optional(Some(value))] => (**value).clone().found(),
        [Value::Optional(None)] => Err(Error::new("optional.none() dereference")),
        _ => Err(Error::no_such_overload()),
    }
}

fn has_value<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Optional(value)] => Ok(Value::Bool(value.is_some())),
        _ => Err(Error::no_such_overload()),
    }
}

fn or<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [present @ Value::Optional(Some(_)), _] => Ok(present.clone()),
        [Value::Optional(None), other @ Value::Optional(_)] => Ok(other.clone()),
        _ => Err(Error::no_such_overload()),
    }
}

fn or_value<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Optional(Some(value)), _] => (**value).clone().found(),
        [Value::Optional(None), other] => Ok(other.clone()),
        _ => Err(Error::no_such_overload()),
    }
}

fn end<'a>(args: &[Value<'a>], first: bool) -> Result<Value<'a>> {
    let [Value::List(list)] = args else {
        return Err(Error::no_such_overload());
    };
    let at = if first {
        Some(0)
    } else {
        list.len().checked_sub(1)
    };
    let found = at.and_then(|at| list.get(at)).transpose()?;
    Ok(found.map_or(Value::NONE, Value::some))
}

fn unwrap<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::List(list)] = args else {
        return Err(Error::no_such_overload());
    };
    let mut present = Vec::new();
    for item in elements(list)? {
        match item {
            Value::Optional(Some(value)) => present.push((*value).clone().found()?),
            Value::Optional(None) => {}
            _ => return Err(Error::no_such_overload()),
        }
    }
    Ok(Value::list(present))
}
