//! A SPDY connection: a reader that dispatches frames to streams, and a writer that sends what the
//! streams have queued. Both end with the [`Connection`] that owns them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf},
    sync::mpsc,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    frame::{self, Frame, Reset},
    headers::{Decoder, Encoder, Headers},
};
use crate::{
    Error, Stream, StreamReader, StreamWriter, Transport,
    stream::{CHUNK, Outgoing, Queue},
};

/// Maximum open streams of a peer; a port-forward uses two per connection.
const MAX_STREAMS: usize = 2000;
/// How long the peer may take to read sent data before the connection is cut.
const LINGER: Duration = Duration::from_secs(5);

/// The end of the connection: clients open streams with odd numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// A stream opened by the peer.
pub struct Incoming {
    pub id: u32,
    headers: Headers,
    pub stream: Stream,
}

impl Incoming {
    /// A header's value; names in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

struct Entry {
    inbound: Option<mpsc::Sender<Bytes>>,
    reset: Arc<AtomicBool>,
    local_open: bool,
}

/// Guards the open streams of a connection; never held across an await.
type Table = Arc<Mutex<HashMap<u32, Entry>>>;

/// One end of a SPDY connection.
pub struct Connection {
    queue: Queue,
    table: Table,
    incoming: mpsc::Receiver<Incoming>,
    next_id: u32,
    closed: CancellationToken,
    reader: AbortOnDropHandle<()>,
    writer: AbortOnDropHandle<()>,
}

impl Connection {
    /// Starts SPDY on an upgraded connection.
    pub fn start(io: impl Transport, role: Role) -> Self {
        let (read, write) = tokio::io::split(io);
        let (queue, outgoing) = Queue::new();
        let (sender, incoming) = mpsc::channel(16);
        let table = Table::default();
        let closed = CancellationToken::new();
        let reader = Reader {
            io: read,
            role,
            queue: queue.clone(),
            table: table.clone(),
            incoming: sender,
            decoder: Decoder::new(),
            last_id: 0,
        };
        let ended = closed.clone();
        let read = async move {
            if let Err(error) = reader.run().await {
                tracing::debug!(%error, "streaming connection ended");
            }
            ended.cancel();
        };
        let write = write_all(
            write,
            outgoing,
            queue.clone(),
            table.clone(),
            closed.clone(),
        );
        Self {
            queue,
            table,
            incoming,
            next_id: if role == Role::Client { 1 } else { 2 },
            closed,
            reader: AbortOnDropHandle::new(tokio::spawn(read)),
            writer: AbortOnDropHandle::new(tokio::spawn(write)),
        }
    }

    /// The next stream that the peer opens; `None` when the connection has ended.
    pub async fn accept(&mut self) -> Option<Incoming> {
        self.incoming.recv().await
    }

    /// Rejects further streams.
    pub fn stop_accepting(&mut self) {
        self.incoming.close();
    }

    /// Opens a stream.
    pub fn open(&mut self, headers: &[(&str, &str)]) -> Stream {
        let id = self.next_id;
        self.next_id += 2;
        let stream = new_stream(id, &self.queue, &self.table);
        let own = |(name, value): &(&str, &str)| (name.to_ascii_lowercase(), (*value).to_owned());
        self.queue.send(Outgoing::Open {
            id,
            headers: headers.iter().map(own).collect(),
        });
        stream
    }

