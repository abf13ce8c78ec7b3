//! ResourceClaim and ResourceClaimTemplate: devices that are asked for.

use super::{check_claim_spec, default_claim_spec};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, NAME_AGE, age, column, name_age, name_cell};
use crate::metadata::Check;
use crate::tree::{child_or_new, get, is_set, list};
use crate::{Column, Subresource};
use machinery::field::{Errors, Path};
use machinery::{Object, Value};

pub const CLAIM: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "ResourceClaim",
    plural: "resourceclaims",
    schema: "resource/v1.ResourceClaim",
    subresources: &[STATUS],
    has_status: true,
    default: |object| default_claim_spec(child_or_new(object, "spec")),
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| {
        let mut errors = Vec::new();
        if subresource.is_none() {
            check::immutable(
                get(object, "spec"),
                get(old, "spec"),
                &Path::new("spec"),
                &mut errors,
            );
        }
        errors
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    status_resets: &[&["metadata"], &["spec"]],
    ..Builtin::EMPTY
};

pub const TEMPLATE: Builtin = Builtin {
    kind: "ResourceClaimTemplate",
    plural: "resourceclaimtemplates",
    schema: "resource/v1.ResourceClaimTemplate",
    subresources: &[],
    has_status: false,
    default: |object| {
        default_claim_spec(child_or_new(child_or_new(object, "spec"), "spec"));
    },
    validate_create: |object| {
        let mut errors = Vec::new();
        let path = Path::new("spec").child("spec");
        check_claim_spec(&get(object, "spec")["spec"], &path, &mut errors);
        errors
    },
    columns: NAME_AGE,
    row: name_age,
    ..CLAIM
};

const COLUMNS: &[Column] = &[
    NAME,
    column("State", "string", "Whether it has its devices."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let status = get(object, "status");
    let ending = is_set(&get(object, "metadata")["deletionTimestamp"]);
    let mut states = Vec::new();
    if ending {
        states.push("deleted");
    }
    if is_set(&status["allocation"]) {
        states.push("allocated");
        if !list(&status["reservedFor"]).is_empty() {
            states.push("reserved");
        }
    } else if !ending {
        states.push("pending");
    }
    vec![name_cell(object), states.join(",").into(), age(object, now)]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    check_claim_spec(get(object, "spec"), &Path::new("spec"), &mut errors);
    errors
}
