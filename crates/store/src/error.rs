//! What can go wrong.

use crate::{Key, Revision};

/// What can go wrong.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A key or value that cannot be stored.
    #[error("{0}")]
    Invalid(String),
    /// A precondition did not hold. `current` is the revision that stands at the key, if it exists.
    #[error(
        "precondition failed at {}: current revision {current:?}",
        String::from_utf8_lossy(key)
    )]
    Conflict {
        /// Which key.
        key: Key,
        /// Its revision now.
        current: Option<Revision>,
    },
    /// The revision is older than the kept history.
    #[error("revision {requested} has been compacted; the oldest kept is {oldest}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// What could be asked for.
        oldest: Revision,
    },
    /// The revision is in the future.
    #[error("revision {requested} is in the future; the newest is {newest}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// What there is.
        newest: Revision,
    },
    /// The watcher did not keep up.
    #[error("the watcher did not keep up")]
    Lagged,
    /// No space for more writes; reads go on.
    #[error("no space left: {0}")]
    Full(String),
    /// The store cannot write any more.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// Files are gone that had been synced.
    #[error(
        "data of the store is lost: {what}; the newest revision that is left is {found}, \
         and revision {written} had been written"
    )]
    Lost {
        /// Which file, and what is wrong with it.
        what: String,
        /// The newest revision that is there.
        found: Revision,
        /// The newest revision that should be there.
        written: Revision,
    },
    /// The file that says how much had been synced is gone, so that nothing shows whether more is.
    #[error(
        "data of the store may be lost: {} is missing; the newest revision that is left is {found}, \
         and nothing says whether there were later ones",
        path.display()
    )]
    ManifestMissing {
        /// The file.
        path: std::path::PathBuf,
        /// The newest revision that is there.
        found: Revision,
    },
    /// The files are damaged.
    #[error("corrupt store: {0}")]
    Corrupt(String),
}
