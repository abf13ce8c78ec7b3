//! A certificate authority: its certificates, and its key if this process may sign with it.

use std::{path::Path, sync::Arc, time::Duration};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use rustls::{
    RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
        UnixTime, pem::PemObject,
    },
    server::{ParsedCertificate, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{Error, csr, files, provider};

/// CAs are long-lived: replacing one needs every client's cooperation.
const LIFE: time::Duration = time::Duration::days(3650);
/// Certificates start in the past, so that hosts with slightly different clocks accept them.
pub(crate) const SKEW: time::Duration = time::Duration::minutes(5);
/// Certificates with a shorter lifetime start less far in the past, or they would be due at once.
const SHORT: Duration = Duration::from_secs(600);

/// How far in the past a certificate with this lifetime starts.
pub(crate) fn skew(life: Duration) -> time::Duration {
    match life < SHORT {
        true => time::Duration::seconds((life / 10).as_secs().cast_signed()),
        false => SKEW,
    }
}

/// A CA that signs certificates. `NAME.crt` may hold several certificates (a CA being replaced):
/// all are trusted, and the one that matches `NAME.key` signs.
pub struct Authority {
    pem: String,
    trusted: Vec<CertificateDer<'static>>,
    signing: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    client_verifier: Arc<dyn ClientCertVerifier>,
    /// The lifetime of signed certificates.
    life: Duration,
}

impl Authority {
    /// Loads `NAME.crt` and `NAME.key` from the directory, or creates both.
    pub(crate) fn ensure(
        dir: &Path,
        file: &str,
        common_name: &str,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let (crt, key) = (
            dir.join(format!("{file}.crt")),
            dir.join(format!("{file}.key")),
        );
        let pair = match (files::read(&crt)?, files::read(&key)?) {
            (Some(crt), Some(key)) => (crt, key),
            (Some(_), None) => {
                let message = "there is a certificate without its key".to_owned();
                return Err(Error::Content { path: key, message });
            }
            (None, existing) => {
                let pair = match existing {
                    // From a first start that ended between the two writes, or provided by a user.
                    Some(pem) => key_pair(&pem).map_err(|e| content(&key, &e))?,
                    None => KeyPair::generate()?,
                };
                let pem = self_signed(common_name, &pair, now)?;
                let key_pem = pair.serialize_pem().into_bytes();
                files::write(&key, &key_pem)?;
                files::write(&crt, pem.as_bytes())?;
                (pem.into_bytes(), key_pem)
            }
        };
        Self::from_pem(&pair.0, &pair.1).map_err(|e| content(&crt, &e))
    }

    /// A CA from PEM bytes.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, Error> {
        let trusted = certificates_from_pem(certificates)?;
        let key = key_pair(key)?;
        let signing = trusted
            .iter()
            .find(|certificate| belongs(certificate, &key))
            .ok_or_else(|| Error::Certificate("no certificate matches the key".to_owned()))?
            .clone();
        must_be_authority(&signing)?;
        let issuer = Issuer::from_ca_cert_der(&signing, key)?;
        let pem = String::from_utf8_lossy(certificates).into_owned();
        let roots = Arc::new(root_store(&trusted)?);
        let client_verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| Error::Certificate(error.to_string()))?;
        Ok(Self {
            pem,
            trusted,
            signing,
            issuer,
            client_verifier,
            life: csr::LIFE,
        })
    }

    /// Sets the lifetime of certificates signed from now on.
    pub(crate) fn set_life(&mut self, life: Duration) {
        self.life = life;
    }

    /// The lifetime of signed certificates, unless a request asks for less.
    pub fn life(&self) -> Duration {
        self.life
    }

    /// The trusted certificates, as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The signing certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.signing
    }

    /// The hash that a joining node pins: `sha256:` and the digest of the public key in hex.
    pub fn public_key_hash(&self) -> String {
        let info = self.issuer.key().subject_public_key_info();
        let digest = ring::digest::digest(&ring::digest::SHA256, &info);
        let hex: String = digest
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("sha256:{hex}")
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }

    /// Whether a serving certificate is from this CA and valid now.
    pub(crate) fn vouches_for_server(
        &self,
        certificate: &CertificateDer<'_>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let now = unix_time(now);
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots()?, &[], now, algorithms)?;
        Ok(())
    }

    /// Whether a client certificate is from this CA and valid now.
    pub(crate) fn vouches_for_client(
        &self,
        chain: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<(), Error> {
        let (first, rest) = chain
            .split_first()
            .ok_or_else(|| Error::Certificate("no certificate was sent".to_owned()))?;
        self.client_verifier
            .verify_client_cert(first, rest, unix_time(now))?;
        Ok(())
    }

    /// The trusted certificates for rustls.
    pub fn roots(&self) -> Result<RootCertStore, Error> {
        root_store(&self.trusted)
    }
}

