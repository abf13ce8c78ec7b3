//! The three patch types: JSON patch, JSON merge patch, strategic merge patch.

pub mod failure;
pub mod json;
pub mod merge;
pub mod strategic;
