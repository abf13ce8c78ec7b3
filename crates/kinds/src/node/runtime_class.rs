//! RuntimeClass: the container runtime of a pod.

use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::metadata::Check;
use crate::pod::{check_resources, check_tolerations, renamed};
use crate::shown::{GoField, GoType, shown};
use crate::tree::{entries, get, is_set, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value, format};
use std::collections::BTreeSet;

pub const KIND: Builtin = Builtin {
    group: "node.k8s.io",
    kind: "RuntimeClass",
    plural: "runtimeclasses",
    scope: Scope::Cluster,
    schema: "node/v1.RuntimeClass",
    allows_create_on_update: true,
    allows_unconditional_update: false,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        let at = Path::new("handler");
        check::immutable(
            get(object, "handler"),
            get(old, "handler"),
            &at,
            &mut errors,
        );
        errors
    },
    warnings: |object, _| warnings(object),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

fn warnings(object: &Object) -> Vec<String> {
    entries(&get(object, "scheduling")["nodeSelector"])
        .filter_map(|(label, _)| renamed(label))
        .map(|message| format!("scheduling.nodeSelector: {message}"))
        .collect()
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Handler", "string", "Handler of the container runtime."),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    vec![
        name_cell(object),
        text(get(object, "handler")).into(),
        age(object, now),
    ]
}

const TOLERATION: &[GoField] = &[
    GoField("key", "Key", GoType::Text),
    GoField("operator", "Operator", GoType::Text),
    GoField("value", "Value", GoType::Text),
    GoField("effect", "Effect", GoType::Text),
    GoField("tolerationSeconds", "TolerationSeconds", GoType::Plain),
];

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let at = Path::new("handler");
    match text(get(object, "handler")) {
        "" => errors.push(Error::required(&at, "")),
        handler => check::form(format::dns1123_label(handler), handler, &at, &mut errors),
    }
    let overhead = get(object, "overhead");
    if is_set(overhead) {
        let limits = json!({"limits": overhead["podFixed"]});
        let at = Path::new("overhead");
        check_resources(&limits, &BTreeSet::new(), &at, &mut errors);
    }
    let (scheduling, at) = (get(object, "scheduling"), Path::new("scheduling"));
    let selector = at.child("nodeSelector");
    check::labels(&scheduling["nodeSelector"], &selector, &mut errors);
    let (tolerations, at) = (&scheduling["tolerations"], at.child("tolerations"));
    check_tolerations(tolerations, &at, &mut errors);
    for (i, toleration) in list(tolerations).iter().enumerate() {
        if list(tolerations)[..i].contains(toleration) {
            errors.push(Error::duplicate(
                &at.index(i),
                shown(toleration, TOLERATION),
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn the_handler_of_a_runtime_class_is_immutable_and_its_fields_are_validated() {
        let class = |handler: &str, operator: &str| {
            object(&format!(
                r#"{{"handler": "{handler}", "scheduling": {{"tolerations": [{{"key": "k", "operator": "{operator}"}}]}}}}"#
            ))
        };
        let old = class("h", "Exists");
        assert_eq!(lines((KIND.validate_update)(&old, &old, None)), [""; 0]);
        assert_eq!(
            lines((KIND.validate_update)(&class("i", "Is"), &old, None)),
            [
                "scheduling.tolerations[0].operator: Unsupported value: \"Is\": supported values: \"Equal\", \"Exists\"",
                "handler: Invalid value: \"i\": field is immutable",
            ]
        );
    }

    #[test]
    fn old_labels_of_nodes_are_warned_about() {
        let class =
            object(r#"{"scheduling": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}}"#);
        assert_eq!(
            warnings(&class),
            ["scheduling.nodeSelector: deprecated since v1.14; use \"kubernetes.io/os\" instead"]
        );
    }
}
