//! What the writer is asked for, and what it answers.

use tokio::sync::oneshot;

use crate::{Codec, Committed, Durability, Error, Op, Revision};

/// What the writer is asked for.
pub enum Request<C: Codec> {
    /// A commit, checked by [`crate::check::ops`].
    Commit {
        /// Its operations.
        ops: Vec<Op<C::Draft>>,
        /// Whether it waits for the disk.
        durability: Durability,
        /// Who waits.
        reply: oneshot::Sender<Result<Committed<C::Object>, Error>>,
    },
    /// Forget history.
    Compact {
        /// Up to here.
        revision: Revision,
        /// Who waits.
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Write a snapshot now.
    Snapshot {
        /// Hears when it is done and the old files are gone.
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// The snapshot thread is done, and has left these files to write over.
    SnapshotDone(Result<Vec<String>, String>),
    /// End, cleanly.
    Close,
}

/// Who waits.
pub type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// An answer that waits for the sync.
pub enum Answer<T> {
    /// To a commit.
    Commit(Reply<Committed<T>>, Result<Committed<T>, Error>),
    /// To a compaction.
    Compact(Reply<()>, Result<(), Error>),
}

impl<T> Answer<T> {
    /// Whoever no longer waits loses only the answer.
    pub fn send(self, failure: Option<&Error>) {
        match self {
            Self::Commit(reply, result) => {
                let _ = reply.send(failure.map_or(result, |error| Err(error.clone())));
            }
            Self::Compact(reply, result) => {
                let _ = reply.send(failure.map_or(result, |error| Err(error.clone())));
            }
        }
    }
}
