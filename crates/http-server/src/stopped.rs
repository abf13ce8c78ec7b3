//! Waiting for the server to stop, at little cost for each poll.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::task::AtomicWaker;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Resolves when a token is cancelled. Polling the token takes a lock that all connections share,
/// so it is polled once, and again only after it woke this future.
pub struct Stopped {
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    call: Arc<Waiter>,
}

#[derive(Default)]
struct Waiter {
    answered: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.answered.store(false, Ordering::Release);
        self.task.wake();
    }
}

impl Stopped {
    pub fn new(token: CancellationToken) -> Self {
        Self {
            cancelled: Box::pin(token.cancelled_owned()),
            call: Arc::default(),
        }
    }
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.call.task.register(context.waker());
        if self.call.answered.swap(true, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(self.call.clone());
        self.cancelled
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn cancellation_reaches_present_and_later_waiters() {
        let token = CancellationToken::new();
        let mut early = Stopped::new(token.clone());
        assert!((&mut early).now_or_never().is_none());
        assert!((&mut early).now_or_never().is_none());
        let waits = tokio::spawn(early);
        tokio::task::yield_now().await;
        token.cancel();
        waits.await.unwrap();
        Stopped::new(token).await;
    }
}
