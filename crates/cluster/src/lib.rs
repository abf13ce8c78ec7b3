//! The wiring: typed settings, and how the components are built from them. Nothing here decides
//! anything about Kubernetes.

#![forbid(unsafe_code)]

mod access;
mod addons;
mod addresses;
pub mod agent;
mod agreed;
mod archive;
pub mod backup;
pub mod cni;
mod connector;
mod control_plane;
mod corefile;
mod diagnoses;
mod elected;
mod error;
pub mod families;
pub mod founding;
mod host;
mod known_servers;
mod kubelet_root;
pub mod lock;
pub mod marker;
pub mod migrate;
mod networks;
mod node;
pub mod options;
mod peers;
pub mod preflight;
pub mod reset;
mod resolver;
mod running;
pub mod settings;
mod skew;
pub mod storage;
pub mod tokens;

/// Runs a helper of the node if this process was started as one.
pub use dns::holder::dispatch;
pub use error::Error;
pub use options::{LogFormat, Options, Part, Role, StoreKind};
pub use running::{Running, version};
pub use settings::Settings;
