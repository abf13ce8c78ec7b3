//! The Container Storage Interface, version 1, and the kubelet's registration of plugins: messages,
//! services, and clients over unix sockets whose calls end in time.
//!
//! The `.proto` files hold the published names and numbers; nothing here knows what a volume is for.

mod node;
mod redacted;
#[cfg(feature = "testing")]
pub mod testing;

use std::path::Path;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tower::service_fn;

pub use node::{Capability, Node, TIMEOUT, go_error};
pub use tonic;

/// The storage protocol as compiled from `proto/`.
pub mod v1 {
    // Generated names follow the protocol, not our lints.
    #![allow(clippy::all, missing_docs)]

    tonic::include_proto!("csi.v1");
}

/// How plugins register with a kubelet.
pub mod registration {
    #![allow(clippy::all, missing_docs)]

    tonic::include_proto!("pluginregistration");
}

/// A channel to a plugin's socket. Nothing is dialled yet: the first call connects, and calls after a
/// lost connection connect again.
pub fn channel(socket: impl AsRef<Path>) -> Channel {
    let path = socket.as_ref().to_path_buf();
    // The authority is never resolved: the connector below dials the socket whatever it says.
    tonic::transport::Endpoint::from_static("http://localhost").connect_with_connector_lazy(
        service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }),
    )
}
