//! Why a cluster cannot be started.

use std::path::PathBuf;

/// Why a cluster cannot be started or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid option.
    #[error("--{0}: {1}")]
    Option(&'static str, String),
    /// The file given with `--config`.
    #[error("{}: {reason}", path.display())]
    ConfigFile {
        /// The file.
        path: PathBuf,
        /// Why it is invalid.
        reason: String,
    },
    /// The machine lacks requirements.
    #[error("this machine cannot run a cluster yet; it lacks\n  - {}", .0.join("\n  - "))]
    Preflight(Vec<String>),
    /// A directory of ours.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// The OS error.
        source: std::io::Error,
    },
    /// Another daemon holds the directory.
    #[error("mainstay is already running with the data directory {}; stop it first, or choose another --data-dir", .0.display())]
    InUse(PathBuf),
    /// Not a data directory.
    #[error("{} is not a data directory of mainstay: it has no {}; nothing was removed", .0.display(), crate::marker::FILE)]
    NotOurs(PathBuf),
    /// Processes that could not be killed.
    #[error("these processes do not exit, even after SIGKILL: {0:?}")]
    Unkillable(Vec<i32>),
    #[error("certificates: {0}")]
    Pki(#[from] pki::Error),
    /// The cluster's addresses are in use on this machine.
    #[error(
        "addresses of this cluster are in use on this machine; choose others with --cluster-cidr and \
         --service-cidr\n  - {}",
        .0.join("\n  - ")
    )]
    Overlap(Vec<String>),
    /// Previously written data is gone.
    #[error("{0}; start with --accept-data-loss to continue without it")]
    DataLoss(String),
    /// The store belongs to another cluster, or this server is not one of its servers.
    #[error("{0}")]
    NotAServer(String),
    /// The data directory belongs to a machine with another role.
    #[error("{0}")]
    WrongRole(String),
    /// Incompatible versions.
    #[error("{0}")]
    Version(String),
    /// Joining a cluster.
    #[error("cannot join: {0}")]
    Join(String),
    /// The cluster has not signed cluster-info with the token, or not yet.
    #[error("cannot join: {0}")]
    NotSigned(String),
    /// An error of the API server, or no response.
    #[error("API: {}", message(.0))]
    Api(#[from] client::kube::Error),
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A bootstrap token that is to be deleted.
    #[error("there is no bootstrap token {0:?}; `mainstay token list` shows all")]
    NoToken(String),
    /// A backup or a restore.
    #[error("{0}")]
    Backup(String),
    /// A move between stores.
    #[error("{0}")]
    Migration(String),
    #[error("store: {0}")]
    Store(store::Error),
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

/// The message of a Status, without its other fields.
fn message(error: &client::kube::Error) -> String {
    match error {
        client::kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Lost { .. } | store::Error::ManifestMissing { .. } => {
                Self::DataLoss(error.to_string())
            }
            other => Self::Store(other),
        }
    }
}
