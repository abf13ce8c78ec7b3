//! IngressClass: which controller serves an Ingress.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, or_none};
use crate::tree::{child, child_or_new, default_to, get, is_set, name, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

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
        let mut errors = validate(object);
        let at = Path::new("spec").child("controller");
        let controller = |o: &Object| get(o, "spec")["controller"].clone();
        check::immutable(&controller(object), &controller(old), &at, &mut errors);
        errors
    },
    columns: COLUMNS,
    row,
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Controller", "string", "Who serves the class."),
    column("Parameters", "string", "Where its settings are."),
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
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let controller = text(&spec["controller"]);
    let at = path.child("controller");
    if controller.is_empty() {
        errors.push(Error::required(&at, ""));
    } else if !controller.contains('/') {
        let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(Error::invalid(&at, controller, detail));
    }
    let parameters = &spec["parameters"];
    if is_set(parameters) {
        let at = path.child("parameters");
        for name in ["kind", "name"] {
            let detail = format!("{name} is required");
            if text(&parameters[name]).is_empty() {
                errors.push(Error::required(&at.child(name), detail));
            }
        }
        check::one_of(
            &parameters["scope"],
            &["Cluster", "Namespace"],
            &at.child("scope"),
            &mut errors,
        );
    }
    errors
}
