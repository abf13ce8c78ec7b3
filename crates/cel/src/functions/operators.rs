//! Operators, `size`, `contains` and other standard functions.

use std::cmp::Ordering;

use super::Row;
use crate::{
    ast::op,
    meter,
    value::{Error, List, Map, OwnedMap, Result, Timestamp, Value},
};

pub(super) const ROWS: &[Row] = &[
    // Evaluated by the interpreter itself, since they do not need all their arguments.
    (op::CONDITIONAL, lazy, &[("conditional", "bool, A, A -> A")]),
    (op::AND, lazy, &[("logical_and", "bool, bool -> bool")]),
    (op::OR, lazy, &[("logical_or", "bool, bool -> bool")]),
    (
        op::NOT_STRICTLY_FALSE,
        lazy,
        &[("not_strictly_false", "bool -> bool")],
    ),
    (op::NOT, not, &[("logical_not", "bool -> bool")]),
    (op::EQUALS, equals, &[("equals", "A, A -> bool")]),
    (
        op::NOT_EQUALS,
        not_equals,
        &[("not_equals", "A, A -> bool")],
    ),
    (
        op::ADD,
        add,
        &[
            ("add_bytes", "bytes, bytes -> bytes"),
            ("add_double", "double, double -> double"),
            ("add_duration_duration", "duration, duration -> duration"),
            ("add_duration_timestamp", "duration, timestamp -> timestamp"),
            ("add_timestamp_duration", "timestamp, duration -> timestamp"),
            ("add_int64", "int, int -> int"),
            ("add_list", "list(A), list(A) -> list(A)"),
            ("add_string", "string, string -> string"),
            ("add_uint64", "uint, uint -> uint"),
        ],
    ),
    (
        op::SUBTRACT,
        subtract,
        &[
            ("subtract_double", "double, double -> double"),
            (
                "subtract_duration_duration",
                "duration, duration -> duration",
            ),
            ("subtract_int64", "int, int -> int"),
            (
                "subtract_timestamp_duration",
                "timestamp, duration -> timestamp",
            ),
            (
                "subtract_timestamp_timestamp",
                "timestamp, timestamp -> duration",
            ),
            ("subtract_uint64", "uint, uint -> uint"),
        ],
    ),
    (
        op::MULTIPLY,
        multiply,
        &[
            ("multiply_double", "double, double -> double"),
            ("multiply_int64", "int, int -> int"),
            ("multiply_uint64", "uint, uint -> uint"),
        ],
    ),
    (
        op::DIVIDE,
        divide,
        &[
            ("divide_double", "double, double -> double"),
            ("divide_int64", "int, int -> int"),
            ("divide_uint64", "uint, uint -> uint"),
        ],
    ),
    (
        op::MODULO,
        modulo,
        &[
            ("modulo_int64", "int, int -> int"),
            ("modulo_uint64", "uint, uint -> uint"),
        ],
    ),
    (
        op::NEGATE,
        negate,
        &[
            ("negate_double", "double -> double"),
            ("negate_int64", "int -> int"),
        ],
    ),
    (
        op::LESS,
        less,
        &[
            ("less_bool", "bool, bool -> bool"),
            ("less_int64", "int, int -> bool"),
            ("less_int64_double", "int, double -> bool"),
            ("less_int64_uint64", "int, uint -> bool"),
            ("less_uint64", "uint, uint -> bool"),
            ("less_uint64_double", "uint, double -> bool"),
            ("less_uint64_int64", "uint, int -> bool"),
            ("less_double", "double, double -> bool"),
            ("less_double_int64", "double, int -> bool"),
            ("less_double_uint64", "double, uint -> bool"),
            ("less_string", "string, string -> bool"),
            ("less_bytes", "bytes, bytes -> bool"),
            ("less_timestamp", "timestamp, timestamp -> bool"),
            ("less_duration", "duration, duration -> bool"),
        ],
    ),
    (
        op::LESS_EQUALS,
        less_equals,
        &[
            ("less_equals_bool", "bool, bool -> bool"),
            ("less_equals_int64", "int, int -> bool"),
            ("less_equals_int64_double", "int, double -> bool"),
            ("less_equals_int64_uint64", "int, uint -> bool"),
            ("less_equals_uint64", "uint, uint -> bool"),
            ("less_equals_uint64_double", "uint, double -> bool"),
            ("less_equals_uint64_int64", "uint, int -> bool"),
            ("less_equals_double", "double, double -> bool"),
            ("less_equals_double_int64", "double, int -> bool"),
            ("less_equals_double_uint64", "double, uint -> bool"),
            ("less_equals_string", "string, string -> bool"),
            ("less_equals_bytes", "bytes, bytes -> bool"),
            ("less_equals_timestamp", "timestamp, timestamp -> bool"),
            ("less_equals_duration", "duration, duration -> bool"),
        ],
    ),
    (
        op::GREATER,
        greater,
        &[
            ("greater_bool", "bool, bool -> bool"),
            ("greater_int64", "int, int -> bool"),
            ("greater_int64_double", "int, double -> bool"),
            ("greater_int64_uint64", "int, uint -> bool"),
            ("greater_uint64", "uint, uint -> bool"),
            ("greater_uint64_double", "uint, double -> bool"),
            ("greater_uint64_int64", "uint, int -> bool"),
            ("greater_double", "double, double -> bool"),
            ("greater_double_int64", "double, int -> bool"),
            ("greater_double_uint64", "double, uint -> bool"),
            ("greater_string", "string, string -> bool"),
            ("greater_bytes", "bytes, bytes -> bool"),
            ("greater_timestamp", "timestamp, timestamp -> bool"),
            ("greater_duration", "duration, duration -> bool"),
        ],
    ),
    (
        op::GREATER_EQUALS,
        greater_equals,
        &[
            ("greater_equals_bool", "bool, bool -> bool"),
            ("greater_equals_int64", "int, int -> bool"),
            ("greater_equals_int64_double", "int, double -> bool"),
            ("greater_equals_int64_uint64", "int, uint -> bool"),
            ("greater_equals_uint64", "uint, uint -> bool"),
            ("greater_equals_uint64_double", "uint, double -> bool"),
            ("greater_equals_uint64_int64", "uint, int -> bool"),
            ("greater_equals_double", "double, double -> bool"),
            ("greater_equals_double_int64", "double, int -> bool"),
            ("greater_equals_double_uint64", "double, uint -> bool"),
            ("greater_equals_string", "string, string -> bool"),
            ("greater_equals_bytes", "bytes, bytes -> bool"),
            ("greater_equals_timestamp", "timestamp, timestamp -> bool"),
            ("greater_equals_duration", "duration, duration -> bool"),
        ],
    ),
    (
        op::INDEX,
        index,
        &[
            ("index_list", "list(A), int -> A"),
            ("index_map", "map(A, B), A -> B"),
            (
                "optional_list_index_value",
                "optional(list(A)), int -> optional(A)",
            ),
            (
                "optional_map_index_value",
                "optional(map(A, B)), A -> optional(B)",
            ),
        ],
    ),
    (
        op::OPTIONAL_INDEX,
        optional_index,
        &[
            ("list_optindex_optional_int", "list(A), int -> optional(A)"),
            (
                "optional_list_optindex_optional_int",
                "optional(list(A)), int -> optional(A)",
            ),
            ("map_optindex_optional_value", "map(A, B), A -> optional(B)"),
            (
                "optional_map_optindex_optional_value",
                "optional(map(A, B)), A -> optional(B)",
            ),
        ],
    ),
    (
        op::OPTIONAL_SELECT,
        optional_index,
        &[("select_optional_field", "dyn, string -> optional(A)")],
    ),
    (
        op::IN,
        within,
        &[
            ("in_list", "A, list(A) -> bool"),
            ("in_map", "A, map(A, B) -> bool"),
        ],
    ),
    (
        op::MAP_INSERT,
        map_insert,
        &[
            ("@mapInsert_map_map", "map(A, B), map(A, B) -> map(A, B)"),
            ("@mapInsert_map_key_value", "map(A, B), A, B -> map(A, B)"),
        ],
    ),
    (
        "size",
        size,
        &[
            ("size_bytes", "bytes -> int"),
            (".bytes_size", "bytes -> int"),
            ("size_list", "list(A) -> int"),
            (".list_size", "list(A) -> int"),
            ("size_map", "map(A, B) -> int"),
            (".map_size", "map(A, B) -> int"),
            ("size_string", "string -> int"),
            (".string_size", "string -> int"),
        ],
    ),
];

