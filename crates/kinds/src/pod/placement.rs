//! Where a pod may run: affinity, tolerations, spreading.

use crate::check;
use crate::tree::{entries, int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};
use std::collections::{BTreeSet, HashMap};

pub(crate) fn check_tolerations(tolerations: &Value, path: &Path, errors: &mut Errors) {
    for (i, toleration) in list(tolerations).iter().enumerate() {
        let at = path.index(i);
        let (key, operator) = (text(&toleration["key"]), text(&toleration["operator"]));
        let (value, effect) = (text(&toleration["value"]), text(&toleration["effect"]));
        if !key.is_empty() {
            check::form(format::qualified_name(key), key, &at.child("key"), errors);
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(Error::invalid(&at.child("operator"), operator, detail));
        }
        if is_set(&toleration["tolerationSeconds"]) && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&at.child("effect"), effect, detail));
        }
        match operator {
            "" | "Equal" => {
                let complaints = format::label_value(value);
                if !complaints.is_empty() {
                    let at = at.child("operator");
                    errors.push(Error::invalid(&at, value, complaints.join(";")));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    let detail = "value must be empty when `operator` is 'Exists'";
                    errors.push(Error::invalid(&at.child("operator"), value, detail));
                }
            }
            other => {
                // Comparison operators are known but behind a disabled gate.
                let all = ["Equal", "Exists", "Lt", "Gt"];
                let known = if all.contains(&other) {
                    &all[..]
                } else {
                    &all[..2]
                };
                let at = at.child("operator");
                errors.push(Error::not_supported(&at, other, known));
            }
        }
        if !effect.is_empty() {
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            check::one_of(&toleration["effect"], &effects, &at.child("effect"), errors);
        }
    }
}

