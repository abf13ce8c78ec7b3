//! Who is it? Authenticators are asked in the order of [`chain`]; the first that recognises the
//! caller decides, and one that finds bad credentials refuses the request.

mod certificate;

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use http::HeaderMap;
use rustls::pki_types::CertificateDer;

use crate::{Config, Reader, User};

pub use certificate::Certificate;

/// What a caller shows.
#[derive(Debug, Clone, Copy)]
pub struct Credentials<'a> {
    pub headers: &'a HeaderMap,
    /// The TLS client certificate chain, already verified against the client CA; empty without one.
    pub certificates: &'a [CertificateDer<'static>],
    pub remote: Option<SocketAddr>,
}

/// The caller showed something, and it is wrong. Answered with 401.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// One way to recognise callers.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// As it appears in logs.
    fn name(&self) -> &'static str;
    /// The user, or `None` when these credentials are not of the kind this one knows.
    async fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<User>, Refused>;
    /// Starts what runs beside requests (caches, key reloads).
    fn start(&self, _context: &lifecycle::Context) {}
}

/// The authenticators, in the order they are asked.
pub fn chain(_config: &Config, _reader: &Reader) -> Vec<Arc<dyn Authenticator>> {
    vec![Arc::new(Certificate)]
}
