//! Custom resources: what a CustomResourceDefinition says becomes a kind like any other.
//!
//! A definition's schemas are read into [`structural`] form; by it objects are pruned, defaulted ([`structural`],
//! [`embedded`]) and validated ([`validate`], [`formats`], [`rules`] for CEL), and what an update does not change is
//! ratcheted ([`ratchet`]). [`CustomKind`] puts that behind the `Kind` trait. [`names`] decides which names a definition
//! gets, [`conditions`] writes its status. [`conversion`]
//! calls the webhook that converts objects between versions. Reading, serving and deleting objects is the API server's
//! work.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod conditions;
mod conversion;
mod defaults;
mod email;
mod embedded;
mod formats;
mod kind;
mod list_types;
pub mod names;
mod ratchet;
mod rules;
mod scale;
mod schemas;
mod structural;
mod validate;
pub mod versions;
mod view;
mod walk;

pub use conversion::{Conversion, Metrics as ConversionMetrics};
pub use defaults::check as check_defaults;
pub use kind::CustomKind;
pub use rules::{check_rules, declare_resource};
pub use scale::{FieldPath, ScalePaths};
pub use schemas::{OpenApis, Schemas, fingerprint};
