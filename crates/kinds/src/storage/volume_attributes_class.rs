//! VolumeAttributesClass: attributes of volumes that may change while they are in use.

use super::{check_parameters, check_provisioner};
use crate::builtin::Builtin;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{get, is_empty, same, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "VolumeAttributesClass",
    plural: "volumeattributesclasses",
    returns_deleted: true,
    short_names: &["vac"],
    scope: Scope::Cluster,
    schema: "storage/v1.VolumeAttributesClass",
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = Vec::new();
        for name in ["driverName", "parameters"] {
            if !same(get(object, name), get(old, name)) {
                let detail = format!("updates to {name} are forbidden.");
                errors.push(Error::forbidden(&Path::new(name), detail));
            }
        }
        errors.extend(validate(object));
        errors
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("DriverName", "string", "The driver it is for."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        text(get(object, "driverName")).into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    check_provisioner(
        get(object, "driverName"),
        &Path::new("driverName"),
        &mut errors,
    );
    let (parameters, at) = (get(object, "parameters"), Path::new("parameters"));
    check_parameters(parameters, &at, &mut errors);
    if is_empty(parameters) {
        let detail = "must contain at least one key/value pair";
        errors.push(Error::required(&at, detail));
    }
    errors
}
