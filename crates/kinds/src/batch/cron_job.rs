//! CronJob: jobs by the clock.

use super::job::{check_spec, default_pods};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{
    AGE, NAME, age, column, containers, name_cell, or_none, selector, since, wide,
};
use crate::tree::{child_or_new, default_empty, default_to, get, is_set, list, name, text};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "batch",
    kind: "CronJob",
    plural: "cronjobs",
    short_names: &["cj"],
    categories: &["all"],
    schema: "batch/v1.CronJob",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
    validate_create: |object| {
        let mut errors = validate(object);
        // Eleven characters are for the time in the names of its jobs.
        if name(object).len() > 52 {
            let at = Path::new("metadata").child("name");
            errors.push(Error::invalid(
                &at,
                name(object),
                "must be no more than 52 characters",
            ));
        }
        errors
    },
    validate_update: |object, _, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate(object)
        } else {
            Vec::new()
        }
    },
    columns: COLUMNS,
    row,
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

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check_schedule(
        text(&spec["schedule"]),
        &path.child("schedule"),
        &mut errors,
    );
    if is_set(&spec["timeZone"]) && text(&spec["timeZone"]).is_empty() {
        let detail = "timeZone must be nil or non-empty string";
        errors.push(Error::invalid(&path.child("timeZone"), "", detail));
    }
    let policies = ["Allow", "Forbid", "Replace"];
    let at = path.child("concurrencyPolicy");
    check::one_of(&spec["concurrencyPolicy"], &policies, &at, &mut errors);
    for name in [
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    ] {
        check::non_negative(&spec[name], &path.child(name), &mut errors);
    }
    let at = path.child("jobTemplate").child("spec");
    check_spec(&spec["jobTemplate"]["spec"], &at, &mut errors);
    errors
}

/// Five fields, or one of the names that start with `@`.
fn check_schedule(schedule: &str, path: &Path, errors: &mut Errors) {
    if schedule.is_empty() {
        errors.push(Error::required(path, ""));
    } else if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(Error::invalid(path, schedule, detail));
    } else if let Err(detail) = parse_schedule(schedule) {
        errors.push(Error::invalid(path, schedule, detail));
    }
}

fn parse_schedule(schedule: &str) -> Result<(), String> {
    if let Some(word) = schedule.strip_prefix('@') {
        let known = [
            "yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly",
        ];
        return if known.contains(&word) || word.starts_with("every ") {
            Ok(())
        } else {
            Err(format!("unrecognized descriptor: {schedule}"))
        };
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != 5 {
        let count = fields.len();
        return Err(format!(
            "expected exactly 5 fields, found {count}: [{}]",
            fields.join(" ")
        ));
    }
    let bounds = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
    for (field, (low, high)) in fields.iter().zip(bounds) {
        for part in field.split(',') {
            check_part(part, low, high)?;
        }
    }
    Ok(())
}

const NAMES: &[&str] = &[
    "sun", "mon", "tue", "wed", "thu", "fri", "sat", "jan", "feb", "mar", "apr", "may", "jun",
    "jul", "aug", "sep", "oct", "nov", "dec",
];

fn check_part(part: &str, low: u32, high: u32) -> Result<(), String> {
    let (range, step) = part
        .split_once('/')
        .map_or((part, None), |(r, s)| (r, Some(s)));
    if step.is_some_and(|s| s.parse::<u32>().map_or(true, |n| n == 0)) {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    if matches!(range, "*" | "?") {
        return Ok(());
    }
    for end in range.splitn(2, '-') {
        if NAMES.contains(&end.to_lowercase().as_str()) {
            continue;
        }
        match end.parse::<u32>() {
            Ok(n) if n < low => {
                return Err(format!(
                    "beginning of range ({n}) below minimum ({low}): {part}"
                ));
            }
            Ok(n) if n > high => {
                return Err(format!("end of range ({n}) above maximum ({high}): {part}"));
            }
            Ok(_) => {}
            Err(_) => return Err(format!("failed to parse int from {end}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_read() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 * mon-fri",
            "@hourly",
            "@every 5m",
            "0 12 * jan 7",
        ] {
            assert!(parse_schedule(good).is_ok(), "{good}");
        }
        for bad in [
            "* * * *",
            "60 * * * *",
            "a * * * *",
            "@never",
            "*/0 * * * *",
            "0 0 0 * *",
        ] {
            assert!(parse_schedule(bad).is_err(), "{bad}");
        }
    }
}
