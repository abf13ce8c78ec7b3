//! Blocking work on tokio's blocking threads, only a few at a time. A burst of such work would otherwise start hundreds of
//! threads, each with a stack and with memory that the allocator caches for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinError, spawn_blocking},
    time::timeout,
};

/// If no work ends for this long, more is started: work that hangs, such as on a server that does not answer, must not hold
/// up other work.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs blocking work, normally at most `limit` at a time. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Blocking {
    slots: Arc<Semaphore>,
    /// How often a slot became free.
    freed: Arc<AtomicU64>,
    patience: Duration,
}

impl Blocking {
    /// Runs at most `limit` at a time, unless all of them take long.
    pub fn new(limit: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(limit)),
            freed: Arc::default(),
            patience: PATIENCE,
        }
    }

    /// Runs `work` on a blocking thread; an error if it panics. The work runs to its end also if the caller does not wait
    /// for it.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let slot = self.slot().await;
        spawn_blocking(move || {
            let done = work();
            drop(slot);
            done
        })
        .await
    }

    /// Waits for a slot; `None` if none became free for a while. In a long queue work waits as long as it moves: started
    /// by its own time of waiting, all of a burst would run at once.
    async fn slot(&self) -> Option<Slot> {
        let mut acquired = Box::pin(self.slots.clone().acquire_owned());
        loop {
            let before = self.freed.load(Ordering::Relaxed);
            match timeout(self.patience, &mut acquired).await {
                // The semaphore is never closed.
                Ok(permit) => {
                    return permit.ok().map(|permit| Slot {
                        _permit: permit,
                        freed: self.freed.clone(),
                    });
                }
                Err(_) if self.freed.load(Ordering::Relaxed) == before => return None,
                Err(_) => {}
            }
        }
    }
}

/// A place among those that run. Dropped also if the work panics.
struct Slot {
    _permit: OwnedSemaphorePermit,
    freed: Arc<AtomicU64>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    fn with_patience(limit: usize, patience: Duration) -> Blocking {
        Blocking {
            patience,
            ..Blocking::new(limit)
        }
    }

    #[tokio::test]
    async fn no_more_than_the_limit_run_at_a_time() {
        let blocking = with_patience(3, Duration::MAX);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (blocking, running, most) = (blocking.clone(), running.clone(), most.clone());
            all.spawn(async move {
                let work = move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                };
                blocking.run(work).await.unwrap();
            });
        }
        all.join_all().await;
        let most = most.load(Ordering::SeqCst);
        assert!((1..=3).contains(&most), "{most}");
    }

    #[tokio::test]
    async fn work_that_hangs_does_not_hold_up_the_rest() {
        let blocking = with_patience(1, Duration::ZERO);
        let (end, ended) = mpsc::channel::<()>();
        let hanging = tokio::spawn({
            let blocking = blocking.clone();
            async move { blocking.run(move || ended.recv().is_ok()).await }
        });
        while blocking.slots.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(blocking.run(|| 7).await.unwrap(), 7);
        end.send(()).unwrap();
        assert!(hanging.await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn work_waits_as_long_as_others_end() {
        // Far longer than anything here takes.
        let blocking = with_patience(1, Duration::from_secs(600));
        let held = blocking.slot().await;
        let waiting = tokio::spawn({
            let blocking = blocking.clone();
            async move { blocking.slot().await.is_some() }
        });
        drop(held);
        assert!(waiting.await.unwrap());
        assert_eq!(blocking.freed.load(Ordering::Relaxed), 2);
        let _held = blocking.slot().await;
        let impatient = Blocking {
            patience: Duration::ZERO,
            ..blocking.clone()
        };
        assert!(impatient.slot().await.is_none(), "nothing ends");
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_frees_its_slot() {
        let blocking = with_patience(1, Duration::MAX);
        assert!(blocking.run(|| panic!("on purpose")).await.is_err());
        assert_eq!(blocking.run(|| 7).await.unwrap(), 7);
    }
}
