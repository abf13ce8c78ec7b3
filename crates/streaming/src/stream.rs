//! One of many streams on a connection. Reading takes chunks from the connection's reader; writing
//! puts chunks into the connection's queue within its budget, so that a slow peer slows the writer
//! and memory stays bounded.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_util::sync::PollSemaphore;

/// Maximum queued bytes of one connection.
const BUDGET: usize = 256 * 1024;
/// Larger writes are split: streams share a connection fairly.
pub(crate) const CHUNK: usize = 32 * 1024;
/// Received chunks that may wait for their reader before the connection stops reading.
pub(crate) const BACKLOG: usize = 64;

/// What a connection's writer sends, in order.
pub(crate) enum Outgoing {
    Data {
        id: u32,
        data: Bytes,
        /// Releases the budget when the data has been written or dropped.
        _permit: OwnedSemaphorePermit,
    },
    Close(u32),
    Reset(u32),
    Open {
        id: u32,
        headers: Vec<(String, String)>,
    },
    Reply(u32),
    Refuse(u32),
    Pong {
        id: u32,
        _permit: OwnedSemaphorePermit,
    },
    Shutdown,
}

/// The sending side of a connection, shared by its streams.
#[derive(Clone)]
pub(crate) struct Queue {
    sender: mpsc::UnboundedSender<Outgoing>,
    pub(crate) budget: Arc<Semaphore>,
}

impl Queue {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Outgoing>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (
            Self {
                sender,
                budget: Arc::new(Semaphore::new(BUDGET)),
            },
            receiver,
        )
    }

    /// Queues a small message without budget. Returns false if the connection has ended.
    pub(crate) fn send(&self, outgoing: Outgoing) -> bool {
        self.sender.send(outgoing).is_ok()
    }
}

/// The reading half of a stream; ends when the peer closed it or the connection ended.
#[derive(Debug)]
pub struct StreamReader {
    chunks: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl StreamReader {
    pub(crate) fn new() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, chunks) = mpsc::channel(BACKLOG);
        (
            sender,
            Self {
                chunks,
                current: Bytes::new(),
            },
        )
    }

    /// The next chunk as received, without a copy.
    pub async fn chunk(&mut self) -> Option<Bytes> {
        if self.current.is_empty() {
            return self.chunks.recv().await;
        }
        Some(std::mem::take(&mut self.current))
    }
}

impl AsyncRead for StreamReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() {
            match ready!(self.chunks.poll_recv(context)) {
                Some(chunk) => self.current = chunk,
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.current.len().min(buffer.remaining());
        buffer.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}

/// The writing half of a stream. Shutting it down or dropping it closes it.
pub struct StreamWriter {
    id: u32,
    queue: Queue,
    budget: PollSemaphore,
    /// Set by the connection when the peer has reset the stream.
    reset: Arc<AtomicBool>,
    open: bool,
}

impl StreamWriter {
    pub(crate) fn new(id: u32, queue: Queue, reset: Arc<AtomicBool>) -> Self {
        let budget = PollSemaphore::new(queue.budget.clone());
        Self {
            id,
            queue,
            budget,
            reset,
            open: true,
        }
    }

    /// Resets the stream in both directions.
    pub fn reset(mut self) {
        self.open = false;
        self.queue.send(Outgoing::Reset(self.id));
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            self.queue.send(Outgoing::Close(self.id));
        }
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.close();
    }
}

fn broken() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

impl AsyncWrite for StreamWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.open || self.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Err(broken()));
        }
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let length = data.len().min(CHUNK);
        let permit = ready!(self.budget.poll_acquire_many(context, length as u32));
        let Some(_permit) = permit else {
            return Poll::Ready(Err(broken()));
        };
        let data = Bytes::copy_from_slice(&data[..length]);
        let sent = self.queue.send(Outgoing::Data {
            id: self.id,
            data,
            _permit,
        });
        Poll::Ready(if sent { Ok(length) } else { Err(broken()) })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}

/// Both halves of a stream.
pub struct Stream {
    pub reader: StreamReader,
    pub writer: StreamWriter,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}
