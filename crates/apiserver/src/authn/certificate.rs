//! Client certificates: the common name is the user, each organization is a group. The chain was
//! verified in the TLS handshake.

use async_trait::async_trait;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::{Authenticator, Credentials, Refused};
use crate::User;

pub struct Certificate;

#[async_trait]
impl Authenticator for Certificate {
    fn name(&self) -> &'static str {
        "client-certificate"
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        let Some(leaf) = credentials.certificates.first() else {
            return Ok(None);
        };
        let (_, certificate) = X509Certificate::from_der(leaf)
            .map_err(|error| Refused(format!("unreadable client certificate: {error}")))?;
        let subject = certificate.subject();
        let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(str::to_owned).ok()
        };
        let Some(name) = subject
            .iter_common_name()
            .find_map(text)
            .filter(|name| !name.is_empty())
        else {
            return Ok(None);
        };
        Ok(Some(User::new(
            name,
            subject.iter_organization().filter_map(text),
        )))
    }
}
