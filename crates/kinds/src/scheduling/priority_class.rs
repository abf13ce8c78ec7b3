//! PriorityClass: the priority of pods.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{child_or_new, default_to, get, int, name, text, truth};
use crate::{Column, Context, Deletion, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

/// The highest user-defined value.
const HIGHEST: i64 = 1_000_000_000;
const SYSTEM: &[(&str, i64)] = &[
    ("system-node-critical", 2_000_001_000),
    ("system-cluster-critical", 2_000_000_000),
];

pub const KIND: Builtin = Builtin {
    group: "scheduling.k8s.io",
    kind: "PriorityClass",
    plural: "priorityclasses",
    short_names: &["pc"],
    scope: Scope::Cluster,
    schema: "scheduling/v1.PriorityClass",
    // The generation is set once and never incremented.
    prepare_create: |object, _: &Context<'_>| {
        child_or_new(object, "metadata").insert("generation".to_owned(), 1.into());
    },
    default: |object| default_to(object, "preemptionPolicy", "PreemptLowerPriority"),
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = Vec::new();
        if int(get(object, "value")) != int(get(old, "value")) {
            let detail = "may not be changed in an update.";
            errors.push(Error::forbidden(&Path::new("value"), detail));
        }
        let policy = |o: &Object| get(o, "preemptionPolicy").clone();
        let at = Path::new("preemptionPolicy");
        check::immutable(&policy(object), &policy(old), &at, &mut errors);
        errors
    },
    deletion: |object, _| match SYSTEM.iter().any(|(system, _)| *system == name(object)) {
        true => Deletion::Forbidden("this is a system priority class and cannot be deleted"),
        false => Deletion::Immediate,
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Value", "integer", "Higher comes first."),
    column(
        "Global-Default",
        "boolean",
        "Whether pods without a class get it.",
    ),
    AGE,
    column(
        "PreemptionPolicy",
        "string",
        "Whether pods of this class preempt others.",
    ),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        int(get(object, "value")).into(),
        truth(get(object, "globalDefault")).into(),
        age(object, now),
        text(get(object, "preemptionPolicy")).into(),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let (own, value) = (name(object), int(get(object, "value")));
    if own.starts_with("system-") {
        if let Err(why) = check_system(own, value, truth(get(object, "globalDefault"))) {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            );
            errors.push(Error::forbidden(
                &Path::new("metadata").child("name"),
                detail,
            ));
        }
    } else if value > HIGHEST {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        errors.push(Error::forbidden(&Path::new("value"), detail));
    }
    let policies = ["PreemptLowerPriority", "Never"];
    let at = Path::new("preemptionPolicy");
    check::known(get(object, "preemptionPolicy"), &policies, &at, &mut errors);
    errors
}

/// Validates a class with a system name.
fn check_system(name: &str, value: i64, is_default: bool) -> Result<(), String> {
    match SYSTEM.iter().find(|(system, _)| *system == name) {
        None => Err(format!("{name} is not a known system priority class")),
        Some((_, wanted)) if *wanted != value => {
            Err(format!("value of {name} PriorityClass must be {wanted}"))
        }
        Some(_) if is_default => Err(format!(
            "globalDefault of {name} PriorityClass must be false"
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn preemption_policy_and_value_of_a_priority_class_are_validated() {
        let cases = [
            (r#"{"value": 1, "preemptionPolicy": "Never"}"#, ""),
            (
                r#"{"value": 1, "preemptionPolicy": ""}"#,
                "preemptionPolicy: Required value",
            ),
            (
                r#"{"value": 1, "preemptionPolicy": "Maybe"}"#,
                "preemptionPolicy: Unsupported value: \"Maybe\": supported values: \"PreemptLowerPriority\", \"Never\"",
            ),
            (
                r#"{"value": 1000000001, "preemptionPolicy": "Never"}"#,
                "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
            ),
            (
                r#"{"metadata": {"name": "system-node-critical"}, "value": 2000001000, "preemptionPolicy": "Never"}"#,
                "",
            ),
            (
                r#"{"metadata": {"name": "system-mine"}, "value": 1, "preemptionPolicy": "Never"}"#,
                "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class",
            ),
            (
                r#"{"metadata": {"name": "system-node-critical"}, "value": 1, "preemptionPolicy": "Never"}"#,
                "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: value of system-node-critical PriorityClass must be 2000001000",
            ),
            (
                r#"{"metadata": {"name": "system-cluster-critical"}, "value": 2000000000, "globalDefault": true, "preemptionPolicy": "Never"}"#,
                "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: globalDefault of system-cluster-critical PriorityClass must be false",
            ),
        ];
        for (class, expected) in cases {
            assert_eq!(lines(validate(&object(class))).join(" "), expected);
        }
    }
}
