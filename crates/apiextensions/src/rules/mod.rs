//! Validation rules of definitions (`x-kubernetes-validations`): validated when a definition is
//! written, compiled for its first object, evaluated on every write of a custom object.
//!
//! [`declare`] derives types and sizes from a schema, [`compile`] compiles rules, [`definition`]
//! validates the rules of a definition, [`evaluate`] runs them.

mod compile;
mod declare;
mod definition;
mod evaluate;

pub(super) use compile::Rules;
pub use declare::declare_resource;
pub use definition::check as check_rules;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_tests;
