//! FlowSchema: which requests belong to which priority level.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none};
use crate::tree::{child_or_new, default_empty, get, int, is_set, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "flowcontrol.apiserver.k8s.io",
    kind: "FlowSchema",
    plural: "flowschemas",
    scope: Scope::Cluster,
    schema: "flowcontrol/v1.FlowSchema",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    default: |object| default_empty(child_or_new(object, "spec"), "matchingPrecedence", 1000),
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
    column("PriorityLevel", "string", "The level."),
    column("MatchingPrecedence", "string", "Lower is asked first."),
    column(
        "DistinguisherMethod",
        "string",
        "What makes flows different.",
    ),
    AGE,
    column("MissingPL", "string", "Whether the level does not exist."),
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let (spec, status) = (get(object, "spec"), get(object, "status"));
    let dangling = list(&status["conditions"])
        .iter()
        .find(|c| c["type"] == "Dangling");
    vec![
        name_cell(object),
        text(&spec["priorityLevelConfiguration"]["name"]).into(),
        int(&spec["matchingPrecedence"]).into(),
        Value::from(or_none(text(&spec["distinguisherMethod"]["type"]))),
        age(object, now),
        dangling.map_or("?", |c| text(&c["status"])).into(),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let precedence = int(&spec["matchingPrecedence"]);
    if !(1..=10000).contains(&precedence) {
        let at = path.child("matchingPrecedence");
        let detail = if precedence < 1 {
            "must be a positive value"
        } else {
            "must not be greater than 10000"
        };
        errors.push(Error::invalid(&at, precedence, detail));
    }
    let method = &spec["distinguisherMethod"];
    if is_set(method) {
        let at = path.child("distinguisherMethod").child("type");
        check::one_of(
            &method["type"],
            &["ByNamespace", "ByUser"],
            &at,
            &mut errors,
        );
    }
    let at = path.child("priorityLevelConfiguration").child("name");
    if text(&spec["priorityLevelConfiguration"]["name"]).is_empty() {
        errors.push(Error::required(&at, "must reference a priority level"));
    }
    for (i, rule) in list(&spec["rules"]).iter().enumerate() {
        let at = path.child("rules").index(i);
        if list(&rule["subjects"]).is_empty() {
            let detail = "subjects must contain at least one value";
            errors.push(Error::required(&at.child("subjects"), detail));
        }
        if list(&rule["resourceRules"]).is_empty() && list(&rule["nonResourceRules"]).is_empty() {
            let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
            errors.push(Error::required(&at, detail));
        }
    }
    errors
}
