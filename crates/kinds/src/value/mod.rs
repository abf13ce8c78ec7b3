//! JSON trees as kinds use them: reading and defaulting, equality as Kubernetes' types have it, readable differences.

pub(crate) mod diff;
pub(crate) mod equal;
pub mod tree;
