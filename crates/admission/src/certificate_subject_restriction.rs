//! Rejects requests to the kube-apiserver-client signer for the group system:masters.

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Operation, Plugin};
use crate::user;

pub(crate) const NAME: &str = "CertificateSubjectRestriction";

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub(crate) struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("certificates.k8s.io", "certificatesigningrequests")
            && attributes.operation == Operation::Create
    }

    fn mutates(&self) -> bool {
        false
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let spec = object.map(|object| tree::get(object, "spec"));
        let Some(spec) = spec.filter(|spec| spec["signerName"] == SIGNER) else {
            return Ok(());
        };
        let pem = BASE64_STANDARD
            .decode(tree::text(&spec["request"]))
            .unwrap_or_default();
        let request = pki::csr::Request::parse(&pem)
            .map_err(|why| attributes.forbidden(&format!("failed to parse CSR: {why}")))?;
        if request
            .organizations
            .iter()
            .any(|group| group == user::MASTERS)
        {
            let why = format!(
                "use of {SIGNER} signer with {} group is not allowed",
                user::MASTERS
            );
            return Err(attributes.forbidden(&why));
        }
        Ok(())
    }
}
