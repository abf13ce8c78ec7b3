//! StorageVersionMigration: stores all objects of a resource again, in its current storage version.

use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{NAME, column, name_cell};
use crate::equal::equal;
use crate::internal::internal;
use crate::tree::{get, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value, format};

pub const KIND: Builtin = Builtin {
    group: "storagemigration.k8s.io",
    version: "v1beta1",
    kind: "StorageVersionMigration",
    plural: "storageversionmigrations",
    scope: Scope::Cluster,
    schema: "storagemigration/v1beta1.StorageVersionMigration",
    is_on_by_default: false,
    subresources: &[STATUS],
    has_status: true,
    allows_unconditional_update: false,
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| match subresource {
        Some(_) => validate_status(object, old),
        None => {
            let mut errors = validate(object);
            check_same_spec(object, old, &mut errors);
            errors
        }
    },
    columns: COLUMNS,
    row,
    status_resets: &[&["metadata"], &["spec"]],
    ..Builtin::EMPTY
};

const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";

const COLUMNS: &[Column] = &[
    NAME,
    column("Resource", "string", "The resource that is migrated."),
    column("Status", "string", "How far the migration is."),
];

fn row(object: &Object, _: i64) -> Vec<Value> {
    let resource = &get(object, "spec")["resource"];
    let (group, plural) = (text(&resource["group"]), text(&resource["resource"]));
    let resource = match group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    };
    let conditions = list(&get(object, "status")["conditions"]).iter();
    let mut states = conditions
        .filter(|condition| condition["status"] == "True")
        .map(|condition| text(&condition["type"]))
        .filter(|kind| ["Running", SUCCEEDED, FAILED].contains(kind));
    let state = states.next_back().unwrap_or("Unknown");
    vec![name_cell(object), resource.into(), state.into()]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let resource = &get(object, "spec")["resource"];
    let path = Path::new("spec.resource");
    let (plural, at) = (text(&resource["resource"]), path.child("resource"));
    if plural.is_empty() {
        errors.push(Error::required(&at, "resource is required to be set"));
    } else {
        one_error(format::dns1035_label(plural), plural, &at, &mut errors);
    }
    let (group, at) = (text(&resource["group"]), path.child("group"));
    if !group.is_empty() {
        one_error(format::dns1123_subdomain(group), group, &at, &mut errors);
    }
    errors
}

/// All complaints about a value as one error.
fn one_error(complaints: Vec<String>, value: &str, path: &Path, errors: &mut Errors) {
    if !complaints.is_empty() {
        errors.push(Error::invalid(path, value, complaints.join(",")));
    }
}

fn check_same_spec(object: &Object, old: &Object, errors: &mut Errors) {
    const SPEC: &str = "storagemigration/v1beta1.StorageVersionMigrationSpec";
    let (new, was) = (get(object, "spec"), get(old, "spec"));
    if !equal(SPEC, new, was) {
        let at = Path::new("spec");
        errors.push(Error::invalid(&at, internal(SPEC, new), check::IMMUTABLE));
    }
}

fn validate_status(object: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let (status, was) = (get(object, "status"), get(old, "status"));
    let path = Path::new("status");
    let (revision, known) = (
        text(&status["resourceVersion"]),
        text(&was["resourceVersion"]),
    );
    let at = path.child("resourceVersion");
    if !revision.is_empty() && !is_well_formed(revision) {
        let detail = format!("resource version is not well formed: {revision}");
        errors.push(Error::invalid(&at, revision, detail));
    }
    let (conditions, at_conditions) = (&status["conditions"], path.child("conditions"));
    check::conditions(conditions, &at_conditions, &mut errors);
    if !known.is_empty() && known != revision {
        errors.push(Error::invalid(&at, revision, check::IMMUTABLE));
    }
    let mut reject = |detail: &str| {
        errors.push(Error::invalid(&at_conditions, conditions.clone(), detail));
    };
    let (succeeded, failed) = (is_true(status, SUCCEEDED), is_true(status, FAILED));
    if succeeded && failed {
        reject("Both success and failed conditions cannot be true at the same time");
    }
    if is_true(was, SUCCEEDED) && !succeeded {
        reject("Success condition cannot be set to false once it is true");
    }
    if is_true(was, FAILED) && !failed {
        reject("Failed condition cannot be set to false once it is true");
    }
    errors
}

