//! etcd's protocol, generated from `proto/` by `cargo xtask protocols`; public for tools that use etcd directly.
#![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]

/// Keys and events.
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Calls.
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}
