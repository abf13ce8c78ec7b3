//! Approving or denying a CertificateSigningRequest requires permission for its signer.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{
    Attributes, Operation, Plugin,
    signers::{self, Authorizers},
};

pub(crate) const NAME: &str = "CertificateApproval";

pub(crate) struct CertificateApproval {
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is("certificates.k8s.io", "certificatesigningrequests")
            && attributes.subresource == "approval"
            && attributes.operation == Operation::Update
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _: Option<&Object>,
    ) -> Result<(), Status> {
        // The stored signer counts: a new one in the body is not trusted.
        let Some(old) = attributes.old else {
            return Ok(());
        };
        let signer = tree::text(&tree::get(old, "spec")["signerName"]);
        if signers::may(&self.authorizers, attributes.user, "approve", signer).await {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName {signer:?}");
        Err(attributes.forbidden(&why))
    }
}
