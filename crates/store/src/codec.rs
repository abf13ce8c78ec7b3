//! Converts values between their stored bytes and the objects that readers share.

use std::borrow::Cow;

use bytes::Bytes;

use crate::{Key, Revision};

/// Defines the objects of a store, and how they are made.
pub trait Codec: Send + Sync + 'static {
    /// A value without a revision.
    type Draft: Send + Sync + Clone + 'static;
    /// A value with its revision, as readers see it.
    type Object: Send + Sync + 'static;

    /// The bytes of a value. [`Codec::seal`] converts them to the bytes on disk.
    fn bytes<'a>(&self, draft: &'a Self::Draft) -> &'a Bytes;
    /// The bytes to write to disk for a value: the value's bytes, encrypted if the codec encrypts. [`Codec::load`]
    /// reverses it.
    fn seal<'a>(&self, _: &Key, bytes: &'a Bytes) -> Cow<'a, Bytes> {
        Cow::Borrowed(bytes)
    }
    /// Converts bytes from disk to a draft. Errors name the key.
    fn load(&self, key: &Key, bytes: Bytes) -> Result<Self::Draft, String>;
    /// Called exactly once per write, in revision order, before the value can be read; on the
    /// caller's thread, under a lock. The write may still fail afterwards, and another write gets
    /// its revision.
    fn publish(&self, key: &Key, draft: Self::Draft, revision: Revision) -> Self::Object;
    /// The bytes that [`Codec::bytes`] returned for the draft of this object. Snapshots and backups
    /// are written from published objects, so that drafts need not be kept in memory.
    fn stored(&self, object: &Self::Object) -> Bytes;
}

/// A codec for plain bytes.
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
