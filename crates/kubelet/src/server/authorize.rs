//! Who asks, and whether they may. The seam for asking the API server's authorizer.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Ask;

/// The holder of a certificate that TLS has verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub user: String,
    pub groups: Vec<String>,
}

/// Decides about requests to the kubelet.
pub trait Authorize: Send + Sync + 'static {
    /// Whether `peer` may ask this.
    fn allows(&self, peer: &Peer, ask: &Ask) -> bool;
}

/// The API server and nobody else.
pub struct ApiserverOnly;

/// The API server's name towards kubelets.
pub const APISERVER: &str = "kube-apiserver-kubelet-client";

impl Authorize for ApiserverOnly {
    fn allows(&self, peer: &Peer, _: &Ask) -> bool {
        peer.user == APISERVER
    }
}

/// The subject of a verified chain.
pub fn peer(chain: &[CertificateDer<'_>]) -> Option<Peer> {
    let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok());
    Some(Peer {
        user,
        groups: groups.map(str::to_owned).collect(),
    })
}
