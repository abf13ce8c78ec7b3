//! ReplicationController: the older ReplicaSet, with a plain selector.

use crate::Subresource;
use crate::apps::replica_set::{COLUMNS, cells, check_replica_status};
use crate::builtin::{Builtin, SCALE, STATUS};
use crate::check;
use crate::columns::labels;
use crate::pod::{default_template, validate_template};
use crate::tree::{child_or_new, default_empty, default_to, entries, get, int, is_set, text};
use machinery::Object;
use machinery::field::{Error, Errors, Path};

pub const KIND: Builtin = Builtin {
    kind: "ReplicationController",
    plural: "replicationcontrollers",
    short_names: &["rc"],
    categories: &["all"],
    schema: "core/v1.ReplicationController",
    subresources: &[SCALE, STATUS],
    has_status: true,
    has_generation: true,
    default,
    validate_create: validate,
    validate_update: |object, _, subresource: Subresource<'_>| match subresource {
        None => validate(object),
        Some("status") => {
            let mut errors = Vec::new();
            check_replica_status(get(object, "status"), &mut errors);
            errors
        }
        Some(_) => Vec::new(),
    },
    selectable: &["status.replicas"],
    selectable_fields: |o| {
        vec![(
            "status.replicas",
            int(&get(o, "status")["replicas"]).to_string(),
        )]
    },
    warnings: crate::pod::warn_template,
    columns: COLUMNS,
    row: |object, now| cells(object, now, labels(&get(object, "spec")["selector"])),
    ..Builtin::EMPTY
};

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "replicas", 1);
    if is_set(get(spec, "template")) {
        let template = child_or_new(spec, "template");
        default_template(template);
        let labels = get(template, "metadata")["labels"].clone();
        if is_set(&labels) {
            default_empty(spec, "selector", labels.clone());
            default_empty(child_or_new(object, "metadata"), "labels", labels);
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check::non_negative(
        &spec["minReadySeconds"],
        &path.child("minReadySeconds"),
        &mut errors,
    );
    if entries(&spec["selector"]).next().is_none() {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    check::non_negative(&spec["replicas"], &path.child("replicas"), &mut errors);
    let at = path.child("template");
    if !is_set(&spec["template"]) {
        errors.push(Error::required(&at, ""));
        return errors;
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let fits = entries(&spec["selector"]).all(|(k, v)| labels.get(k) == Some(v));
    if !fits {
        let detail = "`selector` does not match template `labels`";
        let at = at.child("metadata").child("labels");
        errors.push(Error::invalid(&at, labels.clone(), detail));
    }
    validate_template(&spec["template"], &at, &mut errors);
    let policy = text(&spec["template"]["spec"]["restartPolicy"]);
    if policy != "Always" {
        let at = at.child("spec").child("restartPolicy");
        errors.push(Error::not_supported(&at, policy, &["Always"]));
    }
    errors
}