    /// Cancelled when the connection has ended.
    pub fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Sends queued data and GOAWAY, and waits a little for the peer to disconnect, so that nothing
    /// unread is lost.
    pub async fn shutdown(mut self) {
        self.incoming.close();
        self.queue.send(Outgoing::Shutdown);
        let _ = tokio::time::timeout(LINGER, async {
            let _ = (&mut self.writer).await;
            let _ = (&mut self.reader).await;
        })
        .await;
    }
}

fn new_stream(id: u32, queue: &Queue, table: &Table) -> Stream {
    let (sender, reader) = StreamReader::new();
    let reset = Arc::new(AtomicBool::new(false));
    let entry = Entry {
        inbound: Some(sender),
        reset: reset.clone(),
        local_open: true,
    };
    table.lock().insert(id, entry);
    Stream {
        reader,
        writer: StreamWriter::new(id, queue.clone(), reset),
    }
}

/// The peer has closed its half of this stream.
fn end_inbound(table: &Table, id: u32) {
    let mut table = table.lock();
    if let Some(entry) = table.get_mut(&id) {
        entry.inbound = None;
        if !entry.local_open {
            table.remove(&id);
        }
    }
}

/// We have closed our half of this stream.
fn end_outbound(table: &Table, id: u32) {
    let mut table = table.lock();
    if let Some(entry) = table.get_mut(&id) {
        entry.local_open = false;
        if entry.inbound.is_none() {
            table.remove(&id);
        }
    }
}

struct Reader<T> {
    io: ReadHalf<T>,
    role: Role,
    queue: Queue,
    table: Table,
    incoming: mpsc::Sender<Incoming>,
    decoder: Decoder,
    last_id: u32,
}

impl<T> Drop for Reader<T> {
    /// Ends the readers of all streams.
    fn drop(&mut self) {
        for (_, entry) in self.table.lock().drain() {
            entry.reset.store(true, Ordering::Relaxed);
        }
    }
}

impl<T: Transport> Reader<T> {
    async fn run(mut self) -> Result<(), Error> {
        while let Some(frame) = frame::read(&mut self.io).await? {
            match frame {
                Frame::SynStream { id, fin, block } => self.opened(id, fin, &block).await?,
                Frame::SynReply { id, fin, block } | Frame::Headers { id, fin, block } => {
                    // The block must pass through the decoder even if the stream is unknown.
                    self.decoder.decode(&block)?;
                    if fin {
                        end_inbound(&self.table, id);
                    }
                }
                Frame::Reset { id } => self.reset(id),
                Frame::Ping { id } => self.ping(id).await?,
                Frame::Data { id, fin, length } => self.data(id, fin, length).await?,
                Frame::GoAway | Frame::Ignored => {}
            }
        }
        Ok(())
    }

    async fn opened(&mut self, id: u32, fin: bool, block: &[u8]) -> Result<(), Error> {
        let headers = self.decoder.decode(block)?;
        let odd = id % 2 == 1;
        if odd != (self.role == Role::Server) || id <= self.last_id {
            return Err(Error::Protocol(format!("stream {id} cannot be opened")));
        }
        self.last_id = id;
        if self.table.lock().len() >= MAX_STREAMS || self.incoming.is_closed() {
            self.queue.send(Outgoing::Refuse(id));
            return Ok(());
        }
        let stream = new_stream(id, &self.queue, &self.table);
        self.queue.send(Outgoing::Reply(id));
        if fin {
            end_inbound(&self.table, id);
        }
        // If no streams are accepted any more, this drops the stream, which closes it.
        let _ = self
            .incoming
            .send(Incoming {
                id,
                headers,
                stream,
            })
            .await;
        Ok(())
    }

    fn reset(&self, id: u32) {
        if let Some(entry) = self.table.lock().remove(&id) {
            entry.reset.store(true, Ordering::Relaxed);
        }
    }

    async fn ping(&mut self, id: u32) -> Result<(), Error> {
        let ours = (id % 2 == 1) == (self.role == Role::Client);
        if !ours {
            // A peer that pings without reading the replies must not fill our memory.
            let budget = self.queue.budget.clone();
            let _permit = budget
                .acquire_many_owned(64)
                .await
                .map_err(|_| Error::Closed)?;
            self.queue.send(Outgoing::Pong { id, _permit });
        }
        Ok(())
    }

