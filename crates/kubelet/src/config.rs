//! The kubelet's configuration at start.

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

/// Settings of a node that an external cloud controller manager looks after.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cloud {
    /// The node registers with the taint `uninitialized` and keeps the addresses that the cloud
    /// controller manager writes.
    pub is_external: bool,
    /// The cloud provider's id of the machine.
    pub provider_id: Option<String>,
    /// The node IP of the flag, a hint for the cloud controller manager.
    pub given_ip: Option<IpAddr>,
}

/// Everything a kubelet needs. [`Config::new`] fills in the usual values.
pub struct Config {
    /// The node's name.
    pub node_name: String,
    /// The node's addresses, the main one first.
    pub node_ips: Vec<IpAddr>,
    /// The same if they may change while the kubelet runs.
    pub node_ip_changes: Option<watch::Receiver<Vec<IpAddr>>>,
    /// A client of the API server as `system:node:NAME`.
    pub client: kube::Client,
    /// The CRI socket of the runtime.
    pub cri_socket: PathBuf,
    /// Pods' directories and volumes.
    pub root_dir: PathBuf,
    /// The root of the volumes of the built-in local path provisioner.
    pub local_path_root: PathBuf,
    /// Containers' logs.
    pub pod_logs_dir: PathBuf,
    /// Whether other kubelets keep logs in the same directory.
    pub shares_pod_logs_dir: bool,
    /// The directory of links to containers' logs (`/var/log/containers`).
    pub container_logs_dir: PathBuf,
    /// Where the HTTPS server listens.
    pub listen: IpAddr,
    /// The port of the HTTPS server.
    pub port: u16,
    /// The TLS configuration of the HTTPS server; it verifies client certificates.
    pub tls: Arc<rustls::ServerConfig>,
    /// The cluster's CAs as PEM: client certificates of these are accepted beside those of
    /// `authentication.x509.clientCAFile`.
    pub client_ca: Vec<u8>,
    /// The certificates that metrics show.
    pub certificates: Certificates,
    /// The address of `/healthz` without TLS; upstream's is 127.0.0.1:10248.
    pub healthz: Option<SocketAddr>,
    /// The directory of the node's own logs, which `/logs/` serves.
    pub node_logs_dir: PathBuf,
    /// Addresses of the cluster's DNS; if empty, pods use the node's resolver configuration.
    pub cluster_dns: Vec<IpAddr>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The cgroup of all pods, such as `/mainstay-0123abcd`. Empty: the runtime chooses.
    pub cgroup_root: String,
    /// The node's own resolv.conf.
    pub resolv_conf: PathBuf,
    /// The directory of static pod manifests.
    pub static_pods_dir: Option<PathBuf>,
    /// Unsafe sysctls that pods may set; `*` at the end matches any suffix.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Labels that the node registers with, beside the well-known ones.
    pub node_labels: BTreeMap<String, String>,
    /// Taints that the node registers with.
    pub node_taints: Vec<Taint>,
    /// Settings for an external cloud controller manager.
    pub cloud: Cloud,
    /// The KubeletConfiguration at start.
    pub kubelet: KubeletConfiguration,
    /// The files that `kubelet` was read from; they are watched for changes.
    pub kubelet_sources: Sources,
    /// The CRI socket for images, if it is another one.
    pub image_socket: Option<PathBuf>,
    /// The version that the node reports.
    pub version: String,
    /// Whether stopping the daemon ends the pods within `shutdownGracePeriod`, as if the machine
    /// shut down. Otherwise they keep running.
    pub shutdown_on_stop: bool,
    /// Services that must be ready before the kubelet starts.
    pub after: &'static [&'static str],
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// The kubelet's own certificates, which are renewed outside of it.
#[derive(Clone, Default)]
pub struct Certificates {
    /// With which it is a client of the API server.
    pub client: Option<Arc<dyn pki::Lifetime>>,
    /// Of its HTTPS server.
    pub serving: Option<Arc<dyn pki::Lifetime>>,
}

impl Config {
    /// A configuration with defaults for everything that has one.
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
            certificates: Certificates::default(),
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

    /// Makes the kubelet without starting it.
    pub fn build(self) -> Arc<Kubelet> {
        Arc::new(Kubelet::new(self))
    }
}
