//! ReplicaSet: a number of pods made from one template.

use super::{check_counts, check_template};
use crate::builtin::{Builtin, SCALE, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, name_cell, selector, wide};
use crate::pod::default_template;
use crate::tree::{child_or_new, default_to, get, int};
use crate::{Column, Subresource};
use machinery::field::{Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "apps",
    kind: "ReplicaSet",
    plural: "replicasets",
    short_names: &["rs"],
    categories: &["all"],
    schema: "apps/v1.ReplicaSet",
    subresources: &[SCALE, STATUS],
    has_status: true,
    has_generation: true,
    default,
    validate_create: validate,
    validate_update,
    selectable: &["status.replicas"],
    selectable_fields: |o| {
        vec![(
            "status.replicas",
            int(&get(o, "status")["replicas"]).to_string(),
        )]
    },
    warnings: crate::pod::warn_template,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

/// Also those of ReplicationController.
pub(crate) const COLUMNS: &[Column] = &[
    NAME,
    column("Desired", "integer", "Pods wanted."),
    column("Current", "integer", "Pods there are."),
    column("Ready", "integer", "Pods that are ready."),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
    wide("Selector", "string", "Labels of the pods."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    cells(object, now, selector(&get(object, "spec")["selector"]))
}

pub(crate) fn cells(object: &Object, now: i64, selector: String) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let (names, images) = containers(&spec["template"]["spec"]);
    vec![
        name_cell(object),
        int(&spec["replicas"]).into(),
        int(&status["replicas"]).into(),
        int(&status["readyReplicas"]).into(),
        age(object, now),
        Value::from(names),
        Value::from(images),
        Value::from(selector),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "replicas", 1);
    default_template(child_or_new(spec, "template"));
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check_counts(spec, &path, &mut errors);
    check::workload_selector(spec, "deployment", &path, &mut errors);
    check_template(spec, "ReplicaSet", &path, &mut errors);
    errors
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    match subresource {
        None => {
            errors.extend(validate(object));
            let at = Path::new("spec").child("selector");
            let selector = |o: &Object| get(o, "spec")["selector"].clone();
            check::immutable(&selector(object), &selector(old), &at, &mut errors);
        }
        Some("status") => check_status(get(object, "status"), &mut errors),
        Some(_) => {}
    }
    errors
}

pub(crate) fn check_status(status: &Value, errors: &mut Errors) {
    let path = Path::new("status");
    let names = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
    ];
    for name in names {
        check::non_negative(&status[name], &path.child(name), errors);
    }
    for (name, detail) in [
        (
            "fullyLabeledReplicas",
            "cannot be greater than status.replicas",
        ),
        ("readyReplicas", "cannot be greater than status.replicas"),
        (
            "availableReplicas",
            "cannot be greater than status.replicas",
        ),
    ] {
        if int(&status[name]) > int(&status["replicas"]) {
            let at = path.child(name);
            errors.push(machinery::field::Error::invalid(
                &at,
                int(&status[name]),
                detail,
            ));
        }
    }
    if int(&status["availableReplicas"]) > int(&status["readyReplicas"]) {
        let detail = "cannot be greater than readyReplicas";
        let at = path.child("availableReplicas");
        errors.push(machinery::field::Error::invalid(
            &at,
            int(&status["availableReplicas"]),
            detail,
        ));
    }
}