pub(super) fn check_affinity(affinity: &Value, path: &Path, errors: &mut Errors) {
    let node = &affinity["nodeAffinity"];
    let at = path.child("nodeAffinity");
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    if is_set(&node[required]) {
        check_node_selector(&node[required], &at.child(required), errors);
    }
    for (i, term) in list(&node[preferred]).iter().enumerate() {
        let at = at.child(preferred);
        let at = at.index(i);
        check_weight(&term["weight"], &at, errors);
        check_node_term(&term["preference"], false, &at.child("preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let at = path.child(kind);
        for (i, term) in list(&affinity[kind][required]).iter().enumerate() {
            check_pod_term(term, &at.child(required).index(i), errors);
        }
        for (i, weighted) in list(&affinity[kind][preferred]).iter().enumerate() {
            let at = at.child(preferred);
            let at = at.index(i);
            check_weight(&weighted["weight"], &at, errors);
            check_pod_term(
                &weighted["podAffinityTerm"],
                &at.child("podAffinityTerm"),
                errors,
            );
        }
    }
}

fn check_weight(weight: &Value, path: &Path, errors: &mut Errors) {
    if !(1..=100).contains(&int(weight)) {
        let at = path.child("weight");
        errors.push(Error::invalid(
            &at,
            int(weight),
            "must be in the range 1-100",
        ));
    }
}

/// Validates a node selector, also of a PersistentVolume.
pub(crate) fn check_node_selector(selector: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("nodeSelectorTerms");
    let terms = list(&selector["nodeSelectorTerms"]);
    if terms.is_empty() {
        let detail = "must have at least one node selector term";
        return errors.push(Error::required(&at, detail));
    }
    for (i, term) in terms.iter().enumerate() {
        check_node_term(term, true, &at.index(i), errors);
    }
}

fn check_node_term(term: &Value, values_are_checked: bool, path: &Path, errors: &mut Errors) {
    for (i, requirement) in list(&term["matchExpressions"]).iter().enumerate() {
        let at = path.child("matchExpressions");
        let at = at.index(i);
        check_node_requirement(requirement, &at, errors);
        let key = text(&requirement["key"]);
        check::form(format::qualified_name(key), key, &at.child("key"), errors);
        if !values_are_checked {
            continue;
        }
        for (j, value) in list(&requirement["values"]).iter().enumerate() {
            let complaints = format::label_value(text(value));
            let at = at.child("values");
            let at = at.index(j);
            check::form(complaints, text(value), &at, errors);
        }
    }
    for (i, requirement) in list(&term["matchFields"]).iter().enumerate() {
        let at = path.child("matchFields");
        let at = at.index(i);
        let one = list(&requirement["values"]).len() == 1;
        if matches!(text(&requirement["operator"]), "In" | "NotIn") {
            if !one {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(Error::required(&at.child("values"), detail));
            }
        } else {
            let detail = "not a valid selector operator";
            let at = at.child("operator");
            errors.push(Error::invalid(&at, text(&requirement["operator"]), detail));
        }
        if text(&requirement["key"]) != "metadata.name" {
            let detail = "not a valid field selector key";
            errors.push(Error::invalid(
                &at.child("key"),
                text(&requirement["key"]),
                detail,
            ));
            continue;
        }
        for (j, value) in list(&requirement["values"]).iter().enumerate() {
            let complaints = format::dns1123_subdomain(text(value));
            let at = at.child("values");
            let at = at.index(j);
            check::form(complaints, text(value), &at, errors);
        }
    }
}

fn check_node_requirement(requirement: &Value, path: &Path, errors: &mut Errors) {
    let values = list(&requirement["values"]);
    let at = path.child("values");
    match text(&requirement["operator"]) {
        "In" | "NotIn" if values.is_empty() => errors.push(Error::required(
            &at,
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(Error::forbidden(
            &at,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        "Gt" | "Lt" if values.len() != 1 => errors.push(Error::required(
            &at,
            "must be specified single value when `operator` is 'Lt' or 'Gt'",
        )),
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            let at = path.child("operator");
            errors.push(Error::invalid(&at, other, "not a valid selector operator"));
        }
    }
}

fn check_topology_key(key: &str, path: &Path, errors: &mut Errors) {
    let at = path.child("topologyKey");
    if key.is_empty() {
        errors.push(Error::required(&at, "can not be empty"));
    }
    check::form(format::qualified_name(key), key, &at, errors);
}

fn check_pod_term(term: &Value, path: &Path, errors: &mut Errors) {
    check::label_selector(&term["labelSelector"], &path.child("labelSelector"), errors);
    check::label_selector(
        &term["namespaceSelector"],
        &path.child("namespaceSelector"),
        errors,
    );
    for name in list(&term["namespaces"]) {
        let at = path.child("namespace");
        check::form(format::dns1123_label(text(name)), text(name), &at, errors);
    }
    check_label_keys(term, path, errors);
    check_topology_key(text(&term["topologyKey"]), path, errors);
}

/// Validates matchLabelKeys and mismatchLabelKeys.
fn check_label_keys(term: &Value, path: &Path, errors: &mut Errors) {
    let selector = &term["labelSelector"];
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let (keys, at) = (list(&term[field]), path.child(field));
        if keys.is_empty() {
            continue;
        }
        if !is_set(selector) {
            let detail = "must not be specified when labelSelector is not set";
            errors.push(Error::forbidden(&at, detail));
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            let complaints = format::qualified_name(text(key));
            check::form(complaints, text(key), &at.index(i), errors);
        }
    }
    let matching = list(&term["matchLabelKeys"]);
    let mut selected: BTreeSet<&str> = entries(&selector["matchLabels"])
        .map(|(key, _)| key.as_str())
        .collect();
    // Merging appends one expression per key: an earlier one with the same key is the client's.
    for expression in list(&selector["matchExpressions"]) {
        let key = text(&expression["key"]);
        let index = matching.iter().rposition(|k| text(k) == key);
        if let Some(i) = index
            && selected.contains(key)
        {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(Error::invalid(&path.index(i), key, detail));
        }
        selected.insert(key);
    }
    for (i, key) in matching.iter().enumerate() {
        if list(&term["mismatchLabelKeys"]).contains(key) {
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            let at = path.child("matchLabelKeys");
            let at = at.index(i);
            errors.push(Error::invalid(&at, text(key), detail));
        }
    }
}

pub(super) fn check_spread(constraints: &Value, path: &Path, errors: &mut Errors) {
    let all = list(constraints).iter().enumerate();
    let last: HashMap<_, _> = all.clone().map(|(i, one)| (spread_key(one), i)).collect();
    for (i, constraint) in all {
        let at = path.index(i);
        let (key, action) = spread_key(constraint);
        check::positive(&constraint["maxSkew"], &at.child("maxSkew"), errors);
        if key.is_empty() {
            errors.push(Error::required(
                &at.child("topologyKey"),
                "can not be empty",
            ));
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        check::one_of(
            &constraint["whenUnsatisfiable"],
            &actions,
            &at.child("whenUnsatisfiable"),
            errors,
        );
        if last.get(&(key, action)).is_some_and(|last| *last > i) {
            let at = at.child("{topologyKey, whenUnsatisfiable}");
            errors.push(Error::duplicate(&at, format!("{{{key}, {action}}}")));
        }
        check_min_domains(constraint, action, &at.child("minDomains"), errors);
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if is_set(&constraint[policy]) {
                let policies = ["Honor", "Ignore"];
                check::one_of(&constraint[policy], &policies, &at.child(policy), errors);
            }
        }
        check_label_keys(constraint, &at, errors);
        check::label_selector(
            &constraint["labelSelector"],
            &at.child("labelSelector"),
            errors,
        );
    }
}

/// What must be unique.
fn spread_key(constraint: &Value) -> (&str, &str) {
    (
        text(&constraint["topologyKey"]),
        text(&constraint["whenUnsatisfiable"]),
    )
}

fn check_min_domains(constraint: &Value, action: &str, path: &Path, errors: &mut Errors) {
    let domains = &constraint["minDomains"];
    if !is_set(domains) {
        return;
    }
    check::positive(domains, path, errors);
    if action != "DoNotSchedule" {
        let detail =
            format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        errors.push(Error::invalid(path, int(domains), detail));
    }
}
