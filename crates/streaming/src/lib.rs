//! How bytes of a running container travel: SPDY/3.1 and WebSocket, exec, attach and port-forward.
//!
//! [`server`] is the end beside the container, [`client`] the end beside the user, and [`tunnel`]
//! what stands between them: it forwards the request that asks for an upgrade and, only if the
//! backend agreed, passes bytes on unread. [`translate`] does the same for backends that speak SPDY
//! alone, and [`messages`] sends what only flows one way. Every stream is an ordinary `AsyncRead` or `AsyncWrite`;
//! which protocol carries it is decided by what the client asked for.

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
pub use status::ExitStatus;
pub use stream::{Stream, StreamReader, StreamWriter};

/// What can go wrong on a streaming connection.
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

/// Anything bytes can flow through both ways.
pub trait Transport: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Transport for T {}
