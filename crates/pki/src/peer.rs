//! Identification by client certificates.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::{
    RootCertStore,
    pki_types::CertificateDer,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name};

use crate::{
    Error, Pki,
    authority::{certificates_from_pem, unix_time},
    provider,
};

/// The CA that signed a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// The cluster's CA: the certificate names a user.
    Cluster,
    /// The front proxy's CA: the certificate only entitles its holder to name a user in headers.
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
    /// The expiry: a connection may outlive the certificate.
    pub not_after: Timestamp,
    /// `X509SHA256=` and the digest of the certificate in hex.
    pub credential_id: String,
}

/// Verifies client certificates. Has only the public parts of the CAs.
pub struct Identifier {
    cluster: Verifier,
    front_proxy: Verifier,
}

type Verifier = Arc<dyn ClientCertVerifier>;

fn verifier(pem: &[u8]) -> Result<Verifier, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_from_pem(pem)? {
        roots.add(certificate)?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| Error::Certificate(error.to_string()))
}

impl Identifier {
    /// From the CAs' certificates as PEM.
    pub fn new(cluster: &str, front_proxy: &str) -> Result<Self, Error> {
        let (cluster, front_proxy) = (
            verifier(cluster.as_bytes())?,
            verifier(front_proxy.as_bytes())?,
        );
        Ok(Self {
            cluster,
            front_proxy,
        })
    }

    /// Verifies a client's chain and returns its identity.
    pub fn identify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<Peer, Error> {
        let (first, rest) = chain
            .split_first()
            .ok_or_else(|| Error::Certificate("no certificate was sent".to_owned()))?;
        let at = unix_time(now);
        let signer = match self.cluster.verify_client_cert(first, rest, at) {
            Ok(_) => Signer::Cluster,
            Err(error) => {
                self.front_proxy
                    .verify_client_cert(first, rest, at)
                    .map_err(|_| error)?;
                Signer::FrontProxy
            }
        };
        named(first, signer)
    }
}

/// The common name of a subject: the last one if there are several, as for Go's programs. All readers
/// must agree, or a request is approved for one user and its certificate is another's.
pub fn common_name<'a>(subject: &'a X509Name<'_>) -> Option<&'a AttributeTypeAndValue<'a>> {
    subject.iter_common_name().last()
}

/// The identity in a certificate, regardless of its signer.
fn named(certificate: &CertificateDer<'_>, signer: Signer) -> Result<Peer, Error> {
    let malformed = |what: &str| Error::Certificate(format!("malformed {what}"));
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| malformed("certificate"))?;
    let subject = parsed.subject();
    let user = common_name(subject).ok_or_else(|| malformed("subject"))?;
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
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
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

impl Pki {
    /// Verifies a client's chain and returns its identity.
    pub fn identify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<Peer, Error> {
        Identifier::new(self.ca().pem(), self.front_proxy_ca().pem())?.identify(chain, now)
    }
}
