//! PodTemplate: a standalone pod template.

use crate::builtin::Builtin;
use crate::columns::{NAME, column, containers, labels, name_cell};
use crate::pod::{default_template, same_generation, validate_template, warn_pods};
use crate::tree::{child_or_new, get};
use crate::{Column, Subresource};
use machinery::field::{Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    kind: "PodTemplate",
    plural: "podtemplates",
    pod_spec: "template.spec",
    returns_deleted: true,
    schema: "core/v1.PodTemplate",
    has_generation: true,
    default: |object| default_template(child_or_new(object, "template")),
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    warnings: |object, old| match old {
        Some(old) if same_generation(object, old) => Vec::new(),
        _ => warn_pods(get(object, "template"), &Path::new("template")),
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Containers", "string", "Names of the containers."),
    column("Images", "string", "Images of the containers."),
    column("Pod Labels", "string", "Labels of the pods."),
];

fn row(object: &Object, _: i64) -> Vec<Value> {
    let template = get(object, "template");
    let (names, images) = containers(&template["spec"]);
    let shown = labels(&template["metadata"]["labels"]);
    vec![name_cell(object), names.into(), images.into(), shown.into()]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    validate_template(get(object, "template"), &Path::new("template"), &mut errors);
    errors
}
