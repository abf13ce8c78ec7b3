//! The runtime through its socket, with real containers, as root. Every test has its own daemon and
//! cleans up.

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
mod zygote;
