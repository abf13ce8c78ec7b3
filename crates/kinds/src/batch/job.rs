//! Job: pods that run until enough of them succeeded.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, containers, name_cell, selector, wide};
use crate::pod::{default_template, validate_template};
use crate::tree::{
    child_or_new, default_empty, default_to, each, get, int, is_set, list, name, same, text, truth,
};
use crate::{Column, Context, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, time};
use serde_json::json;

pub const KIND: Builtin = Builtin {
    group: "batch",
    kind: "Job",
    plural: "jobs",
    categories: &["all"],
    schema: "batch/v1.Job",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    prepare_create,
    validate_create: validate,
    validate_update,
    selectable: &["status.successful"],
    selectable_fields: |o| {
        vec![(
            "status.successful",
            int(&get(o, "status")["succeeded"]).to_string(),
        )]
    },
    warnings: crate::pod::warn_template,
    columns: COLUMNS,
    row,
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
    let labels = get(spec, "template")["metadata"]["labels"].clone();
    if is_set(&labels) {
        default_empty(child_or_new(object, "metadata"), "labels", labels);
    }
}

/// Defaults of a job that exists; a CronJob's template gets only those of its pods.
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
    if let Some(policy) = crate::tree::child(spec, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            for pattern in each(rule, "onPodConditions") {
                default_empty(pattern, "status", "True");
            }
        }
    }
}

/// Labels that only this job's pods have, unless the selector is the client's own.
fn prepare_create(object: &mut Object, _: &Context<'_>) {
    let uid = text(&get(object, "metadata")["uid"]).to_owned();
    let own = name(object).to_owned();
    let spec = child_or_new(object, "spec");
    if truth(get(spec, "manualSelector")) || uid.is_empty() {
        return;
    }
    let labels = child_or_new(
        child_or_new(child_or_new(spec, "template"), "metadata"),
        "labels",
    );
    for (key, value) in [
        ("controller-uid", &uid),
        ("job-name", &own),
        ("batch.kubernetes.io/controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &own),
    ] {
        labels.insert(key.to_owned(), Value::from(value.as_str()));
    }
    let selector = child_or_new(spec, "selector");
    let exact = child_or_new(selector, "matchLabels");
    exact.insert("batch.kubernetes.io/controller-uid".to_owned(), json!(uid));
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = get(object, "spec");
    if !is_set(&spec["selector"]) {
        errors.push(Error::required(&path.child("selector"), ""));
    } else {
        check::label_selector(&spec["selector"], &path.child("selector"), &mut errors);
    }
    check_spec(spec, &path, &mut errors);
    errors
}

/// What holds for a job and for a CronJob's template.
pub(super) fn check_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        check::non_negative(&spec[name], &path.child(name), errors);
    }
    if is_set(&spec["completionMode"]) {
        let at = path.child("completionMode");
        check::one_of(
            &spec["completionMode"],
            &["Indexed", "NonIndexed"],
            &at,
            errors,
        );
        if spec["completionMode"] == "Indexed" && !is_set(&spec["completions"]) {
            let detail = "when completion mode is Indexed";
            errors.push(Error::required(&path.child("completions"), detail));
        }
    }
    if is_set(&spec["podReplacementPolicy"]) {
        let at = path.child("podReplacementPolicy");
        let policies = ["Failed", "TerminatingOrFailed"];
        check::one_of(&spec["podReplacementPolicy"], &policies, &at, errors);
    }
    let at = path.child("template");
    validate_template(&spec["template"], &at, errors);
    let policy = text(&spec["template"]["spec"]["restartPolicy"]);
    let at = at.child("spec").child("restartPolicy");
    if policy == "Always" || policy.is_empty() {
        let detail = "valid values: \"OnFailure\", \"Never\"";
        errors.push(Error::required(&at, detail));
    } else if !matches!(policy, "OnFailure" | "Never") {
        errors.push(Error::not_supported(&at, policy, &["OnFailure", "Never"]));
    } else if is_set(&spec["podFailurePolicy"]) && policy != "Never" {
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(Error::invalid(&at, policy, detail));
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    if subresource.is_some() {
        return Vec::new();
    }
    let mut errors = validate(object);
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    let path = Path::new("spec");
    let indexed = was["completionMode"] == "Indexed";
    if !(indexed && new["completions"] == new["parallelism"]) {
        let at = path.child("completions");
        check::immutable(&new["completions"], &was["completions"], &at, &mut errors);
    }
    for name in [
        "selector",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
    ] {
        check::immutable(&new[name], &was[name], &path.child(name), &mut errors);
    }
    // A suspended job that never started may still move its pods elsewhere.
    let movable = truth(&was["suspend"]) && !is_set(&get(old, "status")["startTime"]);
    if !movable && !same(&new["template"], &was["template"]) {
        let at = path.child("template");
        errors.push(Error::invalid(
            &at,
            new["template"].clone(),
            check::IMMUTABLE,
        ));
    }
    errors
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
            r#"{"spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#,
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
