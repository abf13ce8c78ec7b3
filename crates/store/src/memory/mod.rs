//! What both backends keep in memory: live keys, the recent past, the watchers. Nothing here touches
//! a disk or a network.

mod few;
mod heads;
mod history;
mod hub;
mod pages;
mod published;
mod state;
mod tree;

use bytes::Bytes;

pub use few::Few;
pub use history::{Batch, Change, History, Limits};
pub use hub::Hub;
pub use pages::Pages;
pub use published::Published;
pub use state::{Fresh, Slot, State, Write, prefix_end};
pub use tree::Tree;

use crate::{Key, Revision};

/// Milliseconds since 1970; 0 means never where a moment is optional.
pub type Millis = i64;

/// A live key, as it stands in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The key.
    pub key: Key,
    /// Revision that created it.
    pub create_revision: Revision,
    /// Revision that wrote it last.
    pub mod_revision: Revision,
    /// When it goes by itself, 0 for never.
    pub expires: Millis,
    /// The value.
    pub value: Bytes,
}
