//! StorageClass: how volumes are provisioned.

use super::{check_parameters, check_provisioner};
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column};
use crate::metadata::Check;
use crate::pod::renamed;
use crate::tree::{default_to, get, list, name, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};
use std::collections::{BTreeMap, BTreeSet};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "StorageClass",
    plural: "storageclasses",
    returns_deleted: true,
    short_names: &["sc"],
    scope: Scope::Cluster,
    schema: "storage/v1.StorageClass",
    default: |object| {
        default_to(object, "reclaimPolicy", "Delete");
        default_to(object, "volumeBindingMode", "Immediate");
    },
    validate_create: validate,
    validate_update,
    warnings: |object, _| warnings(object),
    columns: COLUMNS,
    row,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

fn warnings(object: &Object) -> Vec<String> {
    let mut out = Vec::new();
    for (i, topology) in list(get(object, "allowedTopologies")).iter().enumerate() {
        let at = Path::new("allowedTopologies");
        let at = at.index(i);
        for (j, expression) in list(&topology["matchLabelExpressions"]).iter().enumerate() {
            if let Some(message) = renamed(text(&expression["key"])) {
                let at = at.child("matchLabelExpressions");
                let at = at.index(j);
                let at = at.child("key");
                out.push(format!("{at}: {message}"));
            }
        }
    }
    out
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Provisioner", "string", "Provisioner of the volumes."),
    column(
        "ReclaimPolicy",
        "string",
        "What happens to them in the end.",
    ),
    column("VolumeBindingMode", "string", "When a volume is bound."),
    column(
        "AllowVolumeExpansion",
        "string",
        "Whether volumes can be expanded.",
    ),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let annotations = &get(object, "metadata")["annotations"];
    let is_default = annotations["storageclass.kubernetes.io/is-default-class"] == "true"
        || annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true";
    let mut shown = name(object).to_owned();
    if is_default {
        shown.push_str(" (default)");
    }
    vec![
        Value::from(shown),
        text(get(object, "provisioner")).into(),
        text(get(object, "reclaimPolicy")).into(),
        get(object, "volumeBindingMode")
            .as_str()
            .unwrap_or("<unset>")
            .into(),
        get(object, "allowVolumeExpansion")
            .as_bool()
            .unwrap_or_default()
            .into(),
        age(object, now),
    ]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let field = |name: &'static str| (get(object, name), Path::new(name));
    let (provisioner, at) = field("provisioner");
    check_provisioner(provisioner, &at, &mut errors);
    let (parameters, at) = field("parameters");
    check_parameters(parameters, &at, &mut errors);
    let (policy, at) = field("reclaimPolicy");
    if !text(policy).is_empty() {
        check::one_of(policy, &["Delete", "Retain"], &at, &mut errors);
    }
    let (mode, at) = field("volumeBindingMode");
    let modes = ["Immediate", "WaitForFirstConsumer"];
    check::one_of(mode, &modes, &at, &mut errors);
    let (topologies, at) = field("allowedTopologies");
    check_topologies(list(topologies), &at, &mut errors);
    errors
}

/// A topology term: keys with their values, sorted.
type Term = BTreeMap<String, BTreeSet<String>>;

fn check_topologies(topologies: &[Value], path: &Path, errors: &mut Errors) {
    // Upstream treats an empty term as a duplicate.
    let mut seen = vec![Term::new(); topologies.len()];
    for (i, topology) in topologies.iter().enumerate() {
        let at = path.index(i);
        let at = at.child("matchLabelExpressions");
        let mut term = Term::new();
        for (j, expression) in list(&topology["matchLabelExpressions"]).iter().enumerate() {
            let (at, key) = (at.index(j), text(&expression["key"]));
            let values = check_values(list(&expression["values"]), &at.child("values"), errors);
            check::form(format::qualified_name(key), key, &at.child("key"), errors);
            if term.insert(key.to_owned(), values).is_some() {
                errors.push(Error::duplicate(&at.child("key"), key));
            }
        }
        for _ in seen.iter().filter(|other| **other == term) {
            errors.push(Error::duplicate(&at, ""));
        }
        seen.push(term);
    }
}

fn check_values(values: &[Value], path: &Path, errors: &mut Errors) -> BTreeSet<String> {
    if values.is_empty() {
        errors.push(Error::required(path, ""));
    }
    let mut seen = BTreeSet::new();
    for (i, value) in values.iter().enumerate() {
        if !seen.insert(text(value).to_owned()) {
            errors.push(Error::duplicate(&path.index(i), text(value)));
        }
    }
    seen
}

fn validate_update(object: &Object, old: &Object, _: Subresource<'_>) -> Errors {
    let mut errors = validate(object);
    for name in [
        "parameters",
        "provisioner",
        "reclaimPolicy",
        "volumeBindingMode",
    ] {
        let (new, was) = (get(object, name), get(old, name));
        check::immutable(new, was, &Path::new(name), &mut errors);
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn provisioner_and_other_fields_of_a_storage_class_are_immutable() {
        let class = |provisioner: &str, topologies: &str| {
            object(&format!(
                r#"{{"provisioner": "{provisioner}", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowedTopologies": {topologies}}}"#
            ))
        };
        let none: [&str; 0] = [];
        let zone = r#"[{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]"#;
        assert_eq!(lines(validate(&class("a.b/c", zone))), none);
        assert_eq!(
            lines(validate_update(&class("x", "[]"), &class("y", "[]"), None)),
            ["provisioner: Invalid value: \"x\": field is immutable"]
        );
        assert_eq!(
            lines(validate(&class(
                "x",
                r#"[{"matchLabelExpressions": [{"key": "zone"}]}]"#
            ))),
            ["allowedTopologies[0].matchLabelExpressions[0].values: Required value"]
        );
        assert_eq!(
            lines(validate(&class("x", "[{}]"))),
            ["allowedTopologies[0].matchLabelExpressions: Duplicate value: \"\""]
        );
    }

    #[test]
    fn old_labels_of_nodes_are_warned_about() {
        let class = object(
            r#"{"allowedTopologies": [{"matchLabelExpressions": [{"key": "a"}, {"key": "failure-domain.beta.kubernetes.io/zone"}]}]}"#,
        );
        assert_eq!(
            warnings(&class),
            [
                "allowedTopologies[0].matchLabelExpressions[1].key: deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
            ]
        );
    }
}
