//! What waits for the writer. Callers push, the writer takes all of it at once; it is woken only when
//! it may be asleep. The queue has no bound of its own: a commit that waits for a place would hold
//! the same memory.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Requests on their way to the writer.
pub struct Queue<R> {
    /// Guards what waits; `None` when the writer has ended.
    waiting: Mutex<Option<VecDeque<R>>>,
    news: Notify,
}

impl<R> Queue<R> {
    /// An empty queue.
    pub fn new() -> Self {
        Self {
            waiting: Mutex::new(Some(VecDeque::new())),
            news: Notify::new(),
        }
    }

    /// Adds a request. Says no when nobody will ever take it.
    pub fn push(&self, request: R) -> bool {
        let mut waiting = self.waiting.lock();
        let Some(queue) = waiting.as_mut() else {
            return false;
        };
        let was_empty = queue.is_empty();
        queue.push_back(request);
        drop(waiting);
        if was_empty {
            self.news.notify_one();
        }
        true
    }

    /// Takes everything, in exchange for an empty place to gather the next.
    pub fn take(&self, into: &mut VecDeque<R>) {
        if let Some(queue) = self.waiting.lock().as_mut() {
            std::mem::swap(queue, into);
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().as_ref().is_none_or(VecDeque::is_empty)
    }

    /// Wakes the writer, which looks after everything.
    pub fn wake(&self) {
        self.news.notify_one();
    }

    /// Returns when there is, or was, something to look after.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// Takes no more; what waits is dropped, and those who wait for it hear so.
    pub fn close(&self) {
        let dropped = self.waiting.lock().take();
        drop(dropped);
    }
}
