//! Certificate verification: by the CAs of a caBundle, or of the system. A certificate in the
//! bundle itself is trusted as it is, even if it is not a CA.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};

/// Where systems keep their CAs.
const SYSTEM: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A client's certificate and key.
pub(crate) struct Identity {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

pub(crate) fn client_config(
    bundle: &[u8],
    identity: Option<&Identity>,
) -> Result<ClientConfig, String> {
    let mut config = verifying_config(bundle, identity)?;
    // No session resumption: a resumed session uses the previous client certificate and does not
    // verify the server's again, which may have expired.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn verifying_config(bundle: &[u8], identity: Option<&Identity>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = match bundle {
        [] => system(),
        bundle => {
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bundle).collect();
            let found = found.unwrap_or_default();
            if found.is_empty() {
                return Err(
                    "unable to load root certificates: unable to parse bytes as PEM block"
                        .to_owned(),
                );
            }
            found
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        // An unusable certificate is not trusted.
        let _ = roots.add(certificate.clone());
    }
    let webpki = match roots.is_empty() {
        true => None,
        false => Some(
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| error.to_string())?,
        ),
    };
    let verifier = Verifier {
        webpki,
        pinned: if bundle.is_empty() {
            Vec::new()
        } else {
            certificates
        },
        provider: provider.clone(),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let Some(Identity { certificate, key }) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| error.to_string())
}

fn system() -> Vec<CertificateDer<'static>> {
    let pem = SYSTEM.iter().find_map(|path| std::fs::read(path).ok());
    let pem = pem.unwrap_or_default();
    CertificateDer::pem_slice_iter(&pem).flatten().collect()
}

#[derive(Debug)]
struct Verifier {
    /// `None` without any CA.
    webpki: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates of a caBundle.
    pinned: Vec<CertificateDer<'static>>,
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pinned.iter().any(|known| known == end_entity) {
            check_validity(end_entity, now)?;
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let webpki = self.webpki.as_ref().ok_or(unknown)?;
        webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|_| bad())?;
    let now = i64::try_from(now.as_secs()).map_err(|_| bad())?;
    let validity = parsed.validity();
    if now > validity.not_after.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::Expired));
    }
    if now < validity.not_before.timestamp() {
        return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
    }
    Ok(())
}

/// Why a handshake failed, in upstream's words.
pub(crate) fn describe_error(error: &std::io::Error, server_name: &ServerName<'_>) -> String {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    let unverified = |why: &str| format!("tls: failed to verify certificate: x509: {why}");
    match inner {
        Some(Error::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer
            | CertificateError::BadSignature
            | CertificateError::UnhandledCriticalExtension => {
                unverified("certificate signed by unknown authority")
            }
            CertificateError::NotValidForName => unverified(&format!(
                "certificate is not valid for any names, but wanted to match {}",
                server_name.to_str()
            )),
            CertificateError::NotValidForNameContext { presented, .. } => {
                misnamed(presented, server_name)
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                unverified("certificate has expired or is not yet valid")
            }
            other => unverified(&other.to_string()),
        },
        Some(Error::InvalidMessage(_)) => {
            "http: server gave HTTP response to HTTPS client".to_owned()
        }
        Some(Error::AlertReceived(alert)) => format!("remote error: tls: {alert:?}"),
        Some(other) => format!("tls: {other}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => error.to_string(),
    }
}

/// `presented` are names like `DnsName("a")` and addresses like `IpAddress(127.0.0.1)`.
fn misnamed(presented: &[String], server_name: &ServerName<'_>) -> String {
    let prefix = "tls: failed to verify certificate: x509: ";
    let wanted = server_name.to_str();
    let is_address = matches!(server_name, ServerName::IpAddress(_));
    let shown = presented.iter().filter_map(|name| {
        let (kind, name) = name.split_once('(')?;
        let name = name.trim_end_matches(')').trim_matches('"');
        ((kind == "IpAddress") == is_address).then(|| name.to_owned())
    });
    let shown: Vec<String> = shown.collect();
    match (shown.is_empty(), is_address) {
        (true, true) => format!(
            "{prefix}cannot validate certificate for {wanted} because it doesn't contain any IP SANs"
        ),
        (true, false) => {
            format!("{prefix}certificate is not valid for any names, but wanted to match {wanted}")
        }
        (false, _) => format!(
            "{prefix}certificate is valid for {}, not {wanted}",
            shown.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use rustls::{HandshakeKind, ServerConfig};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// A server with a certificate for `hook`, and the certificate as a caBundle.
    fn server() -> (TlsAcceptor, Vec<u8>) {
        let made = rcgen::generate_simple_self_signed(["hook".to_owned()]).unwrap();
        let pem = made.cert.pem().into_bytes();
        let chain = vec![made.cert.der().clone()];
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        (TlsAcceptor::from(Arc::new(config)), pem)
    }

    #[tokio::test]
    async fn sessions_are_not_resumed() {
        let (acceptor, bundle) = server();
        let config = Arc::new(client_config(&bundle, None).unwrap());
        for _ in 0..3 {
            let (near, far) = tokio::io::duplex(64 << 10);
            let acceptor = acceptor.clone();
            let served = tokio::spawn(async move {
                let mut stream = acceptor.accept(far).await.unwrap();
                stream.write_all(b"a").await.unwrap();
                stream.flush().await.unwrap();
                let _ = stream.read_u8().await;
            });
            let name = ServerName::try_from("hook").unwrap();
            let connector = TlsConnector::from(config.clone());
            let mut stream = connector.connect(name, near).await.unwrap();
            // Session tickets arrive before the first byte.
            assert_eq!(stream.read_u8().await.unwrap(), b'a');
            let kind = stream.get_ref().1.handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Full));
            stream.shutdown().await.unwrap();
            served.await.unwrap();
        }
    }
}
