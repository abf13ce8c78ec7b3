//! ResourceQuota: limits on what a namespace may use.

use crate::builtin::{Builtin, STATUS};
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::internal::internal;
use crate::pod::{check_name, check_quantity, is_standard_quota};
use crate::tree::{entries, get, is_set, list, text};
use crate::{Column, Subresource, check};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, Value};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    kind: "ResourceQuota",
    plural: "resourcequotas",
    returns_deleted: true,
    short_names: &["quota"],
    schema: "core/v1.ResourceQuota",
    subresources: &[STATUS],
    has_status: true,
    validate_create: validate,
    validate_update,
    warnings: |object, old| match old {
        None => warnings(object),
        Some(_) => Vec::new(),
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

/// Warns if requests exceed limits: the excess can never be used.
fn warnings(object: &Object) -> Vec<String> {
    let hard = &get(object, "spec")["hard"];
    let amount = |name: &str| hard[name].as_str()?.parse::<Quantity>().ok();
    let mut out = Vec::new();
    for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
        let (requests, limits) = (format!("requests.{resource}"), format!("limits.{resource}"));
        // Requests of cpu and memory have a short name, too.
        let short = matches!(resource, "cpu" | "memory") && amount(&requests).is_none();
        let requests = if short { resource } else { &requests };
        if let (Some(request), Some(limit)) = (amount(requests), amount(&limits))
            && request > limit
        {
            let (request, limit) = (text(&hard[requests]), text(&hard[&*limits]));
            out.push(format!(
                "ResourceQuota {requests} ({request}) should be less than {limits} ({limit})"
            ));
        }
    }
    out
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Request", "string", "Requests used and allowed."),
    column("Limit", "string", "Limits used and allowed."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let status = get(object, "status");
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (name, hard) in entries(&status["hard"]) {
        let used = text(&status["used"][name]);
        let used = if used.is_empty() { "0" } else { used };
        let cell = format!("{name}: {used}/{}", text(hard));
        if name.starts_with("limits.") {
            limits.push(cell)
        } else {
            requests.push(cell)
        }
    }
    vec![
        name_cell(object),
        requests.join(", ").into(),
        limits.join(", ").into(),
        age(object, now),
    ]
}

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    check_amounts(&spec["hard"], &path.child("hard"), &mut errors);
    check_scopes(spec, &path.child("scopes"), &mut errors);
    if is_set(&spec["scopeSelector"]) {
        let at = path.child("scopeSelector.matchExpressions");
        check_selector(spec, &at, &mut errors);
    }
    errors
}

fn check_amounts(amounts: &Value, path: &Path, errors: &mut Errors) {
    for (name, value) in entries(amounts) {
        let at = path.key(name);
        check_name(name, &at, errors);
        if !name.contains('/') && !is_standard_quota(name) {
            let detail = "must be a standard resource for quota";
            errors.push(Error::invalid(&at, name.as_str(), detail));
        }
        check_quantity(name, value, &at, errors);
    }
}

/// Whether a scope applies to a resource.
fn fits(scope: &str, resource: &str) -> bool {
    let compute = [
        "cpu",
        "limits.cpu",
        "limits.memory",
        "memory",
        "requests.cpu",
        "requests.memory",
    ];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ if SCOPES.contains(&scope) => resource == "pods" || compute.contains(&resource),
        _ => true,
    }
}

/// How many limited resources a scope does not apply to.
fn misfits(spec: &Value, scope: &str) -> usize {
    entries(&spec["hard"])
        .filter(|(name, _)| is_standard_quota(name) && !fits(scope, name))
        .count()
}

fn conflicts(scopes: &[&str]) -> usize {
    [
        ("BestEffort", "NotBestEffort"),
        ("Terminating", "NotTerminating"),
    ]
    .iter()
    .filter(|(a, b)| scopes.contains(a) && scopes.contains(b))
    .count()
}

fn check_scopes(spec: &Value, path: &Path, errors: &mut Errors) {
    let scopes: Vec<&str> = list(&spec["scopes"]).iter().map(text).collect();
    let mut wrong = |detail: &str| {
        errors.push(Error::invalid(path, spec["scopes"].clone(), detail));
    };
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            wrong("unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            wrong("unsupported scope applied to resource");
        }
    }
    for _ in 0..conflicts(&scopes) {
        wrong("conflicting scopes");
    }
}

