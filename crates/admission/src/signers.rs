//! Authorization for signers: checked for the signer's name and for its domain.

use std::sync::Arc;

use crate::{
    User,
    authz::{self, Authorizer, Decision},
};

/// The authorizers.
pub(super) type Authorizers = Arc<[Arc<dyn Authorizer>]>;

/// Whether the user may `verb` (approve, sign, attest) for `signer`, such as `example.com/serving`.
pub(super) async fn may(authorizers: &Authorizers, user: &User, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    for name in [signer, &format!("{domain}/*")] {
        let attributes = authz::Attributes {
            user,
            verb,
            is_resource: true,
            group: "certificates.k8s.io",
            version: "*",
            resource: "signers",
            subresource: "",
            namespace: "",
            name,
            path: "",
            field_selector: "",
            label_selector: "",
        };
        if authz::decide(authorizers, &attributes).await == Decision::Allow {
            return true;
        }
    }
    false
}
