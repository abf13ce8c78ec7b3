//! The store: keys, values and revisions, with transactions and watches. It stores bytes and knows
//! no kinds. There are two backends of one trait: an embedded engine (the default) and etcd.
//!
//! A [`Codec`] defines what is kept in memory for each value (a parsed header, bytes stamped with
//! the revision): a [`Codec::Draft`] goes into a commit, and once the revision is known it becomes
//! a [`Codec::Object`] that all readers share.

#![forbid(unsafe_code)]

mod check;
mod codec;
pub mod embedded;
mod error;
pub mod etcd;
mod memory;
mod types;

use async_trait::async_trait;
use bytes::Bytes;

pub use codec::{Codec, Plain};
pub use error::{Error, Unreadable};
pub use types::{
    Action, Committed, Durability, Entry, Event, Freshness, ListRequest, Listed, Op, Precondition,
    Watch, WatchItem,
};

/// The position in the total order of writes. The first write has revision 1.
pub type Revision = u64;

/// A key: any non-empty bytes without NUL.
pub type Key = Bytes;

/// The operations of a store. All backends behave the same; one test suite runs over each.
#[async_trait]
pub trait Store<C: Codec>: Send + Sync + 'static {
    /// One key, and the revision at which it was read.
    async fn get(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<(Revision, Option<Entry<C::Object>>), Error>;
    /// Keys under a prefix, in order.
    async fn list(&self, request: ListRequest) -> Result<Listed<C::Object>, Error>;
    /// Applies all operations or none.
    async fn commit(
        &self,
        ops: Vec<Op<C::Draft>>,
        durability: Durability,
    ) -> Result<Committed<C::Object>, Error>;
    /// Changes under `prefix` after (not including) revision `after`.
    async fn watch(&self, prefix: Key, after: Revision) -> Result<Watch<C::Object>, Error>;
    /// The newest revision.
    async fn revision(&self) -> Result<Revision, Error>;
    /// Compacts history before `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), Error>;
    /// Bytes that the data uses on disk, if the backend can tell.
    async fn size(&self) -> Option<u64> {
        None
    }
}
