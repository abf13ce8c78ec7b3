//! The newest moment that readers may see.
//!
//! It is changed in place: a put replaces one pointer in a leaf that nobody else holds. Whoever wants
//! to look for longer than a moment takes a clone, which is O(1) and never changes; only for as long
//! as there is one are the leaves copied that the writer touches.

use parking_lot::RwLock;

use super::{Pages, State};
use crate::Revision;

/// Shared by one who changes and many who read.
pub(crate) struct Published<T> {
    /// Guards the state. Held to look up or to put a few keys, and never while anything waits.
    state: RwLock<State<T>>,
    /// Past moments; they go with the history that covers them.
    pub pages: Pages<T>,
}

impl<T> Published<T> {
    /// Begins with this state; so many past moments are kept at hand.
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

    /// A short look.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&State<T>) -> R) -> R {
        look(&self.state.read())
    }

    /// The state as it is now, for good.
    pub(crate) fn moment(&self) -> State<T> {
        self.state.read().clone()
    }

    /// Changes it in place: whole commits only, readers see what is there when this returns.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State<T>) -> R) -> R {
        let mut state = self.state.write();
        let changed = change(&mut state);
        let floor = state.history.floor();
        drop(state);
        self.pages.forget(floor);
        changed
    }

    /// Puts another state in its place.
    pub(crate) fn replace(&self, state: State<T>) {
        let floor = state.history.floor();
        let before = std::mem::replace(&mut *self.state.write(), state);
        self.pages.forget(floor);
        // Only now, when nobody waits for the lock: this may take its time.
        drop(before);
    }
}
