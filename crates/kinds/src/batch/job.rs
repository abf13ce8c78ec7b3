//! Job: runs pods until enough of them succeeded.

use super::job_spec::{check_spec_update, check_whole_spec, warn_spec};
use super::job_status::check_status;
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, name_cell, selector, wide};
use crate::metadata::Check;
use crate::pod::{default_template, same_generation};
use crate::tree::{
    child, child_or_new, default_empty, default_to, each, get, int, is_empty, is_set, list, name,
    text, truth,
};
use crate::{Column, Context, Orphans, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::labels::Selector;
use machinery::{Object, Value, format, time};

const ORPHAN_WARNING: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

pub const KIND: Builtin = Builtin {
    group: "batch",
    kind: "Job",
    plural: "jobs",
    server_side: ServerSide {
        orphans: Orphans::AllWithWarning(ORPHAN_WARNING),
        ..ServerSide::NONE
    },
    pod_spec: "spec.template.spec",
    categories: &["all"],
    schema: "batch/v1.Job",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    prepare_create,
    changes_managers: true,
    validate_create: validate,
    validate_update,
    selectable: &["status.successful"],
    selectable_fields: |o| {
        vec![(
            "status.successful",
            int(&get(o, "status")["succeeded"]).to_string(),
        )]
    },
    warnings,
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "string", "How the job is doing."),
    column(
        "Completions",
        "string",
        "Pods that succeeded, of those needed.",
    ),
    column(
        "Duration",
        "string",
        "How long it took or has been running.",
    ),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
    wide("Selector", "string", "Labels of the pods."),
];

