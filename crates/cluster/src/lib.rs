//! The wiring: typed settings, and how the parts of the house are put together from them. Nothing
//! here decides anything about Kubernetes.

mod host;
pub mod options;
pub mod settings;

use std::path::PathBuf;

pub use options::{LogFormat, Options, Part};
pub use settings::Settings;

/// Why a cluster cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option that cannot work.
    #[error("--{0}: {1}")]
    Option(&'static str, String),
    /// The file given with `--config`.
    #[error("{}: {reason}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}
