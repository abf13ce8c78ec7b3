//! Who a client certificate names.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Error, Pki};

/// Which authority vouches for a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// The cluster's: the certificate names a user.
    Cluster,
    /// The front proxy's: the certificate only entitles its holder to name a user in headers.
    FrontProxy,
}

/// The holder of a verified client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub signer: Signer,
    /// The subject's common name.
    pub user: String,
    /// The subject's organizations.
    pub groups: Vec<String>,
    /// A connection outlives a certificate: ask again after this time.
    pub not_after: Timestamp,
    /// `X509SHA256=` and the digest of the certificate in hex.
    pub credential_id: String,
}

impl Pki {
    /// Verifies the chain that a client sent and says whom it names.
    pub fn identify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<Peer, Error> {
        let signer = match self.ca().vouches_for_client(chain, now) {
            Ok(()) => Signer::Cluster,
            Err(error) => {
                self.front_proxy_ca()
                    .vouches_for_client(chain, now)
                    .map_err(|_| error)?;
                Signer::FrontProxy
            }
        };
        let malformed = |what: &str| Error::Certificate(format!("malformed {what}"));
        let (_, parsed) =
            X509Certificate::from_der(&chain[0]).map_err(|_| malformed("certificate"))?;
        let subject = parsed.subject();
        let user = subject
            .iter_common_name()
            .next()
            .ok_or_else(|| malformed("subject"))?;
        let user = user.as_str().map_err(|_| malformed("common name"))?;
        if user.is_empty() {
            return Err(malformed("common name"));
        }
        let groups = subject
            .iter_organization()
            .map(|group| group.as_str().map(str::to_owned))
            .collect::<Result<_, _>>()
            .map_err(|_| malformed("organization"))?;
        let not_after = Timestamp::from_second(parsed.validity().not_after.timestamp())
            .map_err(|_| malformed("validity"))?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &chain[0]);
        let hex: String = digest
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let credential_id = format!("X509SHA256={hex}");
        Ok(Peer {
            signer,
            user: user.to_owned(),
            groups,
            not_after,
            credential_id,
        })
    }
}
