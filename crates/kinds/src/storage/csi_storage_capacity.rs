//! CSIStorageCapacity: available storage by topology.

use crate::Subresource;
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{NAME_CREATED, name_created};
use crate::metadata::Check;
use crate::pod::{renamed, warn_term};
use crate::tree::{entries, get, text};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Object, format};

pub const KIND: Builtin = Builtin {
    group: "storage.k8s.io",
    kind: "CSIStorageCapacity",
    plural: "csistoragecapacities",
    schema: "storage/v1.CSIStorageCapacity",
    allows_unconditional_update: false,
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        for name in ["nodeTopology", "storageClassName"] {
            check::immutable(
                get(object, name),
                get(old, name),
                &Path::new(name),
                &mut errors,
            );
        }
        errors
    },
    warnings: |object, _| warnings(object),
    columns: NAME_CREATED,
    row: name_created,
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

fn warnings(object: &Object) -> Vec<String> {
    let (nodes, at) = (get(object, "nodeTopology"), Path::new("nodeTopology"));
    let mut out = Vec::new();
    warn_term(nodes, false, &at, &mut out);
    for (label, _) in entries(&nodes["matchLabels"]) {
        if let Some(message) = renamed(label) {
            let at = at.child("matchLabels");
            let at = at.child(label);
            out.push(format!("{at}: {message}"));
        }
    }
    out
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let (topology, at) = (get(object, "nodeTopology"), Path::new("nodeTopology"));
    check::label_selector(topology, &at, &mut errors);
    let class = text(get(object, "storageClassName"));
    let at = Path::new("storageClassName");
    check::form(format::dns1123_subdomain(class), class, &at, &mut errors);
    let capacity = text(get(object, "capacity"));
    let amount = capacity.parse::<Quantity>();
    if amount.is_ok_and(Quantity::is_negative) {
        let at = Path::new("capacity");
        errors.push(Error::invalid(&at, capacity, check::NEGATIVE));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_capacity_stays_where_it_is_and_keeps_its_form() {
        let of = |selector: &str| {
            object(&format!(
                r#"{{"storageClassName": "c", "nodeTopology": {{"matchExpressions": [{selector}]}}}}"#
            ))
        };
        let (old, new) = (
            of(r#"{"key": "a", "operator": "Exists"}"#),
            of(r#"{"key": "a", "operator": "Is"}"#),
        );
        assert_eq!(lines((KIND.validate_update)(&old, &old, None)), [""; 0]);
        assert_eq!(
            lines((KIND.validate_update)(&new, &old, None)),
            [
                "nodeTopology.matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
                r#"nodeTopology: Invalid value: {"matchExpressions":[{"key":"a","operator":"Is"}]}: field is immutable"#,
            ]
        );
    }

    #[test]
    fn old_labels_of_nodes_are_warned_about() {
        let capacity = object(
            r#"{"nodeTopology": {"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "Exists"}],
                "matchLabels": {"beta.kubernetes.io/os": "linux", "a": "b"}}}"#,
        );
        assert_eq!(
            warnings(&capacity),
            [
                "nodeTopology.matchExpressions[0].key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead",
                "nodeTopology.matchLabels.beta.kubernetes.io/os: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ]
        );
    }
}
