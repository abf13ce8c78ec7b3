//! What clients send before the server knows who they are, and bodies that no handler reads.
//!
//! A connection without an authenticated request is read up to [`FREE`] bytes ahead of its answers. More is read with one of
//! a few permits ([`ReadAhead`]); without one the rest waits in the client. So unauthenticated clients cost little memory
//! each, and beyond that no more than the permits allow to all of them together. Once a request of the connection is
//! authenticated, nothing of this applies to it.

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
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use request::BodyError;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// So much is read of an unauthenticated client before an answer: the heads of ordinary requests are a tenth of it.
const FREE: usize = 64 * 1024;
/// How many of them may send more than that at once; each as much as the longest head.
const PERMITS: usize = 64;
/// So much of a body that no handler wanted is read of an authenticated client, and of another.
const DRAINED: (usize, usize) = (8 << 20, 256 << 10);
/// Longest time for that.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// The permits of all connections.
#[derive(Clone)]
pub(crate) struct ReadAhead(Arc<Semaphore>);

impl Default for ReadAhead {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(PERMITS)))
    }
}

/// The other end of a connection, as far as what it sends goes.
#[derive(Default)]
pub(crate) struct Sender {
    /// Whether a request of this connection was authenticated.
    is_known: AtomicBool,
    /// Bytes that came since the last answer.
    received: AtomicUsize,
    /// Guards the permit of an unauthenticated client that sends much.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// The task that reads the connection.
    reader: AtomicWaker,
}

impl Sender {
    /// A request was authenticated.
    pub(crate) fn note_known(&self) {
        if !self.is_known.swap(true, Ordering::AcqRel) {
            self.release();
        }
    }

    /// A request was answered.
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

    /// Whether more may be read without a permit or with the one that it has.
    fn may_send(&self) -> bool {
        self.is_known()
            || self.received.load(Ordering::Acquire) < FREE
            || self.permit.lock().is_some()
    }
}

type Wait = BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>;

/// Decides when a connection is read.
pub(crate) struct Intake {
    sender: Arc<Sender>,
    read_ahead: ReadAhead,
    /// Waits for a permit.
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

    /// Counts what was read.
    pub(crate) fn count(&self, bytes: usize) {
        if !self.sender.is_known() {
            self.sender.received.fetch_add(bytes, Ordering::AcqRel);
        }
    }
}

/// A request's body. What no handler reads of it is read and forgotten: a client that is still sending would miss the
/// answer, and the connection would be of no more use. Of unauthenticated clients no more is read than upstream reads; then
/// they lose the connection.
pub(crate) struct Unread {
    body: Option<Incoming>,
    /// Where the rest is read; nowhere for a client that waits to be asked for its body.
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

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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
                true => (DRAINED.0, PATIENCE.0),
                false => (DRAINED.1, PATIENCE.1),
            };
            tasks.spawn(drain(body, most, patience));
        }
    }
}

/// Reads a body to its end, if that is not too far.
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
    // A client that takes longer loses the connection.
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
            intake.count(FREE);
        }
        assert!(is_read(&mut reads_first), "it has the permit");
        reads_first.count(10 * FREE);
        assert!(is_read(&mut reads_first), "for as much as a head may be");
        assert!(!is_read(&mut reads_second));
        let waits = tokio::spawn(async move {
            poll_fn(|context| reads_second.poll_ready(context)).await;
            reads_second
        });
        first.note_answer();
        let mut reads_second = waits.await.unwrap();
        assert!(is_read(&mut reads_first), "it begins anew");
        reads_first.count(FREE);
        assert!(!is_read(&mut reads_first), "the other has the permit now");
        // A known user needs none and gives it back.
        second.note_known();
        reads_second.count(100 * FREE);
        assert!(is_read(&mut reads_second));
        assert!(is_read(&mut reads_first));
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_when_the_user_is_known() {
        let permits = ReadAhead(Arc::new(Semaphore::new(0)));
        let (sender, mut intake) = unauthenticated(&permits);
        intake.count(FREE);
        assert!(!is_read(&mut intake));
        let waits = tokio::spawn(async move {
            poll_fn(|context| intake.poll_ready(context)).await;
        });
        tokio::task::yield_now().await;
        sender.note_known();
        waits.await.unwrap();
    }
}
