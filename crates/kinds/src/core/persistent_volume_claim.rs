//! PersistentVolumeClaim: a wish for storage.

use super::persistent_volume::or_unset;
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, wide};
use crate::tree::{child_or_new, default_empty, default_to, get, is_set, list, name, same, text};
use crate::{Column, Context, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    short_names: &["pvc"],
    schema: "core/v1.PersistentVolumeClaim",
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
    column("Status", "string", "Whether it has a volume."),
    column("Volume", "string", "The volume it has."),
    column("Capacity", "string", "Size of the volume."),
    column("Access Modes", "string", "How it can be mounted."),
    column("StorageClass", "string", "Class it asks for."),
    column(
        "VolumeAttributesClass",
        "string",
        "Class of its attributes.",
    ),
    AGE,
    wide("VolumeMode", "string", "File system or block device."),
];

/// `RWO,ROX,RWX,RWOP`
pub(super) fn access_modes(modes: &Value) -> String {
    let mut out: Vec<&str> = Vec::new();
    for (mode, short) in [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ] {
        if list(modes).iter().any(|m| m == mode) {
            out.push(short);
        }
    }
    out.join(",")
}

pub(super) fn check_modes(modes: &Value, path: &Path, errors: &mut Errors) {
    let supported = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ];
    for (i, mode) in list(modes).iter().enumerate() {
        check::one_of(mode, &supported, &path.index(i), errors);
    }
    if list(modes).len() > 1 && list(modes).iter().any(|m| m == "ReadWriteOncePod") {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(Error::forbidden(path, detail));
    }
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let ending = is_set(&get(object, "metadata")["deletionTimestamp"]);
    let phase = if ending {
        "Terminating"
    } else {
        text(&status["phase"])
    };
    let volume = text(&spec["volumeName"]);
    let (capacity, modes) = if volume.is_empty() {
        (String::new(), String::new())
    } else {
        (
            text(&status["capacity"]["storage"]).to_owned(),
            access_modes(&status["accessModes"]),
        )
    };
    vec![
        name_cell(object),
        phase.into(),
        volume.into(),
        Value::from(capacity),
        Value::from(modes),
        text(&spec["storageClassName"]).into(),
        or_unset(&spec["volumeAttributesClassName"]),
        age(object, now),
        or_unset(&spec["volumeMode"]),
    ]
}

fn default(object: &mut Object) {
    default_empty(child_or_new(object, "status"), "phase", "Pending");
    default_to(child_or_new(object, "spec"), "volumeMode", "Filesystem");
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let at = path.child("accessModes");
    if list(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&at, "at least 1 access mode is required"));
    }
    check_modes(&spec["accessModes"], &at, &mut errors);
    check::label_selector(&spec["selector"], &path.child("selector"), &mut errors);
    let storage = &spec["resources"]["requests"]["storage"];
    let at = path.child("resources").key("storage");
    match text(storage).parse::<Quantity>() {
        Err(_) => errors.push(Error::required(&at, "")),
        Ok(q) if q.is_zero() || q.is_negative() => {
            let at = path.child("resources").child("requests").key("storage");
            errors.push(Error::invalid(
                &at,
                text(storage),
                "must be greater than zero",
            ));
        }
        Ok(_) => {}
    }
    let class = text(&spec["storageClassName"]);
    if !class.is_empty() {
        let at = path.child("storageClassName");
        check::form(format::dns1123_subdomain(class), class, &at, &mut errors);
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
    // Binding may fill in the volume; a bound claim may grow and change its attributes' class.
    let strip = |spec: &Value| {
        let mut spec = spec.clone();
        if let Value::Object(map) = &mut spec {
            map.shift_remove("resources");
            map.shift_remove("volumeAttributesClassName");
            if text(&was["volumeName"]).is_empty() {
                map.shift_remove("volumeName");
            }
        }
        spec
    };
    if !same(&strip(new), &strip(was)) {
        let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(Error::forbidden(&Path::new("spec"), detail));
    }
    let size = |s: &Value| text(&s["resources"]["requests"]["storage"]).parse::<Quantity>();
    if let (Ok(new), Ok(was)) = (size(new), size(was))
        && new < was
    {
        let detail = "field can not be less than status.capacity";
        let at = Path::new("spec")
            .child("resources")
            .child("requests")
            .child("storage");
        errors.push(Error::forbidden(&at, detail));
    }
    errors
}