fn lazy<'a>(_: &[Value<'a>]) -> Result<Value<'a>> {
    Err(Error::no_such_overload())
}

fn not<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => Err(Error::no_such_overload()),
    }
}

fn equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [a, b] = args else {
        return Err(Error::no_such_overload());
    };
    a.equals(b).map(Value::Bool)
}

fn not_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [a, b] = args else {
        return Err(Error::no_such_overload());
    };
    a.is_equal(b).map(|equal| Value::Bool(!equal))
}

fn ordered<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Result<Value<'a>> {
    let [a, b] = args else {
        return Err(Error::no_such_overload());
    };
    a.compare(b).map(|order| Value::Bool(holds(order)))
}

fn less<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_lt)
}

fn less_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_le)
}

fn greater<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_gt)
}

fn greater_equals<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    ordered(args, Ordering::is_ge)
}

pub(super) fn int_overflow() -> Error {
    Error::new("integer overflow")
}

fn uint_overflow() -> Error {
    Error::new("unsigned integer overflow")
}

fn duration_overflow() -> Error {
    Error::new("integer overflow")
}

fn add<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    use Value as V;
    Ok(match args {
        [V::Int(a), V::Int(b)] => V::Int(a.checked_add(*b).ok_or_else(int_overflow)?),
        [V::Uint(a), V::Uint(b)] => V::Uint(a.checked_add(*b).ok_or_else(uint_overflow)?),
        [V::Double(a), V::Double(b)] => V::Double(a + b),
        [V::String(a), V::String(b)] => {
            meter::memory(a.len() + b.len())?;
            V::text(format!("{}{}", &**a, &**b))
        }
        [V::Bytes(a), V::Bytes(b)] => {
            meter::memory(a.len() + b.len())?;
            V::Bytes([&a[..], &b[..]].concat().into())
        }
        [V::List(a), V::List(b)] => V::List(a.concat(b)?),
        [V::Duration(a), V::Duration(b)] => {
            V::Duration(a.checked_add(*b).ok_or_else(duration_overflow)?)
        }
        [V::Timestamp(t), V::Duration(d)] | [V::Duration(d), V::Timestamp(t)] => V::Timestamp(
            Timestamp::from_nanos(t.nanos_since_epoch() + i128::from(*d))?.with_offset(t.offset),
        ),
        _ => return Err(Error::no_such_overload()),
    })
}

