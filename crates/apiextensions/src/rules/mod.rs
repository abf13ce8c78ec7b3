//! Validation rules of definitions (`x-kubernetes-validations`): checked when a definition is written,
//! compiled when its first object is, evaluated with every write of a custom object.
//!
//! [`declare`] reads what a schema says about types and sizes, [`compile`] makes programs of rules,
//! [`definition`] finds what is wrong with the rules of a definition, [`evaluate`] runs them.

mod compile;
mod declare;
mod definition;
mod evaluate;

pub(super) use compile::Rules;
pub use declare::declare_resource;
pub use definition::check as check_rules;

#[cfg(test)]
mod tests;
