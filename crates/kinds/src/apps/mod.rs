//! The kinds of the apps group: workloads that make pods.

pub mod controller_revision;
pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

use crate::check;
use crate::pod::validate_template;
use crate::tree::{is_set, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};

/// A template whose pods are always restarted, as those of long-running workloads.
fn check_template(spec: &Value, kind: &str, path: &Path, errors: &mut Errors) {
    let at = path.child("template");
    let pod = &spec["template"]["spec"];
    validate_template(&spec["template"], &at, errors);
    if text(&pod["restartPolicy"]) != "Always" {
        let at = at.child("spec").child("restartPolicy");
        errors.push(Error::not_supported(
            &at,
            text(&pod["restartPolicy"]),
            &["Always"],
        ));
    }
    if is_set(&pod["activeDeadlineSeconds"]) {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.push(Error::forbidden(
            &at.child("spec").child("activeDeadlineSeconds"),
            detail,
        ));
    }
}

/// Counts that no workload may have below zero.
fn check_counts(spec: &Value, path: &Path, errors: &mut Errors) {
    for name in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        check::non_negative(&spec[name], &path.child(name), errors);
    }
}
