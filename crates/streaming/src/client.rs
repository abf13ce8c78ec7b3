//! The user's end: exec, attach and port-forward over WebSocket.
//!
//! The holder of a connection to the API server sends [`Handshake::request`] (with its credentials)
//! and passes the response to [`Handshake::exec`] or [`Handshake::port_forward`].

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use crate::{
    Error, ExitStatus, Stream, StreamReader, StreamWriter, TerminalSize,
    portforward::TUNNEL,
    server::{ERROR, RESIZE, STDERR, STDIN, STDOUT},
    spdy,
    websocket::{Bytestream, Channels, CloseSignal, Encoding, frames},
};

const EXEC_PROTOCOLS: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io"];
const FORWARD_PROTOCOLS: &[&str] = &[TUNNEL];
/// Maximum bytes of an error response, which is a Status.
const MAX_REFUSAL: usize = 1 << 20;

/// A WebSocket handshake in progress.
pub struct Handshake {
    key: String,
    protocols: &'static [&'static str],
}

type Frames = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

impl Handshake {
    /// Begins an exec or attach.
    pub fn for_exec() -> Self {
        Self::new(EXEC_PROTOCOLS)
    }

    /// Begins a port-forward.
    pub fn for_port_forward() -> Self {
        Self::new(FORWARD_PROTOCOLS)
    }

    fn new(protocols: &'static [&'static str]) -> Self {
        let key = BASE64_STANDARD.encode(rand::random::<[u8; 16]>());
        Self { key, protocols }
    }

    /// The request to send; add the URI and credentials. It must go over HTTP/1.1.
    pub fn request(&self) -> request::Builder {
        Request::get("/")
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, &self.key)
            .header(header::SEC_WEBSOCKET_PROTOCOL, self.protocols.join(", "))
    }

    /// Opens the streams of an exec or attach.
    pub async fn exec<B>(self, response: Response<B>) -> Result<Exec, Error>
    where
        B: http_body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (frames, protocol) = self.finish(response).await?;
        let signal = match protocol {
            "v5.channel.k8s.io" => CloseSignal::Sent,
            _ => CloseSignal::Unknown,
        };
        let (channels, [stdout, stderr, error]) =
            Channels::start(frames, Encoding::Binary, signal, [STDOUT, STDERR, ERROR]);
        Ok(Exec {
            stdin: Some(channels.writer(STDIN)),
            stdout: Some(stdout),
            stderr: Some(stderr),
            resize: Resizer {
                writer: channels.writer(RESIZE),
            },
            error,
            channels,
        })
    }

    /// Opens a connection that forwards ports.
    pub async fn port_forward<B>(self, response: Response<B>) -> Result<PortForward, Error>
    where
        B: http_body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (frames, _) = self.finish(response).await?;
        let connection = spdy::Connection::start(Bytestream::new(frames), spdy::Role::Client);
        Ok(PortForward {
            connection,
            requests: 0,
        })
    }

    async fn finish<B>(self, response: Response<B>) -> Result<(Frames, &'static str), Error>
    where
        B: http_body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = Limited::new(response.into_body(), MAX_REFUSAL)
                .collect()
                .await;
            let body = body
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            let message = String::from_utf8_lossy(&body).into_owned();
            return Err(Error::Refused { status, message });
        }
        let protocol = self.check(response.headers())?;
        let io = TokioIo::new(hyper::upgrade::on(response).await?);
        Ok((frames(io, Role::Client).await, protocol))
    }

    fn check(&self, headers: &HeaderMap) -> Result<&'static str, Error> {
        let accept = derive_accept_key(self.key.as_bytes());
        if headers
            .get(header::SEC_WEBSOCKET_ACCEPT)
            .is_none_or(|value| *value != accept)
        {
            return Err(Error::Protocol(
                "the server completed another handshake".to_owned(),
            ));
        }
        let chosen = headers
            .get(header::SEC_WEBSOCKET_PROTOCOL)
            .and_then(text)
            .unwrap_or_default();
        let unknown = || Error::Protocol(format!("the server chose the protocol {chosen:?}"));
        self.protocols
            .iter()
            .copied()
            .find(|known| *known == chosen)
            .ok_or_else(unknown)
    }
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// Sends terminal sizes.
pub struct Resizer {
    writer: StreamWriter,
}

impl Resizer {
    pub async fn send(&mut self, size: TerminalSize) -> Result<(), Error> {
        let mut json = serde_json::to_vec(&size).map_err(std::io::Error::from)?;
        json.push(b'\n');
        Ok(self.writer.write_all(&json).await?)
    }
}

/// A remote command's streams. Take those that are needed; dropping `stdin` closes it (v5).
pub struct Exec {
    pub stdin: Option<StreamWriter>,
    pub stdout: Option<StreamReader>,
    pub stderr: Option<StreamReader>,
    pub resize: Resizer,
    error: StreamReader,
    channels: Channels,
}

impl Exec {
    /// Waits until the command has ended, and returns its status. Read stdout and stderr before or
    /// meanwhile: unread data blocks what follows.
    pub async fn status(&mut self) -> ExitStatus {
        let mut status = Vec::new();
        // Reading our own channel cannot fail: the end of the connection ends the stream.
        let _ = self.error.read_to_end(&mut status).await;
        ExitStatus::from_json(&status)
    }

    /// Closes the connection.
    pub async fn close(self) {
        self.channels.shutdown().await;
    }
}

/// A connection that forwards ports.
pub struct PortForward {
    connection: spdy::Connection,
    requests: u64,
}

/// One forwarded connection: data, and an error if it failed.
pub struct Forwarded {
    pub data: Stream,
    pub error: StreamReader,
}

impl PortForward {
    /// Opens one connection to a port of the pod.
    pub fn open(&mut self, port: u16) -> Forwarded {
        let (port, request) = (port.to_string(), self.requests.to_string());
        self.requests += 1;
        let mut open = |kind: &str| {
            let headers = [
                ("streamtype", kind),
                ("port", &port),
                ("requestid", &request),
            ];
            self.connection.open(&headers)
        };
        // Only the server writes to the error stream: dropping our half closes it.
        let error = open("error").reader;
        Forwarded {
            data: open("data"),
            error,
        }
    }

    /// Cancelled when the server has disconnected.
    pub fn closed(&self) -> tokio_util::sync::CancellationToken {
        self.connection.closed()
    }
}
