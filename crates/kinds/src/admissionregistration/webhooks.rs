//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: who is asked before a write.

use super::{default_match, default_rules, default_service};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{default_to, each, get, int, is_set, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const VALIDATING: Builtin = Builtin {
    group: "admissionregistration.k8s.io",
    kind: "ValidatingWebhookConfiguration",
    plural: "validatingwebhookconfigurations",
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "admissionregistration/v1.ValidatingWebhookConfiguration",
    has_generation: true,
    unconditional_update: false,
    default: |object| default(object, false),
    validate_create: validate,
    validate_update: |object, _, _: Subresource<'_>| validate(object),
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

pub const MUTATING: Builtin = Builtin {
    kind: "MutatingWebhookConfiguration",
    plural: "mutatingwebhookconfigurations",
    schema: "admissionregistration/v1.MutatingWebhookConfiguration",
    default: |object| default(object, true),
    ..VALIDATING
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Webhooks", "integer", "How many are asked."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        list(get(object, "webhooks")).len().into(),
        age(object, now),
    ]
}

fn default(object: &mut Object, mutating: bool) {
    for webhook in each(object, "webhooks") {
        default_to(webhook, "failurePolicy", "Fail");
        default_match(webhook);
        default_to(webhook, "timeoutSeconds", 10);
        if mutating {
            default_to(webhook, "reinvocationPolicy", "Never");
        }
        default_rules(webhook, "rules");
        default_service(webhook);
    }
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (i, webhook) in list(get(object, "webhooks")).iter().enumerate() {
        let at = Path::new("webhooks").index(i);
        let name = text(&webhook["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        } else {
            check::form(
                format::dns1123_subdomain(name),
                name,
                &at.child("name"),
                &mut errors,
            );
            if name.split('.').count() < 3 {
                let detail = "should be a domain with at least three segments separated by dots";
                errors.push(Error::invalid(&at.child("name"), name, detail));
            }
        }
        if !names.insert(name) {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
        check_webhook(webhook, &at, &mut errors);
    }
    errors
}

fn check_webhook(webhook: &Value, path: &Path, errors: &mut Errors) {
    let versions = list(&webhook["admissionReviewVersions"]);
    let at = path.child("admissionReviewVersions");
    if versions.is_empty() {
        errors.push(Error::required(&at, "must specify one of v1, v1beta1"));
    } else if !versions.iter().any(|v| v == "v1" || v == "v1beta1") {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(Error::invalid(
            &at,
            webhook["admissionReviewVersions"].clone(),
            detail,
        ));
    }
    check::one_of(
        &webhook["failurePolicy"],
        &["Fail", "Ignore"],
        &path.child("failurePolicy"),
        errors,
    );
    check::one_of(
        &webhook["matchPolicy"],
        &["Equivalent", "Exact"],
        &path.child("matchPolicy"),
        errors,
    );
    let effects = &webhook["sideEffects"];
    if is_set(effects) {
        check::one_of(
            effects,
            &["None", "NoneOnDryRun"],
            &path.child("sideEffects"),
            errors,
        );
    } else {
        let detail = "must specify one of None, NoneOnDryRun";
        errors.push(Error::required(&path.child("sideEffects"), detail));
    }
    if !(1..=30).contains(&int(&webhook["timeoutSeconds"])) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        let at = path.child("timeoutSeconds");
        errors.push(Error::invalid(&at, int(&webhook["timeoutSeconds"]), detail));
    }
    for name in ["namespaceSelector", "objectSelector"] {
        check::label_selector(&webhook[name], &path.child(name), errors);
    }
    let client = &webhook["clientConfig"];
    if is_set(&client["url"]) == is_set(&client["service"]) {
        let detail = "exactly one of url or service is required";
        errors.push(Error::required(&path.child("clientConfig"), detail));
    }
    for (i, rule) in list(&webhook["rules"]).iter().enumerate() {
        let at = path.child("rules").index(i);
        for name in ["operations", "apiGroups", "apiVersions", "resources"] {
            if list(&rule[name]).is_empty() {
                errors.push(Error::required(&at.child(name), ""));
            }
        }
    }
}
