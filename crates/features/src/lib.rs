//! No code: this crate makes every other one use the same builds of shared dependencies. Its `Cargo.toml` says how.

#![forbid(unsafe_code)]
