//! The kubelet's error type.

use std::path::PathBuf;

/// An error that stops the kubelet or one of its tasks; the supervisor or the worker retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime returned an error or is unavailable.
    #[error("runtime: {}", .0.message())]
    Runtime(#[from] tonic::Status),
    /// The API server returned an error or is unavailable.
    #[error("api: {0}")]
    Api(#[from] kube::Error),
    /// A volume could not be set up or torn down.
    #[error(transparent)]
    Volume(#[from] volume::Error),
    /// File system access failed.
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A resource claim of the pod does not exist or is not reserved for it.
    #[error("{0}")]
    Claims(String),
    /// The cgroup of a pod could not be made or limited.
    #[error("unable to ensure pod container exists: {0}")]
    PodCgroup(String),
    /// A persistent volume could not be mounted.
    #[error("{message}")]
    Mount {
        /// The event's reason.
        reason: &'static str,
        message: String,
        /// The kubelet waits for something, such as an attachment, and nothing failed.
        is_waiting: bool,
    },
    /// A volume cannot be attached: the node has reached its limit, and the pod cannot run here.
    #[error("Node has reached its volume attachment limit, rejecting pod: {0}")]
    VolumeLimit(String),
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// For `map_err`: names the file.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Whether the API server returned 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;
