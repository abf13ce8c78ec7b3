//! What can go wrong in a kubelet.

use std::path::PathBuf;

/// Anything that stops the kubelet or one of its tasks; the supervisor or the worker tries again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime refused or is away.
    #[error("runtime: {}", .0.message())]
    Runtime(#[from] tonic::Status),
    /// The API refused or is away.
    #[error("api: {0}")]
    Api(#[from] kube::Error),
    /// A volume.
    #[error(transparent)]
    Volume(#[from] volume::Error),
    /// The file system.
    #[error("{path}: {source}")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A resource claim that the pod needs is not there for it.
    #[error("{0}")]
    Claims(String),
    /// The cgroup of a pod could not be made or limited.
    #[error("unable to ensure pod container exists: {0}")]
    PodCgroup(String),
    /// A volume that outlives pods could not be brought to a pod.
    #[error("{message}")]
    Mount {
        /// The event's reason.
        reason: &'static str,
        message: String,
        /// It waits for something that others do.
        is_waiting: bool,
    },
    /// Anything with a message of its own.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// For `map_err`: names the file.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// The API does not have what was asked for.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 404)
    }
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;
