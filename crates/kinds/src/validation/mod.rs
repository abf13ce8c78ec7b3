//! Checks that kinds share: metadata, names and addresses, certificates, volume sources, webhook clients.

pub mod address;
pub mod check;
pub mod metadata;
pub(crate) mod pem;
pub(crate) mod unenforced;
pub(crate) mod volume_source;
pub(crate) mod webhook_client;
