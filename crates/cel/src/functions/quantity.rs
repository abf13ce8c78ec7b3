//! Quantities such as `1500m` and `2Gi`.

use std::cmp::Ordering;

use machinery::quantity::{Format, Quantity};

use super::{Row, convert::string, library::Library, semver};
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
        |args| Ok(Value::Double(one(args)?.to_f64())),
        &[(".quantity_get_float", "kubernetes.Quantity -> double")],
    ),
    (
        "asInteger",
        as_integer,
        &[(".quantity_get_int", "kubernetes.Quantity -> int")],
    ),
    (
        "isInteger",
        |args| Ok(Value::Bool(one(args)?.is_integer())),
        &[(".quantity_is_integer", "kubernetes.Quantity -> bool")],
    ),
    (
        "add",
        |args| calculated(args, Quantity::plus),
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
        |args| calculated(args, Quantity::minus),
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

fn one(args: &[Value<'_>]) -> Result<Quantity> {
    match args.first() {
        Some(Value::Library(Library::Quantity(quantity))) => Ok(*quantity),
        _ => Err(Error::no_such_overload()),
    }
}

fn parse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let quantity = string(args, 0)?.parse::<Quantity>();
    let quantity = quantity.map_err(|error| Error::new(error.to_string()))?;
    Ok(Value::Library(Library::Quantity(quantity)))
}

fn is_quantity<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    Ok(Value::Bool(string(args, 0)?.parse::<Quantity>().is_ok()))
}

fn sign<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let quantity = one(args)?;
    Ok(Value::Int(match quantity {
        quantity if quantity.is_zero() => 0,
        quantity if quantity.is_negative() => -1,
        _ => 1,
    }))
}

fn as_integer<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let quantity = one(args)?;
    if !quantity.is_integer() {
        return Err(Error::new("cannot convert value to integer"));
    }
    // What does not fit is no integer, either.
    let whole = quantity.value();
    if matches!(whole, i64::MAX | i64::MIN) && quantity.to_string() != whole.to_string() {
        return Err(Error::new("cannot convert value to integer"));
    }
    Ok(Value::Int(whole))
}

fn order(args: &[Value<'_>]) -> Result<Ordering> {
    match args {
        [
            Value::Library(Library::Quantity(a)),
            Value::Library(Library::Quantity(b)),
        ] => Ok(a.cmp(b)),
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

fn calculated<'a>(
    args: &[Value<'a>],
    with: fn(Quantity, Quantity) -> Quantity,
) -> Result<Value<'a>> {
    let first = one(args)?;
    let second = match args.get(1) {
        Some(Value::Int(number)) => Quantity::from_value(*number, Format::Decimal),
        Some(Value::Library(Library::Quantity(quantity))) => *quantity,
        _ => return Err(Error::no_such_overload()),
    };
    Ok(Value::Library(Library::Quantity(with(first, second))))
}
