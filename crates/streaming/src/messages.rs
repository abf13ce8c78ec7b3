//! One-way WebSockets: the server sends messages from a source. Messages of the client are ignored,
//! except closing.

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt, pin_mut};
use http::Request;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::{Message, protocol::Role};

pub use crate::negotiate::Answer;
use crate::{
    Error,
    negotiate::{self, Kind},
    websocket::{base64, frames, goodbye},
};

/// Raw bytes, or base64 text for clients that support only text.
const BYTES: &[&str] = &["binary.k8s.io", "base64.binary.k8s.io", ""];

/// The type of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Binary,
    Base64,
}

/// An accepted upgrade that has not happened yet.
pub struct Pending {
    upgrade: OnUpgrade,
    form: Form,
    /// Whether an empty message announces the connection.
    greets: bool,
}

/// Accepts a WebSocket that carries bytes, such as a log, or rejects it.
pub fn bytes<B>(request: &mut Request<B>) -> Result<(Answer, Pending), Answer> {
    check(request)?;
    let (answer, protocol) = negotiate::websocket(request.headers(), BYTES)?;
    let form = match protocol {
        "base64.binary.k8s.io" => Form::Base64,
        _ => Form::Binary,
    };
    let upgrade = hyper::upgrade::on(request);
    let pending = Pending {
        upgrade,
        form,
        greets: true,
    };
    Ok((answer, pending))
}

/// Accepts a WebSocket with one item per message, such as watch events: any subprotocol of the
/// client is accepted.
pub fn events<B>(request: &mut Request<B>, form: Form) -> Result<(Answer, Pending), Answer> {
    check(request)?;
    let protocol = negotiate::subprotocols(request.headers()).next();
    let answer = negotiate::handshake(request.headers(), protocol.unwrap_or_default())?;
    let upgrade = hyper::upgrade::on(request);
    let pending = Pending {
        upgrade,
        form,
        greets: false,
    };
    Ok((answer, pending))
}

fn check<B>(request: &Request<B>) -> Result<(), Answer> {
    match negotiate::kind(request.headers())? {
        Kind::WebSocket => Ok(()),
        Kind::Spdy => {
            let message = "this stream is served over WebSocket, not SPDY";
            Err(negotiate::refusal(http::StatusCode::BAD_REQUEST, message))
        }
    }
}

impl Pending {
    /// Sends each item as a message until the source ends or the client disconnects.
    pub async fn send<S>(self, source: S) -> Result<(), Error>
    where
        S: Stream<Item = Bytes> + Send,
    {
        let io = TokioIo::new(self.upgrade.await?);
        let (mut sink, mut heard) = frames(io, Role::Server).await.split();
        let hung_up = async {
            while let Some(Ok(message)) = heard.next().await {
                if message.is_close() {
                    break;
                }
            }
        };
        let form = self.form;
        let send = async {
            if self.greets {
                sink.send(message(Bytes::new(), form)?).await?;
            }
            pin_mut!(source);
            while let Some(bytes) = source.next().await {
                sink.send(message(bytes, form)?).await?;
            }
            close(&mut sink).await
        };
        tokio::select! {
            sent = send => sent,
            () = hung_up => Ok(()),
        }
    }
}

async fn close<S>(sink: &mut S) -> Result<(), Error>
where
    S: Sink<Message, Error = tokio_tungstenite::tungstenite::Error> + Unpin,
{
    sink.send(goodbye()).await?;
    Ok(sink.close().await?)
}

fn message(bytes: Bytes, form: Form) -> Result<Message, Error> {
    Ok(match form {
        Form::Binary => Message::Binary(bytes),
        Form::Base64 => Message::text(base64(&bytes)),
        Form::Text => {
            let text = tokio_tungstenite::tungstenite::Utf8Bytes::try_from(bytes);
            Message::Text(text.map_err(|error| Error::Protocol(error.to_string()))?)
        }
    })
}
