//! Match rules that webhooks and policies share.

use crate::check;
use crate::tree::{is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};
use std::collections::BTreeSet;

pub(super) const FAILURE_POLICIES: &[&str] = &["Fail", "Ignore"];
const MATCH_POLICIES: &[&str] = &["Equivalent", "Exact"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MUTATING_OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "UPDATE"];
const CONDITIONS_MAX: usize = 64;

/// A value, if set, must be one of these.
pub(super) fn check_set(value: &Value, known: &[&str], path: &Path, errors: &mut Errors) {
    if is_set(value) {
        check::one_of(value, known, path, errors);
    }
}

pub(super) fn check_match_policy(value: &Value, path: &Path, errors: &mut Errors) {
    check_set(value, MATCH_POLICIES, path, errors);
}

fn check_wildcard(values: &Value, what: &str, path: &Path, errors: &mut Errors) {
    if list(values).len() > 1 && list(values).iter().any(|v| v == "*") {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.push(Error::invalid(path, values.clone(), detail));
    }
}

/// Validates a rule: operations on resources.
pub(super) fn check_rule(rule: &Value, path: &Path, errors: &mut Errors) {
    let (operations, at) = (&rule["operations"], path.child("operations"));
    if list(operations).is_empty() {
        errors.push(Error::required(&at, ""));
    }
    check_wildcard(operations, "operations", &at, errors);
    for (i, operation) in list(operations).iter().enumerate() {
        check::one_of(operation, OPERATIONS, &at.index(i), errors);
    }
    for (name, what) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let at = path.child(name);
        if list(&rule[name]).is_empty() {
            errors.push(Error::required(&at, ""));
        }
        check_wildcard(&rule[name], what, &at, errors);
    }
    for (i, version) in list(&rule["apiVersions"]).iter().enumerate() {
        check::required(version, &path.child("apiVersions").index(i), errors);
    }
    check_resources(&rule["resources"], &path.child("resources"), errors);
    let scopes = ["*", "Cluster", "Namespaced"];
    check_set(&rule["scope"], &scopes, &path.child("scope"), errors);
}

fn check_resources(resources: &Value, path: &Path, errors: &mut Errors) {
    let all = list(resources);
    if all.is_empty() {
        errors.push(Error::required(path, ""));
    }
    let (mut whole, mut everywhere) = (BTreeSet::new(), BTreeSet::new());
    let mut plain = false;
    for (i, given) in all.iter().enumerate() {
        let (given, at) = (text(given), path.index(i));
        if given.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let Some((resource, sub)) = given.split_once('/') else {
            plain = given != "*";
            continue;
        };
        if whole.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {given}");
            errors.push(Error::invalid(&at, given, detail));
        }
        if everywhere.contains(sub) {
            let detail = format!("if '*/{sub}' is present, must not specify {given}");
            errors.push(Error::invalid(&at, given, detail));
        }
        if sub == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            everywhere.insert(sub);
        }
    }
    let has = |name: &str| all.iter().any(|r| r == name);
    if all.len() > 1 && has("*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(Error::invalid(path, resources.clone(), detail));
    }
    if has("*") && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(Error::invalid(path, resources.clone(), detail));
    }
}

/// Validates the matchResources of a policy.
pub(super) fn check_match(resources: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(resources) {
        return;
    }
    let at = path.child("matchPolicy");
    match &resources["matchPolicy"] {
        Value::Null => errors.push(Error::required(&at, "")),
        policy => check::one_of(policy, MATCH_POLICIES, &at, errors),
    }
    for name in ["namespaceSelector", "objectSelector"] {
        check::label_selector(&resources[name], &path.child(name), errors);
    }
    for name in ["resourceRules", "excludeResourceRules"] {
        for (i, rule) in list(&resources[name]).iter().enumerate() {
            let at = path.child(name);
            let at = at.index(i);
            check_resource_names(
                list(&rule["resourceNames"]),
                &at.child("resourceNames"),
                errors,
            );
            check_rule(rule, &at, errors);
        }
    }
}

fn check_resource_names(names: &[Value], path: &Path, errors: &mut Errors) {
    for (i, name) in names.iter().enumerate() {
        let at = path.index(i);
        check::form(format::path_segment(text(name)), text(name), &at, errors);
        if names[..i].contains(name) {
            errors.push(Error::duplicate(&at, text(name)));
        }
    }
}

/// Mutating policies cannot match DELETE: there is no object to change.
pub(super) fn check_mutating(resources: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("resourceRules.operations");
    for rule in list(&resources["resourceRules"]) {
        for operation in list(&rule["operations"]) {
            check::one_of(operation, MUTATING_OPERATIONS, &at, errors);
        }
    }
}

/// Validates match conditions by name and length; they are compiled elsewhere.
pub(super) fn check_conditions(conditions: &Value, path: &Path, errors: &mut Errors) {
    let all = list(conditions);
    if all.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(path, all.len(), CONDITIONS_MAX));
    }
    for (i, condition) in all.iter().enumerate() {
        let at = path.index(i);
        if text(&condition["expression"]).trim().is_empty() {
            errors.push(Error::required(&at.child("expression"), ""));
        }
        let (name, at) = (text(&condition["name"]), at.child("name"));
        if name.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        check::form(format::qualified_name(name), name, &at, errors);
        if all[..i].iter().any(|c| text(&c["name"]) == name) {
            errors.push(Error::duplicate(&at, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    #[test]
    fn redundant_wildcards_in_rules_are_rejected() {
        let none: [&str; 0] = [];
        let said = |operations: Value, resources: Value| {
            let rule = json!({"operations": operations, "apiGroups": ["*"], "apiVersions": ["v1"], "resources": resources});
            let mut errors = Vec::new();
            check_rule(&rule, &Path::new("r"), &mut errors);
            lines(errors)
        };
        assert_eq!(
            said(json!(["CREATE"]), json!(["pods", "pods/status"])),
            none
        );
        for (operations, resources, line) in [
            (
                json!(["*", "CREATE"]),
                json!(["*"]),
                "r.operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
            ),
            (
                json!(["x"]),
                json!(["*"]),
                "r.operations[0]: Unsupported value: \"x\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
            ),
            (
                json!(["*"]),
                json!(["pods/*", "pods/log"]),
                "r.resources[1]: Invalid value: \"pods/log\": if 'pods/*' is present, must not specify pods/log",
            ),
            (
                json!(["*"]),
                json!(["*", "pods"]),
                "r.resources: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not specify other resources without subresources",
            ),
            (json!(["*"]), json!([""]), "r.resources[0]: Required value"),
        ] {
            assert_eq!(said(operations, resources), [line]);
        }
    }

    #[test]
    fn conditions_have_names_of_their_own() {
        let mut errors = Vec::new();
        let given = json!([{"name": "a", "expression": "true"}, {"name": "a", "expression": " "}, {"expression": "x"}]);
        check_conditions(&given, &Path::new("c"), &mut errors);
        assert_eq!(
            lines(errors),
            [
                "c[1].expression: Required value",
                "c[1].name: Duplicate value: \"a\"",
                "c[2].name: Required value",
            ]
        );
    }
}
