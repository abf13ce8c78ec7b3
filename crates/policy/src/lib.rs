//! NetworkPolicy on a node: which forwarded connections of this node's pods may pass.
//!
//! A connection is judged, not a packet: every packet of it, in either direction, is looked at with
//! the connection's client, server and server port as conntrack knows them after service
//! translation. So a policy that comes, changes or goes counts for open connections at once, and
//! answers need no rule of their own. Egress is judged on the client's node, ingress on the
//! server's. What a pod exchanges with the node that it runs on is never forwarded and always
//! passes: probes, DNS, host-network pods.
//!
//! Decisions are pure ([`policy`], [`rules`], [`state`], [`table`]); [`Enforcer`] reads informers and
//! applies the difference as one atomic batch. Each distinct selector is one set that changes by the
//! pod. When the daemon stops, the table stays and goes on judging.

mod enforcer;
pub mod explain;
mod gate;
pub mod policy;
pub mod rules;
pub mod state;
pub mod table;

pub use enforcer::{Config, Enforcer, Sources};
pub use gate::Gated;
