//! A bounded cache of past states that pages of lists refer to.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::{History, State};
use crate::Revision;

/// A state this many revisions back is computed on a blocking thread.
const BLOCKING_DISTANCE: u64 = 2000;

/// A bounded cache of past states.
pub(crate) struct Pages<T> {
    capacity: usize,
    /// Guards the states, least recently used first.
    kept: Mutex<VecDeque<State<T>>>,
    /// A lower bound of the revisions in `kept`; written under its lock.
    lowest: AtomicU64,
}

impl<T> Pages<T> {
    /// A cache of at most this many states.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            kept: Mutex::new(VecDeque::new()),
            lowest: AtomicU64::new(Revision::MAX),
        }
    }

    /// Drops states older than the history: each state keeps replaced values in memory.
    pub(crate) fn forget(&self, floor: Revision) {
        if self.lowest.load(Ordering::Relaxed) >= floor {
            return;
        }
        let mut kept = self.kept.lock();
        let (past, covered): (VecDeque<_>, VecDeque<_>) =
            kept.drain(..).partition(|page| page.revision < floor);
        *kept = covered;
        let lowest = kept.iter().map(|page| page.revision).min();
        self.lowest
            .store(lowest.unwrap_or(Revision::MAX), Ordering::Relaxed);
        drop(kept);
        drop(past);
    }
}

impl<T: Send + Sync + 'static> Pages<T> {
    /// Keeps a state for the following pages of a list.
    pub(crate) fn keep(&self, state: &State<T>) {
        let floor = state.history.floor();
        // Without its history, which would keep old values in memory for too long.
        let page = State {
            history: History::default(),
            ..state.clone()
        };
        self.insert(page, floor);
    }

    fn insert(&self, page: State<T>, floor: Revision) {
        let mut kept = self.kept.lock();
        kept.retain(|other| other.revision >= floor && other.revision != page.revision);
        if kept.len() >= self.capacity {
            kept.pop_front();
        }
        self.lowest.fetch_min(page.revision, Ordering::Relaxed);
        kept.push_back(page);
    }

    /// The state at a revision that the newest state's history covers.
    pub(crate) async fn at(&self, revision: Revision, newest: &State<T>) -> State<T> {
        if newest.revision == revision {
            return newest.clone();
        }
        let known = |kept: &VecDeque<State<T>>| {
            let mut pages = kept.iter();
            pages.find(|page| page.revision == revision).cloned()
        };
        if let Some(page) = known(&self.kept.lock()) {
            return page;
        }
        let page = if newest.revision - revision > BLOCKING_DISTANCE {
            let from = newest.clone();
            let back = tokio::task::spawn_blocking(move || from.back_to(revision));
            back.await.unwrap_or_else(|_| newest.back_to(revision))
        } else {
            newest.back_to(revision)
        };
        self.insert(page.clone(), newest.history.floor());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_goes_with_the_history_that_covers_it() {
        let pages: Pages<()> = Pages::new(8);
        let kept = || -> Vec<Revision> {
            let kept = pages.kept.lock();
            kept.iter().map(|page| page.revision).collect()
        };
        for revision in [7, 5, 9] {
            let state = State {
                revision,
                ..State::default()
            };
            pages.keep(&state);
        }
        pages.forget(5);
        assert_eq!(kept(), [7, 5, 9]);
        pages.forget(8);
        assert_eq!(kept(), [9]);
        pages.forget(10);
        assert!(kept().is_empty());
    }
}
