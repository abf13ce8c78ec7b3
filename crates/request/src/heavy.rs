//! Heavy requests, which keep a processor busy: large bodies, large objects, expressions of
//! definitions and policies.
//!
//! All requests share the threads of one runtime, and a thread that decodes three megabytes serves
//! no other request meanwhile. Once a request is known to be heavy ([`mark`]), each of its polls
//! waits for one of a few [`Slots`] and runs in `block_in_place`, so that the runtime serves other
//! requests on another thread. Waiting for the disk or a webhook holds no slot.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore},
};

/// Bodies and objects of this size and more are heavy: they take milliseconds.
const LARGE: usize = 64 * 1024;

tokio::task_local! {
    /// Whether the request of this task is heavy.
    static IS_HEAVY: Arc<AtomicBool>;
}

/// Slots for polls of heavy requests: half as many as there are processors.
#[derive(Clone)]
pub struct Slots(Arc<Semaphore>);

impl Default for Slots {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors.div_ceil(2))
    }
}

impl Slots {
    fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// The same work; its polls take a slot once it is heavy.
    pub fn run<F>(&self, work: F) -> Steps<F> {
        self.steps(work, false)
    }

    /// The same work; all its polls take a slot.
    pub fn run_heavy<F>(&self, work: F) -> Steps<F> {
        self.steps(work, true)
    }

    fn steps<F>(&self, work: F, is_heavy: bool) -> Steps<F> {
        Steps {
            work,
            is_heavy: Arc::new(AtomicBool::new(is_heavy)),
            slots: self.clone(),
            wait: None,
        }
    }
}

/// Marks the request of this task as heavy if it handles this many bytes.
pub async fn mark_large(bytes: usize) {
    if bytes >= LARGE {
        mark().await;
    }
}

/// Marks the request of this task as heavy.
pub async fn mark() {
    let was_heavy = IS_HEAVY.try_with(|heavy| heavy.swap(true, Ordering::Relaxed));
    // The next poll is the first that takes a slot.
    if was_heavy == Ok(false) {
        tokio::task::yield_now().await;
    }
}

type Wait = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// The polls of a request.
pub struct Steps<F> {
    work: F,
    is_heavy: Arc<AtomicBool>,
    slots: Slots,
    /// The pending slot.
    wait: Option<Wait>,
}

impl<F: Future + Unpin> Future for Steps<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let is_heavy = this.is_heavy.clone();
        // Nested work uses the slot of the outer work.
        let is_within = IS_HEAVY.try_with(|_| ()).is_ok();
        if is_within || !is_heavy.load(Ordering::Relaxed) {
            return IS_HEAVY.sync_scope(is_heavy, || Pin::new(&mut this.work).poll(context));
        }
        let slots = &this.slots.0;
        let wait = this
            .wait
            .get_or_insert_with(|| Box::pin(slots.clone().acquire_owned()));
        let _slot = ready!(wait.as_mut().poll(context));
        this.wait = None;
        let step = || IS_HEAVY.sync_scope(is_heavy, || Pin::new(&mut this.work).poll(context));
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(step),
            _ => step(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, sync::atomic::AtomicUsize};

    use futures::FutureExt;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_requests_are_served_while_a_heavy_one_blocks_its_thread() {
        let (slots, barrier) = (Slots::new(1), Arc::new(Barrier::new(2)));
        let (mark, meets) = (mark_large(LARGE), barrier.clone());
        let work = Box::pin(async move {
            mark.await;
            // On the runtime's only thread the other task would never run.
            meets.wait();
        });
        let heavy = tokio::spawn(slots.run(work));
        let other = tokio::spawn(async move {
            tokio::task::spawn_blocking(move || barrier.wait())
                .await
                .unwrap();
        });
        heavy.await.unwrap();
        other.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_heavy_steps_run_at_once_than_there_are_slots() {
        let (slots, now, most) = (Slots::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new((now, most));
        let requests = (0..16).map(|_| {
            let counts = counts.clone();
            let work = async move {
                mark().await;
                for _ in 0..20 {
                    let (now, most) = &*counts;
                    let count = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(count, Ordering::SeqCst);
                    std::thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            };
            tokio::spawn(slots.run(Box::pin(work)))
        });
        for request in futures::future::join_all(requests).await {
            request.unwrap();
        }
        let most = counts.1.load(Ordering::SeqCst);
        assert!((1..=2).contains(&most), "{most}");
    }

    #[tokio::test]
    async fn small_requests_take_no_slot_and_waiting_requests_hold_none() {
        let slots = Slots::new(1);
        let light = slots.run(Box::pin(async { mark_large(LARGE - 1).await }));
        assert!(light.now_or_never().is_some());
        let mut waits = slots.run(Box::pin(async {
            mark().await;
            std::future::pending::<()>().await;
        }));
        for _ in 0..3 {
            assert!((&mut waits).now_or_never().is_none());
        }
        assert_eq!(slots.0.available_permits(), 1);
        // Outside of a request there is nothing to mark.
        mark().await;
    }
}
