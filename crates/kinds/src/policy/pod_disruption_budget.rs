//! PodDisruptionBudget: limits voluntary disruptions of pods.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::shown::{GoField, GoType, shown};
use crate::tree::{get, int, is_set};
use crate::{Column, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "policy",
    kind: "PodDisruptionBudget",
    plural: "poddisruptionbudgets",
    short_names: &["pdb"],
    schema: "policy/v1.PodDisruptionBudget",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    allows_unconditional_update: false,
    validate_create: validate,
    // Upstream does not validate names of budgets.
    validate_name: crate::metadata::path_segment,
    validate_update: |object, _, subresource: Subresource<'_>| match subresource {
        None => validate(object),
        Some(_) => check_status(get(object, "status")),
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[],
    status_metadata_checks: &[],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column(
        "Min Available",
        "string",
        "Minimum number of available pods.",
    ),
    column(
        "Max Unavailable",
        "string",
        "Most pods that may be missing.",
    ),
    column(
        "Allowed Disruptions",
        "integer",
        "Number of pods that may be evicted now.",
    ),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let cell = |v: &Value| match v {
        Value::String(s) => s.clone(),
        Value::Number(n) => n.to_string(),
        _ => "N/A".to_owned(),
    };
    vec![
        name_cell(object),
        Value::from(cell(&spec["minAvailable"])),
        Value::from(cell(&spec["maxUnavailable"])),
        int(&get(object, "status")["disruptionsAllowed"]).into(),
        age(object, now),
    ]
}

const SPEC: &[GoField] = &[
    GoField("minAvailable", "MinAvailable", GoType::Plain),
    GoField("selector", "Selector", GoType::Plain),
    GoField("maxUnavailable", "MaxUnavailable", GoType::Plain),
    GoField(
        "unhealthyPodEvictionPolicy",
        "UnhealthyPodEvictionPolicy",
        GoType::Plain,
    ),
];

fn check_status(status: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("status");
    check::conditions(
        &status["conditions"],
        &path.child("conditions"),
        &mut errors,
    );
    for name in [
        "disruptionsAllowed",
        "currentHealthy",
        "desiredHealthy",
        "expectedPods",
    ] {
        check::non_negative(&status[name], &path.child(name), &mut errors);
    }
    errors
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (least, most) = (&spec["minAvailable"], &spec["maxUnavailable"]);
    if is_set(least) && is_set(most) {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(Error::invalid(&path, shown(spec, SPEC), detail));
    }
    for (name, value) in [("minAvailable", least), ("maxUnavailable", most)] {
        check::count_or_percent(value, &path.child(name), &mut errors);
        check::at_most_whole(value, &path.child(name), &mut errors);
    }
    check::label_selector(&spec["selector"], &path.child("selector"), &mut errors);
    if is_set(&spec["unhealthyPodEvictionPolicy"]) {
        let policies = ["AlwaysAllow", "IfHealthyBudget"];
        let at = path.child("unhealthyPodEvictionPolicy");
        check::one_of(
            &spec["unhealthyPodEvictionPolicy"],
            &policies,
            &at,
            &mut errors,
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_budget_has_one_bound() {
        let both = object(r#"{"spec": {"minAvailable": 1, "maxUnavailable": "150%"}}"#);
        assert_eq!(
            lines(validate(&both)),
            [
                "spec: Invalid value: {\"MinAvailable\":1,\"Selector\":null,\"MaxUnavailable\":\"150%\",\"UnhealthyPodEvictionPolicy\":null}: minAvailable and maxUnavailable cannot be both set",
                "spec.maxUnavailable: Invalid value: \"150%\": must not be greater than 100%",
            ]
        );
    }

    #[test]
    fn counts_in_the_status_are_counts() {
        let status = machinery::json::json!({"currentHealthy": -1, "conditions": [{"type": "X", "status": "True", "reason": "R"}]});
        assert_eq!(
            lines(check_status(&status)),
            [
                "status.conditions[0].lastTransitionTime: Required value",
                "status.currentHealthy: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }
}
