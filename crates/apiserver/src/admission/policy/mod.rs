//! Admission policies in CEL: ValidatingAdmissionPolicy and MutatingAdmissionPolicy with their bindings.
//!
//! [`check`] refuses policies whose expressions do not compile, [`authorize`] parameters that their author may not read. [`source`] follows the stored ones and compiles those
//! that changed into an [`index`] by resource. For each request, [`dispatch`] finds the policies that are about it with
//! their bindings and [`params`], the pure [`validating`] and [`mutating`] evaluate their [`expression`]s with the [`variables`] they use, and the thin
//! plugins do what comes of it. [`type_checking`] finds likely mistakes for the status of a policy.

mod authorize;
mod check;
mod declared_types;
mod dispatch;
mod expression;
mod figures;
mod forms;
mod index;
mod mutating;
mod mutating_plugin;
mod params;
mod source;
mod spec;
mod status;
mod type_checking;
mod validating;
mod validating_plugin;
mod variables;

pub(crate) use authorize::authorize;
pub(crate) use check::check;
pub(crate) use figures::Figures;
pub(super) use mutating_plugin::MutatingAdmissionPolicy;
pub(crate) use status::keep as keep_status;
pub(super) use validating_plugin::ValidatingAdmissionPolicy;
