//! TLS configurations: certificates that change in a running server or client, client certificates
//! that may be absent but never invalid.

use std::sync::Arc;

use rustls::{
    CipherSuite, ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
    client::{ResolvesClientCert, Resumption},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
};

use crate::{
    Error, Issued,
    authority::{certificates_from_pem, key_pair},
    provider,
};

const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

impl ResolvesServerCert for Issued {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }
}

impl ResolvesClientCert for Issued {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A server with `issued` that accepts clients without a certificate or with one of `roots`.
pub(crate) fn server(
    issued: Arc<dyn ResolvesServerCert>,
    roots: RootCertStore,
) -> Result<ServerConfig, Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| Error::Certificate(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(short_keys_first())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(issued);
    config.ignore_client_order = true;
    // A resumed session would keep the client's certificate of its first handshake, also after a
    // renewal.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// AES-128 before AES-256, as Go's servers choose: large lists spend much of their time in it.
fn short_keys_first() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    let preferred = CipherSuite::TLS13_AES_128_GCM_SHA256;
    let suites = &mut provider.cipher_suites;
    suites.sort_by_key(|suite| suite.suite() != preferred);
    Arc::new(provider)
}

/// A client that trusts `roots` and presents `issued` on request.
pub(crate) fn client(
    roots: RootCertStore,
    issued: Option<Arc<Issued>>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match issued {
        Some(issued) => renewable(builder.with_client_cert_resolver(issued)),
        None => builder.with_no_client_auth(),
    })
}

/// A client with a changing certificate: every connection uses the current one, and none resumes a
/// session with an older one.
pub(crate) fn renewable(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config
}

/// A server with a fixed certificate, without client certificates. For servers outside of the
/// cluster's PKI.
pub fn server_config_from_pem(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, Error> {
    let (chain, key) = chain_and_key(certificate, key)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = ALPN.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// A client from a kubeconfig's data. ALPN is left to the caller.
pub fn client_config_from_pem(
    authorities: &[u8],
    identity: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(authorities)?);
    Ok(match identity {
        Some((certificate, key)) => {
            let (chain, key) = chain_and_key(certificate, key)?;
            builder.with_client_auth_cert(chain, key)?
        }
        None => builder.with_no_client_auth(),
    })
}

/// A client that trusts `authorities` and presents no certificate: it will send a bearer token.
pub fn bearer_client_config(authorities: &[u8]) -> Result<ClientConfig, Error> {
    client_config_from_pem(authorities, None)
}

pub(crate) fn roots(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_from_pem(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

type Chain = Vec<CertificateDer<'static>>;

fn chain_and_key(certificate: &[u8], key: &[u8]) -> Result<(Chain, PrivateKeyDer<'static>), Error> {
    let key = PrivateKeyDer::Pkcs8(key_pair(key)?.serialize_der().into());
    Ok((certificates_from_pem(certificate)?, key))
}
