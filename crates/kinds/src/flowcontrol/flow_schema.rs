//! FlowSchema: assigns requests to priority levels.

use super::COMMON;
use crate::Column;
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell, or_none};
use crate::tree::{child_or_new, default_empty, get, int, is_set, list, name, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    kind: "FlowSchema",
    plural: "flowschemas",
    schema: "flowcontrol/v1.FlowSchema",
    default: |object| default_empty(child_or_new(object, "spec"), "matchingPrecedence", 1000),
    validate_create: validate,
    validate_update: |object, _, subresource| super::validate_update(object, subresource, validate),
    columns: COLUMNS,
    row,
    ..COMMON
};

const COLUMNS: &[Column] = &[
    NAME,
    column("PriorityLevel", "string", "The level."),
    column(
        "MatchingPrecedence",
        "string",
        "Order of evaluation; lower comes first.",
    ),
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

/// The largest matchingPrecedence, which is matched last.
const PRECEDENCE_MAX: i64 = 10_000;

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (precedence, at) = (
        int(&spec["matchingPrecedence"]),
        path.child("matchingPrecedence"),
    );
    if precedence <= 0 {
        errors.push(Error::invalid(&at, precedence, "must be a positive value"));
    }
    if precedence > PRECEDENCE_MAX {
        let detail = format!("must not be greater than {PRECEDENCE_MAX}");
        errors.push(Error::invalid(&at, precedence, detail));
    }
    if precedence == 1 && name(object) != "exempt" {
        let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(Error::invalid(&at, precedence, detail));
    }
    let method = &spec["distinguisherMethod"];
    let methods = ["ByNamespace", "ByUser"];
    if is_set(method) && !methods.contains(&text(&method["type"])) {
        let at = path.child("distinguisherMethod.type");
        let printed = json!({"Type": text(&method["type"])});
        errors.push(Error::not_supported(&at, printed, &methods));
    }
    let level = text(&spec["priorityLevelConfiguration"]["name"]);
    let at = path.child("priorityLevelConfiguration.name");
    if level.is_empty() {
        errors.push(Error::required(&at, "must reference a priority level"));
    } else {
        check::form(format::dns1123_subdomain(level), level, &at, &mut errors);
    }
    for (i, rule) in list(&spec["rules"]).iter().enumerate() {
        check_rule(rule, &path.child("rules").index(i), &mut errors);
    }
    super::check_conditions(get(object, "status"), &mut errors);
    errors
}

fn check_rule(rule: &Value, path: &Path, errors: &mut Errors) {
    let subjects = list(&rule["subjects"]);
    for (i, subject) in subjects.iter().enumerate() {
        check_subject(subject, &path.child("subjects").index(i), errors);
    }
    if subjects.is_empty() {
        let detail = "subjects must contain at least one value";
        errors.push(Error::required(&path.child("subjects"), detail));
    }
    let (resources, urls) = (
        list(&rule["resourceRules"]),
        list(&rule["nonResourceRules"]),
    );
    if resources.is_empty() && urls.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(Error::required(path, detail));
    }
    for (i, rule) in resources.iter().enumerate() {
        check_resource_rule(rule, &path.child("resourceRules").index(i), errors);
    }
    for (i, rule) in urls.iter().enumerate() {
        check_url_rule(rule, &path.child("nonResourceRules").index(i), errors);
    }
}

const SUBJECTS: &[(&str, &str)] = &[
    ("ServiceAccount", "serviceAccount"),
    ("User", "user"),
    ("Group", "group"),
];

fn check_subject(subject: &Value, path: &Path, errors: &mut Errors) {
    let kind = text(&subject["kind"]);
    let Some((_, field)) = SUBJECTS.iter().find(|(k, _)| *k == kind) else {
        let kinds = ["Group", "ServiceAccount", "User"];
        errors.push(Error::not_supported(&path.child("kind"), kind, &kinds));
        return;
    };
    let (who, at) = (&subject[*field], path.child(field));
    if is_set(who) {
        check_who(field, who, &at, errors);
    } else {
        let detail = format!("{field} is required when subject kind is '{kind}'");
        errors.push(Error::required(&at, detail));
    }
    for (other, field) in SUBJECTS.iter().filter(|(k, _)| *k != kind) {
        if is_set(&subject[*field]) {
            let detail = format!("{field} is forbidden when subject kind is not '{other}'");
            errors.push(Error::forbidden(&path.child(field), detail));
        }
    }
}

fn check_who(field: &str, who: &Value, path: &Path, errors: &mut Errors) {
    let (name, at) = (text(&who["name"]), path.child("name"));
    if name.is_empty() {
        errors.push(Error::required(&at, ""));
    }
    if field != "serviceAccount" {
        return;
    }
    if !name.is_empty() && name != "*" {
        check::form(format::dns1123_subdomain(name), name, &at, errors);
    }
    let (namespace, at) = (text(&who["namespace"]), path.child("namespace"));
    if namespace.is_empty() {
        let detail = "must specify namespace for service account";
        errors.push(Error::required(&at, detail));
    } else {
        check::form(format::dns1123_label(namespace), namespace, &at, errors);
    }
}

