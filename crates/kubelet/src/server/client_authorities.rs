//! The CAs whose client certificates are accepted: the cluster's, which issued the API server's
//! certificate, and those of `authentication.x509.clientCAFile`. The file is reloaded at the next
//! handshake after it changed; an invalid file leaves the CAs unchanged.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tracing::{info, warn};

/// The certificates of a bundle.
pub fn read(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: &str| {
        format!(
            "authentication.x509.clientCAFile: {}: {why}",
            file.display()
        )
    };
    let text = fs::read(file).map_err(|error| wrong(&error.to_string()))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(wrong("holds no certificate")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(wrong(&error.to_string())),
    }
}

/// The TLS configuration of a server that also accepts certificates of the file's CAs.
pub(super) fn server_config(
    tls: &ServerConfig,
    cluster: &[u8],
    file: &Path,
) -> Result<ServerConfig, String> {
    let provider = tls.crypto_provider().clone();
    let cluster: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cluster).collect();
    let cluster = cluster.map_err(|error| error.to_string())?;
    let authorities = Authorities::new(provider.clone(), cluster, file.to_owned())?;
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(Arc::new(authorities))
        .with_cert_resolver(tls.cert_resolver.clone());
    config.alpn_protocols.clone_from(&tls.alpn_protocols);
    config.ignore_client_order = tls.ignore_client_order;
    config.session_storage = tls.session_storage.clone();
    config.send_tls13_tickets = tls.send_tls13_tickets;
    Ok(config)
}

/// Identifies a version of a file.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(file: &Path) -> Stamp {
    let meta = fs::metadata(file).ok()?;
    Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
}

#[derive(Debug)]
struct Authorities {
    provider: Arc<CryptoProvider>,
    cluster: Vec<CertificateDer<'static>>,
    file: PathBuf,
    /// Guards the current verifier and the version of the file that it was made from.
    current: Mutex<(Stamp, Arc<dyn ClientCertVerifier>)>,
}

impl Authorities {
    fn new(
        provider: Arc<CryptoProvider>,
        cluster: Vec<CertificateDer<'static>>,
        file: PathBuf,
    ) -> Result<Self, String> {
        let now = stamp(&file);
        let verifier = verifier(&provider, &cluster, read(&file)?)?;
        Ok(Self {
            provider,
            cluster,
            file,
            current: Mutex::new((now, verifier)),
        })
    }

    fn current(&self) -> Arc<dyn ClientCertVerifier> {
        let now = stamp(&self.file);
        let mut current = self.current.lock();
        if current.0 != now {
            let fresh = read(&self.file);
            match fresh.and_then(|more| verifier(&self.provider, &self.cluster, more)) {
                Ok(verifier) => {
                    info!(file = %self.file.display(), "client CA file reloaded");
                    current.1 = verifier;
                }
                Err(error) => warn!(error, "keeping the old client CAs"),
            }
            current.0 = now;
        }
        current.1.clone()
    }
}

fn verifier(
    provider: &Arc<CryptoProvider>,
    cluster: &[CertificateDer<'static>],
    more: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in cluster.iter().cloned().chain(more) {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| error.to_string())
}

impl ClientCertVerifier for Authorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// No hints: the list could not follow changes of the file.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let current = self.current();
        current.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
