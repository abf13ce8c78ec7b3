//! ReplicationController: the predecessor of ReplicaSet, with a plain selector.

use crate::apps::replica_set::{COLUMNS, cells, check_replica_status};
use crate::builtin::{Builtin, SCALE, STATUS};
use crate::check;
use crate::columns::labels;
use crate::equal::equal;
use crate::metadata;
use crate::pod::{default_template, validate_template};
use crate::tree::{child_or_new, default_empty, default_to, entries, get, int, is_set, text};
use crate::{Orphans, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, format};

pub const KIND: Builtin = Builtin {
    kind: "ReplicationController",
    plural: "replicationcontrollers",
    pod_spec: "spec.template.spec",
    server_side: ServerSide {
        orphans: Orphans::All,
        upstream_key: "controllers",
        ..ServerSide::NONE
    },
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
    validate_name,
    warnings,
    status_warnings: Some(|_| Vec::new()),
    columns: COLUMNS,
    row: |object, now| cells(object, now, labels(&get(object, "spec")["selector"])),
    ..Builtin::EMPTY
};

/// A generateName may be anything valid in a path.
fn validate_name(name: &str, prefix: bool) -> Vec<String> {
    if prefix {
        format::path_segment_prefix(name)
    } else {
        metadata::subdomain(name, prefix)
    }
}

/// On update, upstream warns about the previous template.
fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    match old {
        None => {
            let mut out = check::warn_host_name(crate::tree::name(object));
            out.append(&mut crate::pod::warn_template(object, None));
            out
        }
        Some(old) if equal(SPEC, get(object, "spec"), get(old, "spec")) => Vec::new(),
        Some(old) => crate::pod::warn_template(old, None),
    }
}

const SPEC: &str = "core/v1.ReplicationControllerSpec";

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
        let at = at.child("metadata.labels");
        errors.push(Error::invalid(&at, labels.clone(), detail));
    }
    validate_template(&spec["template"], &at, &mut errors);
    let policy = text(&spec["template"]["spec"]["restartPolicy"]);
    if policy != "Always" {
        let at = at.child("spec.restartPolicy");
        errors.push(Error::not_supported(&at, policy, &["Always"]));
    }
    if is_set(&spec["template"]["spec"]["activeDeadlineSeconds"]) {
        let at = at.child("spec.activeDeadlineSeconds");
        let detail = "activeDeadlineSeconds in ReplicationController is not Supported";
        errors.push(Error::forbidden(&at, detail));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn controller(template: &str) -> Object {
        let mut object = object(&format!(
            r#"{{"metadata": {{"name": "r"}}, "spec": {{"selector": {{"a": "b"}}, "template": {{
                "metadata": {{"labels": {{"a": "b"}}}},
                "spec": {{"containers": [{{"name": "c", "image": "i"}}], {template}}}}}}}}}"#
        ));
        default(&mut object);
        object
    }

    #[test]
    fn pods_of_a_controller_run_for_good() {
        let reported = |template: &str| lines(validate(&controller(template)));
        assert_eq!(reported(r#""restartPolicy": "Always""#), [""; 0]);
        assert_eq!(
            reported(r#""restartPolicy": "Never", "activeDeadlineSeconds": 1"#),
            [
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicationController is not Supported",
            ]
        );
    }

    #[test]
    fn an_update_is_warned_about_fields_of_the_old_object() {
        let odd = controller(r#""volumes": [{"name": "v", "rbd": {}}]"#);
        let plain = controller(r#""hostNetwork": false"#);
        assert_eq!(warnings(&plain, Some(&odd)).len(), 1);
        assert!(warnings(&odd, Some(&plain)).is_empty());
        assert!(warnings(&odd, Some(&odd)).is_empty());
        assert_eq!(warnings(&odd, None).len(), 1);
    }
}
