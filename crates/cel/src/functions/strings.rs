//! Strings: the language's own functions and those of the strings library.

use super::{
    Row,
    convert::{int, string, to_text},
};
use crate::{
    meter,
    value::{Error, List, Result, Value},
};

pub(super) const ROWS: &[Row] = &[
    (
        "contains",
        |a| Ok(Value::Bool(string(a, 0)?.contains(&**string(a, 1)?))),
        &[(".contains_string", "string, string -> bool")],
    ),
    (
        "startsWith",
        |a| Ok(Value::Bool(string(a, 0)?.starts_with(&**string(a, 1)?))),
        &[(".starts_with_string", "string, string -> bool")],
    ),
    (
        "endsWith",
        |a| Ok(Value::Bool(string(a, 0)?.ends_with(&**string(a, 1)?))),
        &[(".ends_with_string", "string, string -> bool")],
    ),
    (
        "charAt",
        char_at,
        &[(".string_char_at_int", "string, int -> string")],
    ),
    (
        "lowerAscii",
        |a| Ok(Value::text(string(a, 0)?.to_ascii_lowercase())),
        &[(".string_lower_ascii", "string -> string")],
    ),
    (
        "upperAscii",
        |a| Ok(Value::text(string(a, 0)?.to_ascii_uppercase())),
        &[(".string_upper_ascii", "string -> string")],
    ),
    (
        "trim",
        |a| Ok(Value::text(string(a, 0)?.trim())),
        &[(".string_trim", "string -> string")],
    ),
    (
        "replace",
        replace,
        &[
            (
                ".string_replace_string_string",
                "string, string, string -> string",
            ),
            (
                ".string_replace_string_string_int",
                "string, string, string, int -> string",
            ),
        ],
    ),
    (
        "split",
        split,
        &[
            (".string_split_string", "string, string -> list(string)"),
            (
                ".string_split_string_int",
                "string, string, int -> list(string)",
            ),
        ],
    ),
    (
        "substring",
        substring,
        &[
            (".string_substring_int", "string, int -> string"),
            (".string_substring_int_int", "string, int, int -> string"),
        ],
    ),
    (
        "join",
        join,
        &[
            (".list_join", "list(string) -> string"),
            (".list_join_string", "list(string), string -> string"),
        ],
    ),
    (
        "strings.quote",
        quote,
        &[("strings_quote", "string -> string")],
    ),
    (
        "format",
        format,
        &[(".string_format", "string, list(dyn) -> string")],
    ),
    (
        "jsonpatch.escapeKey",
        escape_key,
        &[("string_jsonpatch_escapeKey_string", "string -> string")],
    ),
];

fn out_of_range(at: i64) -> Error {
    Error::new(format!("index out of range: {at}"))
}

fn char_at<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, at) = (string(args, 0)?, int(args, 1)?);
    let length = text.chars().count() as i64;
    if at < 0 || at > length {
        return Err(out_of_range(at));
    }
    let c = text.chars().nth(at as usize);
    Ok(Value::text(c.map(String::from).unwrap_or_default()))
}

/// Where a string is found in another, in characters; -1 if nowhere.
pub(super) fn index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let text: Vec<char> = string(args, 0)?.chars().collect();
    let wanted: Vec<char> = string(args, 1)?.chars().collect();
    let offset = if args.len() > 2 { int(args, 2)? } else { 0 };
    if offset < 0 || args.len() > 2 && wanted.is_empty() && offset > text.len() as i64 {
        return Err(out_of_range(offset));
    }
    if wanted.is_empty() {
        return Ok(Value::Int(offset));
    }
    if offset >= text.len() as i64 {
        return match args.len() > 2 {
            true => Err(out_of_range(offset)),
            false => Ok(Value::Int(-1)),
        };
    }
    let found = text[offset as usize..]
        .windows(wanted.len())
        .position(|window| window == wanted);
    Ok(Value::Int(found.map_or(-1, |at| at as i64 + offset)))
}