fn check_selector(spec: &Value, path: &Path, errors: &mut Errors) {
    let selector = &spec["scopeSelector"];
    let expressions = list(&selector["matchExpressions"]);
    for expression in expressions {
        let (scope, operator) = (
            text(&expression["scopeName"]),
            text(&expression["operator"]),
        );
        if !SCOPES.contains(&scope) {
            let at = path.child("scopeName");
            errors.push(Error::invalid(&at, scope, "unsupported scope"));
        }
        for _ in 0..misfits(spec, scope) {
            let detail = "unsupported scope applied to resource";
            let shown = internal("core/v1.ScopeSelector", selector);
            errors.push(Error::invalid(path, shown, detail));
        }
        let at = path.child("operator");
        let only_exists =
            SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if only_exists && operator != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(Error::invalid(&at, operator, detail));
        }
        let (values, values_at) = (&expression["values"], path.child("values"));
        match operator {
            "In" | "NotIn" => {
                if list(values).is_empty() {
                    let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                    errors.push(Error::required(&values_at, detail));
                }
            }
            "Exists" | "DoesNotExist" => {
                if !list(values).is_empty() {
                    let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                    errors.push(Error::invalid(&values_at, values.clone(), detail));
                }
            }
            other => {
                let detail = "not a valid selector operator";
                errors.push(Error::invalid(&at, other, detail));
            }
        }
    }
    let scopes: Vec<&str> = expressions.iter().map(|e| text(&e["scopeName"])).collect();
    for _ in 0..conflicts(&scopes) {
        let all = spec["scopes"].clone();
        errors.push(Error::invalid(path, all, "conflicting scopes"));
    }
}

fn validate_update(object: &Object, old: &Object, subresource: Subresource<'_>) -> Errors {
    let mut errors = Vec::new();
    match subresource {
        None => {
            errors.extend(validate(object));
            let scopes = |o: &Object| -> BTreeSet<String> {
                let all = list(&get(o, "spec")["scopes"]);
                all.iter().map(|s| text(s).to_owned()).collect()
            };
            if scopes(object) != scopes(old) {
                let at = Path::new("spec.scopes");
                let new = get(object, "spec")["scopes"].clone();
                errors.push(Error::invalid(&at, new, check::IMMUTABLE));
            }
        }
        Some("status") => {
            let status = get(object, "status");
            for name in ["hard", "used"] {
                let at = Path::new("status");
                let at = at.child(name);
                check_amounts(&status[name], &at, &mut errors);
            }
        }
        Some(_) => {}
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn quota_scopes_are_compatible_with_each_other_and_the_resources() {
        let quota = |spec: &str| lines(validate(&object(&format!(r#"{{"spec": {spec}}}"#))));
        assert_eq!(
            quota(r#"{"hard": {"pods": "1"}, "scopes": ["Terminating"]}"#),
            [""; 0]
        );
        assert_eq!(
            quota(r#"{"hard": {"services": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}"#),
            [
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: unsupported scope applied to resource",
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: unsupported scope applied to resource",
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
            ]
        );
        assert_eq!(
            quota(
                r#"{"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}"#
            ),
            [
                "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            ]
        );
    }

    #[test]
    fn requests_beyond_limits_are_warned_about() {
        let quota = |hard: &str| warnings(&object(&format!(r#"{{"spec": {{"hard": {hard}}}}}"#)));
        assert_eq!(
            quota(r#"{"cpu": "1", "limits.cpu": "1", "storage": "2", "limits.storage": "1"}"#),
            [""; 0]
        );
        assert_eq!(
            quota(
                r#"{"cpu": "2", "limits.cpu": "1", "requests.memory": "1Gi", "memory": "1", "limits.memory": "1Mi"}"#
            ),
            [
                "ResourceQuota cpu (2) should be less than limits.cpu (1)",
                "ResourceQuota requests.memory (1Gi) should be less than limits.memory (1Mi)",
            ]
        );
    }
}
