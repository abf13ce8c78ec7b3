//! Limits on data from unauthenticated clients, and draining of bodies that no handler reads.
//!
//! Before a connection has an authenticated request, up to [`UNAUTHENTICATED_READ_AHEAD`] bytes are
//! read ahead of its responses. Reading more takes one of a few permits ([`ReadAhead`]); without one the rest stays
//! in the client's buffers. So each unauthenticated client costs little memory, and all of them
//! together are bounded by the permits. Once a request of the connection is authenticated, no limit
//! applies.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{future::BoxFuture, task::AtomicWaker};
use http_body::{Body as _, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use request::{BodyError, NextFrame};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// Bytes read from an unauthenticated client before a response: ten times the head of an ordinary
/// request.
const UNAUTHENTICATED_READ_AHEAD: usize = 64 * 1024;
/// How many of them may send more at once; each up to the longest head.
const MAX_LARGE_UNAUTHENTICATED: usize = 64;
/// Maximum bytes drained from an unread body, of an authenticated client and of another.
const MAX_DRAINED_BYTES: (usize, usize) = (8 << 20, 256 << 10);
/// Maximum duration of draining, likewise.
const DRAIN_TIMEOUT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// The permits of all connections.
#[derive(Clone)]
pub(crate) struct ReadAhead(Arc<Semaphore>);

impl Default for ReadAhead {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_LARGE_UNAUTHENTICATED)))
    }
}

/// The receive state of a connection.
#[derive(Default)]
pub struct Sender {
    /// Whether a request of this connection was authenticated.
    is_known: AtomicBool,
    /// Bytes received since the last response.
    received: AtomicUsize,
    /// Guards the permit of an unauthenticated client that sends more than [`UNAUTHENTICATED_READ_AHEAD`].
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// The task that reads the connection.
    reader: AtomicWaker,
}

impl Sender {
    /// Records that a request was authenticated.
    pub fn note_known(&self) {
        if !self.is_known.swap(true, Ordering::AcqRel) {
            self.release();
        }
    }

    /// Records that a request was answered.
    pub(crate) fn note_answer(&self) {
        if !self.is_known() {
            self.received.store(0, Ordering::Release);
            self.release();
        }
    }

    fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    fn release(&self) {
        self.permit.lock().take();
        self.reader.wake();
    }

    /// Whether more may be read without waiting for a permit.
    fn may_send(&self) -> bool {
        self.is_known()
            || self.received.load(Ordering::Acquire) < UNAUTHENTICATED_READ_AHEAD
            || self.permit.lock().is_some()
    }
}

type Wait = BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>;

/// Decides when a connection may be read.
pub(crate) struct Intake {
    sender: Arc<Sender>,
    read_ahead: ReadAhead,
    /// The pending permit.
    wait: Option<Wait>,
}

impl Intake {
    pub(crate) fn new(sender: Arc<Sender>, read_ahead: ReadAhead) -> Self {
        Self {
            sender,
            read_ahead,
            wait: None,
        }
    }

    /// Waits until more may be read.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.sender.may_send() {
            self.wait = None;
            return Poll::Ready(());
        }
        self.sender.reader.register(context.waker());
        if self.sender.may_send() {
            self.wait = None;
            return Poll::Ready(());
        }
        let permits = &self.read_ahead.0;
        let wait = self
            .wait
            .get_or_insert_with(|| Box::pin(permits.clone().acquire_owned()));
        let permit = ready!(wait.as_mut().poll(context));
        self.wait = None;
        *self.sender.permit.lock() = permit.ok();
        Poll::Ready(())
    }

    /// Counts received bytes.
    pub(crate) fn count(&self, bytes: usize) {
        if !self.sender.is_known() {
            self.sender.received.fetch_add(bytes, Ordering::AcqRel);
        }
    }
}

/// A request's body. The part that no handler reads is drained: a client that is still sending
/// would miss the response, and the connection could not be reused. From unauthenticated clients no
/// more is drained than upstream does; then the connection is closed.
pub(crate) struct Unread {
    body: Option<Incoming>,
    /// The tracker of draining tasks; `None` for a client that sent `Expect: 100-continue`.
    tasks: Option<TaskTracker>,
    sender: Arc<Sender>,
}

impl Unread {
    pub(crate) fn new(body: Incoming, tasks: Option<TaskTracker>, sender: Arc<Sender>) -> Self {
        Self {
            body: Some(body),
            tasks,
            sender,
        }
    }
}

impl http_body::Body for Unread {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map(http_body::Body::size_hint);
        hint.unwrap_or_default()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let left = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Some(tasks)) = (left, &self.tasks) {
            let (most, patience) = match self.sender.is_known() {
                true => (MAX_DRAINED_BYTES.0, DRAIN_TIMEOUT.0),
                false => (MAX_DRAINED_BYTES.1, DRAIN_TIMEOUT.1),
            };
            tasks.spawn(drain(body, most, patience));
        }
    }
}

/// Reads a body to its end, within the limits.
async fn drain(mut body: Incoming, most: usize, patience: Duration) {
    let read = async {
        let mut left = most;
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(size) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    // A client that takes longer loses its connection.
    let _ = tokio::time::timeout(patience, read).await;
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::FutureExt;

    use super::*;

    fn unauthenticated(permits: &ReadAhead) -> (Arc<Sender>, Intake) {
        let sender = Arc::new(Sender::default());
        (sender.clone(), Intake::new(sender, permits.clone()))
    }

    fn is_read(intake: &mut Intake) -> bool {
        poll_fn(|context| intake.poll_ready(context))
            .now_or_never()
            .is_some()
    }

    #[tokio::test]
    async fn unauthenticated_clients_without_a_permit_wait_until_they_are_known_or_answered() {
        let permits = ReadAhead(Arc::new(Semaphore::new(1)));
        let (first, mut reads_first) = unauthenticated(&permits);
        let (second, mut reads_second) = unauthenticated(&permits);
        for intake in [&mut reads_first, &mut reads_second] {
            assert!(is_read(intake));
            intake.count(UNAUTHENTICATED_READ_AHEAD);
        }
        assert!(is_read(&mut reads_first), "it has the permit");
        reads_first.count(10 * UNAUTHENTICATED_READ_AHEAD);
        assert!(is_read(&mut reads_first), "for as much as a head may be");
        assert!(!is_read(&mut reads_second));
        let waits = tokio::spawn(async move {
            poll_fn(|context| reads_second.poll_ready(context)).await;
            reads_second
        });
        first.note_answer();
        let mut reads_second = waits.await.unwrap();
        assert!(is_read(&mut reads_first), "it begins anew");
        reads_first.count(UNAUTHENTICATED_READ_AHEAD);
        assert!(!is_read(&mut reads_first), "the other has the permit now");
        // An authenticated client needs no permit and returns it.
        second.note_known();
        reads_second.count(100 * UNAUTHENTICATED_READ_AHEAD);
        assert!(is_read(&mut reads_second));
        assert!(is_read(&mut reads_first));
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_when_the_user_is_known() {
        let permits = ReadAhead(Arc::new(Semaphore::new(0)));
        let (sender, mut intake) = unauthenticated(&permits);
        intake.count(UNAUTHENTICATED_READ_AHEAD);
        assert!(!is_read(&mut intake));
        let waits = tokio::spawn(async move {
            poll_fn(|context| intake.poll_ready(context)).await;
        });
        tokio::task::yield_now().await;
        sender.note_known();
        waits.await.unwrap();
    }
}
