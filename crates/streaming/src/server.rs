//! The container's end: accepts an exec or attach and opens a [`Session`].
//!
//! ```ignore
//! let (answer, pending) = match streaming::server::exec(&mut request, options) {
//!     Ok(accepted) => accepted,
//!     Err(refusal) => return refusal,
//! };
//! spawn(async move {
//!     let mut session = pending.open().await?;
//!     … copy session.stdin, session.stdout, session.stderr …
//!     session.finish(ExitStatus::Code(0)).await;
//! });
//! return answer;
//! ```

use std::time::Duration;

use http::{Request, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::protocol::Role;

pub use crate::negotiate::Answer;
use crate::{
    Error, Options, Session, StreamReader, StreamWriter, Transport,
    negotiate::{self, Kind, refusal},
    session::{Carrier, Resizes},
    spdy,
    websocket::{Channels, CloseSignal, Encoding, frames},
};

/// How long a SPDY client may take to open its streams.
const STREAM_CREATION: Duration = Duration::from_secs(30);

const SPDY_VERSIONS: &[&str] = &[
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
const WEBSOCKET_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];

pub(crate) const STDIN: u8 = 0;
pub(crate) const STDOUT: u8 = 1;
pub(crate) const STDERR: u8 = 2;
pub(crate) const ERROR: u8 = 3;
pub(crate) const RESIZE: u8 = 4;

/// An accepted upgrade that has not happened yet.
pub struct Pending {
    upgrade: OnUpgrade,
    protocol: Protocol,
    options: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Spdy(u8),
    WebSocket {
        encoding: Encoding,
        close_signal: CloseSignal,
        status_json: bool,
    },
}

/// Accepts an exec or attach, or rejects it. The upgrade happens after the response has been sent.
pub fn exec<B>(request: &mut Request<B>, options: Options) -> Result<(Answer, Pending), Answer> {
    let mut options = options;
    // A terminal has one output.
    options.stderr &= !options.tty;
    if !options.stdin && !options.stdout && !options.stderr {
        let message = "you must specify at least 1 of stdin, stdout, stderr";
        return Err(refusal(StatusCode::BAD_REQUEST, message));
    }
    let (answer, protocol) = match negotiate::kind(request.headers())? {
        Kind::Spdy => {
            let (answer, version) = negotiate::spdy(request.headers(), SPDY_VERSIONS)?;
            let number = version.and_then(|version| version.strip_prefix('v'));
            let number = number
                .and_then(|rest| rest.bytes().next())
                .map_or(1, |n| n - b'0');
            (answer, Protocol::Spdy(number))
        }
        Kind::WebSocket => {
            let (answer, name) = negotiate::websocket(request.headers(), WEBSOCKET_PROTOCOLS)?;
            let protocol = Protocol::WebSocket {
                encoding: if name.contains("base64") {
                    Encoding::Base64
                } else {
                    Encoding::Binary
                },
                close_signal: if name.starts_with("v5") {
                    CloseSignal::Heard
                } else {
                    CloseSignal::Unknown
                },
                status_json: name.starts_with('v'),
            };
            (answer, protocol)
        }
    };
    let upgrade = hyper::upgrade::on(request);
    Ok((
        answer,
        Pending {
            upgrade,
            protocol,
            options,
        },
    ))
}

impl Pending {
    /// Waits for the upgrade and for the client's streams.
    pub async fn open(self) -> Result<Session, Error> {
        let io = TokioIo::new(self.upgrade.await?);
        open(io, self.protocol, self.options).await
    }
}

async fn open(io: impl Transport, protocol: Protocol, options: Options) -> Result<Session, Error> {
    match protocol {
        Protocol::Spdy(version) => {
            let connection = spdy::Connection::start(io, spdy::Role::Server);
            tokio::time::timeout(STREAM_CREATION, over_spdy(connection, version, options))
                .await
                .map_err(|_| Error::StreamsMissing)?
        }
        Protocol::WebSocket {
            encoding,
            close_signal,
            status_json,
        } => {
            let frames = frames(io, Role::Server).await;
            let (channels, [stdin, resize]) =
                Channels::start(frames, encoding, close_signal, [STDIN, RESIZE]);
            over_websocket(channels, stdin, resize, status_json, options).await
        }
    }
}

async fn over_websocket(
    channels: Channels,
    stdin: StreamReader,
    resize: StreamReader,
    status_json: bool,
    options: Options,
) -> Result<Session, Error> {
    let greeting = match options {
        Options { stdout: true, .. } => STDOUT,
        Options { stderr: true, .. } => STDERR,
        _ => ERROR,
    };
    channels.greet(greeting).await?;
    Ok(Session {
        stdin: options.stdin.then_some(stdin),
        stdout: options.stdout.then(|| channels.writer(STDOUT)),
        stderr: options.stderr.then(|| channels.writer(STDERR)),
        resize: options.tty.then(|| Resizes::new(resize)),
        error: channels.writer(ERROR),
        status_json,
        idle: Vec::new(),
        carrier: Carrier::WebSocket(channels),
    })
}

#[derive(Default)]
struct Streams {
    stdin: Option<StreamReader>,
    stdout: Option<StreamWriter>,
    stderr: Option<StreamWriter>,
    resize: Option<StreamReader>,
    error: Option<StreamWriter>,
}

impl Streams {
    fn complete(&self, options: Options, resizes: bool) -> bool {
        self.error.is_some()
            && self.stdin.is_some() == options.stdin
            && self.stdout.is_some() == options.stdout
            && self.stderr.is_some() == options.stderr
            && self.resize.is_some() == (options.tty && resizes)
    }
}

async fn over_spdy(
    mut connection: spdy::Connection,
    version: u8,
    options: Options,
) -> Result<Session, Error> {
    let mut streams = Streams::default();
    // A client treats the closing of stdin's other half as the end of stdin: keep it open.
    let mut idle = Vec::new();
    while !streams.complete(options, version >= 3) {
        let incoming = connection.accept().await.ok_or(Error::Closed)?;
        let kind = incoming.header("streamtype").unwrap_or_default().to_owned();
        let stream = incoming.stream;
        match kind.as_str() {
            "stdin" if options.stdin => {
                streams.stdin = Some(stream.reader);
                idle.push(stream.writer);
            }
            "resize" if options.tty => {
                streams.resize = Some(stream.reader);
                idle.push(stream.writer);
            }
            "stdout" if options.stdout => streams.stdout = Some(stream.writer),
            "stderr" if options.stderr => streams.stderr = Some(stream.writer),
            "error" => streams.error = Some(stream.writer),
            other => {
                tracing::debug!(stream = other, "unexpected stream");
                stream.writer.reset();
            }
        }
    }
    connection.stop_accepting();
    Ok(Session {
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
        resize: streams.resize.map(Resizes::new),
        error: streams.error.ok_or(Error::StreamsMissing)?,
        status_json: version >= 4,
        idle,
        carrier: Carrier::Spdy(connection),
    })
}
