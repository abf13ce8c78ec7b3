//! Served kinds and their stored objects, for all parts of the API server.
//!
//! [`Registry`] maps kinds to paths and store keys, [`ObjectCodec`] stores objects, [`Reader`]
//! reads them, [`meta`] handles their metadata, and [`failure`] turns the store's errors into a
//! `Status`. Nothing here decides about a request.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod at_rest;
mod codec;
mod conversions;
mod encryption;
pub mod failure;
mod forms;
mod header;
pub mod meta;
pub mod names;
mod packed;
mod reader;
mod resources;
mod scan;
mod shared;
pub mod store_metrics;
mod table;
mod versions;

pub use at_rest::pack_at_rest;
pub use codec::{Draft, ObjectCodec, Stored};
pub use encryption::Encryption;
pub use header::Header;
pub use names::{NameSuffixes, RandomNameSuffixes};
pub use reader::{Readable, Reader, Readings};
pub use resources::{
    KindRef, Labels, Registry, Resource, Served, api_version, key_prefix, object_key,
};
pub use scan::{FieldPlace, fields, fields_until};
pub use shared::Shared;
pub use table::Table;
pub use versions::Versions;

/// The store as the API server sees it.
pub type Store = std::sync::Arc<dyn store::Store<ObjectCodec>>;
