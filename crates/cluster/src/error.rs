//! Why a cluster cannot be started.

use std::path::PathBuf;

/// Why a cluster cannot be started or removed.
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
    /// The machine lacks something.
    #[error("this machine cannot run a cluster yet; it lacks\n  - {}", .0.join("\n  - "))]
    Preflight(Vec<String>),
    /// A directory of ours.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another daemon holds the directory.
    #[error("a mainstay already runs from {}; stop it first, or choose another --data-dir", .0.display())]
    InUse(PathBuf),
    /// Processes that do not end.
    #[error("these processes do not end, even when killed: {0:?}")]
    Unkillable(Vec<i32>),
    #[error("certificates: {0}")]
    Pki(#[from] pki::Error),
    /// A backup or a restore.
    #[error("{0}")]
    Backup(String),
    #[error("store: {0}")]
    Store(#[from] store::Error),
    #[error("API server: {0}")]
    Apiserver(#[from] apiserver::Error),
    #[error("network: {0}")]
    Network(#[from] network::Error),
    #[error("container runtime: {0}")]
    Runtime(#[from] runtime::Error),
    #[error("DNS: {0}")]
    Dns(#[from] dns::Error),
    #[error(transparent)]
    Graph(#[from] lifecycle::GraphError),
}
