//! Errors with links, addresses and rules.

use std::{io, net::IpAddr, path::PathBuf};

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pod CIDR is known yet.
    #[error("the node has no pod CIDR yet")]
    NoPodCidr,
    /// The range has no free address.
    #[error("no free address in {0}")]
    Exhausted(ipnet::IpNet),
    /// An address is in use unexpectedly.
    #[error("address {0} is in use by sandbox {1}")]
    AddressInUse(IpAddr, String),
    /// A process of the node listens on a host port.
    #[error("host port {0}/{1} is in use by a process of the node")]
    PortInUse(u16, &'static str),
    /// A file operation failed.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error("cannot enter network namespace {path}: {source}")]
    Namespace {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The kernel rejected a change of links, addresses or routes.
    #[error("{action}: {source}")]
    Netlink {
        /// The action.
        action: String,
        /// The kernel's answer.
        source: rtnetlink::Error,
    },
    /// No link has the node's address.
    #[error("no link has an address of {0}")]
    NoLink(String),
    /// A netlink socket could not be opened.
    #[error("cannot open a netlink socket: {0}")]
    Socket(io::Error),
    /// The nftables session could not be started or died.
    #[error("nft session: {0}")]
    NftSession(String),
    /// nftables rejected a batch; nothing of it was applied.
    #[error("nft refused a change: {message}")]
    NftRefused {
        /// The output of nft.
        message: String,
    },
    /// There is no CNI configuration.
    #[error("no network configuration in {0}")]
    NoCniConfig(PathBuf),
    /// A network configuration or result is invalid.
    #[error("network {network:?}: {message}")]
    Cni {
        /// The network's name, or its file.
        network: String,
        /// The reason.
        message: String,
    },
    /// A CNI plugin returned an error.
    #[error("CNI plugin {plugin:?} failed ({command}): {message}")]
    CniPlugin {
        /// The plugin.
        plugin: String,
        /// The command.
        command: &'static str,
        /// Its message.
        message: String,
    },
    /// A pod's bandwidth annotations are invalid.
    #[error("bandwidth: {0}")]
    Bandwidth(String),
    /// A new pod's policies could not be applied in time.
    #[error("network policy: {0}")]
    Policy(String),
    /// The kernel did not answer a request in time.
    #[error("{0}: no answer of the kernel in time")]
    NoAnswer(String),
    /// A thread ended unexpectedly.
    #[error("a network namespace thread ended early")]
    ThreadLost,
}

impl Error {
    pub(crate) fn netlink(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let action = action.into();
        move |source| Self::Netlink { action, source }
    }

    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
