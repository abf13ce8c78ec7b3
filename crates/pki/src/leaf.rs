//! The certificates of this process: their subjects, and how they are issued and renewed.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{
    Authority, Error, Names,
    authority::{SKEW, belongs, certificates_from_pem, date, key_pair, skew},
    files,
    names::AltNames,
    provider,
};

/// Every certificate of the cluster itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Leaf {
    /// The API server's serving certificate.
    Apiserver,
    /// The API server as a client of kubelets.
    ApiserverKubeletClient,
    /// The API server as a front proxy of aggregated API servers.
    FrontProxyClient,
    /// The cluster's administrator.
    Admin,
    Scheduler,
    ControllerManager,
    KubeProxy,
    Dns,
    /// This node's kubelet as a client.
    Kubelet,
    /// This node's kubelet as a server.
    KubeletServing,
}

impl Leaf {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Apiserver,
        Self::ApiserverKubeletClient,
        Self::FrontProxyClient,
        Self::Admin,
        Self::Scheduler,
        Self::ControllerManager,
        Self::KubeProxy,
        Self::Dns,
        Self::Kubelet,
        Self::KubeletServing,
    ];

    /// The name of its files, without extension.
    pub fn file(self) -> &'static str {
        match self {
            Self::Apiserver => "apiserver",
            Self::ApiserverKubeletClient => "apiserver-kubelet-client",
            Self::FrontProxyClient => "front-proxy-client",
            Self::Admin => "admin",
            Self::Scheduler => "scheduler",
            Self::ControllerManager => "controller-manager",
            Self::KubeProxy => "kube-proxy",
            Self::Dns => "dns",
            Self::Kubelet => "kubelet",
            Self::KubeletServing => "kubelet-serving",
        }
    }

    /// Whether it exists for these names: a kubelet's certificates need a node.
    pub(crate) fn wanted(self, names: &Names) -> bool {
        !matches!(self, Self::Kubelet | Self::KubeletServing) || names.node_name.is_some()
    }

    pub(crate) fn of_front_proxy(self) -> bool {
        self == Self::FrontProxyClient
    }

    fn serves(self) -> bool {
        matches!(self, Self::Apiserver | Self::KubeletServing)
    }

    /// The certificate's user and group.
    fn subject(self, names: &Names) -> (String, Option<&'static str>) {
        let node = || {
            format!(
                "system:node:{}",
                names.node_name.as_deref().unwrap_or_default()
            )
        };
        match self {
            Self::Apiserver => ("kube-apiserver".to_owned(), None),
            Self::ApiserverKubeletClient => ("kube-apiserver-kubelet-client".to_owned(), None),
            Self::FrontProxyClient => ("front-proxy-client".to_owned(), None),
            Self::Admin => ("kubernetes-admin".to_owned(), Some("system:masters")),
            Self::Scheduler => ("system:kube-scheduler".to_owned(), None),
            Self::ControllerManager => ("system:kube-controller-manager".to_owned(), None),
            Self::KubeProxy => ("system:kube-proxy".to_owned(), None),
            Self::Dns => ("system:mainstay:dns".to_owned(), None),
            Self::Kubelet | Self::KubeletServing => (node(), Some("system:nodes")),
        }
    }

    fn alt_names(self, names: &Names) -> AltNames {
        match self {
            Self::Apiserver => names.of_apiserver(),
            Self::KubeletServing => names.of_kubelet(),
            _ => AltNames::new(),
        }
    }
}

/// One certificate with its key. Holders of a reference see renewed ones automatically.
pub struct Issued {
    current: ArcSwap<Current>,
    /// The number of failed renewals.
    errors: AtomicU64,
}

struct Current {
    certificate_pem: String,
    key_pem: String,
    certified: Arc<CertifiedKey>,
    renew_at: Timestamp,
    not_after: Timestamp,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("not_after", &self.not_after())
            .finish_non_exhaustive()
    }
}

impl Issued {
    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> String {
        self.current.load().certificate_pem.clone()
    }

    /// The private key as PEM.
    pub fn key_pem(&self) -> String {
        self.current.load().key_pem.clone()
    }

    /// Its expiry.
    pub fn not_after(&self) -> Timestamp {
        self.current.load().not_after
    }

    /// How often a renewal failed.
    pub fn renewal_errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// When two thirds of its lifetime are over.
    pub fn renew_at(&self) -> Timestamp {
        self.current.load().renew_at
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.current.load().certified.clone()
    }

    /// Loads the leaf's files if they are still valid, or creates new ones.
    pub(crate) fn ensure(
        leaf: Leaf,
        dir: &Path,
        names: &Names,
        authority: &Authority,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let current = match load(leaf, dir, names, authority, now)? {
            Some(current) => current,
            None => issue(leaf, dir, names, authority, now)?,
        };
        Ok(Self {
            current: ArcSwap::from_pointee(current),
            errors: AtomicU64::new(0),
        })
    }

    /// Replaces the certificate if it is due or has outdated names.
    pub(crate) fn renew(
        &self,
        leaf: Leaf,
        dir: &Path,
        names: &Names,
        authority: &Authority,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let current = self.current.load();
        if now < current.renew_at && fits(&current.certified.cert[0], leaf, names, authority, now) {
            return Ok(false);
        }
        let fresh = issue(leaf, dir, names, authority, now).inspect_err(|_| {
            self.errors.fetch_add(1, Ordering::Relaxed);
        })?;
        self.current.store(Arc::new(fresh));
        Ok(true)
    }
}

