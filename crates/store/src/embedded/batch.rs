//! One batch: the commits that share a frame of the log and a sync, and who waits for them.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::oneshot};

use super::{frame::Buffer, record, stage};
use crate::{
    Committed, Error, Revision,
    memory::{Few, Millis, Slot, Write},
};

/// Most steps in one batch.
const STEPS: usize = 4096;
/// A batch with this many bytes takes no further commit.
const BYTES: usize = 4 << 20;

/// Who waits.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What the commits have come to so far.
pub(super) struct Batch<T> {
    /// What goes to the log. Behind `whole` there may be the beginning of a commit that failed.
    pub frame: Buffer,
    /// The frame's length with all commits of `steps`.
    pub whole: usize,
    /// In the order that they were taken in.
    pub steps: Vec<Step<T>>,
    /// When it was begun.
    pub time: Millis,
    /// The newest revision in it, or before it.
    pub revision: Revision,
    /// History up to here is to be forgotten.
    pub floor: Revision,
    /// Where most of those who wait are likely to be.
    pub runtime: Option<Handle>,
    /// Whether it has a commit that waits for the disk.
    pub synced: bool,
    /// Whether it has a commit that does not.
    pub relaxed: bool,
}

/// What one caller wants.
pub(super) enum Step<T> {
    /// A commit that can be made.
    Commit {
        /// Its own, or the newest before it if it writes nothing.
        revision: Revision,
        /// What it does, for each of its operations.
        writes: Few<Option<Write<T>>>,
        /// Who waits.
        reply: Reply<Done<T>>,
    },
    /// A commit that stands back behind another one that is on its way.
    Refuse(Error, Reply<Done<T>>),
    /// Forget history up to a revision.
    Compact(Revision, Reply<()>),
}

/// A commit that was made.
pub struct Done<T> {
    /// Its revision.
    pub revision: Revision,
    /// What now stands at each put key, and what stood at each deleted one.
    pub slots: Few<Option<Arc<Slot<T>>>>,
}

impl<T> Step<T> {
    /// Tells whoever waits that nothing comes of it. Whoever no longer waits loses only the answer.
    pub(super) fn fail(self, error: &Error) {
        match self {
            Self::Commit { reply, .. } | Self::Refuse(_, reply) => {
                let _ = reply.send(Err(error.clone()));
            }
            Self::Compact(_, reply) => {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

impl<T> From<Done<T>> for Committed<T> {
    fn from(done: Done<T>) -> Self {
        let entries = done.slots.map(|slot| slot.map(|slot| slot.entry.clone()));
        Self {
            revision: done.revision,
            entries: entries.into_vec(),
        }
    }
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            frame: Buffer::default(),
            whole: 0,
            steps: Vec::new(),
            time: 0,
            revision: 0,
            floor: 0,
            runtime: None,
            synced: false,
            relaxed: false,
        }
    }
}

impl<T> Batch<T> {
    /// Makes it an empty one, in the same memory. Called by the first caller.
    pub(super) fn begin(&mut self, time: Millis, revision: Revision) {
        self.frame.begin();
        // The marks' place; what they are is known at the end.
        let marks = [0; record::MARKS];
        self.frame.room(marks.len()).extend_from_slice(&marks);
        self.whole = self.frame.len();
        self.steps.clear();
        (self.time, self.revision, self.floor) = (time, revision, 0);
        (self.synced, self.relaxed) = (false, false);
        self.runtime = stage::runtime();
    }

    /// Whether it takes no more.
    pub(super) fn is_full(&self) -> bool {
        self.steps.len() >= STEPS || !self.steps.is_empty() && self.whole >= BYTES
    }

    /// Whether anything of it goes to the log.
    pub(super) fn writes(&self) -> bool {
        self.synced || self.relaxed
    }
}
