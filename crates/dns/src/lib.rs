//! The cluster's DNS on every node: names of services and pods from informers, everything else from
//! the node's own resolvers.
//!
//! [`zone`] decides what a name means (pure over [`cluster::Cluster`]), [`reply`] turns that into a message that
//! fits the client, [`upstream`] forwards, [`server`] listens. Names of the cluster are never cached: an
//! answer is as fresh as the last event. Answers of others are kept for as long as they allow.

#![forbid(unsafe_code)]

mod cache;
pub mod cluster;
mod lanes;
pub mod metrics;
mod page;
pub mod reply;
mod server;
pub mod upstream;
pub mod zone;

pub use server::{Config, Server};

/// Why the server could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configured zone is not a domain name.
    #[error("{0:?} is not a domain name")]
    Domain(String),
    /// A socket could not be bound.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, std::io::Error),
}
