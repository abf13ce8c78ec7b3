//! Conversions between types, and the text forms of durations and timestamps.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{Row, library::Library, number, timestamp};
use crate::{
    types::Type,
    value::{Error, Result, Text, Timestamp, Value},
};

pub(super) const ROWS: &[Row] = &[
    ("type", type_of, &[("type", "A -> type(A)")]),
    ("dyn", dynamic, &[("to_dyn", "A -> dyn")]),
    (
        "bool",
        to_bool,
        &[
            ("bool_to_bool", "bool -> bool"),
            ("string_to_bool", "string -> bool"),
        ],
    ),
    (
        "bytes",
        to_bytes,
        &[
            ("bytes_to_bytes", "bytes -> bytes"),
            ("string_to_bytes", "string -> bytes"),
        ],
    ),
    (
        "double",
        to_double,
        &[
            ("double_to_double", "double -> double"),
            ("int64_to_double", "int -> double"),
            ("string_to_double", "string -> double"),
            ("uint64_to_double", "uint -> double"),
        ],
    ),
    (
        "duration",
        to_duration,
        &[
            ("duration_to_duration", "duration -> duration"),
            ("int64_to_duration", "int -> duration"),
            ("string_to_duration", "string -> duration"),
        ],
    ),
    (
        "int",
        to_int,
        &[
            ("int64_to_int64", "int -> int"),
            ("double_to_int64", "double -> int"),
            ("duration_to_int64", "duration -> int"),
            ("string_to_int64", "string -> int"),
            ("timestamp_to_int64", "timestamp -> int"),
            ("uint64_to_int64", "uint -> int"),
        ],
    ),
    (
        "string",
        to_string,
        &[
            ("string_to_string", "string -> string"),
            ("bool_to_string", "bool -> string"),
            ("bytes_to_string", "bytes -> string"),
            ("double_to_string", "double -> string"),
            ("duration_to_string", "duration -> string"),
            ("int64_to_string", "int -> string"),
            ("timestamp_to_string", "timestamp -> string"),
            ("uint64_to_string", "uint -> string"),
            ("ip_to_string", "net.IP -> string"),
            ("cidr_to_string", "net.CIDR -> string"),
        ],
    ),
    (
        "timestamp",
        to_timestamp,
        &[
            ("timestamp_to_timestamp", "timestamp -> timestamp"),
            ("int64_to_timestamp", "int -> timestamp"),
            ("string_to_timestamp", "string -> timestamp"),
        ],
    ),
    (
        "uint",
        to_uint,
        &[
            ("uint64_to_uint64", "uint -> uint"),
            ("double_to_uint64", "double -> uint"),
            ("int64_to_uint64", "int -> uint"),
            ("string_to_uint64", "string -> uint"),
        ],
    ),
];

fn failed(value: &Value<'_>, to: &str) -> Error {
    Error::new(format!(
        "type conversion error from '{}' to '{to}'",
        value.type_of()
    ))
}

fn single_argument<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v Value<'a>> {
    match args {
        [value] => Ok(value),
        _ => Err(Error::no_such_overload()),
    }
}

/// As upstream, the type of a constructed object is `type`.
fn type_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Type(match single_argument(args)? {
        Value::Map(map) if map.is_constructed() => Type::Type(Arc::new(Type::Dyn)),
        value => value.type_of(),
    }))
}

fn dynamic<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    single_argument(args).cloned()
}

fn to_bool<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
            _ => Err(failed(value, "bool")),
        },
        _ => Err(Error::no_such_overload()),
    }
}

fn to_bytes<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    match value {
        Value::Bytes(_) => Ok(value.clone()),
        Value::String(text) => Ok(Value::Bytes(text.as_bytes().into())),
        _ => Err(Error::no_such_overload()),
    }
}

fn to_double<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    Ok(Value::Double(match value {
        Value::Double(number) => *number,
        Value::Int(number) => *number as f64,
        Value::Uint(number) => *number as f64,
        Value::String(text) => number::parse(text).ok_or_else(|| failed(value, "double"))?,
        _ => return Err(Error::no_such_overload()),
    }))
}

fn to_int<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    let overflow = super::operators::int_overflow;
    Ok(Value::Int(match value {
        Value::Int(number) => *number,
        Value::Uint(number) => i64::try_from(*number).map_err(|_| overflow())?,
        // The largest doubles below the limits still fit.
        Value::Double(number) if number.abs() < 9.223_372_036_854_775e18 => *number as i64,
        Value::Double(_) => return Err(overflow()),
        Value::Duration(nanos) => *nanos,
        Value::Timestamp(time) => time.seconds,
        Value::String(text) => text.parse().map_err(|_| failed(value, "int"))?,
        _ => return Err(Error::no_such_overload()),
    }))
}

