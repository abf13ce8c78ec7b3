//! The runtime through its socket, with real containers, as root. Every test has a daemon of its own
//! and leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bound_dev;
mod cni;
mod containers;
mod effects;
mod events;
mod first_light;
mod handlers;
mod hello;
mod hostile;
mod images;
mod logs;
mod protocols;
mod registry;
mod robustness;
mod routed;
mod settings;
mod shims;
mod snapshots;
mod streams;
mod support;