    async fn data(&mut self, id: u32, fin: bool, mut length: usize) -> Result<(), Error> {
        let inbound = self
            .table
            .lock()
            .get(&id)
            .and_then(|entry| entry.inbound.clone());
        while length > 0 {
            let mut chunk = BytesMut::with_capacity(length.min(CHUNK));
            let read = (&mut self.io)
                .take(length.min(CHUNK) as u64)
                .read_buf(&mut chunk)
                .await?;
            if read == 0 {
                return Err(Error::Closed);
            }
            length -= read;
            if let Some(inbound) = &inbound {
                // Data for a dropped reader is discarded; the peer may keep sending.
                let _ = inbound.send(chunk.freeze()).await;
            }
        }
        if fin {
            end_inbound(&self.table, id);
        }
        Ok(())
    }
}

async fn write_all<T: Transport>(
    mut io: WriteHalf<T>,
    mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    queue: Queue,
    table: Table,
    closed: CancellationToken,
) {
    let run = async {
        let mut encoder = Encoder::new()?;
        let mut out = BytesMut::with_capacity(2 * CHUNK);
        while let Some(next) = outgoing.recv().await {
            let mut next = Some(next);
            let mut last = false;
            while let Some(message) = next.take() {
                last |= put(&mut out, message, &mut encoder, &table)?;
                if out.len() < CHUNK && !last {
                    next = outgoing.try_recv().ok();
                }
            }
            io.write_all(&out).await?;
            out.clear();
            io.flush().await?;
            if last {
                break;
            }
        }
        io.shutdown().await?;
        Ok::<(), Error>(())
    };
    if let Err(error) = run.await {
        tracing::debug!(%error, "streaming connection ended");
        closed.cancel();
    }
    queue.budget.close();
}

/// Encodes one message; returns whether it was the last.
fn put(
    out: &mut BytesMut,
    message: Outgoing,
    encoder: &mut Encoder,
    table: &Table,
) -> Result<bool, Error> {
    match message {
        Outgoing::Data { id, data, .. } => {
            frame::put_data(out, id, false, data.len());
            out.extend_from_slice(&data);
        }
        Outgoing::Close(id) => {
            frame::put_data(out, id, true, 0);
            end_outbound(table, id);
        }
        Outgoing::Reset(id) => {
            frame::put_reset(out, id, Reset::Cancel);
            table.lock().remove(&id);
        }
        Outgoing::Refuse(id) => frame::put_reset(out, id, Reset::Refused),
        Outgoing::Open { id, headers } => {
            frame::put_syn_stream(out, id, &encoder.encode(&headers)?);
        }
        Outgoing::Reply(id) => frame::put_syn_reply(out, id, &encoder.encode(&[])?),
        Outgoing::Pong { id, .. } => frame::put_ping(out, id),
        Outgoing::Shutdown => {
            frame::put_goaway(out, 0);
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Connection, Connection) {
        let (near, far) = tokio::io::duplex(4096);
        (
            Connection::start(near, Role::Client),
            Connection::start(far, Role::Server),
        )
    }

    #[tokio::test]
    async fn many_streams_share_one_connection_and_each_half_closes_by_itself() {
        let (mut client, mut server) = pair();
        let mut streams = Vec::new();
        for number in 0..8u8 {
            let mut ours = client.open(&[("number", &number.to_string())]);
            let theirs = server.accept().await.unwrap();
            assert_eq!(theirs.header("number"), Some(number.to_string().as_str()));
            ours.write_all(&vec![number; 100_000]).await.unwrap();
            ours.shutdown().await.unwrap();
            streams.push((ours, theirs.stream));
            // Reads late: data of the first streams must not block the others.
            if number == 0 {
                let (mut ours, mut theirs) = streams.pop().unwrap();
                let mut echo = Vec::new();
                theirs.read_to_end(&mut echo).await.unwrap();
                assert_eq!(echo, vec![0; 100_000]);
                theirs
                    .write_all(b"answer after the other half was closed")
                    .await
                    .unwrap();
                drop(theirs);
                let mut answer = String::new();
                ours.read_to_string(&mut answer).await.unwrap();
                assert_eq!(answer, "answer after the other half was closed");
            }
        }
        for (number, (_, mut theirs)) in streams.into_iter().enumerate() {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, vec![number as u8 + 1; 100_000]);
        }
    }

    #[tokio::test]
    async fn a_reset_breaks_the_peers_writer_and_the_connection_goes_on() {
        let (mut client, mut server) = pair();
        let ours = client.open(&[]);
        let mut theirs = server.accept().await.unwrap().stream;
        ours.writer.reset();
        let mut nothing = Vec::new();
        theirs.read_to_end(&mut nothing).await.unwrap();
        assert!(nothing.is_empty());
        theirs.write_all(b"x").await.unwrap_err();
        let mut second = client.open(&[]);
        let mut accepted = server.accept().await.unwrap().stream;
        accepted.write_all(b"still here").await.unwrap();
        let mut heard = [0; 10];
        second.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"still here");
    }

    #[tokio::test]
    async fn shutdown_delivers_what_was_written_before_it() {
        let (mut client, mut server) = pair();
        let mut ours = client.open(&[]);
        let mut theirs = server.accept().await.unwrap().stream;
        theirs.write_all(&[7; 50_000]).await.unwrap();
        drop(theirs);
        let stopping = tokio::spawn(server.shutdown());
        let mut all = Vec::new();
        ours.read_to_end(&mut all).await.unwrap();
        assert_eq!(all.len(), 50_000);
        drop(client);
        stopping.await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_the_connection_ends_every_stream() {
        let (mut client, mut server) = pair();
        let mut ours = client.open(&[]);
        let theirs = server.accept().await.unwrap();
        let closed = client.closed();
        drop(theirs);
        drop(server);
        closed.cancelled().await;
        let mut nothing = Vec::new();
        ours.read_to_end(&mut nothing).await.unwrap();
        assert!(client.accept().await.is_none());
    }
}
