//! Admission policies and their bindings: rules in CEL, kept here and judged by admission.

use super::{default_match, default_rules};
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{child, child_or_new, default_to, get, is_set, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const VALIDATING: Builtin = Builtin {
    group: "admissionregistration.k8s.io",
    kind: "ValidatingAdmissionPolicy",
    plural: "validatingadmissionpolicies",
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "admissionregistration/v1.ValidatingAdmissionPolicy",
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    unconditional_update: false,
    default,
    validate_create: |object| validate(object, &["validations", "auditAnnotations"]),
    validate_update: |object, _, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate(object, &["validations", "auditAnnotations"])
        } else {
            Vec::new()
        }
    },
    columns: COLUMNS,
    row: |object, now| row(object, now, "validations"),
    ..Builtin::EMPTY
};

pub const MUTATING: Builtin = Builtin {
    kind: "MutatingAdmissionPolicy",
    plural: "mutatingadmissionpolicies",
    schema: "admissionregistration/v1.MutatingAdmissionPolicy",
    subresources: &[],
    has_status: false,
    validate_create: |object| validate(object, &["mutations"]),
    validate_update: |object, _, _: Subresource<'_>| validate(object, &["mutations"]),
    columns: &[
        NAME,
        column("Mutations", "integer", "How many changes it makes."),
        column("ParamKind", "string", "Kind of its parameters."),
        AGE,
    ],
    row: |object, now| row(object, now, "mutations"),
    ..VALIDATING
};

pub const VALIDATING_BINDING: Builtin = Builtin {
    kind: "ValidatingAdmissionPolicyBinding",
    plural: "validatingadmissionpolicybindings",
    schema: "admissionregistration/v1.ValidatingAdmissionPolicyBinding",
    subresources: &[],
    has_status: false,
    default: default_binding,
    validate_create: |object| validate_binding(object, true),
    validate_update: |object, _, _: Subresource<'_>| validate_binding(object, true),
    columns: BINDING_COLUMNS,
    row: binding_row,
    ..VALIDATING
};

pub const MUTATING_BINDING: Builtin = Builtin {
    kind: "MutatingAdmissionPolicyBinding",
    plural: "mutatingadmissionpolicybindings",
    schema: "admissionregistration/v1.MutatingAdmissionPolicyBinding",
    validate_create: |object| validate_binding(object, false),
    validate_update: |object, _, _: Subresource<'_>| validate_binding(object, false),
    ..VALIDATING_BINDING
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Validations", "integer", "How many rules it has."),
    column("ParamKind", "string", "Kind of its parameters."),
    AGE,
];

fn row(object: &Object, now: i64, rules: &str) -> Vec<Value> {
    let spec = get(object, "spec");
    let kind = &spec["paramKind"];
    let kind = if is_set(kind) {
        format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"]))
    } else {
        "<unset>".to_owned()
    };
    vec![
        name_cell(object),
        list(&spec[rules]).len().into(),
        kind.into(),
        age(object, now),
    ]
}

const BINDING_COLUMNS: &[Column] = &[
    NAME,
    column("PolicyName", "string", "The policy."),
    column("ParamRef", "string", "Its parameters."),
    AGE,
];

fn binding_row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let reference = &spec["paramRef"];
    let shown = match (text(&reference["name"]), text(&reference["namespace"])) {
        ("", _) => "<unset>".to_owned(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    };
    vec![
        name_cell(object),
        text(&spec["policyName"]).into(),
        shown.into(),
        age(object, now),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    default_to(spec, "failurePolicy", "Fail");
    if let Some(constraints) = child(spec, "matchConstraints") {
        default_match(constraints);
        default_rules(constraints, "resourceRules");
        default_rules(constraints, "excludeResourceRules");
    }
}

fn default_binding(object: &mut Object) {
    if let Some(resources) = child(child_or_new(object, "spec"), "matchResources") {
        default_match(resources);
        default_rules(resources, "resourceRules");
        default_rules(resources, "excludeResourceRules");
    }
}

fn validate(object: &Object, rules: &[&str]) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let at = path.child("failurePolicy");
    check::one_of(
        &spec["failurePolicy"],
        &["Fail", "Ignore"],
        &at,
        &mut errors,
    );
    if !is_set(&spec["matchConstraints"]) {
        errors.push(Error::required(&path.child("matchConstraints"), ""));
    } else if list(&spec["matchConstraints"]["resourceRules"]).is_empty() {
        let at = path.child("matchConstraints").child("resourceRules");
        errors.push(Error::required(&at, ""));
    }
    if rules.iter().all(|name| list(&spec[*name]).is_empty()) {
        let detail = match rules {
            [first, second] => format!("{first} or {second} must contain at least one item"),
            _ => format!("{} must contain at least one item", rules.join("")),
        };
        errors.push(Error::required(&path.child(rules[0]), detail));
    }
    for (i, rule) in list(&spec["validations"]).iter().enumerate() {
        let at = path.child("validations").index(i).child("expression");
        if text(&rule["expression"]).trim().is_empty() {
            errors.push(Error::required(&at, "expression is not specified"));
        }
    }
    errors
}

fn validate_binding(object: &Object, validating: bool) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check::required(&spec["policyName"], &path.child("policyName"), &mut errors);
    let actions = list(&spec["validationActions"]);
    if validating && actions.is_empty() {
        errors.push(Error::required(&path.child("validationActions"), ""));
    }
    for (i, action) in actions.iter().enumerate() {
        let at = path.child("validationActions").index(i);
        check::one_of(action, &["Audit", "Deny", "Warn"], &at, &mut errors);
    }
    let has = |name: &str| actions.iter().any(|a| a == name);
    if has("Deny") && has("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(Error::invalid(
            &path.child("validationActions"),
            spec["validationActions"].clone(),
            detail,
        ));
    }
    errors
}
