//! The newest state that readers may see.
//!
//! It is changed in place: a put replaces one pointer in a leaf that is not shared. A reader that
//! needs more than a short look takes a clone, which is O(1) and immutable; only while a clone
//! exists does the writer copy the leaves that it changes.

use parking_lot::RwLock;

use super::State;
use crate::Revision;

/// Shared by one writer and many readers.
pub(crate) struct Published<T> {
    /// Guards the state. Held only to read or write a few keys, and never across a wait.
    state: RwLock<State<T>>,
}

impl<T> Published<T> {
    /// Begins with this state.
    pub(crate) fn new(state: State<T>) -> Self {
        Self {
            state: RwLock::new(state),
        }
    }

    /// The newest revision.
    pub(crate) fn revision(&self) -> Revision {
        self.state.read().revision
    }

    /// Reads the state under the lock.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&State<T>) -> R) -> R {
        look(&self.state.read())
    }

    /// An immutable clone of the current state.
    pub(crate) fn moment(&self) -> State<T> {
        self.state.read().clone()
    }

    /// Changes the state in place: only whole commits, which readers see when this returns.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        change(&mut self.state.write())
    }

    /// Replaces the state.
    pub(crate) fn replace(&self, state: State<T>) {
        let before = std::mem::replace(&mut *self.state.write(), state);
        // Dropped after the lock is released, since it may take time.
        drop(before);
    }
}
