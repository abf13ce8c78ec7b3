//! The store's errors.

use crate::{Key, Revision};

/// An error of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// An invalid key or value.
    #[error("{0}")]
    Invalid(String),
    /// A precondition failed. `current` is the key's revision, if it exists.
    #[error(
        "precondition failed at {}: current revision {current:?}",
        String::from_utf8_lossy(key)
    )]
    Conflict {
        /// The key.
        key: Key,
        /// Its current revision.
        current: Option<Revision>,
    },
    /// The revision is older than the kept history.
    #[error("revision {requested} has been compacted; the oldest kept is {oldest}")]
    Compacted {
        /// The requested revision.
        requested: Revision,
        /// The oldest available revision.
        oldest: Revision,
    },
    /// The revision is in the future.
    #[error("revision {requested} is in the future; the newest is {newest}")]
    Future {
        /// The requested revision.
        requested: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The watcher did not keep up.
    #[error("the watcher did not keep up")]
    Lagged,
    /// The disk is full; reads continue.
    #[error("no space left: {0}")]
    Full(String),
    /// The store cannot write.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// Synced files are missing.
    #[error(
        "data of the store is lost: {what}; the newest revision that is left is {found}, \
         and revision {written} had been written"
    )]
    Lost {
        /// The file, and what is wrong with it.
        what: String,
        /// The newest revision found.
        found: Revision,
        /// The newest revision recorded.
        written: Revision,
    },
    /// The manifest is missing, so that lost revisions cannot be detected.
    #[error(
        "data of the store may be lost: {} is missing; the newest revision that is left is {found}, \
         and nothing says whether there were later ones",
        path.display()
    )]
    ManifestMissing {
        /// The manifest's path.
        path: std::path::PathBuf,
        /// The newest revision found.
        found: Revision,
    },
    /// Files are corrupt.
    #[error("corrupt store: {0}")]
    Corrupt(String),
    /// The values of keys cannot be read. Other keys can.
    #[error("{}", shown(.0))]
    Unreadable(Vec<Unreadable>),
}

/// A key whose value the codec cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The key.
    pub key: Key,
    /// The revision of the value.
    pub revision: Revision,
    /// The codec's error, which names the key.
    pub why: String,
}

/// How many unreadable keys an error names.
const NAMED: usize = 100;

fn shown(keys: &[Unreadable]) -> String {
    let named: Vec<&str> = keys.iter().take(NAMED).map(|key| &*key.why).collect();
    let more = match keys.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let objects = if keys.len() == 1 { "object" } else { "objects" };
    format!(
        "cannot read {} stored {objects}: {}{more}",
        keys.len(),
        named.join(", ")
    )
}
