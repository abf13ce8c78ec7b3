//! The node's network: addresses and links of pods, routes to other nodes, and the one nftables
//! session that all parts of the node write their rules through.
//!
//! Nothing here uses the Kubernetes API; its data is passed in. Everything made on a machine has
//! the cluster's id in its name, and [`cleanup`] removes exactly that.

pub mod announce;
mod budget;
mod check_timer;
mod cleanup;
mod client_shares;
mod cni;
pub mod cni_plugin;
mod conflicts;
pub mod conntrack;
pub mod datagrams;
mod drift;
mod error;
mod firewalls;
mod host_ports;
mod ipam;
mod links;
mod listening;
mod loopback;
pub mod names;
mod netfilter;
pub mod netns;
pub mod nft;
mod notices;
mod overlay;
mod overlay_table;
mod per_sandbox;
mod pod_link;
mod route_socket;
mod routed;
pub mod routes;
mod rules;
mod shape;
mod sysctl;
mod unlink;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
pub use budget::over_budget;
pub use check_timer::CheckTimer;
pub use cleanup::cleanup;
pub use client_shares::{ClientShares, Share};
pub use cni::{CniConfig, CniNetwork, cleanup_cni};
pub use conflicts::conflicts;
pub use drift::has_drifted;
pub use error::{Error, Result};
pub use ipnet::{IpNet, Ipv4Net, Ipv6Net};
pub use listening::is_free;
pub use loopback::LoopbackNetwork;
pub use notices::AddressNotices;
pub use overlay::VXLAN_PORT;
pub use per_sandbox::PerSandbox;
pub use routed::{Config, RoutedNetwork};

/// Attaches pods to the network. One implementation serves one node.
#[async_trait]
pub trait PodNetwork: Send + Sync + 'static {
    /// Attaches a sandbox's network namespace and returns its addresses. Idempotent: for an
    /// attached sandbox it repairs what is missing and returns the same addresses, so that a
    /// restarted runtime calls it for every sandbox that it finds alive.
    async fn attach(&self, request: AttachRequest) -> Result<Attachment>;

    /// The recorded attachment of a sandbox, without checking its links.
    async fn attachment(&self, sandbox_id: &str) -> Option<Attachment>;

    /// Detaches a sandbox and frees its addresses. Idempotent; also works if the namespace is gone
    /// (`netns` is then `None` or a path that no longer exists).
    async fn detach(&self, sandbox_id: &str, netns: Option<&Path>) -> Result<()>;

    /// Detaches every recorded sandbox that is not in `alive`: called once after a restart.
    async fn retain(&self, alive: &BTreeSet<String>) -> Result<()>;

    /// Sets the pod CIDRs of this node, at most one per family. Attached pods keep their addresses.
    async fn set_pod_cidrs(&self, cidrs: Vec<IpNet>) -> Result<()>;

    /// Whether pods can be attached now.
    async fn status(&self) -> Status;
}

/// A sandbox to attach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachRequest {
    /// The runtime's id of the sandbox.
    pub sandbox_id: String,
    /// The path of its network namespace.
    pub netns: PathBuf,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// Host ports of the pod.
    pub port_mappings: Vec<PortMapping>,
    /// The pod's annotations: some plugins read settings from there.
    pub annotations: BTreeMap<String, String>,
    /// The pod's DNS settings.
    pub dns: DnsSettings,
    /// The parent cgroup of the pod's containers.
    pub cgroup_path: String,
}

/// A pod's DNS settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsSettings {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// A host port of a pod.
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
    /// The node's address; all addresses if absent.
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
    /// The name in nftables and iproute.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// From Kubernetes' spelling; an absent protocol means TCP.
    pub fn from_kubernetes(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

/// An attached sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attachment {
    /// Its addresses, the primary first.
    pub addresses: Vec<IpAddr>,
    /// The name of its link inside the namespace.
    pub interface: String,
}

/// Whether a pod network is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Pods can be attached.
    Ready,
    /// Pods cannot be attached; the reason is shown in the Node's conditions.
    NotReady(String),
}
