//! `'%s is %.2f'.format([...])`: clauses and their arguments.

use super::convert::to_text;
use crate::{
    meter,
    value::{Error, Result, Value},
};

pub(super) fn format<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(pattern), Value::List(list)] = args else {
        return Err(Error::no_such_overload());
    };
    let mut out = String::new();
    let mut arguments = 0;
    interpolate(
        pattern,
        |at| {
            let value = list.get(at);
            let value =
                value.unwrap_or_else(|| Err(Error::new(format!("index {at} out of range"))));
            arguments = at + 1;
            value
        },
        |clause, value| {
            let shown = clause.show(&value)?;
            meter::memory(shown.len())?;
            Ok(shown)
        },
        &mut out,
    )?;
    Ok(Value::text(out))
}

/// Expands a pattern: plain text is copied, each clause gets the next argument.
pub(crate) fn interpolate<A>(
    pattern: &str,
    mut argument: impl FnMut(usize) -> Result<A>,
    mut show: impl FnMut(Clause, A) -> Result<String>,
    out: &mut String,
) -> Result<usize> {
    let mut rest = pattern;
    let mut used = 0;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let value = argument(used)?;
        if rest.is_empty() {
            return Err(Error::new("unexpected end of string"));
        }
        let (clause, after) = Clause::parse(rest)
            .map_err(|why| Error::new(format!("could not parse formatting clause: {why}")))?;
        rest = after;
        let shown = show(clause, value).map_err(|error| match error.fatal {
            true => error,
            false => Error::new(format!("error during formatting: {}", error.message)),
        })?;
        out.push_str(&shown);
        used += 1;
    }
    out.push_str(rest);
    Ok(used)
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clause {
    verb: char,
    precision: Option<usize>,
}

impl Clause {
    /// The clause at the start of a text, and the rest.
    fn parse(text: &str) -> Result<(Self, &str), String> {
        let (precision, rest) = match text.strip_prefix('.') {
            None => (None, text),
            Some(rest) => {
                let failed = |why: String| format!("error while parsing precision: {why}");
                let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(|| {
                    failed("could not find end of precision specifier".to_owned())
                })?;
                let digits = &rest[..end];
                let precision = digits.parse::<usize>().map_err(|_| {
                    let quoted = machinery::text::quote(digits);
                    let why = if digits.is_empty() { "invalid syntax" } else { "value out of range" };
                    failed(format!(
                        "error while converting precision to integer: strconv.Atoi: parsing {quoted}: {why}"
                    ))
                })?;
                (Some(precision), &rest[end..])
            }
        };
        let verb = rest.chars().next().unwrap_or('%');
        match "sdfebxXo".contains(verb) {
            true => Ok((Self { verb, precision }, &rest[1..])),
            // Upstream shows the first byte.
            false => {
                let first = char::from(rest.as_bytes().first().copied().unwrap_or(b'%'));
                Err(format!("unrecognized formatting clause \"{first}\""))
            }
        }
    }

    /// Whether the clause is `%f` or `%e`, which also accept the strings `NaN` and `Infinity`.
    pub(crate) fn takes_number_names(self) -> bool {
        matches!(self.verb, 'f' | 'e')
    }

    /// Whether the clause is `%s`, which shows lists and maps with all their elements.
    pub(crate) fn shows_anything(self) -> bool {
        self.verb == 's'
    }

    /// The error if the clause does not accept a type.
    pub(crate) fn refuses(self, type_name: &str) -> Option<String> {
        let (types, words): (&[&str], &str) = match self.verb {
            'd' => (
                &["int", "uint"],
                "decimal clause can only be used on integers",
            ),
            'f' => (
                &["double"],
                "fixed-point clause can only be used on doubles",
            ),
            'e' => (&["double"], "scientific clause can only be used on doubles"),
            'b' => (
                &["int", "uint", "bool"],
                "only integers and bools can be formatted as binary",
            ),
            'x' | 'X' => (
                &["int", "uint", "string", "bytes"],
                "only integers, byte buffers, and strings can be formatted as hex",
            ),
            'o' => (
                &["int", "uint"],
                "octal clause can only be used on integers",
            ),
            _ => (
                &[
                    "list",
                    "map",
                    "int",
                    "uint",
                    "double",
                    "bool",
                    "string",
                    "google.protobuf.Timestamp",
                    "bytes",
                    "google.protobuf.Duration",
                    "type",
                    "null_type",
                ],
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps",
            ),
        };
        (!types.contains(&type_name)).then(|| format!("{words}, was given {type_name}"))
    }

