//! ServiceCIDR: the ranges that service addresses come from.

use super::{CIDR_FORM, is_cidr};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "ServiceCIDR",
    plural: "servicecidrs",
    scope: Scope::Cluster,
    schema: "networking/v1.ServiceCIDR",
    subresources: &[STATUS],
    has_status: true,
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| {
        let mut errors = Vec::new();
        if subresource.is_none() {
            let at = Path::new("spec").child("cidrs");
            let ranges = |o: &Object| get(o, "spec")["cidrs"].clone();
            check::immutable(&ranges(object), &ranges(old), &at, &mut errors);
        }
        errors
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[NAME, column("CIDRs", "string", "The ranges."), AGE];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let ranges: Vec<&str> = list(&get(object, "spec")["cidrs"])
        .iter()
        .map(text)
        .collect();
    vec![name_cell(object), ranges.join(",").into(), age(object, now)]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let at = Path::new("spec").child("cidrs");
    let ranges = list(&get(object, "spec")["cidrs"]);
    if ranges.is_empty() {
        errors.push(Error::required(&at, "at least one CIDR required"));
    }
    if ranges.len() > 2 {
        let value = get(object, "spec")["cidrs"].clone();
        errors.push(Error::invalid(&at, value, "may only hold up to 2 values"));
    }
    for (i, range) in ranges.iter().enumerate() {
        if !is_cidr(text(range)) {
            errors.push(Error::invalid(&at.index(i), text(range), CIDR_FORM));
        }
    }
    errors
}
