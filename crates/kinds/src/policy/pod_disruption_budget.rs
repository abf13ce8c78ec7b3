//! PodDisruptionBudget: how many pods may be missing on purpose.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
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
    unconditional_update: false,
    validate_create: validate,
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
    column("Min Available", "string", "Fewest pods that must stay."),
    column(
        "Max Unavailable",
        "string",
        "Most pods that may be missing.",
    ),
    column("Allowed Disruptions", "integer", "Pods that may go now."),
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

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (least, most) = (&spec["minAvailable"], &spec["maxUnavailable"]);
    if is_set(least) && is_set(most) {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(Error::invalid(&path, spec.clone(), detail));
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