fn root_store(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone())?;
    }
    Ok(roots)
}

pub(crate) fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().max(0) as u64))
}

fn content(path: &Path, error: &Error) -> Error {
    Error::Content {
        path: path.to_owned(),
        message: error.to_string(),
    }
}

fn self_signed(common_name: &str, key: &KeyPair, now: Timestamp) -> Result<String, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    let now = date(now);
    params.not_before = now - SKEW;
    params.not_after = now + LIFE;
    Ok(params.self_signed(key)?.pem())
}

/// A time for the certificate builder; certificates have whole seconds only.
pub(crate) fn date(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

pub(crate) fn certificates_from_pem(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::Certificate(error.to_string()))?;
    if certificates.is_empty() {
        return Err(Error::Certificate("no certificate in the file".to_owned()));
    }
    Ok(certificates)
}

pub(crate) fn belongs(certificate: &[u8], key: &KeyPair) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.public_key().raw == key.subject_public_key_info())
}

fn must_be_authority(certificate: &[u8]) -> Result<(), Error> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| Error::Certificate(error.to_string()))?;
    if parsed.is_ca() {
        Ok(())
    } else {
        Err(Error::Certificate("not a CA certificate".to_owned()))
    }
}

/// A key in any of the common PEM formats.
pub(crate) fn key_pair(pem: &[u8]) -> Result<KeyPair, Error> {
    let key = PrivateKeyDer::from_pem_slice(pem)
        .map_err(|_| Error::Certificate("no private key in the file".to_owned()))?;
    let der = match key {
        PrivateKeyDer::Pkcs8(key) => key,
        PrivateKeyDer::Pkcs1(key) => wrap_pkcs1(&key),
        PrivateKeyDer::Sec1(key) => wrap_sec1(&key)?,
        _ => {
            return Err(Error::Certificate(
                "unknown format of private key".to_owned(),
            ));
        }
    };
    Ok(KeyPair::try_from(&der)?)
}

const OID_RSA: &[u8] = &[
    0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0,
];
const OID_P256: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const OID_P384: &[u8] = &[6, 5, 0x2b, 0x81, 4, 0, 0x22];
const OID_EC: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];

/// PKCS#1 wrapped in PKCS#8: the only format that the crypto library reads.
fn wrap_pkcs1(key: &PrivatePkcs1KeyDer<'_>) -> PrivatePkcs8KeyDer<'static> {
    pkcs8(OID_RSA, key.secret_pkcs1_der())
}

fn wrap_sec1(key: &PrivateSec1KeyDer<'_>) -> Result<PrivatePkcs8KeyDer<'static>, Error> {
    let der = key.secret_sec1_der();
    let holds = |oid: &[u8]| der.windows(oid.len()).any(|window| window == oid);
    let curve = match (holds(OID_P256), holds(OID_P384)) {
        (true, _) => OID_P256,
        (_, true) => OID_P384,
        _ => {
            return Err(Error::Certificate(
                "only the curves P-256 and P-384 are supported".to_owned(),
            ));
        }
    };
    Ok(pkcs8(&tlv(0x30, &[OID_EC, curve]), der))
}

fn pkcs8(algorithm: &[u8], key: &[u8]) -> PrivatePkcs8KeyDer<'static> {
    tlv(0x30, &[&[2, 1, 0], algorithm, &tlv(4, &[key])]).into()
}

pub(crate) fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    match length {
        0..0x80 => out.push(length as u8),
        0x80..0x100 => out.extend([0x81, length as u8]),
        _ => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}
