//! Certificates issued by the cluster: key and request are made here, and servers and clients
//! present the newest certificate at their next handshake. The pair is kept in one private file, so
//! that a crash leaves the old or the new pair.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::{
    ClientConfig, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{
    Error,
    authority::{belongs, certificates_from_pem, key_pair},
    csr::RequestedCertificate,
    files, provider, tls,
};

/// A key with a request signed by it.
pub struct KeyedRequest {
    /// PEM of the request.
    pub request: String,
    key: String,
}

impl KeyedRequest {
    /// A new key, and a request for this wish.
    pub fn new(wish: &RequestedCertificate) -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut names = wish.dns_names.clone();
        names.extend(wish.addresses.iter().map(ToString::to_string));
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        for organization in &wish.organizations {
            let name = organization.as_str();
            params
                .distinguished_name
                .push(DnType::OrganizationName, name);
        }
        let name = wish.common_name.as_str();
        params.distinguished_name.push(DnType::CommonName, name);
        Ok(Self {
            request: params.serialize_request(&key)?.pem()?,
            key: key.serialize_pem(),
        })
    }
}

struct Current {
    certified: Arc<CertifiedKey>,
    pem: String,
    from: Timestamp,
    until: Timestamp,
}

/// A certificate with its key that is replaced while in use. Empty until the first one is issued: a
/// server without one fails handshakes, a client without one presents none.
pub struct Renewing {
    path: PathBuf,
    current: ArcSwapOption<Current>,
    /// Incremented with each certificate: clients reconnect when it changes.
    generation: watch::Sender<u64>,
    /// The number of failed renewals.
    errors: AtomicU64,
}

impl std::fmt::Debug for Renewing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewing")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Renewing {
    /// Loads the file, if it is a matching pair.
    pub fn load(path: &Path) -> Result<Arc<Self>, Error> {
        if let Some(parent) = path.parent() {
            files::private_dir(parent)?;
        }
        let current = match files::read(path)? {
            None => None,
            Some(pem) => parse(&String::from_utf8_lossy(&pem))
                .inspect_err(|error| {
                    tracing::warn!(path = %path.display(), %error, "replacing unusable certificate");
                })
                .ok(),
        };
        Ok(Arc::new(Self {
            path: path.to_owned(),
            current: ArcSwapOption::new(current.map(Arc::new)),
            generation: watch::Sender::new(0),
            errors: AtomicU64::new(0),
        }))
    }

    /// Stores the certificate issued for a request.
    pub fn replace(&self, request: &KeyedRequest, certificate: &str) -> Result<(), Error> {
        let pem = format!("{}\n{}", certificate.trim_end(), request.key);
        let current = parse(&pem)?;
        files::write(&self.path, pem.as_bytes())?;
        self.current.store(Some(Arc::new(current)));
        self.generation.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// Makes clients open new connections from now on.
    pub fn reconnect(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Removes the pair.
    pub fn forget(&self) -> Result<(), Error> {
        self.current.store(None);
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::File {
                path: self.path.clone(),
                source,
            }),
            _ => Ok(()),
        }
    }

    /// Whether there is a certificate that is valid at this time.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        let current = self.current.load();
        current
            .as_ref()
            .is_some_and(|it| it.from <= now && now < it.until)
    }

    /// Its expiry. `None` without a certificate.
    pub fn not_after(&self) -> Option<Timestamp> {
        self.current.load().as_ref().map(|current| current.until)
    }

    /// Counts a renewal that failed.
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a renewal failed.
    pub fn renewal_errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// When it should be renewed: after four fifths of its lifetime. `None` without one.
    pub fn renew_at(&self) -> Option<Timestamp> {
        let current = self.current.load();
        let current = current.as_ref()?;
        let life = current.until.duration_since(current.from);
        current.from.checked_add(life / 5 * 4).ok()
    }

    /// The certificate and its key as PEM.
    pub fn pem(&self) -> Option<String> {
        self.current
            .load()
            .as_ref()
            .map(|current| current.pem.clone())
    }

    /// The names and addresses that the certificate is valid for.
    pub fn names(&self) -> Vec<String> {
        let current = self.current.load();
        let Some(current) = current.as_ref() else {
            return Vec::new();
        };
        let parsed = X509Certificate::from_der(&current.certified.cert[0]);
        let names = parsed.map(|(_, certificate)| crate::leaf::alt_names(&certificate));
        names
            .map(|names| names.into_iter().collect())
            .unwrap_or_default()
    }

    /// Changes with every new certificate.
    pub fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// A client configuration that trusts `authorities` and presents this certificate. ALPN is left
    /// to the caller.
    pub fn client_config(self: &Arc<Self>, authorities: &[u8]) -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(tls::roots(authorities)?);
        Ok(tls::renewable(
            builder.with_client_cert_resolver(self.clone()),
        ))
    }

    /// A server configuration with this certificate; clients present none or one of `authorities`.
    pub fn server_config(self: &Arc<Self>, authorities: &[u8]) -> Result<ServerConfig, Error> {
        tls::server(self.clone(), tls::roots(authorities)?)
    }

    fn certified(&self) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        current.as_ref().map(|current| current.certified.clone())
    }
}

