//! Quantities such as `1500m` and `2Gi`.

use std::{cmp::Ordering, sync::Arc};

use machinery::quantity::Quantity;

use super::{Row, amount::Amount, convert::string, library::Library, semver};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "quantity",
        parse,
        &[("string_to_quantity", "string -> kubernetes.Quantity")],
    ),
    (
        "isQuantity",
        is_quantity,
        &[("is_quantity_string", "string -> bool")],
    ),
    (
        "sign",
        sign,
        &[("quantity_sign", "kubernetes.Quantity -> int")],
    ),
    (
        "isGreaterThan",
        |args| compared(args, Ordering::is_gt),
        &[
            (
                ".quantity_is_greater_than",
                "kubernetes.Quantity, kubernetes.Quantity -> bool",
            ),
            (
                ".semver_is_greater_than",
                "kubernetes.Semver, kubernetes.Semver -> bool",
            ),
        ],
    ),
    (
        "isLessThan",
        |args| compared(args, Ordering::is_lt),
        &[
            (
                ".quantity_is_less_than",
                "kubernetes.Quantity, kubernetes.Quantity -> bool",
            ),
            (
                ".semver_is_less_than",
                "kubernetes.Semver, kubernetes.Semver -> bool",
            ),
        ],
    ),
    (
        "compareTo",
        compare_to,
        &[
            (
                ".quantity_compare_to",
                "kubernetes.Quantity, kubernetes.Quantity -> int",
            ),
            (
                ".semver_compare_to",
                "kubernetes.Semver, kubernetes.Semver -> int",
            ),
        ],
    ),
    (
        "asApproximateFloat",
        |args| Ok(Value::Double(single_quantity(args)?.approximate())),
        &[(".quantity_get_float", "kubernetes.Quantity -> double")],
    ),
    (
        "asInteger",
        as_integer,
        &[(".quantity_get_int", "kubernetes.Quantity -> int")],
    ),
    (
        "isInteger",
        |args| Ok(Value::Bool(single_quantity(args)?.integer().is_some())),
        &[(".quantity_is_integer", "kubernetes.Quantity -> bool")],
    ),
    (
        "add",
        |args| calculated(args, Amount::plus),
        &[
            (
                ".quantity_add",
                "kubernetes.Quantity, kubernetes.Quantity -> kubernetes.Quantity",
            ),
            (
                ".quantity_add_int",
                "kubernetes.Quantity, int -> kubernetes.Quantity",
            ),
        ],
    ),
    (
        "sub",
        |args| calculated(args, Amount::minus),
        &[
            (
                ".quantity_sub",
                "kubernetes.Quantity, kubernetes.Quantity -> kubernetes.Quantity",
            ),
            (
                ".quantity_sub_int",
                "kubernetes.Quantity, int -> kubernetes.Quantity",
            ),
        ],
    ),
];

fn single_quantity(args: &[Value<'_>]) -> Result<Amount> {
    match args.first() {
        Some(Value::Library(Library::Quantity(amount))) => Ok(**amount),
        _ => Err(Error::no_such_overload()),
    }
}

fn parse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let amount = Amount::parse(string(args, 0)?);
    let amount = amount.map_err(|error| Error::new(error.to_string()))?;
    Ok(Value::Library(Library::Quantity(Arc::new(amount))))
}

fn is_quantity<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(string(args, 0)?.parse::<Quantity>().is_ok()))
}

fn sign<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let quantity = single_quantity(args)?.quantity;
    Ok(Value::Int(match quantity {
        quantity if quantity.is_zero() => 0,
        quantity if quantity.is_negative() => -1,
        _ => 1,
    }))
}

fn as_integer<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let integer = single_quantity(args)?.integer();
    let integer = integer.ok_or_else(|| Error::new("cannot convert value to integer"))?;
    Ok(Value::Int(integer))
}

fn order(args: &[Value<'_>]) -> Result<Ordering> {
    match args {
        [
            Value::Library(Library::Quantity(a)),
            Value::Library(Library::Quantity(b)),
        ] => Ok(a.quantity.cmp(&b.quantity)),
        [
            Value::Library(Library::Semver(a)),
            Value::Library(Library::Semver(b)),
        ] => Ok(semver::Semver::precedence(a, b)),
        _ => Err(Error::no_such_overload()),
    }
}

fn compared<'a>(args: &[Value<'a>], holds: fn(Ordering) -> bool) -> Result<Value<'a>> {
    order(args).map(|order| Value::Bool(holds(order)))
}

fn compare_to<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    order(args).map(|order| Value::Int(order as i64))
}

fn calculated<'a>(args: &[Value<'a>], with: fn(Amount, Amount) -> Amount) -> Result<Value<'a>> {
    let first = single_quantity(args)?;
    let second = match args.get(1) {
        Some(Value::Int(number)) => Amount::from_int(*number),
        Some(Value::Library(Library::Quantity(amount))) => **amount,
        _ => return Err(Error::no_such_overload()),
    };
    let amount = Arc::new(with(first, second));
    Ok(Value::Library(Library::Quantity(amount)))
}
