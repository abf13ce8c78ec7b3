//! IngressClass: which controller serves an Ingress.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, or_none};
use crate::metadata::Check;
use crate::tree::{child, child_or_new, default_to, get, is_set, name, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "IngressClass",
    plural: "ingressclasses",
    scope: Scope::Cluster,
    schema: "networking/v1.IngressClass",
    has_generation: true,
    default: |object| {
        if let Some(parameters) = child(child_or_new(object, "spec"), "parameters") {
            default_to(parameters, "scope", "Cluster");
        }
    },
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = Vec::new();
        let at = Path::new("spec.controller");
        let controller = |o: &Object| Value::from(text(&get(o, "spec")["controller"]));
        check::immutable(&controller(object), &controller(old), &at, &mut errors);
        errors.extend(validate(object));
        errors
    },
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Change, Check::Whole],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Controller", "string", "Controller of the class."),
    column(
        "Parameters",
        "string",
        "Reference to the parameters of the class.",
    ),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let annotations = &get(object, "metadata")["annotations"];
    let mut shown = name(object).to_owned();
    if annotations["ingressclass.kubernetes.io/is-default-class"] == "true" {
        shown.push_str(" (default)");
    }
    let parameters = &spec["parameters"];
    let mut where_ = text(&parameters["kind"]).to_owned();
    if is_set(&parameters["apiGroup"]) {
        where_ = format!("{where_}.{}", text(&parameters["apiGroup"]));
    }
    if is_set(parameters) {
        where_ = format!("{where_}/{}", text(&parameters["name"]));
    }
    vec![
        Value::from(shown),
        text(&spec["controller"]).into(),
        Value::from(or_none(&where_)),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    const MAX_CONTROLLER: usize = 250;
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let controller = text(&spec["controller"]);
    let at = path.child("controller");
    if controller.len() > MAX_CONTROLLER {
        errors.push(Error::too_long(&at, MAX_CONTROLLER));
    }
    check::domain_prefixed_path(controller, &at, &mut errors);
    if is_set(&spec["parameters"]) {
        check_parameters(&spec["parameters"], &path.child("parameters"), &mut errors);
    }
    errors
}

fn check_parameters(parameters: &Value, path: &Path, errors: &mut Errors) {
    if let Some(group) = parameters["apiGroup"].as_str() {
        let form = format::dns1123_subdomain(group);
        check::form(form, group, &path.child("apiGroup"), errors);
    }
    for field in ["kind", "name"] {
        check::needed_segment(&parameters[field], &path.child(field), errors);
    }
    let at = path.child("namespace");
    let namespace = parameters["namespace"].as_str();
    match (text(&parameters["scope"]), namespace) {
        ("Namespace", None) => {
            let detail = "`parameters.scope` is set to 'Namespace'";
            errors.push(Error::required(&at, detail));
        }
        ("Namespace", Some(name)) => {
            check::form(format::dns1123_label(name), name, &at, errors);
        }
        ("Cluster", Some(_)) => {
            let detail = "`parameters.scope` is set to 'Cluster'";
            errors.push(Error::forbidden(&at, detail));
        }
        ("Cluster", None) => {}
        _ => {
            let scopes = ["Cluster", "Namespace"];
            check::one_of(&parameters["scope"], &scopes, &path.child("scope"), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn invalid_fields_are_reported_with_their_paths() {
        let reported =
            |spec: &str| lines(validate(&object(&format!(r#"{{"spec": {spec}}}"#)))).join(" ");
        let cases = [
            (r#"{"controller": "example.com/a"}"#, ""),
            ("{}", "spec.controller: Required value"),
            (
                r#"{"controller": "a"}"#,
                r#"spec.controller: Invalid value: "a": must be a domain-prefixed path (such as "acme.io/foo")"#,
            ),
            (
                r#"{"controller": "a/b c"}"#,
                r#"spec.controller: Invalid value: "b c": Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')"#,
            ),
            (
                r#"{"controller": "a/b", "parameters": {"kind": "k", "name": "n", "scope": "Namespace"}}"#,
                "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'",
            ),
            (
                r#"{"controller": "a/b", "parameters": {"kind": "k", "name": "n", "scope": "Cluster", "namespace": "a"}}"#,
                "spec.parameters.namespace: Forbidden: `parameters.scope` is set to 'Cluster'",
            ),
            (
                r#"{"controller": "a/b", "parameters": {"kind": "a/b", "scope": "Cluster"}}"#,
                "spec.parameters.kind: Invalid value: \"a/b\": may not contain '/' spec.parameters.name: Required value",
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(reported(spec), expected, "{spec}");
        }
    }
}
