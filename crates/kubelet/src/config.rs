//! What a kubelet is told at its start.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Taint;
use stdx::{Clock, SystemClock};

use crate::{Kubelet, configuration::KubeletConfiguration};

/// The version that the node reports.
pub const VERSION: &str = "v1.36.4+mainstay";

/// Everything a kubelet needs. [`Config::new`] fills in the usual values.
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses, the main one first.
    pub node_ips: Vec<IpAddr>,
    /// The API, as `system:node:NAME`.
    pub client: kube::Client,
    /// The runtime's socket.
    pub cri_socket: PathBuf,
    /// Pods' directories and volumes.
    pub root_dir: PathBuf,
    /// The directory of volumes of the cluster's own provisioner.
    pub local_path_root: PathBuf,
    /// Containers' logs.
    pub pod_logs_dir: PathBuf,
    /// Where the HTTPS server listens.
    pub listen: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its TLS; client certificates are verified there.
    pub tls: Arc<rustls::ServerConfig>,
    /// Where `/healthz` is served without TLS, as upstream does on 127.0.0.1:10248.
    pub healthz: Option<SocketAddr>,
    /// The node's own logs, which `/logs/` serves.
    pub node_logs_dir: PathBuf,
    /// Addresses of the cluster's DNS; none means that pods use the node's.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The cgroup below which all pods live, such as `/mainstay-0123abcd`. Empty: the runtime
    /// chooses.
    pub cgroup_root: String,
    /// The node's own resolver configuration.
    pub resolv_conf: PathBuf,
    /// Manifests of static pods.
    pub static_pods_dir: Option<PathBuf>,
    /// Unsafe sysctls that pods may set, some ending in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Labels that the node registers with, beside the usual ones.
    pub node_labels: BTreeMap<String, String>,
    /// Taints that the node registers with.
    pub node_taints: Vec<Taint>,
    /// How many pods fit.
    pub max_pods: u32,
    /// What a KubeletConfiguration says.
    pub kubelet: KubeletConfiguration,
    /// How often the Lease is renewed.
    pub lease_interval: Duration,
    /// How often the node's status is written though nothing changed.
    pub status_interval: Duration,
    /// The version that the node reports.
    pub version: String,
    /// Services that must be ready first.
    pub after: &'static [&'static str],
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl Config {
    /// The usual values around what has no usual value.
    pub fn new(
        node_name: impl Into<String>,
        node_ip: IpAddr,
        client: kube::Client,
        cri_socket: impl Into<PathBuf>,
        data_dir: impl Into<PathBuf>,
        tls: Arc<rustls::ServerConfig>,
    ) -> Self {
        let data_dir = data_dir.into();
        Self {
            node_name: node_name.into(),
            node_ips: vec![node_ip],
            client,
            cri_socket: cri_socket.into(),
            root_dir: data_dir.join("kubelet"),
            local_path_root: data_dir.join("local-path"),
            pod_logs_dir: data_dir.join("logs/pods"),
            listen: IpAddr::from([0, 0, 0, 0]),
            port: 10250,
            tls,
            healthz: None,
            node_logs_dir: "/var/log".into(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            cgroup_root: String::new(),
            resolv_conf: "/etc/resolv.conf".into(),
            static_pods_dir: None,
            allowed_unsafe_sysctls: Vec::new(),
            node_labels: BTreeMap::new(),
            node_taints: Vec::new(),
            max_pods: 110,
            kubelet: KubeletConfiguration::default().complete(),
            lease_interval: Duration::from_secs(10),
            status_interval: Duration::from_secs(300),
            version: VERSION.into(),
            after: &[],
            clock: Arc::new(SystemClock),
        }
    }

    /// Makes the kubelet; nothing runs yet.
    pub fn build(self) -> Arc<Kubelet> {
        Arc::new(Kubelet::new(self))
    }
}
