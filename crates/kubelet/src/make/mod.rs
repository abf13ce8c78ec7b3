//! Translates a pod's spec into CRI configurations. Pure; one concern per file.

pub mod apparmor;
pub mod cgroups;
pub mod container;
pub mod dns;
pub mod env;
pub mod env_file;
pub mod expand;
pub mod hosts;
pub mod labels;
pub mod mounts;
pub mod oom;
pub mod resources;
pub mod sandbox;
pub mod security;
