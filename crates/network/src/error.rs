//! What can go wrong with links, addresses and rules.

use std::{io, net::IpAddr, path::PathBuf};

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the network could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pod CIDR is known yet.
    #[error("the node has no pod CIDR yet")]
    NoPodCidr,
    /// Every address of the range is taken.
    #[error("no free address in {0}")]
    Exhausted(ipnet::IpNet),
    /// An address that should be free is not.
    #[error("address {0} is in use by sandbox {1}")]
    AddressInUse(IpAddr, String),
    /// A file or directory of ours could not be used.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error("cannot enter network namespace {path}: {source}")]
    Namespace {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused a change of links, addresses or routes.
    #[error("{action}: {source}")]
    Netlink {
        /// What was tried.
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
    /// nftables refused a batch; nothing of it was applied.
    #[error("nft refused a change: {message}")]
    NftRefused {
        /// What nft wrote.
        message: String,
    },
    /// There is no network to attach pods to.
    #[error("no network configuration in {0}")]
    NoCniConfig(PathBuf),
    /// A network configuration or what came of it makes no sense.
    #[error("network {network:?}: {message}")]
    Cni {
        /// Its name, or its file.
        network: String,
        /// Why.
        message: String,
    },
    /// A CNI plugin said no.
    #[error("CNI plugin {plugin:?} failed ({command}): {message}")]
    CniPlugin {
        /// Which one.
        plugin: String,
        /// What it was asked.
        command: &'static str,
        /// Its own words.
        message: String,
    },
    /// A pod's bandwidth cannot be limited as its annotations say.
    #[error("bandwidth: {0}")]
    Bandwidth(String),
    /// A new pod's policies could not be put in place in time.
    #[error("network policy: {0}")]
    Policy(String),
    /// A thread of ours went away.
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
