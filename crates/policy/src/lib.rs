//! NetworkPolicy on a node: which forwarded connections of this node's pods are allowed.
//!
//! Policies apply to connections, not packets: every packet, in either direction, is matched by the
//! connection's client, server and server port as conntrack has them after Service translation. So
//! a changed policy affects open connections at once, and replies need no rules of their own.
//! Egress is enforced on the client's node, ingress on the server's. Traffic between a pod and its
//! own node is never forwarded and always allowed: probes, DNS, host network pods.
//!
//! Decisions are pure ([`policy`], [`rules`], [`state`], [`table`]); [`Enforcer`] reads informers
//! and applies the difference as one atomic batch. Each distinct selector is one set whose elements
//! change with the pods. When the daemon stops, the table stays and is still enforced.

#![forbid(unsafe_code)]

mod enforcer;
pub mod explain;
mod gate;
pub mod policy;
pub mod rules;
pub mod state;
pub mod table;

pub use enforcer::{Config, Enforcer, Sources};
pub use gate::Gated;