fn subtract<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    use Value as V;
    Ok(match args {
        [V::Int(a), V::Int(b)] => V::Int(a.checked_sub(*b).ok_or_else(int_overflow)?),
        [V::Uint(a), V::Uint(b)] => V::Uint(a.checked_sub(*b).ok_or_else(uint_overflow)?),
        [V::Double(a), V::Double(b)] => V::Double(a - b),
        [V::Duration(a), V::Duration(b)] => {
            V::Duration(a.checked_sub(*b).ok_or_else(duration_overflow)?)
        }
        [V::Timestamp(t), V::Duration(d)] => V::Timestamp(
            Timestamp::from_nanos(t.nanos_since_epoch() - i128::from(*d))?.with_offset(t.offset),
        ),
        [V::Timestamp(a), V::Timestamp(b)] => {
            let nanos = a.nanos_since_epoch() - b.nanos_since_epoch();
            V::Duration(i64::try_from(nanos).map_err(|_| duration_overflow())?)
        }
        _ => return Err(Error::no_such_overload()),
    })
}

fn multiply<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    use Value as V;
    Ok(match args {
        [V::Int(a), V::Int(b)] => V::Int(a.checked_mul(*b).ok_or_else(int_overflow)?),
        [V::Uint(a), V::Uint(b)] => V::Uint(a.checked_mul(*b).ok_or_else(uint_overflow)?),
        [V::Double(a), V::Double(b)] => V::Double(a * b),
        _ => return Err(Error::no_such_overload()),
    })
}

