//! What a kubelet is told at its start.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Taint;
use stdx::{Clock, SystemClock};
use tokio::sync::watch;

use crate::{
    Kubelet,
    configuration::{KubeletConfiguration, Sources},
};

/// The version that the node reports.
pub fn version() -> String {
    format!("{}+mainstay", stdx::Version::own())
}

/// What a cloud controller manager must know of the node, and what it does for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cloud {
    /// The node registers as one that a cloud controller manager must initialise, and keeps the addresses that it
    /// is given.
    pub is_external: bool,
    /// What the cloud calls the machine.
    pub provider_id: Option<String>,
    /// The address that was chosen for the node, as a hint for the cloud controller manager.
    pub given_ip: Option<IpAddr>,
}

/// Everything a kubelet needs. [`Config::new`] fills in the usual values.
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses, the main one first.
    pub node_ips: Vec<IpAddr>,
    /// The same where they may change while the kubelet runs.
    pub node_ip_changes: Option<watch::Receiver<Vec<IpAddr>>>,
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
    /// Other kubelets may keep their logs there, too.
    pub shares_pod_logs_dir: bool,
    /// Links to containers' logs.
    pub container_logs_dir: PathBuf,
    /// Where the HTTPS server listens.
    pub listen: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its TLS; client certificates are verified there.
    pub tls: Arc<rustls::ServerConfig>,
    /// The cluster's authorities as PEM: their client certificates are accepted beside those of
    /// `authentication.x509.clientCAFile`.
    pub client_ca: Vec<u8>,
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
    /// Who looks after the node from outside.
    pub cloud: Cloud,
    /// What a KubeletConfiguration says at the start.
    pub kubelet: KubeletConfiguration,
    /// Where it comes from: changes there take effect where they can.
    pub kubelet_sources: Sources,
    /// The socket for images, if it is another.
    pub image_socket: Option<PathBuf>,
    /// The version that the node reports.
    pub version: String,
    /// Whether pods end by `shutdownGracePeriod` when the daemon is asked to stop, as if the machine went
    /// down. Otherwise they run on.
    pub shutdown_on_stop: bool,
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
            node_ip_changes: None,
            client,
            cri_socket: cri_socket.into(),
            root_dir: data_dir.join("kubelet"),
            local_path_root: data_dir.join("local-path"),
            pod_logs_dir: data_dir.join("logs/pods"),
            shares_pod_logs_dir: false,
            container_logs_dir: data_dir.join("logs/containers"),
            listen: IpAddr::from([0, 0, 0, 0]),
            port: 10250,
            tls,
            client_ca: Vec::new(),
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
            cloud: Cloud::default(),
            kubelet: KubeletConfiguration::default().complete(),
            kubelet_sources: Sources::default(),
            image_socket: None,
            version: version(),
            shutdown_on_stop: false,
            after: &[],
            clock: Arc::new(SystemClock),
        }
    }

    /// The node's addresses as they are now.
    pub fn current_node_ips(&self) -> Vec<IpAddr> {
        match &self.node_ip_changes {
            Some(changes) => changes.borrow().clone(),
            None => self.node_ips.clone(),
        }
    }

    /// Makes the kubelet; nothing runs yet.
    pub fn build(self) -> Arc<Kubelet> {
        Arc::new(Kubelet::new(self))
    }
}
