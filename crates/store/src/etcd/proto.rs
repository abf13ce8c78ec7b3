//! etcd's protocol, generated from `proto/`; public for tools that use etcd directly.
#![allow(clippy::all, clippy::pedantic, missing_docs, reason = "generated")]

/// Keys and events.
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// Calls.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
