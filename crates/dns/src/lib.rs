//! The cluster's DNS on every node: names of services and pods from informers, everything else from
//! the node's resolvers.
//!
//! [`corefile`] parses the settings, [`zone`] answers names of the cluster (pure over
//! [`cluster::Cluster`]), [`chain`] runs it and the other plugins in CoreDNS' order, [`reply`]
//! builds a message that fits the client, [`upstream`] forwards, [`datagrams`] and [`streams`]
//! listen. An answer about the cluster is as fresh as the last event: [`memo`] is cleared with
//! every change. Forwarded answers are cached by their TTL.

#![forbid(unsafe_code)]

mod answers;
mod cache;
pub mod chain;
pub mod cluster;
pub mod corefile;
mod datagrams;
pub mod holder;
mod hosts;
mod lanes;
pub mod memo;
pub mod metrics;
mod page;
pub mod reply;
pub mod resolvers;
mod rewrite;
mod server;
mod sockets;
mod streams;
pub mod upstream;
pub mod wire;
pub mod zone;

pub use server::{Config, Server};

/// An error of the DNS server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configured zone is not a domain name.
    #[error("{0:?} is not a domain name")]
    Domain(String),
    /// A socket could not be bound.
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, std::io::Error),
}
