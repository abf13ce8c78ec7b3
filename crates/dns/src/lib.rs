//! The cluster's DNS server on every node: resolves names of services and pods from informers, and forwards everything
//! else to the node's resolvers.
//!
//! [`corefile`] parses the configuration, [`zone`] answers queries for cluster names (pure over [`cluster::Cluster`]),
//! [`chain`] runs it and the other plugins in CoreDNS' order, [`reply`] builds a message that fits the client,
//! [`upstream`] forwards queries, [`datagrams`] and [`streams`] listen. Answers about the cluster are as fresh as the
//! last watch event: every change clears [`memo`]. Forwarded answers are cached for their TTL.

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
mod log_budget;
pub mod memo;
pub mod metrics;
mod page;
pub mod reply;
pub mod resolvers;
mod rewrite;
mod server;
mod sockets;
mod streams;
mod template;
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
