//! Port-forward, the container's end: every connection that the client accepts locally becomes a
//! [`Forward`] to a port of the pod.
//!
//! Three forms are supported: SPDY streams in pairs, the same inside a WebSocket, and the older one
//! with two WebSocket channels per requested port.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use http::{Request, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{io::AsyncWriteExt, time::Instant};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Stream, StreamReader, StreamWriter, Transport,
    negotiate::{self, Answer, Kind, refusal},
    spdy,
    websocket::{Bytestream, Channels, CloseSignal, Encoding, frames},
};

pub(crate) const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const SPDY_VERSIONS: &[&str] = &["portforward.k8s.io"];
const WEBSOCKET_PROTOCOLS: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];
/// How long the second stream of a pair may take to arrive.
const PAIRING: Duration = Duration::from_secs(30);
/// How long a client may keep sending to a port that has closed.
const LINGER: Duration = Duration::from_secs(1);
/// Two channels per port, and a channel's number is a byte.
const MAX_PORTS: usize = 127;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Spdy,
    Tunnel,
    Channels(Encoding),
}

/// An accepted upgrade that has not happened yet.
pub struct Pending {
    upgrade: OnUpgrade,
    protocol: Protocol,
    ports: Vec<u16>,
}

/// Accepts a port-forward, or rejects it. `ports` are the requested ones; only the older WebSocket
/// form needs them.
pub fn accept<B>(request: &mut Request<B>, ports: &[u16]) -> Result<(Answer, Pending), Answer> {
    let (answer, protocol) = match negotiate::kind(request.headers())? {
        Kind::Spdy => (
            negotiate::spdy(request.headers(), SPDY_VERSIONS)?.0,
            Protocol::Spdy,
        ),
        Kind::WebSocket => {
            let (answer, name) = negotiate::websocket(request.headers(), WEBSOCKET_PROTOCOLS)?;
            let protocol = match name {
                TUNNEL => Protocol::Tunnel,
                "v4.base64.channel.k8s.io" => Protocol::Channels(Encoding::Base64),
                _ => Protocol::Channels(Encoding::Binary),
            };
            (answer, protocol)
        }
    };
    if matches!(protocol, Protocol::Channels(_)) && !(1..=MAX_PORTS).contains(&ports.len()) {
        let message = format!("query parameter \"port\" must name 1 to {MAX_PORTS} ports");
        return Err(refusal(StatusCode::BAD_REQUEST, message));
    }
    let upgrade = hyper::upgrade::on(request);
    Ok((
        answer,
        Pending {
            upgrade,
            protocol,
            ports: ports.to_vec(),
        },
    ))
}

impl Pending {
    /// Waits for the upgrade.
    pub async fn open(self) -> Result<PortForward, Error> {
        let io = TokioIo::new(self.upgrade.await?);
        Ok(open(io, self.protocol, &self.ports).await)
    }
}

async fn open(io: impl Transport, protocol: Protocol, ports: &[u16]) -> PortForward {
    let carrier = match protocol {
        Protocol::Spdy => Carrier::spdy(spdy::Connection::start(io, spdy::Role::Server)),
        Protocol::Tunnel => {
            let bytes = Bytestream::new(frames(io, Role::Server).await);
            Carrier::spdy(spdy::Connection::start(bytes, spdy::Role::Server))
        }
        Protocol::Channels(encoding) => {
            let frames = frames(io, Role::Server).await;
            let mut readers = Vec::new();
            let senders = (0..256).map(|channel| {
                (channel % 2 == 0 && channel / 2 < ports.len()).then(|| {
                    let (sender, reader) = StreamReader::new();
                    readers.push(reader);
                    sender
                })
            });
            let senders = senders.collect();
            // In this form a connection can be closed only by closing all of it.
            let all = 2 * ports.len();
            let channels =
                Channels::with_senders(frames, encoding, CloseSignal::Unknown, senders, all);
            let forwards = ports.iter().zip(readers).enumerate();
            let forwards = forwards
                .map(|(index, (port, reader))| {
                    let data = Stream {
                        reader,
                        writer: channels.writer(2 * index as u8),
                    };
                    let error = channels.writer(2 * index as u8 + 1);
                    Forward {
                        port: *port,
                        data,
                        error,
                        greet: true,
                    }
                })
                .collect();
            Carrier::Channels { channels, forwards }
        }
    };
    PortForward { carrier }
}

/// One connection to forward: [`Forward::carry`] it or [`Forward::fail`].
pub struct Forward {
    pub port: u16,
    pub data: Stream,
    error: StreamWriter,
    greet: bool,
}

impl Forward {
    /// Copies both ways until the port closes: clients of the older form never close.
    pub async fn carry(self, port: impl Transport) -> Result<(), Error> {
        let Stream {
            mut reader,
            mut writer,
        } = self.data;
        let (mut from_port, mut to_port) = tokio::io::split(port);
        let up = async {
            tokio::io::copy(&mut reader, &mut to_port).await?;
            to_port.shutdown().await
        };
        let down = async {
            tokio::io::copy(&mut from_port, &mut writer).await?;
            writer.shutdown().await
        };
        tokio::pin!(up, down);
        tokio::select! {
            said = &mut down => {
                // The client's remaining data may still be read.
                let _ = tokio::time::timeout(LINGER, up).await;
                said?;
            }
            // A client that has finished sending still expects the response.
            _ = &mut up => down.await?,
        }
        Ok(())
    }

