//! The runtime through its socket, with real containers, as root. Every test has a daemon of its own
//! and leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod containers;
mod events;
mod first_light;
mod handlers;
mod images;
mod logs;
mod registry;
mod robustness;
mod settings;
mod shims;
mod streams;
mod support;
