//! Conflict retry. A write without a precondition that finds its object changed concurrently starts again from the
//! current object, as often as its deadline allows. From the second conflict on it waits in a queue for the key, so
//! that every writer makes progress. The queue is no lock: the store's preconditions decide.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use machinery::Status;
use store::Key;
use tokio::sync::{Mutex, MutexGuard};

/// Bounds the wait in a queue: the write ahead may itself wait for something that this request holds.
const MAX_QUEUE_WAIT: Duration = Duration::from_secs(1);

/// A commit failed because this key was changed concurrently.
#[derive(Debug)]
pub(crate) struct Conflict(pub(super) Key);

/// Queues of conflicting writes; keys are spread over them by hash.
pub(crate) struct KeyQueues([Mutex<()>; 64]);

impl Default for KeyQueues {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl KeyQueues {
    fn queue(&self, key: &Key) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.0[hasher.finish() as usize % self.0.len()]
    }
}

/// The attempts of one write.
pub(crate) struct ConflictRetry<'a> {
    queues: &'a KeyQueues,
    deadline: Instant,
    max_queue_wait: Duration,
    conflicts: usize,
    queued: Option<MutexGuard<'a, ()>>,
}

impl<'a> ConflictRetry<'a> {
    pub(super) fn new(queues: &'a KeyQueues, timeout: Duration) -> Self {
        Self {
            queues,
            deadline: Instant::now() + timeout,
            max_queue_wait: MAX_QUEUE_WAIT,
            conflicts: 0,
            queued: None,
        }
    }

    /// Returns when the next attempt may start; an error once the request's deadline has passed.
    pub(super) async fn wait(&mut self, Conflict(key): Conflict) -> Result<(), Status> {
        if Instant::now() >= self.deadline {
            return Err(Status::timeout(
                "request did not complete within requested timeout - context deadline exceeded",
                0,
            ));
        }
        self.conflicts += 1;
        if self.conflicts > 1 {
            // Leave the previous queue first: a write waits in one queue at a time.
            self.queued = None;
            let lock = self.queues.queue(&key).lock();
            self.queued = tokio::time::timeout(self.max_queue_wait, lock).await.ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn conflict(key: &'static str) -> Conflict {
        Conflict(Key::from_static(key.as_bytes()))
    }

    #[tokio::test]
    async fn writes_with_two_conflicts_go_one_after_the_other() {
        let queues = KeyQueues::default();
        let mut one = ConflictRetry::new(&queues, TIMEOUT);
        let mut other = ConflictRetry::new(&queues, TIMEOUT);
        for retry in [&mut one, &mut other] {
            retry.wait(conflict("a")).await.unwrap();
            assert!(retry.queued.is_none());
        }
        one.wait(conflict("a")).await.unwrap();
        let (waits, ended) = (other.wait(conflict("a")), async { drop(one) });
        let (waited, ()) = tokio::join!(waits, ended);
        waited.unwrap();
        assert!(other.queued.is_some());
        // A further conflict does not wait for its own place in the queue.
        other.wait(conflict("a")).await.unwrap();
        assert!(other.queued.is_some());
    }

    #[tokio::test]
    async fn the_wait_in_a_queue_is_bounded() {
        let queues = KeyQueues::default();
        let mut one = ConflictRetry::new(&queues, TIMEOUT);
        let mut other = ConflictRetry::new(&queues, TIMEOUT);
        for retry in [&mut one, &mut other] {
            retry.max_queue_wait = Duration::from_millis(1);
            retry.wait(conflict("a")).await.unwrap();
            retry.wait(conflict("a")).await.unwrap();
        }
        assert!(one.queued.is_some() && other.queued.is_none());
    }

    #[tokio::test]
    async fn a_request_ends_at_its_deadline() {
        let queues = KeyQueues::default();
        let status = ConflictRetry::new(&queues, Duration::ZERO)
            .wait(conflict("a"))
            .await;
        assert_eq!(status.unwrap_err().code, 504);
    }
}
