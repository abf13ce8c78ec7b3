//! Past moments at hand: those that pages of lists refer to, bounded in number.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;

use super::State;
use crate::Revision;

/// A bounded ring of past states.
pub struct Pages<T> {
    capacity: usize,
    /// Guards the states, oldest use first.
    kept: Mutex<VecDeque<Arc<State<T>>>>,
}

impl<T: Send + Sync + 'static> Pages<T> {
    /// A ring of at most so many.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            kept: Mutex::new(VecDeque::new()),
        }
    }

    /// Somebody will come back for the rest of this.
    pub fn keep(&self, state: Arc<State<T>>) {
        let mut kept = self.kept.lock();
        kept.retain(|other| other.revision != state.revision);
        if kept.len() >= self.capacity {
            kept.pop_front();
        }
        kept.push_back(state);
    }

    /// The state at a revision that the newest state's history covers.
    pub fn at(&self, revision: Revision, newest: &Arc<State<T>>) -> Arc<State<T>> {
        if newest.revision == revision {
            return newest.clone();
        }
        let floor = newest.history.floor();
        let mut kept = self.kept.lock();
        kept.retain(|state| state.revision >= floor);
        let found = kept
            .iter()
            .find(|state| state.revision == revision)
            .cloned();
        drop(kept);
        found.unwrap_or_else(|| {
            let past = Arc::new(newest.back_to(revision));
            self.keep(past.clone());
            past
        })
    }
}
