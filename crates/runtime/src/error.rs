//! What can go wrong, and which gRPC code tells a kubelet about it.

use std::{io, path::PathBuf};

use cri::tonic::{Code, Status};

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the runtime could not do what it was asked.
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
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The thing is not in a state that allows it.
    #[error("{0}")]
    Precondition(String),
    /// A name is taken.
    #[error("{0}")]
    Exists(String),
    /// Something took longer than it may.
    #[error("{0}")]
    Deadline(String),
    /// It cannot be done here.
    #[error("{0}")]
    Unsupported(String),
    /// A file could not be used.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something that is not about one file failed.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// Why not.
        source: io::Error,
    },
    /// The shim said no.
    #[error("{0}")]
    Shim(String),
    /// The shim is gone.
    #[error("the shim of sandbox {0} is gone")]
    ShimGone(String),
    /// The network said no.
    #[error("network: {0}")]
    Network(#[from] network::Error),
    /// An image is not what it says it is, or tries to escape.
    #[error("image: {0}")]
    BadImage(String),
    /// A registry said no.
    #[error("registry: {0}")]
    Registry(String),
    /// The OCI configuration could not be made.
    #[error("OCI configuration: {0}")]
    Spec(#[from] oci_spec::OciSpecError),
    /// Our own files on disk are damaged.
    #[error("{path}: {message}")]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// How.
        message: String,
    },
}

impl Error {
    /// For `map_err` on operations on one file.
    pub fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    /// For `map_err` on everything else that the kernel may refuse.
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
