//! Streams to and from containers: exec, attach and port-forward over SPDY/3.1 and WebSocket.
//!
//! [`server`] is the container's end, [`client`] the user's end, and [`tunnel`] the proxy between
//! them: it forwards the upgrade request and, only if the backend accepts, copies bytes both ways.
//! [`translate`] does the same for backends that support only SPDY, and [`messages`] sends one-way
//! streams. Every stream is an ordinary `AsyncRead` or `AsyncWrite`; the client's request decides
//! which protocol carries it.

#![forbid(unsafe_code)]

pub mod client;
pub mod messages;
mod negotiate;
pub mod portforward;
pub mod server;
mod session;
pub mod spdy;
mod status;
mod stream;
pub mod translate;
pub mod tunnel;
mod websocket;

pub use negotiate::is_websocket;
pub use session::{Options, Session, TerminalSize};
pub use status::{CONNECTION_ENDED, ExitStatus};
pub use stream::{Stream, StreamReader, StreamWriter};

/// Errors of a streaming connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connection: {0}")]
    Io(#[from] std::io::Error),
    #[error("http: {0}")]
    Http(#[from] hyper::Error),
    #[error("websocket: {0}")]
    WebSocket(String),
    #[error("protocol: {0}")]
    Protocol(String),
    #[error("the client did not create its streams in time")]
    StreamsMissing,
    #[error("the server refused to upgrade with {status}: {message}")]
    Refused {
        status: http::StatusCode,
        message: String,
    },
    #[error("the connection ended")]
    Closed,
}

impl From<tokio_tungstenite::tungstenite::Error> for Error {
    fn from(error: tokio_tungstenite::tungstenite::Error) -> Self {
        Self::WebSocket(error.to_string())
    }
}

/// A bidirectional byte stream.
pub trait Transport: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Transport for T {}
