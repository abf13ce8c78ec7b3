//! The service proxy of a node: cluster IPs, node ports and load balancer addresses become nftables
//! maps to endpoints, for pods, for the node itself and for hosts outside.
//!
//! Decisions are pure ([`endpoints`], [`service`], [`sources`], [`rules`], [`ruleset`], [`table`]); [`Proxy`]
//! reads informers, applies the difference as one atomic batch and deletes stale UDP conntrack
//! entries. If a batch is rejected, the whole table is written again. When the daemon stops, the
//! table stays and Services keep working.

#![forbid(unsafe_code)]

mod budgets;
pub mod endpoints;
pub mod health;
mod health_server;
pub mod host_ports;
mod metrics;
mod proxy;
pub mod rules;
pub mod ruleset;
pub mod service;
pub mod sources;
mod stale_flows;
pub mod table;

pub use proxy::{Config, Proxy, Sources};
pub use table::DnsRedirect;
