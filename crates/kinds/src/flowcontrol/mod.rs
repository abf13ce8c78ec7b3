//! The kinds of flowcontrol.apiserver.k8s.io.

pub mod flow_schema;
pub mod priority_level_configuration;

use crate::builtin::{Builtin, STATUS};
use crate::metadata::Check;
use crate::tree::{child, get, keep, list, text};
use crate::{Context, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

/// What both kinds have in common.
const COMMON: Builtin = Builtin {
    group: "flowcontrol.apiserver.k8s.io",
    scope: Scope::Cluster,
    subresources: &[STATUS],
    has_status: true,
    has_generation: true,
    prepare_update: keep_metadata,
    metadata_checks: &[Check::Whole],
    status_metadata_checks: &[],
    status_resets: &[&["metadata"], &["spec"]],
    ..Builtin::EMPTY
};

/// The errors of a changed object: of the whole, or of its status.
fn validate_update(
    object: &Object,
    subresource: Subresource<'_>,
    validate: fn(&Object) -> Errors,
) -> Errors {
    if subresource.is_none() {
        return validate(object);
    }
    let mut errors = Vec::new();
    check_conditions(get(object, "status"), &mut errors);
    errors
}

/// Through `status` only managedFields of the metadata may change.
fn keep_metadata(object: &mut Object, old: &Object, subresource: Subresource<'_>, _: &Context<'_>) {
    if subresource.is_none() {
        return;
    }
    let managers = child(object, "metadata").and_then(|m| m.shift_remove("managedFields"));
    keep(object, old, "metadata");
    if let (Some(metadata), Some(managers)) = (child(object, "metadata"), managers) {
        metadata.insert("managedFields", managers);
    }
}

/// Each condition needs a unique type.
fn check_conditions(status: &Value, errors: &mut Errors) {
    let path = Path::new("status.conditions");
    let all = list(&status["conditions"]);
    for (i, condition) in all.iter().enumerate() {
        let at = path.index(i);
        let (kind, at) = (text(&condition["type"]), at.child("type"));
        if all[..i].iter().any(|c| text(&c["type"]) == kind) {
            errors.push(Error::duplicate(&at, kind));
        }
        if kind.is_empty() {
            errors.push(Error::required(&at, ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn a_status_leaves_the_metadata_as_it_is() {
        let old = object(r#"{"metadata": {"name": "a", "managedFields": [1]}}"#);
        let new =
            object(r#"{"metadata": {"name": "a", "generateName": "g", "managedFields": [2]}}"#);
        let context = Context { now: "", user: "" };
        for (subresource, expected) in [
            (
                None,
                r#"{"name":"a","generateName":"g","managedFields":[2]}"#,
            ),
            (Some("status"), r#"{"name":"a","managedFields":[2]}"#),
        ] {
            let mut new = new.clone();
            keep_metadata(&mut new, &old, subresource, &context);
            assert_eq!(get(&new, "metadata").to_string(), expected);
        }
    }
}
