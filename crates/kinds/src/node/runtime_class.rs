//! RuntimeClass: which runtime runs a pod.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "node.k8s.io",
    kind: "RuntimeClass",
    plural: "runtimeclasses",
    scope: Scope::Cluster,
    schema: "node/v1.RuntimeClass",
    creates_on_update: true,
    unconditional_update: false,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = Vec::new();
        let at = Path::new("handler");
        check::immutable(
            get(object, "handler"),
            get(old, "handler"),
            &at,
            &mut errors,
        );
        errors
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Handler", "string", "The runtime's own name."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        text(get(object, "handler")).into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let handler = text(get(object, "handler"));
    check::form(
        format::dns1123_label(handler),
        handler,
        &Path::new("handler"),
        &mut errors,
    );
    errors
}
