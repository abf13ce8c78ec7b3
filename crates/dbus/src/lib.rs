//! The D-Bus protocol over Unix sockets: messages of the few types that logind's and systemd's
//! interfaces need, and a blocking client for processes without an async runtime.

#![forbid(unsafe_code)]

mod blocking;
pub mod message;

use std::io;

pub use blocking::{Bus, Peer};

/// A D-Bus error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other side answered with an error.
    #[error("{name}: {message}")]
    Answer {
        /// The name of the error.
        name: String,
        /// What it says.
        message: String,
    },
    /// The other side does not follow the protocol.
    #[error("{0}")]
    Protocol(&'static str),
}

/// A method call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The name of the service.
    pub destination: &'a str,
    /// The path of the object.
    pub path: &'a str,
    /// The interface of the method.
    pub interface: &'a str,
    /// The method.
    pub member: &'a str,
}
