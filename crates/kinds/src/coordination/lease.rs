//! Lease: the holder of a lock or heartbeat, and its expiry.

use crate::builtin::Builtin;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, int, is_set, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    // Node heartbeats are renewed every few seconds, so they are not synced.
    needs_sync: |namespace| namespace != "kube-node-lease",
    schema: "coordination/v1.Lease",
    allows_create_on_update: true,
    allows_unconditional_update: false,
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Holder", "string", "Holder of the lease."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let holder = text(&get(object, "spec")["holderIdentity"]);
    vec![name_cell(object), Value::from(holder), age(object, now)]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let duration = &spec["leaseDurationSeconds"];
    if is_set(duration) && int(duration) <= 0 {
        let at = path.child("leaseDurationSeconds");
        errors.push(Error::invalid(&at, int(duration), "must be greater than 0"));
    }
    check::non_negative(
        &spec["leaseTransitions"],
        &path.child("leaseTransitions"),
        &mut errors,
    );
    errors
}
