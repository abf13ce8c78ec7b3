//! The Container Storage Interface v1, and the kubelet's plugin registration: messages, services,
//! and clients over Unix sockets with deadlines.
//!
//! The `.proto` files have the published names and numbers; nothing here interprets volumes.

#![forbid(unsafe_code)]

mod node;
mod redacted;
#[cfg(feature = "testing")]
pub mod testing;

use std::path::Path;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tower::service_fn;

pub use node::{Capability, Node, TIMEOUT, go_code, go_error};
pub use tonic;

/// The CSI protocol, generated from `proto/` by `cargo xtask protocols`.
pub mod v1 {
    // Generated names follow the protocol, not our lints.
    #![allow(clippy::all, missing_docs)]

    include!("generated/csi.v1.rs");
}

/// The plugin registration protocol.
pub mod registration {
    #![allow(clippy::all, missing_docs)]

    include!("generated/pluginregistration.rs");
}

/// A channel to a plugin's socket. It connects at the first call, and reconnects.
pub fn channel(socket: impl AsRef<Path>) -> Channel {
    let path = socket.as_ref().to_path_buf();
    // The authority is never resolved: the connector below dials the socket.
    tonic::transport::Endpoint::from_static("http://localhost").connect_with_connector_lazy(
        service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }),
    )
}