/// Whether a list has `*`; then it may have nothing else.
fn says_all(values: &Value, what: &str, path: &Path, errors: &mut Errors) -> bool {
    let all = list(values).iter().any(|v| v == "*");
    if all && list(values).len() > 1 {
        let detail = format!("if '*' is present, must not specify other {what}");
        errors.push(Error::invalid(path, values.clone(), detail));
    }
    all
}

fn check_verbs(rule: &Value, path: &Path, errors: &mut Errors) {
    const VERBS: &[&str] = &[
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "proxy",
        "update",
        "watch",
    ];
    let (verbs, at) = (&rule["verbs"], path.child("verbs"));
    if list(verbs).is_empty() {
        let detail = "verbs must contain at least one value";
        errors.push(Error::required(&at, detail));
    } else if !says_all(verbs, "verbs", &at, errors)
        && !list(verbs).iter().all(|v| VERBS.contains(&text(v)))
    {
        errors.push(Error::not_supported(&at, verbs.clone(), VERBS));
    }
}

fn check_resource_rule(rule: &Value, path: &Path, errors: &mut Errors) {
    check_verbs(rule, path, errors);
    for (name, one, many) in [
        ("apiGroups", "api group", "api groups"),
        ("resources", "resource", "resources"),
    ] {
        let at = path.child(name);
        if list(&rule[name]).is_empty() {
            let detail = format!("resource rules must supply at least one {one}");
            errors.push(Error::required(&at, detail));
        } else {
            says_all(&rule[name], many, &at, errors);
        }
    }
    let (namespaces, at) = (&rule["namespaces"], path.child("namespaces"));
    if list(namespaces).is_empty() && !truth(&rule["clusterScope"]) {
        let detail =
            "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(Error::required(&at, detail));
    } else if !says_all(namespaces, "namespaces", &at, errors) {
        for (i, namespace) in list(namespaces).iter().enumerate() {
            for complaint in format::dns1123_label(text(namespace)) {
                let detail = format!(
                    "each member of this list must be '*' or a DNS-1123 label; {complaint}"
                );
                errors.push(Error::invalid(&at.index(i), text(namespace), detail));
            }
        }
    }
}

fn check_url_rule(rule: &Value, path: &Path, errors: &mut Errors) {
    check_verbs(rule, path, errors);
    let (urls, at) = (&rule["nonResourceURLs"], path.child("nonResourceURLs"));
    if list(urls).is_empty() {
        let detail = "nonResourceURLs must contain at least one value";
        errors.push(Error::required(&at, detail));
    } else if !says_all(urls, "non-resource URLs", &at, errors) {
        for (i, url) in list(urls).iter().enumerate() {
            if let Some(detail) = wrong_url(text(url)) {
                errors.push(Error::invalid(&at.index(i), text(url), detail));
            }
        }
    }
}

fn wrong_url(url: &str) -> Option<&'static str> {
    if url.is_empty() {
        Some("must not be empty")
    } else if !url.starts_with('/') {
        Some("must start with slash")
    } else if url.contains(' ') {
        Some("must not contain white-space")
    } else if url.contains("//") {
        Some("must not contain double slash")
    } else {
        let stars = url.matches('*').count();
        let wild = stars > 1 || (stars == 1 && !url.ends_with("/*"));
        wild.then_some("wildcard can only do suffix matching")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn errors_of(rule: Value) -> Vec<String> {
        let schema = json!({"spec": {"matchingPrecedence": 9, "priorityLevelConfiguration": {"name": "l"}, "rules": [rule]}});
        lines(validate(&object(&schema.to_string())))
    }

    #[test]
    fn rules_need_subjects_and_valid_urls() {
        let user = json!([{"kind": "User", "user": {"name": "u"}}]);
        let urls = |urls: Value| json!({"subjects": user, "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": urls}]});
        let none: [&str; 0] = [];
        assert_eq!(errors_of(urls(json!(["/healthz", "/x/*"]))), none);
        let at = "spec.rules[0]";
        for (rule, line) in [
            (
                urls(json!(["x"])),
                "nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"x\": must start with slash",
            ),
            (
                urls(json!(["/a*"])),
                "nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"/a*\": wildcard can only do suffix matching",
            ),
            (
                json!({"subjects": user, "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}),
                "resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
            ),
            (
                json!({"subjects": user, "resourceRules": [{"verbs": ["*", "get"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true}]}),
                "resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs",
            ),
            (
                json!({"subjects": [{"kind": "User", "group": {"name": "g"}}], "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true}]}),
                "subjects[0].user: Required value: user is required when subject kind is 'User'",
            ),
        ] {
            assert_eq!(errors_of(rule)[0], format!("{at}.{line}"));
        }
    }
}