fn divide<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    use Value as V;
    Ok(match args {
        [V::Int(_), V::Int(0)] | [V::Uint(_), V::Uint(0)] => {
            return Err(Error::new("division by zero"));
        }
        [V::Int(a), V::Int(b)] => V::Int(a.checked_div(*b).ok_or_else(int_overflow)?),
        [V::Uint(a), V::Uint(b)] => V::Uint(a / b),
        [V::Double(a), V::Double(b)] => V::Double(a / b),
        _ => return Err(Error::no_such_overload()),
    })
}

fn modulo<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    use Value as V;
    Ok(match args {
        [V::Int(_), V::Int(0)] | [V::Uint(_), V::Uint(0)] => {
            return Err(Error::new("modulus by zero"));
        }
        [V::Int(a), V::Int(b)] => V::Int(a.checked_rem(*b).ok_or_else(int_overflow)?),
        [V::Uint(a), V::Uint(b)] => V::Uint(a % b),
        _ => return Err(Error::no_such_overload()),
    })
}

fn negate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(match args {
        [Value::Int(a)] => Value::Int(a.checked_neg().ok_or_else(int_overflow)?),
        [Value::Double(a)] => Value::Double(-a),
        [Value::Duration(nanos)] => {
            let overflow = || Error::new("duration overflow");
            Value::Duration(nanos.checked_neg().ok_or_else(overflow)?)
        }
        _ => return Err(Error::no_such_overload()),
    })
}

fn index<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value, key] => value.get(key),
        _ => Err(Error::no_such_overload()),
    }
}

fn optional_index<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [value, key] => Ok(value.lookup(key)?.map_or(Value::NONE, Value::some)),
        _ => Err(Error::no_such_overload()),
    }
}

fn within<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(match args {
        [wanted, Value::List(list)] => list.contains(wanted)?,
        [wanted, Value::Map(map)] if !map.is_constructed() => map.get(wanted)?.is_some(),
        _ => return Err(Error::no_such_overload()),
    }))
}

fn owned_copy<'a>(map: &Map<'a>) -> Result<OwnedMap<'a>> {
    if let Map::Owned(map) = map {
        return Ok((**map).clone());
    }
    let mut copy = OwnedMap::default();
    for entry in map.iter() {
        let (key, value) = entry?;
        copy.insert(key, value)?;
    }
    Ok(copy)
}

fn map_insert<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Map(map), rest @ ..] = args else {
        return Err(Error::no_such_overload());
    };
    let mut result = owned_copy(map)?;
    match rest {
        [Value::Map(entries)] => {
            for entry in entries.iter() {
                let (key, value) = entry?;
                result.insert(key, value)?;
            }
        }
        [key, value] => result.insert(key.clone(), value.clone())?,
        _ => return Err(Error::no_such_overload()),
    }
    Ok(Value::Map(Map::Owned(result.into())))
}

fn size<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    match args {
        [Value::Map(map)] if map.is_constructed() => Err(Error::no_such_overload()),
        [value @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
            Ok(Value::Int(value.size() as i64))
        }
        _ => Err(Error::no_such_overload()),
    }
}

/// All elements of a list as values.
pub(super) fn elements<'a>(list: &List<'a>) -> Result<Vec<Value<'a>>> {
    meter::memory(list.len() * size_of::<Value<'a>>())?;
    list.iter().collect()
}
