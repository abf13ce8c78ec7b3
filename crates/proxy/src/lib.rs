//! Services on a node: cluster addresses, node ports and load balancer addresses become nftables
//! maps that lead to endpoints, for pods, for the node itself and for hosts outside.
//!
//! Decisions are pure ([`endpoints`], [`service`], [`rules`], [`ruleset`], [`table`]); [`Proxy`] reads
//! informers, applies the difference as one atomic batch and forgets datagram flows that became
//! stale. A batch that does not fit makes it write the whole table anew. When the daemon stops, the
//! table stays: services go on.

#![forbid(unsafe_code)]

pub mod endpoints;
pub mod health;
mod health_server;
pub mod host_ports;
mod proxy;
pub mod rules;
pub mod ruleset;
pub mod service;
pub mod table;

pub use proxy::{Config, Proxy, Sources};
pub use table::DnsRedirect;
