//! ServiceAccount: an identity for processes in pods.

use crate::SubresourceInfo;
use crate::builtin::Builtin;
use crate::metadata::Check;
use crate::tree::{each, get, is_set};
use machinery::Object;

pub const KIND: Builtin = Builtin {
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    returns_deleted: true,
    short_names: &["sa"],
    schema: "core/v1.ServiceAccount",
    subresources: &[SubresourceInfo {
        name: "token",
        group: "authentication.k8s.io",
        version: "v1",
        kind: "TokenRequest",
        verbs: &["create"],
    }],
    metadata_checks: &[Check::Change, Check::Whole],
    prepare_create: |object, _| name_secrets(object),
    prepare_update: |object, _, _, _| name_secrets(object),
    warnings,
    ..Builtin::EMPTY
};

const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

/// Secrets are in the account's namespace: only the name of a reference is kept.
fn name_secrets(object: &mut Object) {
    for secret in each(object, "secrets") {
        secret.retain(|field, _| field == "name");
    }
}

fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let enforces = |object: &Object| is_set(&get(object, "metadata")["annotations"][ENFORCE]);
    if !enforces(object) || old.is_some_and(enforces) {
        return Vec::new();
    }
    vec![format!(
        "metadata.annotations[{ENFORCE}]: deprecated in v1.32+; \
         prefer separate namespaces to isolate access to mounted secrets"
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn only_names_of_secrets_are_kept() {
        let mut account = object(r#"{"secrets": [{"name": "a", "namespace": "b", "kind": "c"}]}"#);
        name_secrets(&mut account);
        assert_eq!(account, object(r#"{"secrets": [{"name": "a"}]}"#));
    }

    #[test]
    fn a_new_use_of_the_old_annotation_is_warned_about() {
        let account = object(
            r#"{"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}"#,
        );
        assert_eq!(warnings(&account, None).len(), 1);
        assert!(warnings(&account, Some(&account)).is_empty());
    }
}
