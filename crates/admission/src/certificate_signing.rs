//! Setting the certificate or conditions of a CertificateSigningRequest requires permission to sign
//! for its signer.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{
    Attributes, Operation, Plugin,
    signers::{self, Authorizers},
};

pub(crate) const NAME: &str = "CertificateSigning";

pub(crate) struct CertificateSigning {
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is("certificates.k8s.io", "certificatesigningrequests")
            && attributes.subresource == "status"
            && attributes.operation == Operation::Update
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(old), Some(object)) = (attributes.old, object) else {
            return Ok(());
        };
        let (before, after) = (tree::get(old, "status"), tree::get(object, "status"));
        if ["certificate", "conditions"]
            .iter()
            .all(|key| before[*key] == after[*key])
        {
            return Ok(());
        }
        let signer = tree::text(&tree::get(old, "spec")["signerName"]);
        if signers::may(&self.authorizers, attributes.user, "sign", signer).await {
            return Ok(());
        }
        let why = format!("user not permitted to sign requests with signerName {signer:?}");
        Err(attributes.forbidden(&why))
    }
}
