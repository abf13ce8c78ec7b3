//! StatefulSet: pods with names, order and volumes of their own.

use super::{check_counts, check_template};
use crate::builtin::{Builtin, SCALE, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, name_cell, wide};
use crate::pod::default_template;
use crate::tree::{
    child, child_or_new, default_empty, default_to, each, get, int, is_set, list, same, text,
};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};
use serde_json::json;

pub const KIND: Builtin = Builtin {
    group: "apps",
    kind: "StatefulSet",
    plural: "statefulsets",
    short_names: &["sts"],
    categories: &["all"],
    schema: "apps/v1.StatefulSet",
    subresources: &[SCALE, STATUS],
    name_format: crate::metadata::label,
    has_status: true,
    has_generation: true,
    default,
    validate_create: validate,
    validate_update,
    warnings: crate::pod::warn_template,
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", "string", "Pods that are ready, of those wanted."),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let (names, images) = containers(&spec["template"]["spec"]);
    let ready = format!(
        "{}/{}",
        int(&status["readyReplicas"]),
        int(&spec["replicas"])
    );
    vec![
        name_cell(object),
        ready.into(),
        age(object, now),
        names.into(),
        images.into(),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_empty(spec, "podManagementPolicy", "OrderedReady");
    default_template(child_or_new(spec, "template"));
    let strategy = child_or_new(spec, "updateStrategy");
    default_empty(strategy, "type", "RollingUpdate");
    if get(strategy, "type") == "RollingUpdate" {
        default_to(child_or_new(strategy, "rollingUpdate"), "partition", 0);
    }
    let retention = child_or_new(spec, "persistentVolumeClaimRetentionPolicy");
    default_empty(retention, "whenDeleted", "Retain");
    default_empty(retention, "whenScaled", "Retain");
    default_to(spec, "replicas", 1);
    default_to(spec, "revisionHistoryLimit", 10);
    for claim in each(spec, "volumeClaimTemplates") {
        default_empty(claim, "apiVersion", "v1");
        default_empty(claim, "kind", "PersistentVolumeClaim");
        if let Some(spec) = child(claim, "spec") {
            default_to(spec, "volumeMode", "Filesystem");
        }
        default_empty(child_or_new(claim, "status"), "phase", "Pending");
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let policies = ["OrderedReady", "Parallel"];
    let policy = &spec["podManagementPolicy"];
    check::one_of(
        policy,
        &policies,
        &path.child("podManagementPolicy"),
        &mut errors,
    );
    let strategy = &spec["updateStrategy"];
    let at = path.child("updateStrategy");
    match text(&strategy["type"]) {
        "OnDelete" => {
            if is_set(&strategy["rollingUpdate"]) {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                let at = at.child("rollingUpdate");
                errors.push(Error::invalid(
                    &at,
                    strategy["rollingUpdate"].clone(),
                    detail,
                ));
            }
        }
        "RollingUpdate" => {
            let at = at.child("rollingUpdate").child("partition");
            check::non_negative(&strategy["rollingUpdate"]["partition"], &at, &mut errors);
        }
        other => errors.push(Error::invalid(
            &at,
            other,
            "must be 'RollingUpdate' or 'OnDelete'",
        )),
    }
    for name in ["whenDeleted", "whenScaled"] {
        let retention = &spec["persistentVolumeClaimRetentionPolicy"];
        let at = path
            .child("persistentVolumeClaimRetentionPolicy")
            .child(name);
        check::one_of(&retention[name], &["Delete", "Retain"], &at, &mut errors);
    }
    check_counts(spec, &path, &mut errors);
    let start = path.child("ordinals").child("start");
    check::non_negative(&spec["ordinals"]["start"], &start, &mut errors);
    check::workload_selector(spec, "statefulset", &path, &mut errors);
    // Each pod gets a volume for every claim, under the claim's name.
    let mut whole = spec.clone();
    for claim in list(&spec["volumeClaimTemplates"]) {
        let name = claim["metadata"]["name"].clone();
        let volume = json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        match &mut whole["template"]["spec"]["volumes"] {
            Value::Array(volumes) => {
                volumes.retain(|v| v["name"] != name);
                volumes.push(volume);
            }
            other => *other = json!([volume]),
        }
    }
    check_template(&whole, "StatefulSet", &path, &mut errors);
    errors
}

const MUTABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    if subresource.is_some() {
        return errors;
    }
    errors.extend(validate(object));
    let strip = |o: &Object| {
        let mut spec = get(o, "spec").clone();
        if let Value::Object(map) = &mut spec {
            map.retain(|key, _| !MUTABLE.contains(&key.as_str()));
        }
        spec
    };
    if !same(&strip(object), &strip(old)) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(Error::forbidden(&Path::new("spec"), detail));
    }
    errors
}
