//! The node's network: addresses and links of pods, routes to other nodes, and the one nftables
//! session that everything else on the node writes its rules through.
//!
//! Nothing here talks to the Kubernetes API; what it needs of it arrives as plain data. Everything
//! made on a machine carries the cluster's id in its name, and [`cleanup`] removes exactly that.

pub mod announce;
mod check_timer;
mod cleanup;
mod cni;
pub mod cni_plugin;
mod conflicts;
pub mod conntrack;
pub mod datagrams;
mod drift;
mod error;
mod firewalls;
mod ipam;
pub mod lab;
mod links;
mod loopback;
pub mod names;
mod netfilter;
pub mod netns;
pub mod nft;
mod notices;
mod overlay;
mod routed;
pub mod routes;
mod rules;
mod shape;
mod sysctl;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
pub use check_timer::CheckTimer;
pub use cleanup::cleanup;
pub use cni::{CniConfig, CniNetwork, cleanup_cni};
pub use conflicts::conflicts;
pub use drift::has_drifted;
pub use error::{Error, Result};
pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use loopback::LoopbackNetwork;
pub use notices::AddressNotices;
pub use routed::{Config, RoutedNetwork};

/// Gives pods their place in the network. One implementation serves one node.
#[async_trait]
pub trait PodNetwork: Send + Sync + 'static {
    /// Connects a sandbox's network namespace and returns its addresses. Idempotent: for a sandbox
    /// that is already attached it repairs what is missing and returns the same addresses, so a
    /// restarted runtime calls it again for every sandbox that it finds alive.
    async fn attach(&self, request: AttachRequest) -> Result<Attachment>;

    /// What is recorded for a sandbox, without touching its links.
    async fn attachment(&self, sandbox_id: &str) -> Option<Attachment>;

    /// Takes a sandbox out of the network and frees its addresses. Idempotent, and works also when
    /// the namespace is gone already (`netns` is then `None` or a path that no longer exists).
    async fn detach(&self, sandbox_id: &str, netns: Option<&Path>) -> Result<()>;

    /// Detaches every recorded sandbox that is not in `alive`: called once after a restart.
    async fn retain(&self, alive: &BTreeSet<String>) -> Result<()>;

    /// The ranges that new pods of this node get their addresses from, at most one per family.
    /// Pods that are attached keep their addresses.
    async fn set_pod_cidrs(&self, cidrs: Vec<IpNet>) -> Result<()>;

    /// Whether pods can be attached now.
    async fn status(&self) -> Status;
}

/// A sandbox that wants to be connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachRequest {
    /// The runtime's id of the sandbox.
    pub sandbox_id: String,
    /// Where its network namespace is pinned.
    pub netns: PathBuf,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// Ports of the node that lead to the pod.
    pub port_mappings: Vec<PortMapping>,
    /// The pod's annotations: some plugins take wishes from there.
    pub annotations: BTreeMap<String, String>,
    /// How the pod finds names.
    pub dns: DnsSettings,
    /// The cgroup that the pod's containers are below.
    pub cgroup_path: String,
}

/// How a pod finds names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsSettings {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Domains to look below.
    pub searches: Vec<String>,
    /// Options of the resolver.
    pub options: Vec<String>,
}

/// A port of the node that leads to a pod.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct PortMapping {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port in the pod.
    pub container_port: u16,
    /// The port of the node.
    pub host_port: u16,
    /// The node's address to listen on; every address when absent.
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol that has ports.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The name that nftables and iproute use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// From Kubernetes' spelling; an absent protocol means TCP there.
    pub fn from_kubernetes(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

/// A connected sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attachment {
    /// Its addresses, the primary first.
    pub addresses: Vec<IpAddr>,
    /// The name of its link inside the namespace.
    pub interface: String,
}

/// Whether a pod network does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Pods can be attached.
    Ready,
    /// They cannot, for this reason, as it is shown in the Node's conditions.
    NotReady(String),
}
