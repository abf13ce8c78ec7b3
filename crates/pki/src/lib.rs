//! Keys and identities of one cluster: CAs, certificates that renew themselves, service account
//! tokens and kubeconfigs.
//!
//! Everything is in one directory that only its owner can read. [`Pki::ensure`] creates what is
//! missing and keeps what exists; a CA provided by a user is used as it is and never overwritten.
//! Nothing here prints or formats a private key.

#![forbid(unsafe_code)]

mod authority;
pub mod csr;
mod files;
mod identity;
mod jws;
pub mod jwt;
mod kubeconfig;
mod leaf;
mod lifetime;
mod names;
mod peer;
mod renewing;
mod rotation;
pub mod sealed;
mod tls;
mod unverified;

use std::{path::PathBuf, sync::Arc};

pub use authority::Authority;
pub use files::write as write_private;
pub use identity::Identity;
pub use jws::detached_signature;
pub use kubeconfig::{Kubeconfig, SERVERS_EXTENSION};
pub use leaf::{Issued, Leaf};
pub use lifetime::Lifetime;
pub use names::Names;
pub use peer::{Identifier, Peer, Signer, common_name};
pub use renewing::{KeyedRequest, Renewing, public_key_hash, public_key_hashes};
pub use rotation::Rotation;
pub use tls::{bearer_client_config, client_config_from_pem, server_config_from_pem};
pub use unverified::{AnyServer, unverified_client_config};

mod cluster;
pub use cluster::Pki;

/// What can go wrong with keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path}: {message}")]
    Content { path: PathBuf, message: String },
    #[error("certificate: {0}")]
    Certificate(String),
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    #[error("token: {0}")]
    Token(#[from] jwt::TokenError),
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificate(error.to_string())
    }
}

/// The one crypto provider of the program.
pub(crate) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
