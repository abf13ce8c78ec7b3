//! Lists as sets.

use super::Row;
use crate::value::{Error, List, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "sets.contains",
        |args| both(args, contains_all),
        &[("list_sets_contains_list", "list(A), list(A) -> bool")],
    ),
    (
        "sets.equivalent",
        |args| both(args, |a, b| Ok(contains_all(a, b)? && contains_all(b, a)?)),
        &[("list_sets_equivalent_list", "list(A), list(A) -> bool")],
    ),
    (
        "sets.intersects",
        |args| both(args, intersects),
        &[("list_sets_intersects_list", "list(A), list(A) -> bool")],
    ),
];

fn both<'a>(
    args: &[Value<'a>],
    holds: impl Fn(&List<'a>, &List<'a>) -> Result<bool>,
) -> Result<Value<'a>> {
    match args {
        [Value::List(a), Value::List(b)] => holds(a, b).map(Value::Bool),
        _ => Err(Error::no_such_overload()),
    }
}

fn contains_all<'a>(all: &List<'a>, of: &List<'a>) -> Result<bool> {
    for item in of.iter() {
        if !all.contains(&item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn intersects<'a>(a: &List<'a>, b: &List<'a>) -> Result<bool> {
    for item in a.iter() {
        match b.contains(&item?) {
            Err(error) if !error.fatal => {}
            Ok(false) => {}
            decided => return decided,
        }
    }
    Ok(false)
}