fn parse(pem: &str) -> Result<Current, Error> {
    let chain = certificates_from_pem(pem.as_bytes())?;
    let key = key_pair(pem.as_bytes())?;
    if !belongs(&chain[0], &key) {
        let why = "the certificate does not belong to this key".to_owned();
        return Err(Error::Certificate(why));
    }
    let (from, until) = {
        let (_, parsed) = X509Certificate::from_der(&chain[0])
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let validity = parsed.validity();
        let second = |at| Timestamp::from_second(at).unwrap_or(Timestamp::MIN);
        (
            second(validity.not_before.timestamp()),
            second(validity.not_after.timestamp()),
        )
    };
    let der = PrivatePkcs8KeyDer::from(key.serialize_der());
    let certified = CertifiedKey::from_der(chain, PrivateKeyDer::Pkcs8(der), &provider())?;
    Ok(Current {
        certified: Arc::new(certified),
        pem: pem.to_owned(),
        from,
        until,
    })
}

impl ResolvesServerCert for Renewing {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }
}

impl ResolvesClientCert for Renewing {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The hash that a joining node pins, of the first certificate of a PEM: `sha256:` and the digest
/// of its public key in hex.
pub fn public_key_hash(pem: &[u8]) -> Result<String, Error> {
    hash_of_key(&certificates_from_pem(pem)?[0])
}

/// The same of every certificate of a PEM.
pub fn public_key_hashes(pem: &[u8]) -> Result<Vec<String>, Error> {
    let certificates = certificates_from_pem(pem)?;
    certificates.iter().map(|one| hash_of_key(one)).collect()
}

fn hash_of_key(certificate: &[u8]) -> Result<String, Error> {
    let (_, parsed) = X509Certificate::from_der(certificate)
        .map_err(|error| Error::Certificate(error.to_string()))?;
    let digest = ring::digest::digest(&ring::digest::SHA256, parsed.public_key().raw);
    let hex: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(format!("sha256:{hex}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Names, Pki, csr};

    fn issue(pki: &Pki, wish: &RequestedCertificate, life: u64) -> (KeyedRequest, String) {
        let keyed = KeyedRequest::new(wish).unwrap();
        let request = csr::Request::parse(keyed.request.as_bytes()).unwrap();
        assert_eq!(request.common_name, wish.common_name);
        assert_eq!(request.organizations, wish.organizations);
        assert_eq!(request.addresses, wish.addresses);
        let usages = csr::Usages::parse(&["digital signature", "server auth"]).unwrap();
        let life = std::time::Duration::from_secs(life);
        let signed = pki.ca().sign(&request, &usages, Timestamp::now(), life);
        (keyed, signed.unwrap())
    }

    #[test]
    fn a_pair_is_kept_renewed_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(&dir.path().join("pki"), &Names::default()).unwrap();
        let wish = RequestedCertificate {
            common_name: "system:node:n".into(),
            organizations: vec!["system:nodes".into()],
            dns_names: vec!["n".into()],
            addresses: vec!["192.0.2.1".parse().unwrap()],
            ..RequestedCertificate::default()
        };
        let path = dir.path().join("agent/kubelet-serving.pem");
        let pair = Renewing::load(&path).unwrap();
        let generation = pair.generation();
        assert!(!pair.is_valid(Timestamp::now()) && pair.renew_at().is_none());
        let (request, certificate) = issue(&pki, &wish, 3600);
        pair.replace(&request, &certificate).unwrap();
        assert!(pair.is_valid(Timestamp::now()));
        assert!(generation.has_changed().unwrap());
        assert_eq!(pair.names(), ["192.0.2.1", "n"]);
        let again = Renewing::load(&path).unwrap();
        assert_eq!(again.pem(), pair.pem());
        assert!(
            again.renew_at().unwrap() < Timestamp::now() + jiff::SignedDuration::from_secs(3600)
        );
        // A certificate for another key is rejected.
        let (_, other) = issue(&pki, &wish, 3600);
        assert!(pair.replace(&request, &other).is_err());
        assert_eq!(again.pem(), pair.pem());
        assert!(pair.server_config(pki.ca().pem().as_bytes()).is_ok());
        assert!(pair.client_config(pki.ca().pem().as_bytes()).is_ok());
        pair.forget().unwrap();
        assert!(!path.exists() && pair.pem().is_none());
    }

    #[test]
    fn the_hash_of_an_authority_is_that_of_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(dir.path(), &Names::default()).unwrap();
        let hash = public_key_hash(pki.ca().pem().as_bytes()).unwrap();
        assert_eq!(hash, pki.ca().public_key_hash());
    }
}
