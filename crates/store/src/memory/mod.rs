//! In-memory state of both backends: live keys, history, watchers. No disk or network access.

mod few;
mod heads;
mod history;
mod hub;
mod pages;
mod published;
mod state;
mod tree;

use bytes::Bytes;

pub(crate) use few::OneOrMany;
pub use history::Limits;
pub(crate) use history::{Batch, Change, History};
pub(crate) use hub::Hub;
pub(crate) use pages::Pages;
pub(crate) use published::Published;
pub(crate) use state::{Fresh, Slot, State, Write, prefix_end};
pub(crate) use tree::Tree;

use crate::{Key, Revision};

/// Milliseconds since 1970; 0 means never for optional times.
pub(crate) type Millis = i64;

/// A live key in its stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saved {
    /// The key.
    pub key: Key,
    /// Revision that created it.
    pub create_revision: Revision,
    /// Revision that wrote it last.
    pub mod_revision: Revision,
    /// When it expires; 0 for never.
    pub expires: Millis,
    /// The value.
    pub value: Bytes,
}
