//! The API's building blocks: objects as JSON trees, the schema table and what uses it, field paths,
//! errors, selectors, quantities, patches. Independent of kinds, except for the total resources of a
//! pod, which components of all layers count. Pure: no IO, no clock.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apply;
pub mod cron;
pub mod decode;
pub mod duration;
pub mod encode;
pub mod field;
pub mod fields;
pub mod format;
pub mod gates;
pub mod json;
pub mod jsonpath;
pub mod labels;
pub mod normalise;
pub mod openapi;
pub mod patch;
pub mod pattern;
pub mod pod_resources;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod status;
pub mod text;
pub mod time;
pub mod yaml;

/// An API object or a part of one. Keys keep their order: `apiVersion` and `kind` come first.
pub type Object = json::Map;

pub use json::Value;
pub use status::Status;
