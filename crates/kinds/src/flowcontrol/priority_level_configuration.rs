//! PriorityLevelConfiguration: how many requests of a level run at once, and which wait.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{child, child_or_new, default_empty, default_to, get, is_set, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "flowcontrol.apiserver.k8s.io",
    kind: "PriorityLevelConfiguration",
    plural: "prioritylevelconfigurations",
    scope: Scope::Cluster,
    schema: "flowcontrol/v1.PriorityLevelConfiguration",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default,
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
    column("Type", "string", "Limited or exempt."),
    column(
        "NominalConcurrencyShares",
        "string",
        "Its share of the server.",
    ),
    column("Queues", "string", "How many queues."),
    column("HandSize", "string", "How many queues a flow may use."),
    column(
        "QueueLengthLimit",
        "string",
        "How many may wait in a queue.",
    ),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let limited = &spec["limited"];
    let queuing = &limited["limitResponse"]["queuing"];
    let cell = |v: &Value| {
        if is_set(v) {
            v.clone()
        } else {
            Value::from("<none>")
        }
    };
    vec![
        name_cell(object),
        text(&spec["type"]).into(),
        cell(&limited["nominalConcurrencyShares"]),
        cell(&queuing["queues"]),
        cell(&queuing["handSize"]),
        cell(&queuing["queueLengthLimit"]),
        age(object, now),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    if let Some(exempt) = child(spec, "exempt") {
        default_to(exempt, "nominalConcurrencyShares", 0);
        default_to(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = child(spec, "limited") {
        default_to(limited, "nominalConcurrencyShares", 30);
        default_to(limited, "lendablePercent", 0);
        if let Some(queuing) = child(limited, "limitResponse").and_then(|r| child(r, "queuing")) {
            default_empty(queuing, "handSize", 8);
            default_empty(queuing, "queues", 64);
            default_empty(queuing, "queueLengthLimit", 50);
        }
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    match text(&spec["type"]) {
        "Exempt" => {
            if is_set(&spec["limited"]) {
                let detail = "must be nil if the type is not Limited";
                errors.push(Error::forbidden(&path.child("limited"), detail));
            }
        }
        "Limited" => {
            if !is_set(&spec["limited"]) {
                let detail = "must not be empty when type is Limited";
                errors.push(Error::required(&path.child("limited"), detail));
            } else {
                let response = &spec["limited"]["limitResponse"];
                let at = path.child("limited").child("limitResponse").child("type");
                check::one_of(&response["type"], &["Queue", "Reject"], &at, &mut errors);
            }
        }
        other => errors.push(Error::not_supported(
            &path.child("type"),
            other,
            &["Exempt", "Limited"],
        )),
    }
    errors
}
