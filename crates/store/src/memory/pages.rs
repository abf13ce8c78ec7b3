//! A bounded cache of past states that pages of lists refer to.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::{History, State};
use crate::Revision;

/// A state this many revisions back is computed on a blocking thread.
const FAR: u64 = 2000;

/// A bounded cache of past states.
pub(crate) struct Pages<T> {
    capacity: usize,
    /// Guards the states, least recently used first.
    kept: Mutex<VecDeque<State<T>>>,
}

impl<T: Send + Sync + 'static> Pages<T> {
    /// A ring of at most so many.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            kept: Mutex::new(VecDeque::new()),
        }
    }

    /// Keeps a state for the next page of a list.
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
        let page = if newest.revision - revision > FAR {
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
