//! One exec or attach: the container's streams over the client's protocol.

use bytes::BytesMut;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use crate::{ExitStatus, StreamReader, StreamWriter, spdy::Connection, websocket::Channels};

/// The requested streams of an exec or attach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    #[serde(rename = "Width", alias = "width")]
    pub width: u16,
    #[serde(rename = "Height", alias = "height")]
    pub height: u16,
}

/// The received terminal sizes.
pub struct Resizes {
    reader: StreamReader,
    buffer: BytesMut,
}

/// Sizes are a few bytes; more is invalid.
const MAX_RESIZE: usize = 4096;

impl Resizes {
    pub(crate) fn new(reader: StreamReader) -> Self {
        Self {
            reader,
            buffer: BytesMut::new(),
        }
    }

    /// The next size; `None` at the end.
    pub async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            let mut sizes = serde_json::Deserializer::from_slice(&self.buffer).into_iter();
            match sizes.next() {
                Some(Ok(size)) => {
                    let read = sizes.byte_offset();
                    let _ = self.buffer.split_to(read);
                    return Some(size);
                }
                Some(Err(error)) if !error.is_eof() => return None,
                _ => {}
            }
            let chunk = self.reader.chunk().await?;
            if self.buffer.len() + chunk.len() > MAX_RESIZE {
                return None;
            }
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

pub(crate) enum Carrier {
    Spdy(Connection),
    WebSocket(Channels),
}

/// A client's streams, on the server's side. Unrequested ones are `None`. Take them, copy to and
/// from the container, then call [`Session::finish`]; dropping a session cuts the connection.
pub struct Session {
    pub stdin: Option<StreamReader>,
    pub stdout: Option<StreamWriter>,
    pub stderr: Option<StreamWriter>,
    pub resize: Option<Resizes>,
    pub(crate) error: StreamWriter,
    /// Whether the error channel carries a Status (v4 and later) or plain text.
    pub(crate) status_json: bool,
    /// Unused halves that must stay open as long as the session.
    pub(crate) idle: Vec<StreamWriter>,
    pub(crate) carrier: Carrier,
}

impl Session {
    /// Cancelled when the client has disconnected.
    pub fn closed(&self) -> CancellationToken {
        match &self.carrier {
            Carrier::Spdy(connection) => connection.closed(),
            Carrier::WebSocket(channels) => channels.closed(),
        }
    }

    /// Sends the command's exit status, and closes. Earlier output to stdout and stderr arrives
    /// before it.
    pub async fn finish(self, status: ExitStatus) {
        let content = if self.status_json {
            status.to_json()
        } else {
            status.to_text()
        };
        self.finish_with(&content).await;
    }

    /// Like [`Session::finish`], with the content of the error channel.
    pub(crate) async fn finish_with(self, content: &[u8]) {
        let Self {
            stdin,
            stdout,
            stderr,
            resize,
            mut error,
            status_json: _,
            idle,
            carrier,
        } = self;
        drop((stdin, stdout, stderr, resize, idle));
        // A disconnected client does not receive it.
        let _ = error.write_all(content).await;
        drop(error);
        match carrier {
            Carrier::Spdy(connection) => connection.shutdown().await,
            Carrier::WebSocket(channels) => channels.shutdown().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[tokio::test]
    async fn sizes_are_read_however_they_were_cut() {
        let (sender, reader) = StreamReader::new();
        let mut resizes = Resizes::new(reader);
        for part in [
            r#"{"Width":80,"#,
            "\"Height\":24}\n{\"width\"",
            ":1,\"height\":2}\n",
        ] {
            sender.send(Bytes::from(part)).await.unwrap();
        }
        drop(sender);
        assert_eq!(
            resizes.next().await,
            Some(TerminalSize {
                width: 80,
                height: 24
            })
        );
        assert_eq!(
            resizes.next().await,
            Some(TerminalSize {
                width: 1,
                height: 2
            })
        );
        assert_eq!(resizes.next().await, None);
    }

    #[tokio::test]
    async fn an_invalid_resize_message_ends_the_resize_stream() {
        let (sender, reader) = StreamReader::new();
        sender.send(Bytes::from_static(b"nonsense")).await.unwrap();
        assert_eq!(Resizes::new(reader).next().await, None);
        let (sender, reader) = StreamReader::new();
        sender
            .send(Bytes::from(vec![b' '; 2 * MAX_RESIZE]))
            .await
            .unwrap();
        assert_eq!(Resizes::new(reader).next().await, None);
    }
}
