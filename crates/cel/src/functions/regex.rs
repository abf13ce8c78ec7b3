//! Regular expressions in RE2's dialect.

use machinery::pattern::Pattern;

use super::{
    Row,
    convert::{int, string},
};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "matches",
        matches,
        &[
            ("matches", "string, string -> bool"),
            (".matches_string", "string, string -> bool"),
        ],
    ),
    (
        "find",
        find,
        &[(".string_find_string", "string, string -> string")],
    ),
    (
        "findAll",
        find_all,
        &[
            (".string_find_all_string", "string, string -> list(string)"),
            (
                ".string_find_all_string_int",
                "string, string, int -> list(string)",
            ),
        ],
    ),
];

fn matches<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let pattern = Pattern::new(string(args, 1)?).map_err(Error::new)?;
    Ok(Value::Bool(pattern.is_match(string(args, 0)?)))
}

fn library_pattern(args: &[Value<'_>]) -> Result<Pattern> {
    Pattern::new(string(args, 1)?).map_err(|why| Error::new(format!("Illegal regex: {why}")))
}

fn find<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let pattern = library_pattern(args)?;
    let found = pattern.find_all(string(args, 0)?, 1);
    Ok(Value::text(found.into_iter().next().unwrap_or_default()))
}

fn find_all<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let pattern = library_pattern(args)?;
    let limit = if args.len() > 2 { int(args, 2)? } else { -1 };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = pattern.find_all(string(args, 0)?, limit);
    Ok(Value::list(found.into_iter().map(Value::text).collect()))
}
