//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration.

use super::rules::{FAILURE_POLICIES, check_conditions, check_match_policy, check_rule, check_set};
use super::{default_match, default_rules, default_service};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::tree::{default_to, each, get, int, is_set, list, text};
use crate::webhook_client::{check_review_versions, check_service, check_url, is_known_review};
use crate::{Column, Expressions, Scope, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const VALIDATING: Builtin = Builtin {
    group: "admissionregistration.k8s.io",
    kind: "ValidatingWebhookConfiguration",
    plural: "validatingwebhookconfigurations",
    server_side: ServerSide {
        expressions: Expressions::Webhooks,
        ..ServerSide::NONE
    },
    categories: &["api-extensions"],
    scope: Scope::Cluster,
    schema: "admissionregistration/v1.ValidatingWebhookConfiguration",
    has_generation: true,
    allows_unconditional_update: false,
    default: |object| default(object, false),
    validate_create: |object| validate(object, false),
    validate_update: |object, old, _: Subresource<'_>| validate_update(object, old, false),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole],
    warnings: |object, _| super::warn_static(object),
    ..Builtin::EMPTY
};

pub const MUTATING: Builtin = Builtin {
    kind: "MutatingWebhookConfiguration",
    plural: "mutatingwebhookconfigurations",
    schema: "admissionregistration/v1.MutatingWebhookConfiguration",
    default: |object| default(object, true),
    validate_create: |object| validate(object, true),
    validate_update: |object, old, _: Subresource<'_>| validate_update(object, old, true),
    ..VALIDATING
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Webhooks", "integer", "Number of webhooks."),
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

/// Which rules apply; values that were invalid before are kept on update.
struct WebhookRules {
    mutating: bool,
    conditions: bool,
    no_side_effects: bool,
    known_reviews: bool,
    unique_names: bool,
}

const NO_SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun"];
const SIDE_EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];

fn validate(object: &Object, mutating: bool) -> Errors {
    let terms = WebhookRules {
        mutating,
        conditions: true,
        no_side_effects: true,
        known_reviews: true,
        unique_names: true,
    };
    check_webhooks(object, &terms)
}

fn validate_update(object: &Object, old: &Object, mutating: bool) -> Errors {
    let was = list(get(old, "webhooks"));
    let new = list(get(object, "webhooks"));
    let conditions = |w: &Value| w["matchConditions"].clone();
    let reviews = |w: &Value| list(&w["admissionReviewVersions"]).to_vec();
    let repeated = |(i, w): (usize, &Value)| was[..i].iter().any(|o| o["name"] == w["name"]);
    let terms = WebhookRules {
        mutating,
        conditions: new.len() != was.len()
            || new
                .iter()
                .zip(was)
                .any(|(n, o)| conditions(n) != conditions(o)),
        no_side_effects: was
            .iter()
            .all(|w| NO_SIDE_EFFECTS.contains(&text(&w["sideEffects"]))),
        known_reviews: was
            .iter()
            .all(|w| reviews(w).is_empty() || reviews(w).iter().any(is_known_review)),
        unique_names: !was.iter().enumerate().any(repeated),
    };
    check_webhooks(object, &terms)
}

fn check_webhooks(object: &Object, terms: &WebhookRules) -> Errors {
    let mut errors = Vec::new();
    let all = list(get(object, "webhooks"));
    for (i, webhook) in all.iter().enumerate() {
        let at = Path::new("webhooks");
        let at = at.index(i);
        check_webhook(webhook, terms, &at, &mut errors);
        let (versions, at_versions) = (
            &webhook["admissionReviewVersions"],
            at.child("admissionReviewVersions"),
        );
        let (known, missing) = (terms.known_reviews, "must specify one of v1, v1beta1");
        check_review_versions(versions, known, missing, &at_versions, &mut errors);
        let name = text(&webhook["name"]);
        let taken = all[..i].iter().any(|w| text(&w["name"]) == name);
        if terms.unique_names && !name.is_empty() && taken {
            errors.push(Error::duplicate(&at.child("name"), name));
        }
    }
    errors
}

fn check_name(name: &str, path: &Path, errors: &mut Errors) {
    let complaints = format::dns1123_subdomain(name);
    if name.is_empty() {
        errors.push(Error::required(path, ""));
    } else if !complaints.is_empty() {
        errors.push(Error::invalid(path, name, complaints.join(",")));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.push(Error::invalid(path, name, detail));
    }
}

fn check_webhook(webhook: &Value, terms: &WebhookRules, path: &Path, errors: &mut Errors) {
    check_name(text(&webhook["name"]), &path.child("name"), errors);
    for (i, rule) in list(&webhook["rules"]).iter().enumerate() {
        check_rule(rule, &path.child("rules").index(i), errors);
    }
    let at = path.child("failurePolicy");
    check_set(&webhook["failurePolicy"], FAILURE_POLICIES, &at, errors);
    check_match_policy(&webhook["matchPolicy"], &path.child("matchPolicy"), errors);
    let (effects, at) = (&webhook["sideEffects"], path.child("sideEffects"));
    let known = if terms.no_side_effects {
        NO_SIDE_EFFECTS
    } else {
        SIDE_EFFECTS
    };
    if is_set(effects) {
        check::one_of(effects, known, &at, errors);
    } else {
        let detail = format!("must specify one of {}", known.join(", "));
        errors.push(Error::required(&at, detail));
    }
    let timeout = &webhook["timeoutSeconds"];
    if is_set(timeout) && !(1..=30).contains(&int(timeout)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        let at = path.child("timeoutSeconds");
        errors.push(Error::invalid(&at, int(timeout), detail));
    }
    for name in ["namespaceSelector", "objectSelector"] {
        check::label_selector(&webhook[name], &path.child(name), errors);
    }
    if terms.mutating {
        let (policies, at) = (["IfNeeded", "Never"], path.child("reinvocationPolicy"));
        check_set(&webhook["reinvocationPolicy"], &policies, &at, errors);
    }
    let (client, at) = (&webhook["clientConfig"], path.child("clientConfig"));
    match (is_set(&client["url"]), is_set(&client["service"])) {
        (true, false) => check_url(text(&client["url"]), &at.child("url"), errors),
        (false, true) => check_service(&client["service"], true, &at.child("service"), errors),
        _ => {
            let detail = "exactly one of url or service is required";
            errors.push(Error::required(&at, detail));
        }
    }
    if terms.conditions {
        let at = path.child("matchConditions");
        check_conditions(&webhook["matchConditions"], &at, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    fn asked(change: Value) -> Object {
        let mut webhook = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://x/y"}});
        if let (Value::Object(webhook), Value::Object(change)) = (&mut webhook, change) {
            webhook.extend(change);
        }
        let mut configuration = object(&json!({"webhooks": [webhook]}).to_string());
        default(&mut configuration, true);
        configuration
    }

    #[test]
    fn a_webhook_can_be_reached_and_has_no_side_effects() {
        let none: [&str; 0] = [];
        assert_eq!(lines(validate(&asked(json!({})), true)), none);
        for (change, line) in [
            (
                json!({"name": "a.b"}),
                "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
            ),
            (
                json!({"sideEffects": "Some"}),
                "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            ),
            (
                json!({"admissionReviewVersions": ["v2"]}),
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
            ),
            (
                json!({"clientConfig": {}}),
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ),
            (
                json!({"reinvocationPolicy": "x"}),
                "webhooks[0].reinvocationPolicy: Unsupported value: \"x\": supported values: \"IfNeeded\", \"Never\"",
            ),
            (
                json!({"timeoutSeconds": 31}),
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
            ),
        ] {
            assert_eq!(lines(validate(&asked(change), true)), [line]);
        }
        let old = asked(json!({"sideEffects": "Some", "admissionReviewVersions": ["v2"]}));
        assert_eq!(lines(validate_update(&old, &old, true)), none);
    }
}
