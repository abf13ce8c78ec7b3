//! Calls without a matching overload: upstream's messages.

use super::{Function, library::Library};
use crate::{
    ast::op,
    types::Type,
    value::{Error, Value},
};

/// The error of a call, with the function's name if upstream includes it. Operators depend on the
/// trait of their first operand; other functions list the argument types.
pub(crate) fn named(error: Error, function: &Function, args: &[Value<'_>]) -> Error {
    if error.message != Error::no_such_overload().message || error.fatal {
        return error;
    }
    let name = function.name;
    // Some standard functions and constant patterns check their arguments themselves.
    let is_constant_pattern = matches!(args.get(1), Some(Value::Library(Library::Pattern(_))));
    if is_constant_pattern || matches!(name, "startsWith" | "endsWith" | "contains") {
        return error;
    }
    match operator_takes(name, args.first()) {
        Some(true) => error,
        Some(false) => Error::new(format!("no such overload: {name}")),
        None if fits(function, args) => error,
        None => missing(function, args),
    }
}

/// The error of a function without an overload for these arguments.
pub(crate) fn missing(function: &Function, args: &[Value<'_>]) -> Error {
    let types = args
        .iter()
        .map(|arg| arg.type_of().runtime_name().to_owned());
    let types: Vec<String> = types.collect();
    let name = function.name;
    Error::new(format!("no such overload: {name}({})", types.join(", ")))
}

/// Whether the first operand supports the operator; `None` for other functions.
fn operator_takes(name: &str, first: Option<&Value<'_>>) -> Option<bool> {
    use Value::{Bool, Bytes, Double, Duration, Int, List, Map, String, Timestamp, Uint};
    let first = first?;
    Some(match name {
        op::ADD => matches!(
            first,
            Int(_)
                | Uint(_)
                | Double(_)
                | String(_)
                | Bytes(_)
                | Duration(_)
                | Timestamp(_)
                | List(_)
        ),
        op::SUBTRACT => matches!(
            first,
            Int(_) | Uint(_) | Double(_) | Duration(_) | Timestamp(_)
        ),
        op::MULTIPLY | op::DIVIDE => matches!(first, Int(_) | Uint(_) | Double(_)),
        op::MODULO => matches!(first, Int(_) | Uint(_)),
        op::NEGATE => matches!(
            first,
            Int(_) | Double(_) | Bool(_) | Duration(_) | Timestamp(_) | String(_)
        ),
        op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS => matches!(
            first,
            Bool(_)
                | Int(_)
                | Uint(_)
                | Double(_)
                | String(_)
                | Bytes(_)
                | Duration(_)
                | Timestamp(_)
        ),
        "size" => match first {
            Map(map) => !map.is_constructed(),
            first => matches!(first, String(_) | Bytes(_) | List(_)),
        },
        "matches" => matches!(first, String(_)),
        "sort" | "@sortByAssociatedKeys" => matches!(first, List(_)),
        op::NOT | op::IN => true,
        _ => return None,
    })
}

/// Whether run-time values match an overload.
fn fits(function: &Function, args: &[Value<'_>]) -> bool {
    function.overloads.iter().any(|overload| {
        let pairs = || overload.args.iter().zip(args);
        overload.args.len() == args.len()
            && pairs().all(|(wanted, found)| assignable(wanted, found))
    })
}

pub(crate) fn assignable(wanted: &Type, found: &Value<'_>) -> bool {
    match wanted {
        Type::Dyn | Type::Param(_) => true,
        // Of a list, only the first element is compared.
        Type::List(element) => match found {
            Value::List(list) => match list.iter().next() {
                Some(Ok(first)) => assignable(element, &first),
                Some(Err(_)) => false,
                None => true,
            },
            _ => false,
        },
        wanted => wanted.runtime_name() == found.type_of().runtime_name(),
    }
}
