//! Errors, and their gRPC codes.

use std::{io, path::PathBuf};

use cri::tonic::{Code, Status};

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such sandbox.
    #[error("no pod sandbox {0:?}")]
    NoSandbox(String),
    /// There is no such container.
    #[error("no container {0:?}")]
    NoContainer(String),
    /// There is no such image.
    #[error("no image {0:?}")]
    NoImage(String),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The object is in the wrong state.
    #[error("{0}")]
    Precondition(String),
    /// A name is in use.
    #[error("{0}")]
    Exists(String),
    /// A deadline was exceeded.
    #[error("{0}")]
    Deadline(String),
    /// Not supported on this machine.
    #[error("{0}")]
    Unsupported(String),
    /// A file operation failed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A system call that is not about one file failed.
    #[error("{action}: {source}")]
    System {
        /// The action.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// The shim returned an error.
    #[error("{0}")]
    Shim(String),
    /// The shim is gone.
    #[error("the shim of sandbox {0} is gone")]
    ShimGone(String),
    /// The network returned an error.
    #[error("network: {0}")]
    Network(#[from] network::Error),
    /// An image is invalid or malicious.
    #[error("image: {0}")]
    BadImage(String),
    /// A registry returned an error.
    #[error("registry: {0}")]
    Registry(String),
    /// The OCI configuration could not be built.
    #[error("OCI configuration: {0}")]
    Spec(#[from] oci_spec::OciSpecError),
    /// A state file is corrupt.
    #[error("{path}: {message}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause.
        message: String,
    },
}

impl Error {
    /// For `map_err` on operations on one file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// For `map_err` on other system calls.
    pub fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System {
            action,
            source: source.into(),
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::NoSandbox(_) | Self::NoContainer(_) | Self::NoImage(_) => Code::NotFound,
            Self::Invalid(_) | Self::BadImage(_) => Code::InvalidArgument,
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::Exists(_) => Code::AlreadyExists,
            Self::Deadline(_) => Code::DeadlineExceeded,
            Self::Unsupported(_) => Code::Unimplemented,
            Self::ShimGone(_) => Code::Unavailable,
            Self::Network(_)
            | Self::Registry(_)
            | Self::Shim(_)
            | Self::File { .. }
            | Self::System { .. }
            | Self::Spec(_)
            | Self::Damaged { .. } => Code::Unknown,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
