//! The kinds of the core group.

pub mod config_map;
pub mod endpoints;
pub mod event;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod secret;
pub mod service;
pub mod service_account;
