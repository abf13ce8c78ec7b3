//! Regular expressions in RE2's syntax.

use std::{
    cell::RefCell,
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use machinery::pattern::Pattern;

use super::{
    Row,
    convert::{int, string},
    library::Library,
};
use crate::{
    meter,
    value::{Error, Result, Text, Value},
};

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

/// A constant pattern: compiled when first used, and cached.
#[derive(Debug)]
pub struct Constant {
    pub(super) text: Arc<str>,
    /// In characters, for the cost.
    pub(super) size: u64,
    compiled: OnceLock<Arc<Pattern>>,
}

/// Heavier patterns are not cached.
const HEAVIEST: u64 = 2000;
/// How many non-constant patterns each thread caches.
const REMEMBERED: usize = 4;
/// The fixed cost of compiling a pattern, beside its weight.
const COMPILING: u64 = 100;

thread_local! {
    static RECENT: RefCell<VecDeque<Arc<Pattern>>> = const { RefCell::new(VecDeque::new()) };
}

/// The pattern of a call, if it is a constant that can be cached.
pub(crate) fn constant(function: &str, text: &Text<'_>) -> Result<Option<Library>> {
    if !matches!(function, "matches" | "find" | "findAll") {
        return Ok(None);
    }
    let weight = Pattern::weight(text).map_err(Error::new)?;
    Ok((weight <= HEAVIEST).then(|| {
        Library::Pattern(Arc::new(Constant {
            text: Arc::from(&**text),
            size: text.chars().count() as u64,
            compiled: OnceLock::new(),
        }))
    }))
}

/// An error of the pattern, or of the evaluation.
enum Wrong {
    Pattern(String),
    Evaluation(Error),
}

impl Wrong {
    fn said(self, as_what: impl FnOnce(String) -> String) -> Error {
        match self {
            Self::Pattern(why) => Error::new(as_what(why)),
            Self::Evaluation(error) => error,
        }
    }
}

fn compile(text: &str) -> Result<(Arc<Pattern>, u64), Wrong> {
    let weight = Pattern::weight(text).map_err(Wrong::Pattern)?;
    let work = usize::try_from(weight + COMPILING).unwrap_or(usize::MAX);
    meter::work(work).map_err(Wrong::Evaluation)?;
    let pattern = Pattern::new(text).map_err(Wrong::Pattern)?;
    Ok((Arc::new(pattern), weight))
}

fn pattern(args: &[Value<'_>]) -> Result<Arc<Pattern>, Wrong> {
    if let Some(Value::Library(Library::Pattern(constant))) = args.get(1) {
        if let Some(pattern) = constant.compiled.get() {
            return Ok(pattern.clone());
        }
        let (pattern, _) = compile(&constant.text)?;
        return Ok(constant.compiled.get_or_init(|| pattern).clone());
    }
    let text = string(args, 1).map_err(Wrong::Evaluation)?;
    RECENT.with_borrow_mut(|recent| {
        if let Some(known) = recent.iter().find(|known| known.text == **text) {
            return Ok(known.clone());
        }
        let (pattern, weight) = compile(text)?;
        if weight <= HEAVIEST {
            recent.truncate(REMEMBERED - 1);
            recent.push_front(pattern.clone());
        }
        Ok(pattern)
    })
}

fn matches<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let pattern = pattern(args).map_err(|wrong| wrong.said(|why| why))?;
    Ok(Value::Bool(pattern.is_match(string(args, 0)?)))
}

fn library_pattern(args: &[Value<'_>]) -> Result<Arc<Pattern>> {
    pattern(args).map_err(|wrong| wrong.said(|why| format!("Illegal regex: {why}")))
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
