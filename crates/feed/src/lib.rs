//! Lists and watches inside one process: what the API server passes to an informer in its process
//! instead of a body of bytes.
//!
//! An informer sends an ordinary request, which passes authentication, authorization, flow control
//! and audit like any other, with [`WantsObjects`] in its extensions. A server in the same process
//! responds with a [`Page`] or [`Changes`] in the extensions of its response. A connection carries
//! no extensions, so that over HTTPS the same request gets the same response as bytes.
//!
//! Objects are shared with the store: an informer keeps no copy.

#![forbid(unsafe_code)]

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use parking_lot::Mutex;

/// A stored object: canonical JSON, and properties that need no parsing.
pub trait Stored: Send + Sync + 'static {
    /// Empty for cluster-scoped objects.
    fn namespace(&self) -> &str;

    /// Its name.
    fn name(&self) -> &str;

    /// Its uid; empty if it has none.
    fn uid(&self) -> Bytes;

    /// The value of one of the selectable fields of its kind, such as `spec.nodeName` of a Pod.
    fn field(&self, path: &str) -> Option<&str>;

    /// Its resourceVersion.
    fn revision(&self) -> u64;

    /// The whole object; `managedFields` are the last field of its metadata.
    fn bytes(&self) -> Bytes;

    /// The length of [`Stored::bytes`].
    fn size(&self) -> usize;

    /// Where in [`Stored::bytes`] the value of `metadata` is.
    fn metadata(&self) -> Range<usize>;

    /// A label's value.
    fn label(&self, key: &str) -> Option<&str>;
}

/// A shared object.
pub type Object = Arc<dyn Stored>;

/// In a request's extensions: respond with objects if you are in this process.
#[derive(Debug, Clone, Copy)]
pub struct WantsObjects;

/// The response to a list.
#[derive(Clone)]
pub struct Page {
    /// The objects, in the order of their keys.
    pub objects: Vec<Object>,
    /// The list's resourceVersion.
    pub revision: u64,
    /// The continue token of the next page, if there is one.
    pub next: Option<String>,
}

/// An event of a watch.
#[derive(Clone)]
pub enum Change {
    /// The object was added to this watch.
    Added(Object),
    /// The object changed.
    Modified(Object),
    /// The object was deleted or is no longer selected; its revision is that of the change.
    Deleted(Object),
    /// Everything up to this revision was sent.
    Bookmark(u64),
    /// The watch has failed and ends here.
    Failed {
        /// The code of the Status.
        code: u16,
        /// The reason of the Status.
        reason: String,
        /// The message of the Status.
        message: String,
    },
}

/// The response to a watch: changes, in groups if they are frequent.
#[derive(Clone)]
pub struct Changes {
    /// Guards the stream until it is taken: extensions are cloned, a stream cannot be.
    stream: Arc<Mutex<Option<BoxStream<'static, Vec<Change>>>>>,
}

impl Changes {
    /// A response with this stream.
    pub fn new(stream: impl futures::Stream<Item = Vec<Change>> + Send + 'static) -> Self {
        Self {
            stream: Arc::new(Mutex::new(Some(stream.boxed()))),
        }
    }

    /// The stream; `None` if it was taken before.
    pub fn take(&self) -> Option<BoxStream<'static, Vec<Change>>> {
        self.stream.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_taken_once_whichever_clone_is_asked() {
        let changes = Changes::new(futures::stream::iter([vec![Change::Bookmark(7)]]));
        let other = changes.clone();
        assert!(other.take().is_some());
        assert!(changes.take().is_none());
    }
}
