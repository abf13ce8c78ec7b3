//! JSON values as kinds use them: reading and defaulting, equality as of Kubernetes' types,
//! readable diffs.

pub(crate) mod diff;
pub(crate) mod equal;
pub mod tree;
