//! CronJob: jobs on a schedule.

use super::job::default_pods;
use super::job_spec::{check_spec, warn_spec};
use super::timezone;
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{
    AGE, NAME, age, column, containers, name_cell, or_none, selector, since, wide,
};
use crate::pod::same_generation;
use crate::tree::{child_or_new, default_empty, default_to, get, is_set, list, name, text, truth};
use crate::{Column, Subresource};
use machinery::cron;
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "batch",
    kind: "CronJob",
    plural: "cronjobs",
    pod_spec: "spec.jobTemplate.spec.template.spec",
    short_names: &["cj"],
    categories: &["all"],
    schema: "batch/v1.CronJob",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    validate_create: |object| {
        let mut errors = validate(object, None);
        // Eleven characters are reserved for the timestamp in its jobs' names.
        if name(object).len() > 52 {
            let at = Path::new("metadata.name");
            errors.push(Error::invalid(
                &at,
                name(object),
                "must be no more than 52 characters",
            ));
        }
        errors
    },
    validate_update: |object, old, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate(object, Some(get(old, "spec")))
        } else {
            Vec::new()
        }
    },
    warnings,
    columns: COLUMNS,
    row,
    status_metadata_checks: &[],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Schedule", "string", "When it runs."),
    column("Timezone", "string", "The schedule's time zone."),
    column("Suspend", "boolean", "Whether it is paused."),
    column("Active", "integer", "Jobs that run now."),
    column("Last Schedule", "string", "Time since it ran last."),
    AGE,
    wide("Containers", "string", "Names of the containers."),
    wide("Images", "string", "Images of the containers."),
    wide("Selector", "string", "Labels of the pods."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let last = &status["lastScheduleTime"];
    let last = if is_set(last) {
        since(last, now)
    } else {
        "<none>".to_owned()
    };
    let suspend = spec["suspend"].as_bool().map_or("<unset>".to_owned(), |b| {
        if b {
            "True".to_owned()
        } else {
            "False".to_owned()
        }
    });
    let job = &spec["jobTemplate"]["spec"];
    let (names, images) = containers(&job["template"]["spec"]);
    vec![
        name_cell(object),
        text(&spec["schedule"]).into(),
        Value::from(or_none(text(&spec["timeZone"]))),
        Value::from(suspend),
        list(&status["active"]).len().into(),
        Value::from(last),
        age(object, now),
        Value::from(names),
        Value::from(images),
        Value::from(selector(&job["selector"])),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_empty(spec, "concurrencyPolicy", "Allow");
    default_to(spec, "suspend", false);
    default_to(spec, "successfulJobsHistoryLimit", 3);
    default_to(spec, "failedJobsHistoryLimit", 1);
    default_pods(child_or_new(child_or_new(spec, "jobTemplate"), "spec"));
}

/// `was`: the previous spec, on update.
fn validate(object: &Object, was: Option<&Value>) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let counts = |names: &[&str], errors: &mut Errors| {
        for name in names {
            check::non_negative(&spec[*name], &path.child(name), errors);
        }
    };
    check_schedule(spec, was, &path.child("schedule"), &mut errors);
    counts(&["startingDeadlineSeconds"], &mut errors);
    let zone = &spec["timeZone"];
    if is_set(zone) && was.is_none_or(|was| was["timeZone"] != *zone) {
        let at = path.child("timeZone");
        check::form(timezone::check(text(zone)), text(zone), &at, &mut errors);
    }
    let policies = ["Allow", "Forbid", "Replace"];
    let at = path.child("concurrencyPolicy");
    check::known(&spec["concurrencyPolicy"], &policies, &at, &mut errors);
    let (job, at) = (&spec["jobTemplate"]["spec"], path.child("jobTemplate.spec"));
    check_spec(job, &at, &mut errors);
    if is_set(&job["selector"]) {
        let detail = "`selector` will be auto-generated";
        errors.push(Error::invalid(
            &at.child("selector"),
            job["selector"].clone(),
            detail,
        ));
    }
    if truth(&job["manualSelector"]) {
        let at = at.child("manualSelector");
        errors.push(Error::not_supported(&at, true, &["nil", "false"]));
    }
    counts(
        &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"],
        &mut errors,
    );
    errors
}

/// A time zone within the schedule is kept if it was there before.
fn check_schedule(spec: &Value, was: Option<&Value>, path: &Path, errors: &mut Errors) {
    let schedule = text(&spec["schedule"]);
    if schedule.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    if let Err(detail) = cron::Schedule::parse(schedule) {
        errors.push(Error::invalid(path, schedule, detail));
    }
    let allowed = was.is_some_and(|was| text(&was["schedule"]).contains("TZ"));
    if schedule.contains("TZ") && (!allowed || is_set(&spec["timeZone"])) {
        let detail = if allowed {
            "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        } else {
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        };
        errors.push(Error::invalid(path, schedule, detail));
    }
}

fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let path = Path::new("spec.jobTemplate.spec");
    let mut found = match old {
        None => check::warn_host_name(name(object)),
        Some(_) => Vec::new(),
    };
    if old.is_none_or(|old| !same_generation(object, old)) {
        let job = &get(object, "spec")["jobTemplate"]["spec"];
        found.extend(warn_spec(job, &path));
    }
    if old.is_some() && text(&get(object, "spec")["schedule"]).contains("TZ") {
        found.push("cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details".to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn nightly(extra: &str) -> Object {
        let mut job = object(&format!(
            r#"{{"metadata": {{"name": "n"}}, "spec": {{"schedule": "0 0 * * *", {extra} "jobTemplate": {{"spec": {{"template": {{"spec": {{
                "restartPolicy": "Never", "containers": [{{"name": "c", "image": "i"}}]}}}}}}}}}}}}"#
        ));
        default(&mut job);
        job
    }

    #[test]
    fn the_schedule_names_no_zone_unless_it_always_did() {
        let zoned = nightly(r#""schedule": "TZ=UTC 0 0 * * *","#);
        let refused = "spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        assert_eq!(lines(validate(&zoned, None)), [refused]);
        assert_eq!(
            lines(validate(&zoned, Some(get(&zoned, "spec")))),
            Vec::<String>::new()
        );
        let both = nightly(r#""schedule": "TZ=UTC 0 0 * * *", "timeZone": "UTC","#);
        assert_eq!(
            lines(validate(&both, Some(get(&zoned, "spec")))),
            [
                "spec.schedule: Invalid value: \"TZ=UTC 0 0 * * *\": cannot use both timeZone field and TZ or CRON_TZ in schedule"
            ]
        );
        assert_eq!(warnings(&zoned, Some(&zoned)).len(), 1);
    }

    #[test]
    fn selectors_are_made_for_the_jobs() {
        let mut job = nightly("");
        let spec = child_or_new(
            child_or_new(child_or_new(&mut job, "spec"), "jobTemplate"),
            "spec",
        );
        spec.insert(
            "selector".to_owned(),
            machinery::json::json!({"matchLabels": {"a": "b"}}),
        );
        spec.insert("manualSelector".to_owned(), true.into());
        assert_eq!(
            lines(validate(&job, None)),
            [
                "spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` will be auto-generated",
                "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"",
            ]
        );
    }
}