/// The files in the directory, unless they are missing, due, damaged, of another CA or of other
/// names: then a new certificate is issued.
fn load(
    leaf: Leaf,
    dir: &Path,
    names: &Names,
    authority: &Authority,
    now: Timestamp,
) -> Result<Option<Current>, Error> {
    let (crt, key) = paths(leaf, dir);
    let (Some(crt), Some(key)) = (files::read(&crt)?, files::read(&key)?) else {
        return Ok(None);
    };
    let usable = |crt: &[u8], key: &[u8]| -> Result<Option<Current>, Error> {
        let chain = certificates_from_pem(crt)?;
        if !belongs(&chain[0], &key_pair(key)?) || !fits(&chain[0], leaf, names, authority, now) {
            return Ok(None);
        }
        let current = assemble(
            leaf,
            String::from_utf8_lossy(crt).into_owned(),
            String::from_utf8_lossy(key).into_owned(),
            authority,
        )?;
        // A certificate with a longer lifetime than configured now is replaced, too.
        let latest = date(now) + authority.life() + SKEW;
        let is_too_long = current.not_after.as_second() > latest.unix_timestamp();
        Ok((now < current.renew_at && !is_too_long).then_some(current))
    };
    Ok(usable(&crt, &key).unwrap_or_else(|error| {
        tracing::warn!(leaf = leaf.file(), %error, "replacing unusable certificate");
        None
    }))
}

fn paths(leaf: Leaf, dir: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    (
        dir.join(format!("{}.crt", leaf.file())),
        dir.join(format!("{}.key", leaf.file())),
    )
}

fn issue(
    leaf: Leaf,
    dir: &Path,
    names: &Names,
    authority: &Authority,
    now: Timestamp,
) -> Result<Current, Error> {
    let key = KeyPair::generate()?;
    let alt_names: Vec<String> = leaf.alt_names(names).into_iter().collect();
    let mut params = CertificateParams::new(alt_names)?;
    let (user, group) = leaf.subject(names);
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, user);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![if leaf.serves() {
        ExtendedKeyUsagePurpose::ServerAuth
    } else {
        ExtendedKeyUsagePurpose::ClientAuth
    }];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date(now) - skew(authority.life());
    params.not_after = date(now) + authority.life();
    let certificate = params.signed_by(&key, authority.issuer())?.pem();
    let (crt_path, key_path) = paths(leaf, dir);
    // Two files cannot be replaced atomically: a crash in between leaves a mismatched pair, which
    // `load` detects and replaces.
    let key = key.serialize_pem();
    files::write(&key_path, key.as_bytes())?;
    files::write(&crt_path, certificate.as_bytes())?;
    assemble(leaf, certificate, key, authority)
}

fn assemble(
    leaf: Leaf,
    certificate_pem: String,
    key_pem: String,
    authority: &Authority,
) -> Result<Current, Error> {
    let mut chain = certificates_from_pem(certificate_pem.as_bytes())?;
    let (from, not_after) = {
        let (_, parsed) = X509Certificate::from_der(&chain[0])
            .map_err(|error| Error::Certificate(error.to_string()))?;
        let validity = parsed.validity();
        (
            validity.not_before.timestamp(),
            validity.not_after.timestamp(),
        )
    };
    let second = |at| Timestamp::from_second(at).unwrap_or(Timestamp::MIN);
    if leaf == Leaf::Apiserver {
        // A joining node pins the hash of the CA that it sees in the chain.
        chain.push(authority.certificate().clone());
    }
    let der = PrivatePkcs8KeyDer::from(key_pair(key_pem.as_bytes())?.serialize_der());
    let certified = CertifiedKey::from_der(chain, PrivateKeyDer::Pkcs8(der), &provider())?;
    Ok(Current {
        certificate_pem,
        key_pem,
        certified: Arc::new(certified),
        renew_at: second(from + (not_after - from) / 3 * 2),
        not_after: second(not_after),
    })
}

/// Whether the certificate has the current subject and names.
fn fits(
    certificate: &CertificateDer<'_>,
    leaf: Leaf,
    names: &Names,
    authority: &Authority,
    now: Timestamp,
) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let (user, group) = leaf.subject(names);
    let common_names: Vec<_> = parsed
        .subject()
        .iter_common_name()
        .filter_map(|name| name.as_str().ok())
        .collect();
    let groups: Vec<_> = parsed
        .subject()
        .iter_organization()
        .filter_map(|name| name.as_str().ok())
        .collect();
    common_names == [user.as_str()]
        && groups == group.into_iter().collect::<Vec<_>>()
        && alt_names(&parsed) == leaf.alt_names(names)
        && signed(certificate, leaf, authority, now)
}

fn signed(
    certificate: &CertificateDer<'_>,
    leaf: Leaf,
    authority: &Authority,
    now: Timestamp,
) -> bool {
    let checked = if leaf.serves() {
        authority.vouches_for_server(certificate, now)
    } else {
        authority.vouches_for_client(std::slice::from_ref(certificate), now)
    };
    checked.is_ok()
}

pub(crate) fn alt_names(certificate: &X509Certificate<'_>) -> AltNames {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return AltNames::new();
    };
    let names = extension.value.general_names.iter();
    names.filter_map(alt_name).collect()
}

fn alt_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes)
                .ok()
                .map(|b| std::net::Ipv4Addr::from(b).to_string()),
            _ => <[u8; 16]>::try_from(*bytes)
                .ok()
                .map(|b| std::net::Ipv6Addr::from(b).to_string()),
        },
        _ => None,
    }
}
