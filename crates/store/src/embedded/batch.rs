//! One batch (group commit): the commits that share a log frame and a sync, and their callers.

use std::sync::Arc;

use tokio::{runtime::Handle, sync::oneshot};

use super::{frame::Buffer, record, stage};
use crate::{
    Committed, Error, Revision,
    memory::{Millis, OneOrMany, Slot, Write},
};

/// The maximum number of steps in one batch.
const STEPS: usize = 4096;
/// A batch of this many bytes takes no further commit.
const BYTES: usize = 4 << 20;

/// The caller's reply channel.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A batch of commits.
pub(super) struct Batch<T> {
    /// The log frame. Behind `whole` there may be the beginning of a commit that failed.
    pub frame: Buffer,
    /// The frame's length with all commits of `steps`.
    pub whole: usize,
    /// In the order in which they were added.
    pub steps: Vec<Step<T>>,
    /// When the batch was started.
    pub time: Millis,
    /// The newest revision in the batch, or before it.
    pub revision: Revision,
    /// History up to this revision is compacted.
    pub floor: Revision,
    /// The tokio runtime of most of the callers.
    pub runtime: Option<Handle>,
    /// Whether it has a synced commit.
    pub synced: bool,
    /// Whether it has a relaxed commit.
    pub relaxed: bool,
}

/// The request of one caller.
pub(super) enum Step<T> {
    /// An accepted commit.
    Commit {
        /// Its revision, or the newest before it if it writes nothing.
        revision: Revision,
        /// The write of each of its operations.
        writes: OneOrMany<Option<Write<T>>>,
        /// The caller's reply channel.
        reply: Reply<Done<T>>,
    },
    /// A commit rejected because of another one that is not durable yet.
    Refuse(Error, Reply<Done<T>>),
    /// Compact history up to a revision.
    Compact(Revision, Reply<()>),
}

/// A completed commit.
pub struct Done<T> {
    /// Its revision.
    pub revision: Revision,
    /// The new entry of each put key, and the old one of each deleted key.
    pub slots: OneOrMany<Option<Arc<Slot<T>>>>,
}

impl<T> Step<T> {
    /// Replies with an error. A caller that no longer waits misses only the reply.
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
    /// Makes it empty, reusing its memory. Called by the first caller.
    pub(super) fn begin(&mut self, time: Millis, revision: Revision) {
        self.frame.begin();
        // Space for the marks, which are known only at the end.
        let marks = [0; record::MARKS];
        self.frame.room(marks.len()).extend_from_slice(&marks);
        self.whole = self.frame.len();
        self.steps.clear();
        (self.time, self.revision, self.floor) = (time, revision, 0);
        (self.synced, self.relaxed) = (false, false);
        self.runtime = stage::runtime();
    }

    /// Whether it takes no more commits.
    pub(super) fn is_full(&self) -> bool {
        self.steps.len() >= STEPS || !self.steps.is_empty() && self.whole >= BYTES
    }

    /// Whether it writes to the log.
    pub(super) fn writes(&self) -> bool {
        self.synced || self.relaxed
    }
}
