//! VolumeAttachment: a volume that should be attached to a node.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, is_set, text, truth};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "VolumeAttachment",
    plural: "volumeattachments",
    scope: Scope::Cluster,
    schema: "storage/v1.VolumeAttachment",
    subresources: &[STATUS],
    has_status: true,
    unconditional_update: false,
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| {
        let mut errors = Vec::new();
        if subresource.is_none() {
            let (new, was) = (get(object, "spec"), get(old, "spec"));
            check::immutable(new, was, &Path::new("spec"), &mut errors);
        }
        errors
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    Column {
        format: "name",
        ..column("Attacher", "string", "Who attaches it.")
    },
    column("PV", "string", "The volume."),
    column("Node", "string", "The node."),
    column("Attached", "boolean", "Whether it is attached."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    vec![
        name_cell(object),
        text(&spec["attacher"]).into(),
        text(&spec["source"]["persistentVolumeName"]).into(),
        text(&spec["nodeName"]).into(),
        truth(&status["attached"]).into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check::required(&spec["attacher"], &path.child("attacher"), &mut errors);
    check::required(&spec["nodeName"], &path.child("nodeName"), &mut errors);
    let (inline, named) = (
        &spec["source"]["inlineVolumeSpec"],
        &spec["source"]["persistentVolumeName"],
    );
    let at = path.child("source");
    if is_set(inline) == is_set(named) {
        let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        errors.push(Error::required(&at, detail));
    }
    errors
}
