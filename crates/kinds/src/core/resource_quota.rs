//! ResourceQuota: how much a namespace may use.

use crate::builtin::{Builtin, STATUS};
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::pod::check_quantity;
use crate::tree::{entries, get, list, same, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "ResourceQuota",
    plural: "resourcequotas",
    short_names: &["quota"],
    schema: "core/v1.ResourceQuota",
    subresources: &[STATUS],
    has_status: true,
    validate_create: validate,
    validate_update,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Request", "string", "Requests used and allowed."),
    column("Limit", "string", "Limits used and allowed."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let status = get(object, "status");
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in entries(&status["hard"]) {
        let used = text(&status["used"][name]);
        let used = if used.is_empty() { "0" } else { used };
        let cell = format!("{name}: {used}/{}", text(hard));
        if name.starts_with("limits.") {
            limits.push(cell)
        } else {
            requests.push(cell)
        }
    }
    vec![
        name_cell(object),
        requests.join(", ").into(),
        limits.join(", ").into(),
        age(object, now),
    ]
}

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    for (name, value) in entries(&spec["hard"]) {
        let at = path.child("hard").key(name);
        check::form(format::qualified_name(name), name, &at, &mut errors);
        check_quantity(name, value, &at, &mut errors);
    }
    for (i, scope) in list(&spec["scopes"]).iter().enumerate() {
        let at = path.child("scopes").index(i);
        if !SCOPES.contains(&text(scope)) {
            errors.push(Error::invalid(&at, text(scope), "unsupported scope"));
        }
    }
    errors
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    if subresource.is_none() {
        errors.extend(validate(object));
        let (new, was) = (&get(object, "spec")["scopes"], &get(old, "spec")["scopes"]);
        if !same(new, was) {
            let at = Path::new("spec").child("scopes");
            errors.push(Error::invalid(&at, new.clone(), check::IMMUTABLE));
        }
    }
    errors
}
