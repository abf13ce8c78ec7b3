//! ControllerRevision: an earlier state of a workload's template.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{get, int, list, text, truth};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "apps",
    kind: "ControllerRevision",
    plural: "controllerrevisions",
    schema: "apps/v1.ControllerRevision",
    validate_create: validate,
    validate_update,
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Controller", "string", "Owner of the revision."),
    column("Revision", "string", "Number of the revision."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let owner = list(&get(object, "metadata")["ownerReferences"])
        .iter()
        .find(|o| truth(&o["controller"]));
    let owner = owner.map_or("<none>".to_owned(), |o| {
        let group = text(&o["apiVersion"])
            .split_once('/')
            .map_or("", |(g, _)| g);
        let kind = text(&o["kind"]).to_lowercase();
        let kind = if group.is_empty() {
            kind
        } else {
            format!("{kind}.{group}")
        };
        format!("{kind}/{}", text(&o["name"]))
    });
    let revision = int(get(object, "revision"));
    vec![
        name_cell(object),
        owner.into(),
        revision.into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    check_revision(object, &mut errors);
    let detail = match get(object, "data") {
        Value::Null => "data is mandatory",
        Value::Object(_) => return errors,
        _ => "data must be a valid JSON object",
    };
    errors.push(Error::required(&Path::new("data"), detail));
    errors
}

fn check_revision(object: &Object, errors: &mut Errors) {
    check::non_negative(get(object, "revision"), &Path::new("revision"), errors);
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    check_revision(object, &mut errors);
    check::immutable(
        get(object, "data"),
        get(old, "data"),
        &Path::new("data"),
        &mut errors,
    );
    errors
}
