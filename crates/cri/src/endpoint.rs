//! The client side: a runtime's Unix socket is connected at the first call, and again after the
//! runtime has restarted.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tower::service_fn;

use crate::{
    Answers, Calls, Deadline, MAX_MESSAGE_SIZE, REQUEST_TIMEOUT,
    v1::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient},
};

/// A runtime's endpoint: `unix:///run/x.sock` or an absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// An endpoint that is not a Unix socket.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a runtime endpoint: expected unix:///path/to/socket")]
pub struct InvalidEndpoint(String);

impl std::str::FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        if path.starts_with('/') {
            Ok(Self(path.into()))
        } else {
            Err(InvalidEndpoint(text.to_owned()))
        }
    }
}

impl Endpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A client of both services.
    pub fn connect(&self) -> Client {
        connect(&self.0)
    }
}

/// Both services of one runtime over one connection. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    /// Sandboxes and containers.
    pub runtime: RuntimeServiceClient<Deadline>,
    /// Images.
    pub images: ImageServiceClient<Deadline>,
    /// When the runtime last answered any of them.
    pub answers: Answers,
    /// The observer of calls.
    pub calls: Calls,
}

/// A client for the runtime that listens on `socket`. It connects at the first call, and
/// reconnects. Every call has a deadline.
pub fn connect(socket: impl AsRef<Path>) -> Client {
    connect_within(socket.as_ref(), None, REQUEST_TIMEOUT)
}

/// The same with another timeout, and optionally another socket for images.
pub fn connect_within(socket: &Path, images: Option<&Path>, timeout: Duration) -> Client {
    let (answers, calls) = (Answers::default(), Calls::default());
    let to = |socket: &Path| {
        Deadline::new(
            self::channel(socket),
            answers.clone(),
            calls.clone(),
            timeout,
        )
    };
    let of_runtime = to(socket);
    let of_images = images.map_or_else(|| of_runtime.clone(), to);
    let runtime = RuntimeServiceClient::new(of_runtime)
        .max_decoding_message_size(MAX_MESSAGE_SIZE)
        .max_encoding_message_size(MAX_MESSAGE_SIZE);
    let images = ImageServiceClient::new(of_images)
        .max_decoding_message_size(MAX_MESSAGE_SIZE)
        .max_encoding_message_size(MAX_MESSAGE_SIZE);
    Client {
        runtime,
        images,
        answers,
        calls,
    }
}

/// The channel alone, for services beside CRI on the same socket.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets_only() {
        let path = |text: &str| text.parse::<Endpoint>().map(|e| e.path().to_path_buf());
        assert_eq!(path("unix:///run/a.sock"), Ok("/run/a.sock".into()));
        assert_eq!(path("/run/a.sock"), Ok("/run/a.sock".into()));
        assert!(path("tcp://127.0.0.1:1").is_err());
        assert!(path("run/a.sock").is_err());
    }
}
