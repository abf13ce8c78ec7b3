//! PersistentVolume: storage that a claim may get.

use super::persistent_volume_claim::{access_modes, check_modes};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, wide};
use crate::pod::{check_node_selector, check_quantity};
use crate::tree::{
    child_or_new, default_empty, default_to, entries, get, is_set, list, name, text,
};
use crate::{Column, Context, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    kind: "PersistentVolume",
    plural: "persistentvolumes",
    short_names: &["pv"],
    scope: Scope::Cluster,
    schema: "core/v1.PersistentVolume",
    subresources: &[STATUS],
    has_status: true,
    default,
    prepare_create: |object, _: &Context<'_>| {
        default_empty(child_or_new(object, "status"), "phase", "Pending");
    },
    validate_create: validate,
    validate_update,
    selectable: &["name"],
    selectable_fields: |o| vec![("name", name(o).to_owned())],
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Capacity", "string", "Size."),
    column("Access Modes", "string", "How it can be mounted."),
    column(
        "Reclaim Policy",
        "string",
        "What happens when its claim goes.",
    ),
    column("Status", "string", "Whether it is free, bound or released."),
    column("Claim", "string", "The claim that has it."),
    column("StorageClass", "string", "Class it belongs to."),
    column(
        "VolumeAttributesClass",
        "string",
        "Class of its attributes.",
    ),
    column("Reason", "string", "Why it failed."),
    AGE,
    wide("VolumeMode", "string", "File system or block device."),
];

/// A text, or `<unset>`.
pub(super) fn or_unset(value: &Value) -> Value {
    Value::from(value.as_str().unwrap_or("<unset>"))
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let ending = is_set(&get(object, "metadata")["deletionTimestamp"]);
    let phase = if ending {
        "Terminating"
    } else {
        text(&status["phase"])
    };
    let claim = &spec["claimRef"];
    let claim = if is_set(claim) {
        format!("{}/{}", text(&claim["namespace"]), text(&claim["name"]))
    } else {
        String::new()
    };
    let size = text(&spec["capacity"]["storage"]);
    vec![
        name_cell(object),
        Value::from(if size.is_empty() { "0" } else { size }),
        Value::from(access_modes(&spec["accessModes"])),
        text(&spec["persistentVolumeReclaimPolicy"]).into(),
        phase.into(),
        Value::from(claim),
        text(&spec["storageClassName"]).into(),
        or_unset(&spec["volumeAttributesClassName"]),
        text(&status["reason"]).into(),
        age(object, now),
        or_unset(&spec["volumeMode"]),
    ]
}

fn default(object: &mut Object) {
    default_empty(child_or_new(object, "status"), "phase", "Pending");
    let spec = child_or_new(object, "spec");
    default_empty(spec, "persistentVolumeReclaimPolicy", "Retain");
    default_to(spec, "volumeMode", "Filesystem");
    if let Some(host) = crate::tree::child(spec, "hostPath") {
        default_to(host, "type", "");
    }
}

/// The fields that are not a kind of storage.
const PLAIN: &[&str] = &[
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

fn source(spec: &Value) -> Vec<(&String, &Value)> {
    entries(spec)
        .filter(|(k, v)| !PLAIN.contains(&k.as_str()) && is_set(v))
        .collect()
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    if list(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&path.child("accessModes"), ""));
    }
    check_modes(
        &spec["accessModes"],
        &path.child("accessModes"),
        &mut errors,
    );
    let capacity = path.child("capacity");
    if entries(&spec["capacity"]).next().is_none() {
        errors.push(Error::required(&capacity, ""));
    } else if !is_set(&spec["capacity"]["storage"]) || entries(&spec["capacity"]).count() > 1 {
        errors.push(Error::not_supported(
            &capacity,
            spec["capacity"].clone(),
            &["storage"],
        ));
    }
    for (name, value) in entries(&spec["capacity"]) {
        check_quantity(name, value, &capacity.key(name), &mut errors);
    }
    let policies = ["Delete", "Recycle", "Retain"];
    let at = path.child("persistentVolumeReclaimPolicy");
    check::one_of(
        &spec["persistentVolumeReclaimPolicy"],
        &policies,
        &at,
        &mut errors,
    );
    if is_set(&spec["nodeAffinity"]) {
        let at = path.child("nodeAffinity").child("required");
        if is_set(&spec["nodeAffinity"]["required"]) {
            check_node_selector(&spec["nodeAffinity"]["required"], &at, &mut errors);
        } else {
            errors.push(Error::required(
                &at,
                "must specify required node constraints",
            ));
        }
    }
    match source(spec).as_slice() {
        [] => errors.push(Error::required(&path, "must specify a volume type")),
        [_] => {}
        [_, more @ ..] => {
            for (kind, _) in more {
                let detail = "may not specify more than 1 volume type";
                errors.push(Error::forbidden(&path.child(kind), detail));
            }
        }
    }
    let modes = ["Block", "Filesystem"];
    check::one_of(
        &spec["volumeMode"],
        &modes,
        &path.child("volumeMode"),
        &mut errors,
    );
    errors
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    if subresource.is_some() {
        return Vec::new();
    }
    let mut errors = validate(object);
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    if source(new) != source(was) {
        let detail = "spec.persistentvolumesource is immutable after creation";
        errors.push(Error::forbidden(
            &Path::new("spec").child("persistentvolumesource"),
            detail,
        ));
    }
    let at = Path::new("spec").child("volumeMode");
    check::immutable(&new["volumeMode"], &was["volumeMode"], &at, &mut errors);
    errors
}
