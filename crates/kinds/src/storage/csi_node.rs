//! CSINode: the storage drivers of a node.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "CSINode",
    plural: "csinodes",
    scope: Scope::Cluster,
    schema: "storage/v1.CSINode",
    unconditional_update: false,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[NAME, column("Drivers", "integer", "How many drivers."), AGE];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let count = list(&get(object, "spec")["drivers"]).len();
    vec![name_cell(object), count.into(), age(object, now)]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (i, driver) in list(&get(object, "spec")["drivers"]).iter().enumerate() {
        let at = Path::new("spec").child("drivers").index(i);
        check::required(&driver["name"], &at.child("name"), &mut errors);
        check::required(&driver["nodeID"], &at.child("nodeID"), &mut errors);
        if !names.insert(text(&driver["name"])) {
            errors.push(Error::duplicate(&at.child("name"), text(&driver["name"])));
        }
    }
    errors
}