    /// Tells the client why this connection failed.
    pub async fn fail(mut self, message: &str) {
        // A disconnected client does not receive it.
        let _ = self.error.write_all(message.as_bytes()).await;
        let _ = self.error.shutdown().await;
        self.data.writer.reset();
    }

    /// In the older form both channels start with the port's number.
    async fn greeted(mut self) -> Option<Self> {
        if self.greet {
            let port = self.port.to_le_bytes();
            self.data.write_all(&port).await.ok()?;
            self.error.write_all(&port).await.ok()?;
        }
        Some(self)
    }
}

#[derive(Default)]
struct Pair {
    data: Option<(u16, Stream)>,
    error: Option<StreamWriter>,
}

enum Carrier {
    Spdy {
        connection: spdy::Connection,
        pairs: HashMap<String, (Instant, Pair)>,
    },
    Channels {
        channels: Channels,
        forwards: VecDeque<Forward>,
    },
}

impl Carrier {
    fn spdy(connection: spdy::Connection) -> Self {
        Self::Spdy {
            connection,
            pairs: HashMap::new(),
        }
    }
}

/// A client's port-forward. Dropping it cuts every connection it carries.
pub struct PortForward {
    carrier: Carrier,
}

impl PortForward {
    /// The next connection to forward; `None` when the client has disconnected.
    pub async fn next(&mut self) -> Option<Forward> {
        match &mut self.carrier {
            Carrier::Spdy { connection, pairs } => next_pair(connection, pairs).await,
            Carrier::Channels { channels, forwards } => match forwards.pop_front() {
                Some(forward) => forward.greeted().await,
                None => {
                    channels.closed().cancelled().await;
                    None
                }
            },
        }
    }

    /// Cancelled when the client has disconnected.
    pub fn closed(&self) -> CancellationToken {
        match &self.carrier {
            Carrier::Spdy { connection, .. } => connection.closed(),
            Carrier::Channels { channels, .. } => channels.closed(),
        }
    }
}

async fn next_pair(
    connection: &mut spdy::Connection,
    pairs: &mut HashMap<String, (Instant, Pair)>,
) -> Option<Forward> {
    loop {
        let incoming = connection.accept().await?;
        let now = Instant::now();
        pairs.retain(|_, (since, _)| now.duration_since(*since) < PAIRING);
        let port = incoming
            .header("port")
            .and_then(|port| port.parse().ok())
            .filter(|p| *p > 0);
        let kind = incoming.header("streamtype").unwrap_or_default().to_owned();
        let request = match incoming.header("requestid") {
            Some(id) if !id.is_empty() => id.to_owned(),
            // Old clients send no request ID: they open the error stream, then the data stream.
            _ if kind == "data" => format!("stream {}", incoming.id.saturating_sub(2)),
            _ => format!("stream {}", incoming.id),
        };
        let (Some(port), "data" | "error") = (port, kind.as_str()) else {
            tracing::debug!(stream = kind, "stream without a port or of another kind");
            incoming.stream.writer.reset();
            continue;
        };
        let (_, pair) = pairs
            .entry(request.clone())
            .or_insert_with(|| (now, Pair::default()));
        match kind.as_str() {
            "data" if pair.data.is_none() => pair.data = Some((port, incoming.stream)),
            "error" if pair.error.is_none() => pair.error = Some(incoming.stream.writer),
            _ => incoming.stream.writer.reset(),
        }
        if pair.data.is_some() && pair.error.is_some() {
            let (_, pair) = pairs.remove(&request)?;
            let ((port, data), error) = (pair.data?, pair.error?);
            return Some(Forward {
                port,
                data,
                error,
                greet: false,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{SinkExt, StreamExt};
    use tokio::io::AsyncReadExt;
    use tokio_tungstenite::tungstenite::Message;

    use super::*;

    #[tokio::test]
    async fn a_channel_port_forward_ends_when_its_ports_are_closed() {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let protocol = Protocol::Channels(Encoding::Binary);
        let mut forwards = open(server, protocol, &[80]).await;
        let carried = tokio::spawn(async move {
            let forward = forwards.next().await.unwrap();
            let (port, mut pod) = tokio::io::duplex(1024);
            let answer = async move {
                let mut heard = [0; 5];
                pod.read_exact(&mut heard).await.unwrap();
                assert_eq!(&heard, b"hello");
                pod.write_all(b"bye").await.unwrap();
            };
            let (carried, ()) = tokio::join!(forward.carry(port), answer);
            carried.unwrap();
            forwards.next().await.is_none()
        });
        let mut client = frames(client, Role::Client).await;
        client.send(Message::binary(&b"\0hello"[..])).await.unwrap();
        let mut heard = Vec::new();
        while let Some(Ok(message)) = client.next().await {
            if message.is_close() {
                break;
            }
            heard.push(message.into_data().to_vec());
        }
        assert_eq!(heard, [&b"\0\x50\0"[..], b"\x01\x50\0", b"\0bye"]);
        drop(client);
        assert!(carried.await.unwrap());
    }
}
