//! WebSocket as Kubernetes uses it: messages that start with a channel number, or messages that
//! form one byte stream.

use std::{
    collections::HashSet,
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, ready},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Buf, Bytes, BytesMut};
use futures::{
    Sink, SinkExt, Stream, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    Error, StreamReader, StreamWriter, Transport,
    stream::{Outgoing, Queue},
};

/// Clients send 32 KiB at a time; a message is buffered whole.
const MAX_MESSAGE: usize = 4 << 20;
/// Instead of a channel number: the next byte names a channel that its writer has closed (v5).
const CLOSE_SIGNAL: u8 = 255;
const LINGER: Duration = Duration::from_secs(5);

/// The encoding of channel number and data in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Binary,
    Base64,
}

/// How this side treats close signals (v5): clients send them, servers only receive them, since a
/// client would take one for an unknown channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseSignal {
    Unknown,
    Heard,
    Sent,
}

/// The frames of an upgraded connection.
pub(crate) async fn frames<T: Transport>(io: T, role: Role) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(io, role, Some(config)).await
}

/// A connection of numbered channels.
pub(crate) struct Channels {
    queue: Queue,
    closed: CancellationToken,
    reader: AbortOnDropHandle<()>,
    writer: AbortOnDropHandle<()>,
}

impl Channels {
    /// Starts the protocol on `frames`; returns the reading ends of `inbound` channels.
    pub(crate) fn start<T: Transport, const N: usize>(
        frames: WebSocketStream<T>,
        encoding: Encoding,
        close_signal: CloseSignal,
        inbound: [u8; N],
    ) -> (Self, [StreamReader; N]) {
        let mut senders: Vec<Option<mpsc::Sender<Bytes>>> = vec![None; 256];
        let readers = inbound.map(|channel| {
            let (sender, reader) = StreamReader::new();
            senders[usize::from(channel)] = Some(sender);
            reader
        });
        (
            Self::with_senders(frames, encoding, close_signal, senders, usize::MAX),
            readers,
        )
    }

    /// Like [`Channels::start`], for a number of channels known at run time. The connection ends
    /// when `ends_after` channels have been closed here.
    pub(crate) fn with_senders<T: Transport>(
        frames: WebSocketStream<T>,
        encoding: Encoding,
        close_signal: CloseSignal,
        senders: Vec<Option<mpsc::Sender<Bytes>>>,
        ends_after: usize,
    ) -> Self {
        let (queue, outgoing) = Queue::new();
        let closed = CancellationToken::new();
        let (sink, stream) = frames.split();
        let ended = closed.clone();
        let read = async move {
            if let Err(error) = read_all(stream, encoding, senders, close_signal).await {
                tracing::debug!(%error, "websocket ended");
            }
            ended.cancel();
        };
        let write = write_all(
            sink,
            encoding,
            close_signal,
            Closing {
                outgoing,
                ends_after,
            },
            queue.clone(),
            closed.clone(),
        );
        Self {
            queue,
            closed,
            reader: AbortOnDropHandle::new(tokio::spawn(read)),
            writer: AbortOnDropHandle::new(tokio::spawn(write)),
        }
    }

    pub(crate) fn writer(&self, channel: u8) -> StreamWriter {
        let never_reset = Arc::new(AtomicBool::new(false));
        StreamWriter::new(channel.into(), self.queue.clone(), never_reset)
    }

    /// An empty message on a channel: the server's sign that it is ready.
    pub(crate) async fn greet(&self, channel: u8) -> Result<(), Error> {
        let permit = self
            .queue
            .budget
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Error::Closed)?;
        let data = Bytes::new();
        self.queue.send(Outgoing::Data {
            id: channel.into(),
            data,
            _permit: permit,
        });
        Ok(())
    }

    pub(crate) fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Sends queued data and closes, waiting a little for the peer to close too.
    pub(crate) async fn shutdown(mut self) {
        self.queue.send(Outgoing::Shutdown);
        let _ = tokio::time::timeout(LINGER, async {
            let _ = (&mut self.writer).await;
            let _ = (&mut self.reader).await;
        })
        .await;
    }
}