/// Whether a resource version is a positive number without leading zeros.
fn is_well_formed(revision: &str) -> bool {
    !revision.starts_with('0') && revision.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_true(status: &Value, kind: &str) -> bool {
    let mut conditions = list(&status["conditions"]).iter();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn the_resource_is_a_label_and_the_group_a_subdomain() {
        let cases: [(&str, &[&str]); 4] = [
            (r#"{"resource": "widgets", "group": "a.example"}"#, &[]),
            (r#"{"resource": "pods"}"#, &[]),
            (
                r#"{"group": "a.example"}"#,
                &["spec.resource.resource: Required value: resource is required to be set"],
            ),
            (
                r#"{"resource": "pods/log", "group": "A"}"#,
                &[
                    "spec.resource.resource: Invalid value: \"pods/log\": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
                    "spec.resource.group: Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                ],
            ),
        ];
        for (resource, expected) in cases {
            let migration = object(&format!(r#"{{"spec": {{"resource": {resource}}}}}"#));
            assert_eq!(lines(validate(&migration)), expected, "{resource}");
        }
    }

    #[test]
    fn the_resource_cannot_be_changed() {
        let of = |plural| {
            object(&format!(
                r#"{{"spec": {{"resource": {{"resource": "{plural}"}}}}}}"#
            ))
        };
        let mut errors = Vec::new();
        check_same_spec(&of("pods"), &of("pods"), &mut errors);
        assert!(errors.is_empty());
        check_same_spec(&of("secrets"), &of("pods"), &mut errors);
        assert_eq!(
            lines(errors),
            ["spec: Invalid value: {\"Resource\":{\"resource\":\"secrets\"}}: field is immutable"]
        );
    }

    fn status(revision: &str, conditions: &[(&str, &str)]) -> Object {
        let conditions: Vec<String> = conditions
            .iter()
            .map(|(kind, state)| {
                format!(
                    r#"{{"type": "{kind}", "status": "{state}", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}}"#
                )
            })
            .collect();
        object(&format!(
            r#"{{"spec": {{"resource": {{"resource": "pods", "group": ""}}}},
                "status": {{"resourceVersion": "{revision}", "conditions": [{}]}}}}"#,
            conditions.join(",")
        ))
    }

    #[test]
    fn a_migration_ends_once_and_keeps_its_resource_version() {
        type Status<'a> = (&'a str, &'a [(&'a str, &'a str)]);
        let cases: [(Status<'_>, Status<'_>, &[&str]); 6] = [
            (("", &[]), ("7", &[("Running", "True")]), &[]),
            (
                ("7", &[("Running", "True")]),
                ("7", &[("Running", "False"), ("Succeeded", "True")]),
                &[],
            ),
            (
                ("7", &[]),
                ("8", &[]),
                &["status.resourceVersion: Invalid value: \"8\": field is immutable"],
            ),
            (
                ("", &[]),
                ("07", &[]),
                &[
                    "status.resourceVersion: Invalid value: \"07\": resource version is not well formed: 07",
                ],
            ),
            (
                ("", &[]),
                ("", &[("Succeeded", "True"), ("Failed", "True")]),
                &["Both success and failed conditions cannot be true at the same time"],
            ),
            (
                ("", &[("Failed", "True")]),
                ("", &[("Succeeded", "True")]),
                &["Failed condition cannot be set to false once it is true"],
            ),
        ];
        for ((known, was), (revision, conditions), expected) in cases {
            let errors = validate_status(&status(revision, conditions), &status(known, was));
            let errors = lines(errors);
            assert_eq!(errors.len(), expected.len(), "{errors:?}");
            for (error, expected) in errors.iter().zip(expected) {
                assert!(error.ends_with(expected), "{error}");
            }
        }
    }

    #[test]
    fn the_table_shows_the_resource_and_how_far_the_migration_is() {
        let state = |conditions| row(&status("", conditions), 0)[2].clone();
        assert_eq!(state(&[]), "Unknown");
        assert_eq!(state(&[("Running", "True")]), "Running");
        assert_eq!(
            state(&[("Running", "False"), ("Succeeded", "True")]),
            "Succeeded"
        );
        let crd = object(
            r#"{"metadata": {"name": "a"}, "spec": {"resource": {"resource": "widgets", "group": "a.example"}}}"#,
        );
        assert_eq!(row(&crd, 0)[..2], ["a", "widgets.a.example"]);
    }
}
