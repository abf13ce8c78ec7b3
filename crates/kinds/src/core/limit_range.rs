//! LimitRange: bounds and defaults for what a namespace's pods and claims may ask for.

use crate::builtin::Builtin;
use crate::columns::{NAME_CREATED, name_created};
use crate::tree::{child_or_new, each, entries, get, list, text};
use crate::{Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    kind: "LimitRange",
    plural: "limitranges",
    short_names: &["limits"],
    schema: "core/v1.LimitRange",
    creates_on_update: true,
    default,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: NAME_CREATED,
    row: name_created,
    ..Builtin::EMPTY
};

/// What a container gets by default follows from the bounds that are given.
fn default(object: &mut Object) {
    for item in each(child_or_new(object, "spec"), "limits") {
        if get(item, "type") != "Container" {
            continue;
        }
        for (to, from) in [
            ("default", "max"),
            ("defaultRequest", "default"),
            ("defaultRequest", "min"),
        ] {
            let Some(source) = item.get(from).and_then(Value::as_object).cloned() else {
                continue;
            };
            let target = child_or_new(item, to);
            for (name, quantity) in source {
                target.entry(name).or_insert(quantity);
            }
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec").child("limits");
    let mut kinds = BTreeSet::new();
    for (i, item) in list(&get(object, "spec")["limits"]).iter().enumerate() {
        let at = path.index(i);
        let kind = text(&item["type"]);
        check::form(
            format::qualified_name(kind),
            kind,
            &at.child("type"),
            &mut errors,
        );
        if !kinds.insert(kind) {
            errors.push(Error::duplicate(&at.child("type"), kind));
        }
        if kind == "Pod" {
            for name in ["default", "defaultRequest"] {
                if entries(&item[name]).next().is_some() {
                    let detail = "may not be specified when `type` is 'Pod'";
                    errors.push(Error::forbidden(&at.child(name), detail));
                }
            }
        }
        check_order(item, &at, &mut errors);
    }
    errors
}

/// min ≤ defaultRequest ≤ default ≤ max, for each resource that has them.
fn check_order(item: &Value, path: &Path, errors: &mut Errors) {
    let pairs = [
        ("min", "max", "min", "max"),
        ("defaultRequest", "max", "default request", "max"),
        (
            "defaultRequest",
            "default",
            "default request",
            "default limit",
        ),
        ("default", "max", "default", "max"),
        ("min", "defaultRequest", "min", "default request"),
        ("min", "default", "min", "default"),
    ];
    for (low, high, low_name, high_name) in pairs {
        for (name, value) in entries(&item[low]) {
            let bound = &item[high][name];
            let (a, b) = (
                text(value).parse::<Quantity>(),
                text(bound).parse::<Quantity>(),
            );
            if let (Ok(a), Ok(b)) = (a, b)
                && a > b
            {
                let at = path.child(low).key(name);
                let detail = format!("{low_name} value {a} is greater than {high_name} value {b}");
                errors.push(Error::invalid(&at, text(value), detail));
            }
        }
    }
}
