//! Custom resources: turns a CustomResourceDefinition into a kind.
//!
//! A definition's schemas are read into [`structural`] form; by it objects are pruned, defaulted
//! ([`structural`], [`embedded`]) and validated ([`validate`], [`formats`], [`rules`] for CEL), and
//! unchanged invalid values are kept on update ([`ratchet`]). [`CustomKind`] implements the `Kind`
//! trait with it. [`names`] decides which names of a definition are accepted, [`conditions`] writes
//! its status. [`conversion`] calls the webhook that converts objects between versions. The API
//! server reads, serves and deletes the objects.

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