pub(super) fn last_index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let text: Vec<char> = string(args, 0)?.chars().collect();
    let wanted: Vec<char> = string(args, 1)?.chars().collect();
    let length = text.len() as i64;
    let offset = if args.len() > 2 {
        int(args, 2)?
    } else {
        length
    };
    if args.len() > 2 && (offset < 0 || offset >= length.max(1)) {
        return Err(out_of_range(offset));
    }
    if wanted.is_empty() {
        return Ok(Value::Int(offset.min(length)));
    }
    let found = text
        .windows(wanted.len())
        .enumerate()
        .take_while(|(at, _)| *at as i64 <= offset)
        .filter(|(_, window)| *window == wanted)
        .last();
    Ok(Value::Int(found.map_or(-1, |(at, _)| at as i64)))
}

fn replace<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, from, to) = (string(args, 0)?, string(args, 1)?, string(args, 2)?);
    let count = if args.len() > 3 { int(args, 3)? } else { -1 };
    let found = text.matches(&**from).count();
    meter::memory(text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(Value::text(match usize::try_from(count) {
        Ok(count) => text.replacen(&**from, to, count),
        Err(_) => text.replace(&**from, to),
    }))
}

fn split<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let (text, separator) = (string(args, 0)?, string(args, 1)?);
    let limit = if args.len() > 2 { int(args, 2)? } else { -1 };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Value::list(Vec::new()));
    }
    meter::memory(text.len().saturating_mul(4))?;
    let parts: Vec<String> = if separator.is_empty() {
        let characters: Vec<char> = text.chars().collect();
        let (single, rest) = characters.split_at(characters.len().min(limit - 1));
        let rest: String = rest.iter().collect();
        let rest = Some(rest).filter(|rest| !rest.is_empty());
        let single = single.iter().map(|c| c.to_string());
        single.chain(rest).collect()
    } else {
        text.splitn(limit, &**separator)
            .map(str::to_owned)
            .collect()
    };
    Ok(Value::list(parts.into_iter().map(Value::text).collect()))
}

fn substring<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let text: Vec<char> = string(args, 0)?.chars().collect();
    let (length, start) = (text.len() as i64, int(args, 1)?);
    let end = if args.len() > 2 {
        int(args, 2)?
    } else {
        length
    };
    if args.len() > 2 && start > end {
        return Err(Error::new(format!(
            "invalid substring range. start: {start}, end: {end}"
        )));
    }
    for at in [start, end] {
        if at < 0 || at > length {
            return Err(out_of_range(at));
        }
    }
    let part: String = text[start as usize..end as usize].iter().collect();
    Ok(Value::text(part))
}

fn join<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let Some(Value::List(list)) = args.first() else {
        return Err(Error::no_such_overload());
    };
    let separator = match args.get(1) {
        Some(_) => string(args, 1)?.to_string(),
        None => String::new(),
    };
    let mut parts = Vec::with_capacity(list.len());
    for element in list.iter() {
        match element? {
            Value::String(text) => {
                meter::memory(text.len() + separator.len() + size_of::<String>())?;
                parts.push(text.to_string());
            }
            other => {
                return Err(Error::new(format!(
                    "join: invalid input: {}",
                    other.display()
                )));
            }
        }
    }
    Ok(Value::text(parts.join(&separator)))
}

fn quote<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut quoted = String::from('"');
    for c in string(args, 0)?.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(Value::text(quoted))
}

fn escape_key<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let escaped = string(args, 0)?.replace('~', "~0").replace('/', "~1");
    Ok(Value::text(escaped))
}

/// `"%s is %d".format([a, b])`.
fn format<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::String(pattern), Value::List(list)] = args else {
        return Err(Error::no_such_overload());
    };
    let mut out = String::new();
    let mut characters = pattern.chars().peekable();
    let mut used = 0;
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if characters.peek() == Some(&'%') {
            characters.next();
            out.push('%');
            continue;
        }
        let mut precision = None;
        if characters.peek() == Some(&'.') {
            characters.next();
            let mut digits = String::new();
            while let Some(digit) = characters.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = Some(digits.parse::<usize>().map_err(|_| {
                Error::new("could not parse formatting clause: error while parsing precision")
            })?);
        }
        let verb = characters
            .next()
            .ok_or_else(|| Error::new("unexpected end of string"))?;
        let value = argument(list, used)?;
        used += 1;
        out.push_str(&clause(verb, precision, &value)?);
    }
    Ok(Value::text(out))
}

fn argument<'a>(list: &List<'a>, at: usize) -> Result<Value<'a>> {
    list.get(at)
        .unwrap_or_else(|| Err(Error::new(format!("index {at} out of range"))))
}

