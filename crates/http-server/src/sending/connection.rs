//! Cuts off clients that do not read: the connection's writes, and the tasks of HTTP/2 streams.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use super::{Budget, Flight};
use crate::receiving::Intake;

tokio::task_local! {
    /// The flight of the response that this task sends.
    static FLIGHT: Arc<Flight>;
}

/// The flight of the HTTP/2 stream that this task serves.
pub(crate) fn current_flight() -> Option<Arc<Flight>> {
    FLIGHT.try_with(Clone::clone).ok()
}

/// Runs the task of an HTTP/2 stream until it ends or its client reads nothing for too long.
/// Dropping the task resets the stream and frees its queue.
pub(crate) async fn watched<F: Future>(task: F, budget: Arc<Budget>) {
    let flight = Flight::new(budget);
    let mut task = pin!(FLIGHT.scope(flight.clone(), task));
    let mut tick: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        if task.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        while flight.unsent() > 0 {
            let every = flight.budget.tick();
            let next = tick.get_or_insert_with(|| Box::pin(tokio::time::sleep(every)));
            ready!(next.as_mut().poll(context));
            tick = None;
            if flight.is_stalled() {
                flight.budget.cut.inc();
                return Poll::Ready(());
            }
        }
        tick = None;
        Poll::Pending
    })
    .await;
}

/// The state of a connection's responses that its writes need.
#[derive(Default)]
pub(crate) struct Line {
    /// Whether the current response may pause indefinitely.
    endless: AtomicBool,
}

impl Line {
    pub(crate) fn set_endless(&self, endless: bool) {
        self.endless.store(endless, Ordering::Relaxed);
    }
}

/// A connection whose writes fail when the peer reads nothing for too long.
pub(crate) struct StallTimeout<T> {
    io: T,
    /// Decides when the connection may be read.
    intake: Intake,
    budget: Arc<Budget>,
    line: Arc<Line>,
    /// Since when writes are blocked, and the timer of the next check.
    blocked: Option<(u64, Pin<Box<Sleep>>)>,
}

impl<T> StallTimeout<T> {
    pub(crate) fn new(io: T, intake: Intake, budget: Arc<Budget>, line: Arc<Line>) -> Self {
        Self {
            io,
            intake,
            budget,
            line,
            blocked: None,
        }
    }

    /// Checks the result of a write, and whether it has been blocked for too long.
    fn judge<R>(
        &mut self,
        written: Poll<io::Result<R>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.blocked = None;
            return written;
        }
        let (budget, every) = (&self.budget, self.budget.tick());
        let wait = || (budget.now(), Box::pin(tokio::time::sleep(every)));
        let (since, next) = self.blocked.get_or_insert_with(wait);
        while next.as_mut().poll(context).is_ready() {
            if budget.is_overdue(*since, self.line.endless.load(Ordering::Relaxed)) {
                budget.cut.inc();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            *next = Box::pin(tokio::time::sleep(every));
        }
        Poll::Pending
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.intake.poll_ready(context));
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        self.intake.count(buffer.filled().len() - before);
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallTimeout<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.judge(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, buffers);
        self.judge(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.judge(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(context);
        self.judge(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::receiving::ReadAhead;

    #[tokio::test]
    async fn a_write_that_the_client_does_not_read_fails() {
        let budget = Budget::new(1 << 20, Duration::from_millis(30));
        let (ours, mut theirs) = tokio::io::duplex(16);
        let intake = Intake::new(Arc::default(), ReadAhead::default());
        let mut ours = StallTimeout::new(ours, intake, budget.clone(), Arc::default());
        let reading = tokio::spawn(async move {
            theirs.read_exact(&mut [0; 128]).await.unwrap();
            theirs
        });
        ours.write_all(&[b'x'; 128]).await.unwrap();
        let _theirs = reading.await.unwrap();
        let failed = ours.write_all(&[b'x'; 128]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert_eq!(budget.cut().get(), 1);
    }

    #[tokio::test]
    async fn a_stream_that_the_client_does_not_read_is_dropped() {
        let budget = Budget::new(1 << 20, Duration::from_millis(30));
        let task = async {
            let flight = current_flight().unwrap();
            let _piece = flight.piece(Bytes::from_static(b"abc"));
            std::future::pending::<()>().await;
        };
        watched(task, budget.clone()).await;
        assert_eq!((budget.cut().get(), budget.used()), (1, 0));
    }
}
