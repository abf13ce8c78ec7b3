//! What goes into the verbs and what comes out of them.

use std::{sync::Arc, time::Duration};

use futures::stream::BoxStream;

use crate::{Error, Key, Revision};

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
    /// Whatever is at hand, but not older than this revision. `AtLeast(0)`: anything.
    AtLeast(Revision),
    /// Exactly this revision, if it is still kept.
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
    /// How fresh.
    pub freshness: Freshness,
}

/// A list's answer: one consistent moment.
#[derive(Debug)]
pub struct Listed<T> {
    /// The moment.
    pub revision: Revision,
    /// In key order.
    pub entries: Vec<Entry<T>>,
    /// How many more keys there are behind the last entry.
    pub remaining: usize,
}

/// What must hold for a key when a commit is made.
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

/// Whether a write waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Acknowledged after the sync.
    #[default]
    Synced,
    /// Acknowledged at once; may be lost by power failure. For Events and node Leases only.
    Relaxed,
}

/// What an operation does.
#[derive(Debug, Clone)]
pub enum Action<D> {
    /// Create or replace.
    Put {
        /// The value.
        draft: D,
        /// Delete the key this long after the write.
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
    /// The key; once per commit.
    pub key: Key,
    /// What must hold.
    pub precondition: Precondition,
    /// What to do.
    pub action: Action<D>,
}

/// An accepted commit.
#[derive(Debug)]
pub struct Committed<T> {
    /// The commit's revision (the current one if it changed nothing).
    pub revision: Revision,
    /// What now stands at each put key, and what stood at each deleted key, in the order of the ops
    /// (`None` for checks and deletes of absent keys).
    pub entries: Vec<Option<Entry<T>>>,
}

/// One change of one key.
#[derive(Debug)]
pub struct Event<T> {
    /// The key.
    pub key: Key,
    /// The commit.
    pub revision: Revision,
    /// The new value, `None` when deleted.
    pub current: Option<Entry<T>>,
    /// The value before, `None` when created.
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

/// What a watch yields.
#[derive(Debug)]
pub enum WatchItem<T> {
    /// All events of one revision that match the prefix; never split, never empty.
    Events {
        /// The revision.
        revision: Revision,
        /// The events, shared by all watchers of the same prefix where possible.
        events: Arc<[Event<T>]>,
    },
    /// Everything up to this revision has been sent.
    Progress(Revision),
}

/// A watch: ends with an error item or when dropped. A watcher that does not keep up gets
/// [`Error::Lagged`] as its last item.
pub type Watch<T> = BoxStream<'static, Result<WatchItem<T>, Error>>;
