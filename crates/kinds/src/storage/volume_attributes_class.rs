//! VolumeAttributesClass: attributes of volumes that may change while they are in use.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "VolumeAttributesClass",
    plural: "volumeattributesclasses",
    short_names: &["vac"],
    scope: Scope::Cluster,
    schema: "storage/v1.VolumeAttributesClass",
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        for name in ["driverName", "parameters"] {
            check::immutable(
                get(object, name),
                get(old, name),
                &Path::new(name),
                &mut errors,
            );
        }
        errors
    },
    columns: COLUMNS,
    row,
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
    check::required(
        get(object, "driverName"),
        &Path::new("driverName"),
        &mut errors,
    );
    errors
}
