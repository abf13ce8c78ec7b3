//! Strings: the language's own functions and those of the strings library.

use super::{
    Row,
    convert::{int, string},
};
use crate::{
    meter,
    value::{Error, Result, Value},
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
        super::printf::format,
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

/// The index of a string in another, in characters; -1 if absent.
pub(super) fn index_of<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let text: Vec<char> = string(args, 0)?.chars().collect();
    let wanted: Vec<char> = string(args, 1)?.chars().collect();
    let offset = if args.len() > 2 { int(args, 2)? } else { 0 };
    if wanted.is_empty() {
        return Ok(Value::Int(offset));
    }
    if offset < 0 {
        return Err(out_of_range(offset));
    }
    if offset >= text.len() as i64 {
        return Ok(Value::Int(-1));
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
    if wanted.is_empty() {
        return Ok(Value::Int(offset));
    }
    if offset < 0 {
        return Err(out_of_range(offset));
    }
    if args.len() > 2 && offset >= length {
        return Ok(Value::Int(-1));
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
            _ if parts.is_empty() => return Err(Error::no_such_overload()),
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
