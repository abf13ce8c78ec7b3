//! The store: keys, values and revisions, with transactions and watches. It knows bytes, never
//! kinds. Two backends stand behind one trait: an embedded engine (the default) and a real etcd.
//!
//! What the owner of the data wants to keep beside each value (a parsed header, bytes stamped with
//! the revision) is its own affair, told to the store as a [`Codec`]: a [`Codec::Draft`] goes into a
//! commit, and once the revision is known it becomes a [`Codec::Object`] that all readers share.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

/// A place in the one total order of writes. The first write has revision 1.
pub type Revision = u64;

/// A key: any non-empty bytes without NUL.
pub type Key = Bytes;

/// What stands beside the bytes, and how it gets there.
pub trait Codec: Send + Sync + 'static {
    /// A value that has no revision yet.
    type Draft: Send + Sync + Clone + 'static;
    /// A value as readers see it, its revision known.
    type Object: Send + Sync + 'static;

    /// The bytes that go to disk. They come back through [`Codec::load`].
    fn bytes<'a>(&self, draft: &'a Self::Draft) -> &'a Bytes;
    /// Makes a draft of bytes read back from disk.
    fn load(&self, key: &Key, bytes: Bytes) -> Result<Self::Draft, String>;
    /// Called exactly once per write, in revision order, before anybody can read the value.
    fn publish(&self, key: &Key, draft: Self::Draft, revision: Revision) -> Self::Object;
}

/// The codec of those who want plain bytes.
#[derive(Debug, Default, Clone, Copy)]
pub struct Plain;

impl Codec for Plain {
    type Draft = Bytes;
    type Object = Bytes;

    fn bytes<'a>(&self, draft: &'a Bytes) -> &'a Bytes {
        draft
    }

    fn load(&self, _: &Key, bytes: Bytes) -> Result<Bytes, String> {
        Ok(bytes)
    }

    fn publish(&self, _: &Key, draft: Bytes, _: Revision) -> Bytes {
        draft
    }
}

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

/// The verbs. All backends behave the same; one test suite runs over each.
#[async_trait]
pub trait Store<C: Codec>: Send + Sync + 'static {
    /// One key, and the revision of the moment it was read at.
    async fn get(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<(Revision, Option<Entry<C::Object>>), Error>;
    /// Keys under a prefix, in order.
    async fn list(&self, request: ListRequest) -> Result<Listed<C::Object>, Error>;
    /// All operations or none.
    async fn commit(
        &self,
        ops: Vec<Op<C::Draft>>,
        durability: Durability,
    ) -> Result<Committed<C::Object>, Error>;
    /// Changes under `prefix` after (not including) revision `after`.
    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<C::Object>, Error>;
    /// The newest revision.
    async fn revision(&self) -> Result<Revision, Error>;
    /// Forgets history before `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), Error>;
}

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
    /// The files are damaged.
    #[error("corrupt store: {0}")]
    Corrupt(String),
}
