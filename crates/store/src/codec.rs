//! What the owner of the data keeps beside each value.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{Key, Revision};

/// What stands beside the bytes, and how it gets there.
pub trait Codec: Send + Sync + 'static {
    /// A value that has no revision yet.
    type Draft: Send + Sync + Clone + 'static;
    /// A value as readers see it, its revision known.
    type Object: Send + Sync + 'static;

    /// The bytes of a value. What [`Codec::seal`] makes of them goes to disk.
    fn bytes<'a>(&self, draft: &'a Self::Draft) -> &'a Bytes;
    /// What is written for the bytes of a key: the bytes themselves, unless the owner encrypts them. It comes back through
    /// [`Codec::load`].
    fn seal<'a>(&self, _: &Key, bytes: &'a Bytes) -> Cow<'a, Bytes> {
        Cow::Borrowed(bytes)
    }
    /// Makes a draft of what was written.
    fn load(&self, key: &Key, bytes: Bytes) -> Result<Self::Draft, String>;
    /// Called exactly once per write, in revision order, before anybody can read the value; by the
    /// caller's thread, while others wait. A write may still fail afterwards, and another get its
    /// revision.
    fn publish(&self, key: &Key, draft: Self::Draft, revision: Revision) -> Self::Object;
    /// The bytes that [`Codec::bytes`] gave for the draft of this object: snapshots and backups are
    /// written from published objects, so that nobody has to keep both forms in memory.
    fn stored(&self, object: &Self::Object) -> Bytes;
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

    fn stored(&self, object: &Bytes) -> Bytes {
        object.clone()
    }
}
