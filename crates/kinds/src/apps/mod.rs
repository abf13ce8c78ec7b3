//! The kinds of the apps group: workloads that make pods.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

use crate::check;
use crate::pod::{validate_template, warn_template};
use crate::tree::{entries, get, int, is_set, list, name, text};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, labels};

/// Wording that differs between workloads' errors.
struct Words {
    /// For an empty selector.
    selector: &'static str,
    /// For an invalid selector.
    unreadable: &'static str,
    /// For the template.
    template: &'static str,
}

/// Validates the selector, and that it matches the template's labels.
fn check_pods(spec: &Value, template: &Value, words: &Words, path: &Path, errors: &mut Errors) {
    let (selector, at) = (&spec["selector"], path.child("selector"));
    if is_set(selector) {
        check::label_selector(selector, &at, errors);
        check_not_empty(selector, words, &at, errors);
    } else {
        errors.push(Error::required(&at, ""));
    }
    match labels::Selector::from_label_selector(Some(selector).filter(|s| is_set(s))) {
        Ok(parsed) => {
            let labels = &template["metadata"]["labels"];
            let empty = is_set(selector) && is_empty(selector);
            if !empty && !parsed.matches_map(labels.as_object()) {
                errors.push(mismatch(labels, path));
            }
            validate_template(template, &path.child("template"), errors);
        }
        Err(_) => errors.push(Error::invalid(&at, selector.clone(), words.unreadable)),
    }
}

fn is_empty(selector: &Value) -> bool {
    list(&selector["matchExpressions"]).is_empty()
        && entries(&selector["matchLabels"]).next().is_none()
}

fn check_not_empty(selector: &Value, words: &Words, path: &Path, errors: &mut Errors) {
    if is_empty(selector) {
        let detail = format!("empty selector is invalid for {}", words.selector);
        errors.push(Error::invalid(path, selector.clone(), detail));
    }
}

fn mismatch(labels: &Value, path: &Path) -> Error {
    let at = path.child("template.metadata.labels");
    let detail = "`selector` does not match template `labels`";
    Error::invalid(&at, labels.clone(), detail)
}

/// Pods of these workloads must have restartPolicy Always.
fn check_endless(template: &Value, words: &Words, path: &Path, errors: &mut Errors) {
    let (pod, at) = (&template["spec"], path.child("template.spec"));
    let policy = text(&pod["restartPolicy"]);
    if policy != "Always" {
        let at = at.child("restartPolicy");
        errors.push(Error::not_supported(&at, policy, &["Always"]));
    }
    if is_set(&pod["activeDeadlineSeconds"]) {
        let detail = format!(
            "activeDeadlineSeconds in {} is not Supported",
            words.template
        );
        errors.push(Error::forbidden(&at.child("activeDeadlineSeconds"), detail));
    }
}

/// Warnings about the name on create, and about the pods.
fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let mut found = match old {
        None => check::warn_host_name(name(object)),
        Some(_) => Vec::new(),
    };
    found.extend(warn_template(object, old));
    found
}

/// An update strategy as Kubernetes prints it in errors.
fn shown_strategy(strategy: &Value) -> Value {
    let rolling = &strategy["rollingUpdate"];
    let count = |name: &str| match &rolling[name] {
        Value::Null => Value::from(0),
        other => other.clone(),
    };
    let rolling = match is_set(rolling) {
        true => json!({"MaxUnavailable": count("maxUnavailable"), "MaxSurge": count("maxSurge")}),
        false => Value::Null,
    };
    json!({"Type": text(&strategy["type"]), "RollingUpdate": rolling})
}

/// The selector is immutable.
fn check_same_selector(object: &Object, old: &Object, errors: &mut Errors) {
    let at = Path::new("spec.selector");
    let selector = |o: &Object| get(o, "spec")["selector"].clone();
    check::immutable(&selector(object), &selector(old), &at, errors);
}

/// Counts in a status: none negative, and none of `parts` greater than the total.
fn check_status(status: &Value, counts: &[&str], parts: &[&str], ready: &str, errors: &mut Errors) {
    let path = Path::new("status");
    for name in counts {
        check::non_negative(&status[*name], &path.child(name), errors);
    }
    for name in parts {
        if int(&status[*name]) > int(&status["replicas"]) {
            let detail = "cannot be greater than status.replicas";
            errors.push(Error::invalid(
                &path.child(name),
                int(&status[*name]),
                detail,
            ));
        }
    }
    let available = int(&status["availableReplicas"]);
    if !parts.is_empty() && available > int(&status["readyReplicas"]) {
        let detail = format!("cannot be greater than {ready}");
        let at = path.child("availableReplicas");
        errors.push(Error::invalid(&at, available, detail));
    }
}

/// collisionCount must not decrease.
fn check_collisions(object: &Object, old: &Object, errors: &mut Errors) {
    let count = |o: &Object| get(o, "status")["collisionCount"].clone();
    let old = count(old);
    if is_set(&old) && int(&count(object)) < int(&old) {
        let at = Path::new("status.collisionCount");
        errors.push(Error::invalid(
            &at,
            int(&count(object)),
            "cannot be decremented",
        ));
    }
}
