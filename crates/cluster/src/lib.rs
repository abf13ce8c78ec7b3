//! The wiring: typed settings, and how the parts of the house are put together from them. Nothing
//! here decides anything about Kubernetes.

mod addons;
mod addresses;
pub mod backup;
mod connector;
mod error;
mod host;
mod lock;
mod node;
pub mod options;
pub mod preflight;
pub mod reset;
mod resolver;
mod running;
pub mod settings;
pub mod storage;

pub use error::Error;
pub use options::{LogFormat, Options, Part, StoreKind};
pub use running::{Running, VERSION};
pub use settings::Settings;
