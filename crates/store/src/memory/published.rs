//! The newest state that readers may see.
//!
//! It is changed in place: a put replaces one pointer in a leaf that is not shared. A reader that
//! needs more than a short look takes a clone, which is O(1) and immutable; only while a clone
//! exists does the writer copy the leaves that it changes.

use parking_lot::RwLock;

use super::{Pages, State};
use crate::Revision;

/// Shared by one writer and many readers.
pub(crate) struct Published<T> {
    /// Guards the state. Held only to read or write a few keys, and never across a wait.
    state: RwLock<State<T>>,
    /// Past states; they are dropped together with the history that covers them.
    pub pages: Pages<T>,
}

impl<T> Published<T> {
    /// Starts with this state and caches at most `pages` past states.
    pub(crate) fn new(state: State<T>, pages: usize) -> Self {
        Self {
            state: RwLock::new(state),
            pages: Pages::new(pages),
        }
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> Revision {
        self.state.read().revision
    }

    /// Reads the state under the lock.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&State<T>) -> R) -> R {
        look(&self.state.read())
    }

    /// An immutable clone of the current state.
    pub(crate) fn moment(&self) -> State<T> {
        self.state.read().clone()
    }

    /// Changes the state in place: only whole commits, which readers see when this returns.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        let mut state = self.state.write();
        let changed = change(&mut state);
        let floor = state.history.floor();
        drop(state);
        self.pages.forget(floor);
        changed
    }

    /// Replaces the state.
    pub(crate) fn replace(&self, state: State<T>) {
        let floor = state.history.floor();
        let before = std::mem::replace(&mut *self.state.write(), state);
        self.pages.forget(floor);
        // Dropped after the lock is released, since this can take long.
        drop(before);
    }
}
