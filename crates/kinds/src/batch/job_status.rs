//! The status of a Job: valid values, and values that are final.

use super::indexes;
use super::job_spec::without_value;
use crate::check;
use crate::tree::{get, int, is_empty, is_set, list, same, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, time};
use std::collections::BTreeSet;

fn has(status: &Value, kind: &str, state: &str) -> bool {
    list(&status["conditions"])
        .iter()
        .any(|c| c["type"] == kind && c["status"] == state)
}

/// The relevant conditions.
struct JobState {
    complete: bool,
    failed: bool,
    failing: bool,
    succeeding: bool,
}

impl JobState {
    fn from_status(status: &Value) -> Self {
        let is = |kind| has(status, kind, "True");
        Self {
            complete: is("Complete"),
            failed: is("Failed"),
            failing: is("FailureTarget"),
            succeeding: is("SuccessCriteriaMet"),
        }
    }

    fn finished(&self) -> bool {
        self.complete || self.failed
    }
}

/// The old and the new state of an update.
struct StatusChange<'a> {
    spec: &'a Value,
    new: &'a Value,
    old: &'a Value,
    now: JobState,
    then: JobState,
}

impl StatusChange<'_> {
    fn changed(&self, name: &str) -> bool {
        !same(&self.new[name], &self.old[name])
    }
    fn finish_changed(&self) -> bool {
        self.now.finished() != self.then.finished()
    }
    fn complete_changed(&self) -> bool {
        self.now.complete != self.then.complete
    }
}

/// Validates a status against the previous one. Unchanged invalid values are kept.
pub(super) fn check_status(object: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let (new, was) = (get(object, "status"), get(old, "status"));
    let change = StatusChange {
        spec: get(object, "spec"),
        new,
        old: was,
        now: JobState::from_status(new),
        then: JobState::from_status(was),
    };
    let path = Path::new("status");
    for name in ["active", "succeeded", "failed", "ready", "terminating"] {
        check::non_negative(&new[name], &path.child(name), &mut errors);
    }
    check_uncounted(new, &path.child("uncountedTerminatedPods"), &mut errors);
    check_end(&change, &path, &mut errors);
    check_indexes(&change, &path, &mut errors);
    check_counts(&change, &path, &mut errors);
    check_success(&change, &path.child("conditions"), &mut errors);
    check_kept(&change, &path, &mut errors);
    errors
}

fn check_uncounted(status: &Value, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for name in ["succeeded", "failed"] {
        for (i, uid) in list(&status["uncountedTerminatedPods"][name])
            .iter()
            .enumerate()
        {
            let at = path.child(name);
            let at = at.index(i);
            if text(uid).is_empty() {
                errors.push(Error::invalid(&at, "", "must not be empty"));
            } else if !seen.insert(text(uid)) {
                errors.push(Error::duplicate(&at, text(uid)));
            }
        }
    }
}

fn instant(value: &Value) -> Option<i64> {
    time::parse(text(value)).ok().map(|t| t.seconds)
}

/// Validates conditions and times of a finished job.
fn check_end(change: &StatusChange<'_>, path: &Path, errors: &mut Errors) {
    let (status, now, then) = (change.new, &change.now, &change.then);
    let conditions = path.child("conditions");
    let complete_changed = change.complete_changed();
    let failed_changed = now.failed != then.failed;
    if (complete_changed || failed_changed) && now.complete && now.failed {
        let detail = "cannot set Complete=True and Failed=true conditions";
        errors.push(without_value(&conditions, detail));
    }
    if (complete_changed || now.failing != then.failing) && now.complete && now.failing {
        let detail = "cannot set Complete=True and FailureTarget=true conditions";
        errors.push(without_value(&conditions, detail));
    }
    let (start, end) = (&status["startTime"], &status["completionTime"]);
    let at = path.child("completionTime");
    let end_changed = change.changed("completionTime");
    if complete_changed || end_changed {
        if is_set(end) && !now.complete {
            let detail = "cannot set completionTime when there is no Complete=True condition";
            errors.push(Error::invalid(&at, end.clone(), detail));
        }
        if !is_set(end) && now.complete {
            let detail = "completionTime is required for Complete jobs";
            errors.push(Error::required(&at, detail));
        }
    }
    let before = instant(end).zip(instant(start)).is_some_and(|(e, s)| e < s);
    if (change.changed("startTime") || end_changed) && before {
        let detail = "must be equal to or after `startTime`";
        errors.push(Error::invalid(&at, end.clone(), detail));
    }
    if (failed_changed || change.changed("failedIndexes")) && now.failed && !now.failing {
        let detail = "cannot set Failed=True condition without the FailureTarget=true condition";
        errors.push(without_value(&conditions, detail));
    }
    if (complete_changed || now.succeeding != then.succeeding) && now.complete && !now.succeeding {
        let detail =
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        errors.push(without_value(&conditions, detail));
    }
    check_nothing_left(change, path, errors);
}

