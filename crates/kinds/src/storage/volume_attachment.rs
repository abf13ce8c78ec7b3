//! VolumeAttachment: a volume that should be attached to a node.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, is_set, text, truth};
use crate::volume_source::csi_driver_name;
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

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
    let at = path.child("attacher");
    csi_driver_name(text(&spec["attacher"]), &at, &mut errors);
    let (source, at) = (&spec["source"], path.child("source"));
    let (inline, named) = (&source["inlineVolumeSpec"], &source["persistentVolumeName"]);
    if is_set(inline) == is_set(named) {
        let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        errors.push(if is_set(inline) {
            Error::forbidden(&at, detail)
        } else {
            Error::required(&at, detail)
        });
    } else if let Some(name) = named.as_str() {
        let at = at.child("persistentVolumeName");
        if name.is_empty() {
            let detail = "must specify non empty persistentVolumeName";
            errors.push(Error::required(&at, detail));
        } else {
            check::form(format::dns1123_subdomain(name), name, &at, &mut errors);
        }
    }
    let (node, at) = (text(&spec["nodeName"]), path.child("nodeName"));
    check::form(format::dns1123_subdomain(node), node, &at, &mut errors);
    errors
}
