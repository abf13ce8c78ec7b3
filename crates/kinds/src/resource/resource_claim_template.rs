//! ResourceClaimTemplate: a claim created for each pod.

use super::claim_spec::{
    check_claim_spec, default_claim_spec, requested_admin_access, visit_claim_selectors,
};
use crate::builtin::Builtin;
use crate::check;
use crate::equal::equal;
use crate::internal::internal;
use crate::metadata::{Check, validate_template_metadata};
use crate::tree::{child_or_new, get};
use crate::unenforced::REQUESTS_DEVICES;
use crate::{Expressions, ServerSide, Subresource};
use machinery::field::{Error, Errors, Path, PathBuf};
use machinery::{Object, Value};

const SPEC: &str = "resource/v1.ResourceClaimTemplateSpec";

pub const KIND: Builtin = Builtin {
    group: "resource.k8s.io",
    kind: "ResourceClaimTemplate",
    plural: "resourceclaimtemplates",
    unenforced: REQUESTS_DEVICES,
    server_side: ServerSide {
        expressions: Expressions::DeviceSelectors(visit_selectors),
        admin_access,
        ..ServerSide::NONE
    },
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

fn visit_selectors(object: &Object, _: Option<&Object>, visit: &mut dyn FnMut(&Path<'_>, &Value)) {
    let path = Path::new("spec.spec");
    visit_claim_selectors(&get(object, "spec")["spec"], &path, visit);
}

fn admin_access(
    object: &Object,
    old: Option<&Object>,
    subresource: Subresource<'_>,
) -> Option<PathBuf> {
    let is_new = old.is_none() && subresource.is_none();
    is_new.then(|| requested_admin_access(&get(object, "spec")["spec"]["devices"]))?
}

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