/// A finished job has a start time and no active pods.
fn check_nothing_left(change: &StatusChange<'_>, path: &Path, errors: &mut Errors) {
    let (status, finished) = (change.new, change.now.finished());
    if !finished {
        return;
    }
    let over = change.finish_changed();
    if (over || change.changed("active")) && int(&status["active"]) > 0 {
        let detail = "active>0 is invalid for finished job";
        errors.push(Error::invalid(
            &path.child("active"),
            int(&status["active"]),
            detail,
        ));
    }
    let never_ran = change.spec["suspend"] == true && change.spec["completions"] == 0;
    if (over || change.changed("startTime")) && !never_ran && !is_set(&status["startTime"]) {
        let detail = "startTime is required for finished job";
        errors.push(Error::required(&path.child("startTime"), detail));
    }
    let uncounted = &status["uncountedTerminatedPods"];
    if (over || change.changed("uncountedTerminatedPods")) && !is_empty(uncounted) {
        let shown = machinery::json::json!({"Succeeded": uncounted["succeeded"], "Failed": uncounted["failed"]});
        let at = path.child("uncountedTerminatedPods");
        errors.push(Error::invalid(&at, shown, "must be empty for finished job"));
    }
}

fn check_indexes(change: &StatusChange<'_>, path: &Path, errors: &mut Errors) {
    let (spec, status) = (change.spec, change.new);
    let completions = spec["completions"].as_i64();
    let completed = text(&status["completedIndexes"]);
    let (failed, per_index) = (
        &status["failedIndexes"],
        is_set(&spec["backoffLimitPerIndex"]),
    );
    let completed_changed = text(&change.old["completedIndexes"]) != completed;
    let failed_changed = *failed != change.old["failedIndexes"];
    let parsed = |value: &str| completions.map(|n| indexes::count(value, n));
    let at = path.child("completedIndexes");
    if completed_changed && let Some(Err(why)) = parsed(completed) {
        let detail = format!("error parsing completedIndexes: {why}");
        errors.push(Error::invalid(&at, completed, detail));
    }
    let failed_at = path.child("failedIndexes");
    if failed_changed
        && per_index
        && is_set(failed)
        && let Some(Err(why)) = parsed(text(failed))
    {
        let detail = format!("error parsing failedIndexes: {why}");
        errors.push(Error::invalid(&failed_at, text(failed), detail));
    }
    if completed_changed && !completed.is_empty() && spec["completionMode"] != "Indexed" {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(Error::invalid(&at, completed, detail));
    }
    if failed_changed && !per_index && is_set(failed) {
        let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.push(Error::invalid(&failed_at, text(failed), detail));
    }
    if (failed_changed || completed_changed) && is_set(failed) {
        let both = completions.and_then(|n| indexes::overlap(completed, text(failed), n));
        if let Some(index) = both {
            let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
            errors.push(Error::invalid(&failed_at, text(failed), detail));
        }
    }
}

fn check_counts(change: &StatusChange<'_>, path: &Path, errors: &mut Errors) {
    let status = change.new;
    let (terminating, ready) = (int(&status["terminating"]), int(&status["ready"]));
    let changed = change.finish_changed() || change.changed("terminating");
    if changed && terminating > 0 && change.now.finished() {
        let detail = "terminating>0 is invalid for finished job";
        errors.push(Error::invalid(
            &path.child("terminating"),
            terminating,
            detail,
        ));
    }
    let changed = change.changed("ready") || int(&status["active"]) != int(&change.old["active"]);
    if changed && is_set(&status["ready"]) && ready > int(&status["active"]) {
        let detail = "cannot set more ready pods than active";
        errors.push(Error::invalid(&path.child("ready"), ready, detail));
    }
}

fn check_success(change: &StatusChange<'_>, path: &Path, errors: &mut Errors) {
    let now = &change.now;
    if now.succeeding && now.failed {
        let detail = "cannot set SuccessCriteriaMet=True and Failed=true conditions";
        errors.push(without_value(path, detail));
    }
    if now.succeeding && now.failing {
        let detail = "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions";
        errors.push(without_value(path, detail));
    }
    if is_set(&change.spec["successPolicy"]) && !now.succeeding && now.complete {
        let detail =
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        errors.push(without_value(path, detail));
    }
}