fn state(object: &Object) -> &'static str {
    let status = get(object, "status");
    let has = |kind: &str| {
        list(&status["conditions"])
            .iter()
            .any(|c| c["type"] == kind && c["status"] == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if is_set(&get(object, "metadata")["deletionTimestamp"]) {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let succeeded = int(&status["succeeded"]);
    let completions = match (spec["completions"].as_i64(), int(&spec["parallelism"])) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let seconds = |v: &Value| {
        v.as_str()
            .and_then(|t| time::parse(t).ok())
            .map(|m| m.seconds)
    };
    let duration = seconds(&status["startTime"])
        .map(|start| seconds(&status["completionTime"]).unwrap_or(now) - start)
        .map_or(String::new(), time::human_duration);
    let (names, images) = containers(&spec["template"]["spec"]);
    vec![
        name_cell(object),
        state(object).into(),
        Value::from(completions),
        Value::from(duration),
        age(object, now),
        Value::from(names),
        Value::from(images),
        Value::from(selector(&spec["selector"])),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_job_spec(spec);
    let mut labels = get(spec, "template")["metadata"]["labels"].clone();
    let manual = truth(get(spec, "manualSelector"));
    let metadata = child_or_new(object, "metadata");
    if let Value::Object(map) = &mut labels
        && !map.is_empty()
        && is_empty(get(metadata, "labels"))
    {
        // The job takes its pods' labels, including those generated on create.
        if !manual {
            for (key, _) in own_labels(&Object::new()) {
                map.entry(key).or_insert("".into());
            }
        }
        metadata.insert("labels".to_owned(), labels);
    }
}

/// Defaults of a Job; a CronJob's template gets only those of its pods.
fn default_job_spec(spec: &mut Object) {
    if !is_set(get(spec, "completions")) && !is_set(get(spec, "parallelism")) {
        default_to(spec, "completions", 1);
    }
    default_to(spec, "parallelism", 1);
    let limit = if is_set(get(spec, "backoffLimitPerIndex")) {
        i32::MAX
    } else {
        6
    };
    default_to(spec, "backoffLimit", limit);
    default_to(spec, "completionMode", "NonIndexed");
    default_to(spec, "suspend", false);
    let replacement = if is_set(get(spec, "podFailurePolicy")) {
        "Failed"
    } else {
        "TerminatingOrFailed"
    };
    default_to(spec, "podReplacementPolicy", replacement);
    default_to(spec, "manualSelector", false);
    default_pods(spec);
}

pub(super) fn default_pods(spec: &mut Object) {
    default_template(child_or_new(spec, "template"));
    if let Some(policy) = child(spec, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            for pattern in each(rule, "onPodConditions") {
                default_empty(pattern, "status", "True");
            }
        }
    }
}

const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";

/// The generated labels of this job's pods, with their values.
fn own_labels(object: &Object) -> [(&'static str, String); 4] {
    let uid = text(&get(object, "metadata")["uid"]);
    [
        ("job-name", name(object).to_owned()),
        ("batch.kubernetes.io/job-name", name(object).to_owned()),
        ("controller-uid", uid.to_owned()),
        (CONTROLLER_UID, uid.to_owned()),
    ]
}

/// Generates unique pod labels, unless the client manages the selector.
fn prepare_create(object: &mut Object, _: &Context<'_>) {
    if truth(&get(object, "spec")["manualSelector"]) {
        return;
    }
    let labels = own_labels(object);
    let uid = labels[3].1.clone();
    let mut filled = Vec::new();
    let own = child_or_new(child_or_new(object, "metadata"), "labels");
    for (key, value) in &labels {
        // Left empty by defaulting.
        if own.get(key).is_some_and(|v| text(v).is_empty()) {
            own.insert((*key).to_owned(), value.as_str().into());
            filled.push(format!("f:{key}"));
        }
    }
    if own.is_empty() {
        child_or_new(object, "metadata").shift_remove("labels");
    }
    disown(object, &filled);
    let spec = child_or_new(object, "spec");
    let template = child_or_new(spec, "template");
    let pods = child_or_new(child_or_new(template, "metadata"), "labels");
    for (key, value) in labels {
        pods.entry(key).or_insert(value.into());
    }
    let shared = Value::Object(pods.clone());
    let exact = child_or_new(child_or_new(spec, "selector"), "matchLabels");
    exact.entry(CONTROLLER_UID).or_insert(uid.into());
    // A job without labels shows those of its pods.
    default_empty(child_or_new(object, "metadata"), "labels", shared);
}

/// Removes generated labels from managedFields: no client set them.
fn disown(object: &mut Object, labels: &[String]) {
    for manager in each(child_or_new(object, "metadata"), "managedFields") {
        let managed = child(manager, "fieldsV1")
            .and_then(|fields| child(fields, "f:metadata"))
            .and_then(|metadata| child(metadata, "f:labels"));
        if let Some(managed) = managed {
            managed.retain(|name, _| !labels.iter().any(|label| name == label));
        }
    }
}

fn validate(object: &Object) -> Errors {
    validate_with(object, true)
}

/// `prefixed`: labels with a domain are validated too.
fn validate_with(object: &Object, prefixed: bool) -> Errors {
    let mut errors = Vec::new();
    check_generated(object, prefixed, &mut errors);
    let spec = get(object, "spec");
    check_whole_spec(spec, &Path::new("spec"), &mut errors);
    let completions = int(&spec["completions"]);
    if spec["completionMode"] == "Indexed" && completions > 0 {
        let host = format!("{}-{}", name(object), completions - 1);
        if !format::dns1123_label(&host).is_empty() {
            let at = Path::new("metadata.name");
            let detail = format!("will not able to create pod with invalid DNS label: {host}");
            errors.push(Error::invalid(&at, name(object), detail));
        }
    }
    errors
}

/// The labels and the selector must be those generated for this job.
fn check_generated(object: &Object, prefixed: bool, errors: &mut Errors) {
    let spec = get(object, "spec");
    if truth(&spec["manualSelector"]) || !is_set(&spec["selector"]) {
        return;
    }
    if text(&get(object, "metadata")["uid"]).is_empty() {
        errors.push(Error::required(&Path::new("metadata").child("uid"), ""));
    }
    let labels = &spec["template"]["metadata"]["labels"];
    let at = Path::new("spec.template.metadata.labels");
    let mut expected = own_labels(object);
    expected.reverse();
    let mut known = Object::new();
    for key in [
        "controller-uid",
        "job-name",
        CONTROLLER_UID,
        "batch.kubernetes.io/job-name",
    ] {
        let Some((_, value)) = expected.iter().find(|(k, _)| *k == key) else {
            continue;
        };
        if key.contains('/') && !prefixed {
            continue;
        }
        let detail = format!("must be '{value}'");
        match labels.get(key) {
            None => errors.push(Error::required(&at.key(key), detail)),
            Some(label) if text(label) != value => {
                errors.push(Error::invalid(&at.key(key), labels.clone(), detail));
            }
            Some(_) => {}
        }
        known.insert(key.to_owned(), value.as_str().into());
    }
    let selector = Selector::from_label_selector(Some(&spec["selector"]));
    if selector.is_ok_and(|s| !s.matches_map(Some(&known))) {
        let at = Path::new("spec.selector");
        let detail = "`selector` not auto-generated";
        errors.push(Error::invalid(&at, spec["selector"].clone(), detail));
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    if subresource == Some("status") {
        return check_status(object, old);
    }
    let labels = &get(old, "spec")["template"]["metadata"]["labels"];
    let had = |key: &str| is_set(&labels[key]);
    let mut errors = validate_with(
        object,
        had("batch.kubernetes.io/job-name") && had(CONTROLLER_UID),
    );
    check_spec_update(object, old, &mut errors);
    errors
}

fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    match old {
        None => {
            let mut found = check::warn_host_name(name(object));
            found.extend(warn_spec(spec, &path));
            found
        }
        Some(old) if same_generation(object, old) => Vec::new(),
        Some(_) => warn_spec(spec, &path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_job_selects_its_own_pods() {
        let mut job = object(
            r#"{"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}"#,
        );
        default(&mut job);
        prepare_create(&mut job, &Context { now: "", user: "" });
        let spec = get(&job, "spec");
        assert_eq!(spec["completions"], 1);
        assert_eq!(spec["template"]["metadata"]["labels"]["job-name"], "j");
        assert_eq!(lines(validate(&job)), Vec::<String>::new());
    }

    #[test]
    fn pods_of_a_job_are_not_always_restarted() {
        let mut job = object(
            r#"{"spec": {"manualSelector": true, "selector": {}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#,
        );
        default(&mut job);
        assert_eq!(
            lines(validate(&job)),
            [
                "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
            ]
        );
    }
}
