//! The Container Runtime Interface v1: the messages and services between a kubelet and a container
//! runtime, a client over a Unix socket, and the server side of the socket.
//!
//! The `.proto` files have the published names and numbers; nothing here implements a runtime.

#![forbid(unsafe_code)]

mod deadline;
mod endpoint;
mod listen;

pub use deadline::{Answers, Calls, Deadline, Observer, REQUEST_TIMEOUT};
pub use endpoint::{Client, Endpoint, InvalidEndpoint, channel, connect, connect_within};
pub use listen::{Incoming, listen};
pub use tonic;

/// The protocol, generated from `proto/` by `cargo xtask protocols`.
pub mod v1 {
    // Generated names follow the protocol, not our lints.
    #![allow(clippy::all, missing_docs)]

    include!("generated/runtime.v1.rs");

    /// Credentials must not be logged: prints only what identifies them.
    impl std::fmt::Debug for AuthConfig {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("AuthConfig")
                .field("username", &self.username)
                .field("server_address", &self.server_address)
                .finish_non_exhaustive()
        }
    }
}

/// Our runtime's services beside CRI, on the same socket.
pub mod files {
    #![allow(clippy::all, missing_docs)]

    include!("generated/mainstay.v1.rs");

    /// Without the password.
    impl std::fmt::Debug for PullRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("PullRequest")
                .field("image", &self.image)
                .field("username", &self.username)
                .finish_non_exhaustive()
        }
    }
}

/// The protocol version in Version calls.
pub const API_VERSION: &str = "v1";

/// The maximum message size, the same as in other runtimes and kubelets.
pub const MAX_MESSAGE_SIZE: usize = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::v1;

    #[test]
    fn credentials_are_not_printed() {
        let auth = v1::AuthConfig {
            username: "ada".into(),
            password: "secret-1".into(),
            auth: "secret-2".into(),
            registry_token: "secret-3".into(),
            identity_token: "secret-4".into(),
            ..Default::default()
        };
        let printed = format!(
            "{:?}",
            v1::PullImageRequest {
                auth: Some(auth),
                ..Default::default()
            }
        );
        assert!(printed.contains("ada"));
        assert!(!printed.contains("secret"));
    }
}