/// One formatted argument.
fn clause(verb: char, precision: Option<usize>, value: &Value<'_>) -> Result<String> {
    use Value as V;
    let wrong = |verb: &str, wanted: &str| {
        Error::new(format!(
            "error during formatting: {verb} clause can only be used on {wanted}, was given {}",
            value.type_of()
        ))
    };
    Ok(match (verb, value) {
        ('s', value) => display(value)?,
        ('d', V::Int(number)) => number.to_string(),
        ('d', V::Uint(number)) => number.to_string(),
        ('d', V::Double(number)) if !number.is_finite() => display(value)?,
        ('d', _) => return Err(wrong("decimal", "integers")),
        ('f' | 'e', V::Int(_) | V::Uint(_) | V::Double(_)) => float(verb, precision, value)?,
        ('f', _) => return Err(wrong("fixed-point", "doubles")),
        ('e', _) => return Err(wrong("scientific", "doubles")),
        ('b', V::Int(number)) => signed(*number, |n| format!("{n:b}")),
        ('b', V::Uint(number)) => format!("{number:b}"),
        ('b', V::Bool(value)) => u8::from(*value).to_string(),
        ('b', _) => return Err(wrong("binary", "integers and bools")),
        ('o', V::Int(number)) => signed(*number, |n| format!("{n:o}")),
        ('o', V::Uint(number)) => format!("{number:o}"),
        ('o', _) => return Err(wrong("octal", "integers")),
        ('x', V::Int(number)) => signed(*number, |n| format!("{n:x}")),
        ('X', V::Int(number)) => signed(*number, |n| format!("{n:X}")),
        ('x', V::Uint(number)) => format!("{number:x}"),
        ('X', V::Uint(number)) => format!("{number:X}"),
        ('x' | 'X', V::String(text)) => hex(text.as_bytes(), verb == 'X'),
        ('x' | 'X', V::Bytes(bytes)) => hex(bytes, verb == 'X'),
        ('x' | 'X', _) => return Err(wrong("hex", "integers, byte buffers, and strings")),
        (other, _) => {
            return Err(Error::new(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{other}\""
            )));
        }
    })
}

fn signed(number: i64, text: impl Fn(u64) -> String) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", text(number.unsigned_abs()))
}

fn hex(bytes: &[u8], upper: bool) -> String {
    bytes
        .iter()
        .map(|byte| match upper {
            true => format!("{byte:02X}"),
            false => format!("{byte:02x}"),
        })
        .collect()
}

/// No double has more digits behind the point.
const MOST_DIGITS: usize = 1100;

fn float(verb: char, precision: Option<usize>, value: &Value<'_>) -> Result<String> {
    let number = match value {
        Value::Int(number) => *number as f64,
        Value::Uint(number) => *number as f64,
        Value::Double(number) => *number,
        _ => 0.0,
    };
    if !number.is_finite() {
        return display(value);
    }
    let precision = precision.unwrap_or(6);
    meter::memory(precision)?;
    // What follows the digits that a number has is zeros: the formatter takes no more than 65535.
    let zeros = "0".repeat(precision.saturating_sub(MOST_DIGITS));
    let precision = precision.min(MOST_DIGITS);
    if verb == 'f' {
        return Ok(format!("{number:.precision$}{zeros}"));
    }
    let text = format!("{number:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    Ok(format!("{mantissa}{zeros}e{sign}{digits:0>2}"))
}

/// Anything as `%s` shows it.
fn display(value: &Value<'_>) -> Result<String> {
    meter::work(1)?;
    let shown = match value {
        Value::Double(number) if number.is_infinite() => if *number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned(),
        Value::List(list) => {
            let items = list
                .iter()
                .map(|item| item.map_or_else(|e| Ok(e.message), |v| display(&v)));
            let items: Vec<String> = items.collect::<Result<_>>()?;
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let entries = map.iter().filter_map(std::result::Result::ok);
            let shown = |(key, value): (Value<'_>, Value<'_>)| {
                Ok(format!("{}: {}", display(&key)?, display(&value)?))
            };
            let mut entries: Vec<String> = entries.map(shown).collect::<Result<_>>()?;
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        other => to_text(other).unwrap_or_else(|_| other.type_of().to_string()),
    };
    meter::memory(shown.len())?;
    Ok(shown)
}
