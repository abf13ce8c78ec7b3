//! ReplicaSet: a number of pods made from one template.

use super::{Words, check_endless, check_pods, check_same_selector, check_status};
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
    pod_spec: "spec.template.spec",
    short_names: &["rs"],
    categories: &["all"],
    schema: "apps/v1.ReplicaSet",
    subresources: &[SCALE, STATUS],
    has_status: true,
    has_generation: true,
    default,
    validate_create: validate,
    validate_update,
    warnings: super::warnings,
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

const WORDS: Words = Words {
    selector: "deployment",
    unreadable: "invalid label selector",
    template: "ReplicaSet",
};

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    for name in ["replicas", "minReadySeconds"] {
        check::non_negative(&spec[name], &path.child(name), &mut errors);
    }
    check_pods(spec, &spec["template"], &WORDS, &path, &mut errors);
    check_endless(&spec["template"], &WORDS, &path, &mut errors);
    errors
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    match subresource {
        None => {
            errors.extend(validate(object));
            check_same_selector(object, old, &mut errors);
        }
        Some("status") => check_replica_status(get(object, "status"), &mut errors),
        Some(_) => {}
    }
    errors
}

/// The status of a ReplicaSet, and of a ReplicationController.
pub(crate) fn check_replica_status(status: &Value, errors: &mut Errors) {
    let counts = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    check_status(status, &counts, &parts, "readyReplicas", errors);
}
