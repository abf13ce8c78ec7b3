//! Admission policies in CEL: ValidatingAdmissionPolicy and MutatingAdmissionPolicy with their
//! bindings.
//!
//! [`check`] rejects policies whose expressions do not compile. [`source`] watches the stored ones
//! and compiles those that changed into an [`index`] by resource. For each request, [`dispatch`]
//! finds the matching policies with their bindings and [`params`], the pure [`validating`] and
//! [`mutating`] evaluate their [`expression`]s with the [`variables`] they use, and the thin
//! plugins apply the result. [`type_checking`] finds likely mistakes for the status of a policy.

mod check;
mod declared_types;
mod dispatch;
mod expression;
mod figures;
mod forms;
mod index;
mod mutating;
mod mutating_plugin;
mod native;
mod params;
mod source;
mod spec;
pub mod status;
pub mod type_checking;
mod validating;
mod validating_plugin;
mod variables;

pub use check::check;
pub use figures::Figures;
pub(super) use mutating_plugin::MutatingAdmissionPolicy;
pub(super) use validating_plugin::ValidatingAdmissionPolicy;
