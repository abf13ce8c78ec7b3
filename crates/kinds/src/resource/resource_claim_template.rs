//! ResourceClaimTemplate: a claim created for each pod.

use super::claim_spec::{check_claim_spec, default_claim_spec};
use crate::Subresource;
use crate::builtin::Builtin;
use crate::check;
use crate::equal::equal;
use crate::internal::internal;
use crate::metadata::{Check, validate_template_metadata};
use crate::tree::{child_or_new, get};
use machinery::Object;
use machinery::field::{Error, Errors, Path};

const SPEC: &str = "resource/v1.ResourceClaimTemplateSpec";

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "ResourceClaimTemplate",
    plural: "resourceclaimtemplates",
    returns_deleted: true,
    schema: "resource/v1.ResourceClaimTemplate",
    default: |object| default_claim_spec(child_or_new(child_or_new(object, "spec"), "spec")),
    validate_create: validate,
    validate_update: |object, old, _: Subresource<'_>| {
        let mut errors = validate(object);
        if !equal(SPEC, get(object, "spec"), get(old, "spec")) {
            let shown = internal(SPEC, get(object, "spec"));
            errors.push(Error::invalid(&Path::new("spec"), shown, check::IMMUTABLE));
        }
        errors
    },
    metadata_checks: &[Check::Whole, Check::Change],
    ..Builtin::EMPTY
};

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    validate_template_metadata(&spec["metadata"], &path.child("metadata"), &mut errors);
    check_claim_spec(&spec["spec"], &path.child("spec"), &mut errors);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    #[test]
    fn a_claim_template_has_only_labels_and_annotations_and_is_immutable() {
        let old = object(r#"{"spec": {"metadata": {"labels": {"a": "b"}}, "spec": {}}}"#);
        let new = object(
            r#"{"spec": {"metadata": {"name": "n", "uid": "u", "deletionGracePeriodSeconds": 0}, "spec": {}}}"#,
        );
        assert_eq!(lines((KIND.validate_update)(&old, &old, None)), [""; 0]);
        assert_eq!(
            lines((KIND.validate_update)(&new, &old, None)),
            [
                "spec.metadata.name: Forbidden: cannot be set",
                "spec.metadata.uID: Forbidden: cannot be set",
                "spec.metadata.deletionGracePeriodSeconds: Forbidden: cannot be set",
                r#"spec: Invalid value: {"name":"n","uid":"u","deletionGracePeriodSeconds":0,"Spec":{"Devices":{"Requests":null,"Constraints":null,"Config":null}}}: field is immutable"#,
            ]
        );
    }
}
