//! Client certificates: the common name is the user, each organization a group. The chain is
//! verified again on long connections, because the certificate may expire, and because a front
//! proxy's certificate is not a user.

use std::sync::Arc;

use async_trait::async_trait;
use pki::{Identifier, Signer};
use stdx::Clock;

use super::{Authenticator, Credentials, Refused};
use request::User;

const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

pub struct Certificate {
    identifier: Arc<Identifier>,
    clock: Arc<dyn Clock>,
}

impl Certificate {
    pub fn new(identifier: Arc<Identifier>, clock: Arc<dyn Clock>) -> Self {
        Self { identifier, clock }
    }
}

#[async_trait]
impl Authenticator for Certificate {
    fn name(&self) -> &'static str {
        "client-certificate"
    }

    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused> {
        if credentials.certificates.is_empty() {
            return Ok(None);
        }
        let peer = self
            .identifier
            .identify(credentials.certificates, self.clock.now());
        let peer = peer.map_err(|error| Refused(error.to_string()))?;
        if peer.signer != Signer::Cluster {
            return Ok(None);
        }
        let mut user = User::new(peer.user, peer.groups);
        user.extra
            .insert(CREDENTIAL_ID.to_owned(), vec![peer.credential_id]);
        Ok(Some(user))
    }
}