fn to_uint<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    let overflow = || Error::new("unsigned integer overflow");
    Ok(Value::Uint(match value {
        Value::Uint(number) => *number,
        Value::Int(number) => u64::try_from(*number).map_err(|_| overflow())?,
        Value::Double(number) if *number >= 0.0 && *number < 1.844_674_407_370_955e19 => {
            *number as u64
        }
        Value::Double(_) => return Err(overflow()),
        Value::String(text) if text.starts_with('+') => return Err(failed(value, "uint")),
        Value::String(text) => text.parse().map_err(|_| failed(value, "uint"))?,
        _ => return Err(Error::no_such_overload()),
    }))
}

fn to_string<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    match value {
        Value::String(_) => Ok(value.clone()),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Bytes(_)
        | Value::Duration(_)
        | Value::Timestamp(_)
        | Value::Library(Library::Ip(_) | Library::Cidr(_)) => to_text(value).map(Value::text),
        _ => Err(Error::no_such_overload()),
    }
}

fn to_duration<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    match value {
        Value::Duration(_) => Ok(value.clone()),
        // Declared, but rejected for every number, as upstream.
        Value::Int(_) => Err(failed(value, "google.protobuf.Duration")),
        Value::String(text) => Ok(Value::Duration(
            duration(text).map_err(|_| failed(value, "google.protobuf.Duration"))?,
        )),
        _ => Err(Error::no_such_overload()),
    }
}

fn to_timestamp<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let value = single_argument(args)?;
    match value {
        Value::Timestamp(_) => Ok(value.clone()),
        Value::Int(seconds) => Ok(Value::Timestamp(Timestamp::from_nanos(
            i128::from(*seconds) * 1_000_000_000,
        )?)),
        Value::String(text) => Ok(Value::Timestamp(
            timestamp::parse(text).map_err(|_| failed(value, "google.protobuf.Timestamp"))?,
        )),
        _ => Err(Error::no_such_overload()),
    }
}

/// A value as text, as in `string()` and messages.
pub(crate) fn to_text(value: &Value<'_>) -> Result<String> {
    Ok(match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Double(number) => number::text(*number),
        Value::String(text) => text.to_string(),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec())
            .map_err(|_| Error::new("invalid UTF-8 in bytes, cannot convert to string"))?,
        Value::Duration(nanos) => duration_text(*nanos),
        Value::Timestamp(time) => timestamp::text(*time),
        Value::Library(value) => value.to_string(),
        Value::Type(t) => t.runtime_name().to_owned(),
        other => return Err(failed(other, "string")),
    })
}

/// Parses a duration such as `1h15m30.5s`.
pub(crate) fn duration(text: &str) -> Result<i64> {
    machinery::duration::nanos(text).map_err(|why| Error::new(format!("time: {why}")))
}

/// A duration in seconds, as CEL prints it: with the precision of a float.
fn duration_text(nanos: i64) -> String {
    const SECOND: i64 = 1_000_000_000;
    let seconds = (nanos / SECOND) as f64 + (nanos % SECOND) as f64 / SECOND as f64;
    format!("{seconds}s")
}

/// A string of format `duration` in a schema.
pub(crate) fn schema_duration(text: &str) -> Result<i64> {
    duration(text).map_err(|_| Error::new(format!("Invalid duration {text}")))
}

/// A string of format `date` or `date-time` in a schema.
pub(crate) fn schema_time(text: &str) -> Result<Timestamp> {
    let date = || timestamp::parse(&format!("{text}T00:00:00Z"));
    timestamp::parse(text)
        .or_else(|_| date())
        .map_err(|_| Error::new(format!("Invalid date {text}")))
}

pub(crate) fn base64(text: &str) -> Result<Vec<u8>> {
    STANDARD
        .decode(text)
        .map_err(|error| Error::new(format!("Invalid bytes: {error}")))
}

/// The string of an argument.
pub(super) fn string<'v, 'a>(args: &'v [Value<'a>], at: usize) -> Result<&'v Text<'a>> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(Error::no_such_overload()),
    }
}

/// The integer of an argument.
pub(super) fn int(args: &[Value<'_>], at: usize) -> Result<i64> {
    match args.get(at) {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(Error::no_such_overload()),
    }
}
