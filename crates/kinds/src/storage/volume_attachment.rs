//! VolumeAttachment: a volume that should be attached to a node.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, formatted, name_cell};
use crate::core::persistent_volume::check_inline;
use crate::equal::equal;
use crate::internal::internal;
use crate::metadata::Check;
use crate::pod::default_source;
use crate::tree::{child, child_or_new, entries, get, int, is_set, text, truth};
use crate::volume_source::csi_driver_name;
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "VolumeAttachment",
    plural: "volumeattachments",
    returns_deleted: true,
    scope: Scope::Cluster,
    schema: "storage/v1.VolumeAttachment",
    subresources: &[STATUS],
    has_status: true,
    allows_unconditional_update: false,
    default: |object| {
        let source = child_or_new(child_or_new(object, "spec"), "source");
        if let Some(volume) = child(source, "inlineVolumeSpec") {
            default_source(volume);
        }
    },
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| {
        let mut errors = validate(object);
        if subresource.is_none() {
            check_same_spec(object, old, &mut errors);
        }
        errors
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole],
    status_metadata_checks: &[Check::Whole],
    status_resets: &[&["metadata"], &["spec"]],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    formatted(
        "Attacher",
        "string",
        "name",
        "Driver that attaches the volume.",
        0,
    ),
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
    } else if named == "" {
        let at = at.child("persistentVolumeName");
        let detail = "must specify non empty persistentVolumeName";
        errors.push(Error::required(&at, detail));
    } else if is_set(inline) {
        let at = at.child("inlineVolumeSpec");
        check_inline(inline, &at, &mut errors);
    }
    let (node, at) = (text(&spec["nodeName"]), path.child("nodeName"));
    check::form(format::dns1123_subdomain(node), node, &at, &mut errors);
    check_status(get(object, "status"), &mut errors);
    if let Some(name) = named.as_str() {
        let at = path.child("source.persistentVolumeName");
        check::form(format::dns1123_subdomain(name), name, &at, &mut errors);
    }
    errors
}

fn check_status(status: &Value, errors: &mut Errors) {
    const METADATA_MAX: usize = 256 * 1024;
    const MESSAGE_MAX: usize = 1024;
    let path = Path::new("status");
    let sizes = entries(&status["attachmentMetadata"]).map(|(k, v)| k.len() + text(v).len());
    if sizes.sum::<usize>() > METADATA_MAX {
        errors.push(Error::too_long(
            &path.child("attachmentMetadata"),
            METADATA_MAX,
        ));
    }
    for name in ["attachError", "detachError"] {
        let (error, at) = (&status[name], path.child(name));
        if text(&error["message"]).len() > MESSAGE_MAX {
            // Upstream's error names another limit.
            errors.push(Error::too_long(&at.child("message"), METADATA_MAX));
        }
        let code = int(&error["errorCode"]);
        if code < 0 {
            let detail = format::range_message(0, i64::from(i32::MAX));
            errors.push(Error::invalid(&at.child("errorCode"), code, detail));
        }
    }
}

fn check_same_spec(object: &Object, old: &Object, errors: &mut Errors) {
    const SPEC: &str = "storage/v1.VolumeAttachmentSpec";
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    if !equal(SPEC, new, was) {
        let at = Path::new("spec");
        errors.push(Error::invalid(&at, internal(SPEC, new), check::IMMUTABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn an_attachment_is_of_one_volume_for_good() {
        let of = |volume: &str| {
            object(&format!(
                r#"{{"spec": {{"attacher": "a.b", "nodeName": "n", "source": {{"persistentVolumeName": "{volume}"}}}}}}"#
            ))
        };
        let none: [&str; 0] = [];
        assert_eq!(lines(validate(&of("v"))), none);
        let mut errors = Vec::new();
        check_same_spec(&of("w"), &of("v"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "spec: Invalid value: {\"Attacher\":\"a.b\",\"Source\":{\"PersistentVolumeName\":\"w\",\"InlineVolumeSpec\":null},\"NodeName\":\"n\"}: field is immutable"
            ]
        );
    }

    #[test]
    fn a_volume_within_an_attachment_is_defaulted_and_checked_like_any() {
        let mut given = object(
            r#"{"spec": {"attacher": "a.b", "nodeName": "n", "source": {"inlineVolumeSpec": {
                "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"},
                "azureDisk": {"diskName": "a", "diskURI": "a"}}}}}"#,
        );
        (KIND.default)(&mut given);
        let at = "spec.source.inlineVolumeSpec";
        assert_eq!(
            lines(validate(&given)),
            [
                format!(
                    "{at}.azureDisk.diskURI: Unsupported value: \"a\": supported values: \"https://{{account-name}}.blob.core.windows.net/{{container-name}}/{{disk-name}}.vhd\""
                ),
                format!("{at}.csi: Forbidden: may not specify more than 1 volume type"),
            ]
        );
    }
}
