//! ResourceSlice: devices that a driver offers.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "ResourceSlice",
    plural: "resourceslices",
    scope: Scope::Cluster,
    schema: "resource/v1.ResourceSlice",
    has_generation: true,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        let path = Path::new("spec");
        let (new, was) = (get(object, "spec"), get(old, "spec"));
        for name in ["driver", "nodeName"] {
            check::immutable(&new[name], &was[name], &path.child(name), &mut errors);
        }
        let at = path.child("pool").child("name");
        check::immutable(&new["pool"]["name"], &was["pool"]["name"], &at, &mut errors);
        errors
    },
    selectable: &["spec.nodeName", "spec.driver"],
    selectable_fields: |o| {
        let spec = get(o, "spec");
        vec![
            ("spec.nodeName", text(&spec["nodeName"]).to_owned()),
            ("spec.driver", text(&spec["driver"]).to_owned()),
        ]
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Node", "string", "The node that has the devices."),
    column("Driver", "string", "The driver."),
    column("Pool", "string", "The pool they belong to."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    vec![
        name_cell(object),
        spec["nodeName"].as_str().unwrap_or("<unset>").into(),
        text(&spec["driver"]).into(),
        text(&spec["pool"]["name"]).into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check::required(&spec["driver"], &path.child("driver"), &mut errors);
    check::required(
        &spec["pool"]["name"],
        &path.child("pool").child("name"),
        &mut errors,
    );
    errors
}