async fn read_all<T: Transport>(
    mut stream: SplitStream<WebSocketStream<T>>,
    encoding: Encoding,
    mut senders: Vec<Option<mpsc::Sender<Bytes>>>,
    close_signal: CloseSignal,
) -> Result<(), Error> {
    while let Some(message) = stream.next().await {
        let mut data = match message? {
            Message::Binary(data) => data,
            Message::Text(text) => text.into(),
            Message::Close(_) => return Ok(()),
            _ => continue,
        };
        let Some(first) = data.first().copied() else {
            continue;
        };
        data.advance(1);
        let channel = match encoding {
            Encoding::Base64 => first.wrapping_sub(b'0'),
            Encoding::Binary => first,
        };
        if close_signal == CloseSignal::Heard && channel == CLOSE_SIGNAL {
            if let Some(channel) = data.first() {
                senders[usize::from(*channel)] = None;
            }
            continue;
        }
        if encoding == Encoding::Base64 {
            let plain = BASE64_STANDARD.decode(&data);
            data = plain
                .map_err(|error| Error::Protocol(error.to_string()))?
                .into();
        }
        if let Some(sender) = &senders[usize::from(channel)]
            && !data.is_empty()
        {
            // Data for a dropped reader is discarded.
            let _ = sender.send(data).await;
        }
    }
    Ok(())
}

/// The outgoing queue, and after how many closed channels it ends.
struct Closing {
    outgoing: mpsc::UnboundedReceiver<Outgoing>,
    ends_after: usize,
}

async fn write_all<T: Transport>(
    mut sink: SplitSink<WebSocketStream<T>, Message>,
    encoding: Encoding,
    close_signal: CloseSignal,
    mut closing: Closing,
    queue: Queue,
    closed: CancellationToken,
) {
    let run = async {
        let mut ended = HashSet::new();
        while let Some(next) = closing.outgoing.recv().await {
            if let Outgoing::Close(id) | Outgoing::Reset(id) = next {
                ended.insert(id);
                if ended.len() >= closing.ends_after {
                    break;
                }
            }
            let message = match next {
                Outgoing::Data { id, ref data, .. } => message(id as u8, data, encoding),
                Outgoing::Close(id) if close_signal == CloseSignal::Sent => {
                    Message::binary(vec![CLOSE_SIGNAL, id as u8])
                }
                Outgoing::Shutdown => break,
                _ => continue,
            };
            sink.send(message).await?;
        }
        sink.send(goodbye()).await?;
        sink.close().await?;
        Ok::<(), Error>(())
    };
    if let Err(error) = run.await {
        tracing::debug!(%error, "websocket ended");
        closed.cancel();
    }
    queue.budget.close();
}

/// Clients treat a close without a code as a failure.
pub(crate) fn goodbye() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    }))
}

pub(crate) fn base64(data: &[u8]) -> String {
    BASE64_STANDARD.encode(data)
}

fn message(channel: u8, data: &[u8], encoding: Encoding) -> Message {
    match encoding {
        Encoding::Binary => {
            let mut message = BytesMut::with_capacity(data.len() + 1);
            message.extend_from_slice(&[channel]);
            message.extend_from_slice(data);
            Message::Binary(message.freeze())
        }
        Encoding::Base64 => {
            let mut text = String::from(char::from(b'0' + channel));
            BASE64_STANDARD.encode_string(data, &mut text);
            Message::text(text)
        }
    }
}

/// The bytes of binary messages as one stream.
pub(crate) struct Bytestream<T> {
    frames: WebSocketStream<T>,
    current: Bytes,
    closing: bool,
}

impl<T> Bytestream<T> {
    pub(crate) fn new(frames: WebSocketStream<T>) -> Self {
        Self {
            frames,
            current: Bytes::new(),
            closing: false,
        }
    }
}

fn other(error: tokio_tungstenite::tungstenite::Error) -> io::Error {
    io::Error::other(error)
}

impl<T: Transport> AsyncRead for Bytestream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() {
            match ready!(Pin::new(&mut self.frames).poll_next(context)) {
                Some(Ok(Message::Binary(data))) => self.current = data,
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(other(error))),
            }
        }
        let length = self.current.len().min(buffer.remaining());
        buffer.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: Transport> AsyncWrite for Bytestream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.frames).poll_ready(context)).map_err(other)?;
        let message = Message::Binary(Bytes::copy_from_slice(data));
        Pin::new(&mut self.frames)
            .start_send(message)
            .map_err(other)?;
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.frames)
            .poll_flush(context)
            .map_err(other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            ready!(Pin::new(&mut self.frames).poll_ready(context)).map_err(other)?;
            self.closing = true;
            Pin::new(&mut self.frames)
                .start_send(goodbye())
                .map_err(other)?;
        }
        Pin::new(&mut self.frames)
            .poll_close(context)
            .map_err(other)
    }
}