/// Fields that must not be cleared or decreased.
fn check_kept(change: &StatusChange<'_>, path: &Path, errors: &mut Errors) {
    let (spec, status, was) = (change.spec, change.new, change.old);
    let conditions = path.child("conditions");
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if has(was, kind, "True") && !has(status, kind, "True") {
            let detail = format!("cannot disable the terminal {kind}=True condition");
            errors.push(without_value(&conditions, detail));
        }
    }
    // An elastic indexed job that is scaled down may lose successes.
    let scalable =
        spec["completionMode"] == "Indexed" && spec["completions"] == spec["parallelism"];
    for (name, kept) in [("failed", true), ("succeeded", !scalable)] {
        if kept && int(&status[name]) < int(&was[name]) {
            let detail = format!("cannot decrease the {name} counter");
            errors.push(Error::invalid(
                &path.child(name),
                int(&status[name]),
                detail,
            ));
        }
    }
    let end = &status["completionTime"];
    if is_set(end) && is_set(&was["completionTime"]) && *end != was["completionTime"] {
        let at = path.child("completionTime");
        errors.push(Error::invalid(&at, end.clone(), check::IMMUTABLE));
    }
    let resuming = has(was, "Suspended", "True") && has(status, "Suspended", "False");
    let start = &status["startTime"];
    if !resuming
        && is_set(&was["startTime"])
        && *start != was["startTime"]
        && !truth(&spec["suspend"])
    {
        let detail = "field is immutable for unsuspended job once set";
        errors.push(Error::invalid(
            &path.child("startTime"),
            start.clone(),
            detail,
        ));
    }
    if change.then.succeeding && !change.now.succeeding {
        let detail = "cannot disable the SuccessCriteriaMet=True condition";
        errors.push(without_value(&conditions, detail));
    }
    if change.then.complete && !change.then.succeeding && change.now.succeeding {
        let detail =
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(without_value(&conditions, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn errors_of(spec: Value, old: Value, new: Value) -> Vec<String> {
        let job = |status: Value| {
            let mut job = object("{}");
            job.insert("spec".to_owned(), spec.clone());
            job.insert("status".to_owned(), status);
            job
        };
        lines(check_status(&job(new), &job(old)))
    }

    #[test]
    fn a_job_ends_in_order() {
        let is = |kind: &str| json!({"type": kind, "status": "True"});
        let start = "2020-01-01T00:00:00Z";
        let cases = [
            (
                json!({"startTime": start}),
                json!({"startTime": start, "completionTime": start, "conditions": [is("SuccessCriteriaMet"), is("Complete")]}),
                vec![],
            ),
            (
                json!({"startTime": start}),
                json!({"startTime": start, "completionTime": start, "conditions": [is("Complete")]}),
                vec![
                    "status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
                ],
            ),
            (
                json!({}),
                json!({"conditions": [is("FailureTarget"), is("Failed")], "active": 1}),
                vec![
                    "status.active: Invalid value: 1: active>0 is invalid for finished job",
                    "status.startTime: Required value: startTime is required for finished job",
                ],
            ),
            (
                json!({"failed": 2, "succeeded": 2}),
                json!({"failed": 1, "succeeded": 1}),
                vec![
                    "status.failed: Invalid value: 1: cannot decrease the failed counter",
                    "status.succeeded: Invalid value: 1: cannot decrease the succeeded counter",
                ],
            ),
            (
                json!({"startTime": start, "conditions": [is("Failed"), is("FailureTarget")]}),
                json!({"startTime": start, "conditions": [is("FailureTarget")]}),
                vec![
                    "status.conditions: Invalid value: cannot disable the terminal Failed=True condition",
                ],
            ),
            (
                json!({}),
                json!({"ready": 1, "uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["a"]}}),
                vec![
                    "status.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"",
                    "status.ready: Invalid value: 1: cannot set more ready pods than active",
                ],
            ),
        ];
        for (old, new, expected) in cases {
            assert_eq!(errors_of(json!({}), old, new), expected);
        }
    }

    #[test]
    fn indexes_belong_to_indexed_jobs() {
        let indexed =
            json!({"completionMode": "Indexed", "completions": 3, "backoffLimitPerIndex": 1});
        assert_eq!(
            errors_of(
                indexed.clone(),
                json!({}),
                json!({"completedIndexes": "0-1", "failedIndexes": "1"})
            ),
            [
                "status.failedIndexes: Invalid value: \"1\": failedIndexes and completedIndexes overlap at index: 1"
            ]
        );
        assert_eq!(
            errors_of(
                json!({"completions": 3}),
                json!({}),
                json!({"completedIndexes": "0", "failedIndexes": "1"})
            ),
            [
                "status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion mode",
                "status.failedIndexes: Invalid value: \"1\": cannot set non-null failedIndexes when backoffLimitPerIndex is null",
            ]
        );
    }
}
