//! The parameters and results of store operations.

use std::{sync::Arc, time::Duration};

use futures::stream::BoxStream;

use crate::{Error, Key, Revision, Unreadable};

/// A live key.
#[derive(Debug)]
pub struct Entry<T> {
    /// The key.
    pub key: Key,
    /// The revision that created it.
    pub create_revision: Revision,
    /// The revision that wrote it last.
    pub mod_revision: Revision,
    /// The value.
    pub object: Arc<T>,
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            object: self.object.clone(),
            ..*self
        }
    }
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Everything acknowledged before the call (linearizable).
    Newest,
    /// Any available state, but not older than this revision. `AtLeast(0)`: anything.
    AtLeast(Revision),
    /// Exactly this revision, if history has it.
    Exactly(Revision),
}

/// A list call.
#[derive(Debug, Clone)]
pub struct ListRequest {
    /// Keys that start with this.
    pub prefix: Key,
    /// Start at this key (inclusive) instead of at the prefix.
    pub from: Option<Key>,
    /// At most this many entries.
    pub limit: Option<usize>,
    /// The required freshness.
    pub freshness: Freshness,
    /// List around values that cannot be read, instead of an error.
    pub skip_unreadable: bool,
}

/// The result of a list, at one revision.
#[derive(Debug)]
pub struct Listed<T> {
    /// The revision of the list.
    pub revision: Revision,
    /// In key order.
    pub entries: Vec<Entry<T>>,
    /// How many more keys there are after the last entry.
    pub remaining: usize,
    /// Keys whose values cannot be read; only if the request skips them.
    pub unreadable: Vec<Unreadable>,
}

/// A condition on a key for a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists.
    Exists,
    /// The key was last written at this revision.
    Revision(Revision),
}

/// Whether a write waits for the sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Acknowledged after the sync.
    #[default]
    Synced,
    /// Acknowledged at once; may be lost in a power failure. Only for Events and node Leases.
    Relaxed,
}

/// The action of an operation.
#[derive(Debug, Clone)]
pub enum Action<D> {
    /// Create or replace.
    Put {
        /// The value.
        draft: D,
        /// The key expires this long after the write.
        expires_in: Option<Duration>,
    },
    /// Delete; `Precondition::Any` on an absent key is no error and no event.
    Delete,
    /// Only check the precondition.
    Check,
}

/// One operation of a commit.
#[derive(Debug, Clone)]
pub struct Op<D> {
    /// The key; unique in a commit.
    pub key: Key,
    /// The precondition.
    pub precondition: Precondition,
    /// The action.
    pub action: Action<D>,
}

/// An accepted commit.
#[derive(Debug)]
pub struct Committed<T> {
    /// The commit's revision (the current one if it changed nothing).
    pub revision: Revision,
    /// The new entry of each put key and the old one of each deleted key, in the order of the
    /// operations (`None` for checks and deletes of absent keys).
    pub entries: Vec<Option<Entry<T>>>,
}

/// One change of one key.
#[derive(Debug)]
pub struct Event<T> {
    /// The key.
    pub key: Key,
    /// The commit's revision.
    pub revision: Revision,
    /// The new value; `None` if deleted.
    pub current: Option<Entry<T>>,
    /// The previous value; `None` if created.
    pub previous: Option<Entry<T>>,
}

impl<T> Clone for Event<T> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            revision: self.revision,
            current: self.current.clone(),
            previous: self.previous.clone(),
        }
    }
}

/// An item of a watch.
#[derive(Debug)]
pub enum WatchItem<T> {
    /// All events of one revision that match the prefix; never split, never empty.
    Events {
        /// The revision.
        revision: Revision,
        /// The events, shared by watchers of the same prefix if possible.
        events: Arc<[Event<T>]>,
    },
    /// Everything up to this revision has been sent.
    Progress(Revision),
}

/// A watch: ends with an error item or when dropped. A watcher that lags behind too far gets
/// [`Error::Lagged`] as its last item.
pub type Watch<T> = BoxStream<'static, Result<WatchItem<T>, Error>>;