    fn show(self, value: &Value<'_>) -> Result<String> {
        use Value as V;
        if let ('f' | 'e', V::String(text)) = (self.verb, value)
            && let "NaN" | "Infinity" | "-Infinity" = &**text
        {
            return Ok(text.replace("Infinity", "∞"));
        }
        let kind = value.type_of();
        if let Some(words) = self.refuses(kind.runtime_name()) {
            return Err(Error::new(words));
        }
        Ok(match (self.verb, value) {
            ('b', V::Int(number)) => signed(*number, |n| format!("{n:b}")),
            ('b', V::Uint(number)) => format!("{number:b}"),
            ('b', V::Bool(value)) => u8::from(*value).to_string(),
            ('o', V::Int(number)) => signed(*number, |n| format!("{n:o}")),
            ('o', V::Uint(number)) => format!("{number:o}"),
            ('x', V::Int(number)) => signed(*number, |n| format!("{n:x}")),
            ('X', V::Int(number)) => signed(*number, |n| format!("{n:X}")),
            ('x', V::Uint(number)) => format!("{number:x}"),
            ('X', V::Uint(number)) => format!("{number:X}"),
            ('x' | 'X', V::String(text)) => hex(text.as_bytes(), self.verb == 'X'),
            ('x' | 'X', V::Bytes(bytes)) => hex(bytes, self.verb == 'X'),
            ('f', V::Double(number)) => fixed(*number, self.precision)?,
            ('e', V::Double(number)) => scientific(*number, self.precision)?,
            (_, value) => shown(value)?,
        })
    }
}

fn signed(number: i64, text: impl Fn(u64) -> String) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", text(number.unsigned_abs()))
}

fn hex(bytes: &[u8], upper: bool) -> String {
    let digits = bytes.iter().map(|byte| match upper {
        true => format!("{byte:02X}"),
        false => format!("{byte:02x}"),
    });
    digits.collect()
}

/// No double has more decimals.
const MOST_DIGITS: usize = 1100;

/// NaN and the infinities in English.
fn special(number: f64) -> Option<String> {
    match number {
        _ if number.is_nan() => Some("NaN".to_owned()),
        _ if number.is_infinite() => Some(if number > 0.0 { "∞" } else { "-∞" }.to_owned()),
        _ => None,
    }
}

/// The number of decimals: beyond those of the number, zeros are appended, since the formatter is
/// limited to 65535.
fn precision(precision: Option<usize>) -> Result<(usize, String)> {
    let precision = precision.unwrap_or(6);
    meter::memory(precision)?;
    let zeros = "0".repeat(precision.saturating_sub(MOST_DIGITS));
    Ok((precision.min(MOST_DIGITS), zeros))
}

/// `1,234.50`, in English format.
fn fixed(number: f64, digits: Option<usize>) -> Result<String> {
    if let Some(text) = special(number) {
        return Ok(text);
    }
    let (digits, zeros) = precision(digits)?;
    let text = format!("{number:.digits$}{zeros}");
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => ("-", text),
        None => ("", text.as_str()),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let point = if fraction.is_empty() { "" } else { "." };
    Ok(format!("{sign}{grouped}{point}{fraction}"))
}

/// `1.234500×10⁰³`. Upstream treats the precision of this clause as a width, without effect.
fn scientific(number: f64, width: Option<usize>) -> Result<String> {
    if let Some(text) = special(number) {
        return Ok(text);
    }
    let text = format!("{number:.6e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ("⁻", digits),
        None => ("", exponent),
    };
    let raised: String = format!("{digits:0>2}")
        .bytes()
        .map(|digit| ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][usize::from(digit - b'0')])
        .collect();
    let text = format!("{mantissa}×10{sign}{raised}");
    let width = width.unwrap_or(6);
    meter::memory(width)?;
    Ok(format!("{text:>width$}"))
}

/// Any value as `%s` shows it.
fn shown(value: &Value<'_>) -> Result<String> {
    meter::work(1)?;
    let shown = match value {
        Value::List(list) => {
            let items = list.iter().map(|item| inner(&item?));
            format!("[{}]", items.collect::<Result<Vec<_>>>()?.join(", "))
        }
        Value::Map(map) => {
            let entries = map.iter().map(|entry| {
                let (key, value) = entry?;
                let is_key = matches!(
                    key,
                    Value::String(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)
                );
                if !is_key {
                    let name = key.type_of();
                    return Err(Error::new(format!(
                        "no formatting function for map key of type {}",
                        name.runtime_name()
                    )));
                }
                Ok((inner(&key)?, inner(&value)?))
            });
            let mut entries: Vec<(String, String)> = entries.collect::<Result<_>>()?;
            entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            let entries = entries.iter().map(|(key, value)| format!("{key}:{value}"));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        other => to_text(other)?,
    };
    meter::memory(shown.len())?;
    Ok(shown)
}

/// The same within a list or a map: strings are quoted, times include their type.
fn inner(value: &Value<'_>) -> Result<String> {
    let quote = |text: &str| machinery::text::quote(text);
    Ok(match value {
        Value::String(text) => quote(text),
        Value::Bytes(_) => format!("b{}", quote(&shown(value)?)),
        Value::Double(number) if number.is_nan() => quote("NaN"),
        Value::Double(number) if number.is_infinite() => {
            quote(if *number > 0.0 { "+Inf" } else { "-Inf" })
        }
        Value::Double(number) => format!("{number:.6}"),
        Value::Timestamp(_) => format!("timestamp({})", quote(&shown(value)?)),
        Value::Duration(_) => format!("duration({})", quote(&shown(value)?)),
        Value::Optional(_) | Value::Library(_) => {
            let kind = value.type_of();
            let name = kind.runtime_name();
            return Err(Error::new(format!("no formatting function for {name}")));
        }
        other => shown(other)?,
    })
}
