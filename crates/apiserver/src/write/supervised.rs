//! A write that cannot be cancelled: it runs in its request, and when the request is dropped (the
//! client disconnected, the deadline passed) it continues in a task of its own. So most writes
//! never change tasks.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
};

use futures::{FutureExt, future::CatchUnwind};
use machinery::Status;
use request::heavy::Slots;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

type Write<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

pub(crate) struct Supervised<T: Send + 'static> {
    /// `None` once it has ended.
    write: Option<CatchUnwind<AssertUnwindSafe<Write<T>>>>,
    tracker: TaskTracker,
    /// Bounds writes that continue after their request was dropped and hold no flow control seat.
    slots: Slots,
    /// Makes the tracker wait for it.
    _under_way: TaskTrackerToken,
}

impl<T: Send + 'static> Supervised<T> {
    pub(super) fn new(tracker: TaskTracker, slots: Slots, write: Write<T>) -> Self {
        Self {
            slots,
            write: Some(AssertUnwindSafe(write).catch_unwind()),
            _under_way: tracker.token(),
            tracker,
        }
    }
}

impl<T: Send + 'static> Future for Supervised<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(write) = &mut self.write else {
            return Poll::Ready(Err(Status::internal("the write has already completed")));
        };
        let Poll::Ready(ended) = write.poll_unpin(context) else {
            return Poll::Pending;
        };
        self.write = None;
        match ended {
            Ok(result) => Poll::Ready(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl<T: Send + 'static> Drop for Supervised<T> {
    fn drop(&mut self) {
        // Without a runtime the process is exiting, and the store with it.
        if let Some(write) = self.write.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let rest = Box::pin(async move {
                if write.await.is_err() {
                    tracing::error!("write panicked after its client disconnected");
                }
            });
            self.tracker.spawn_on(self.slots.run_heavy(rest), &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_write_goes_on_when_its_request_is_dropped() {
        let tracker = TaskTracker::new();
        let (begun, has_begun) = oneshot::channel();
        let (proceed, may_proceed) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let write = Supervised::new(
            tracker.clone(),
            Slots::default(),
            Box::pin(async move {
                begun.send(()).unwrap();
                may_proceed.await.unwrap();
                done.send(()).unwrap();
                Ok(())
            }),
        );
        let request = tokio::spawn(write);
        has_begun.await.unwrap();
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        tracker.close();
        assert!(!tracker.is_empty(), "shutdown waits for it");
        proceed.send(()).unwrap();
        is_done.await.unwrap();
        tracker.wait().await;
    }

    #[tokio::test]
    async fn a_panic_reaches_the_request() {
        let write: Write<()> = Box::pin(async { panic!("on purpose") });
        let write = Supervised::new(TaskTracker::new(), Slots::default(), write);
        assert!(AssertUnwindSafe(write).catch_unwind().await.is_err());
    }
}
