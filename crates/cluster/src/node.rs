//! The parts of a node: runtime, network, proxy, DNS, kubelet. They are the same in one process with
//! the control plane and on a machine of their own; only their clients differ.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use apiserver::User;
use client::kube;
use kubelet::configuration::KubeletConfiguration;
use lifecycle::Service;
use network::{CniConfig, PodNetwork, nft::Nft};
use stdx::SystemClock;
use tokio::sync::watch;

use crate::{
    Error, Part, Settings, agent::Membership, control_plane::ControlPlane, peers::Peers,
    resolver::resolv_conf, running::VERSION,
};

/// Largest packet between nodes where the machine does not say otherwise.
const MTU: u32 = 1500;

/// Where kube-proxy serves its health and its metrics.
const PROXY_HEALTH_PORT: u16 = 10256;
const PROXY_METRICS_PORT: u16 = 10249;
/// CoreDNS' own.
const DNS_METRICS_PORT: u16 = 9153;

/// What a node needs beside its settings.
pub struct Node {
    /// `system:node:NAME`.
    pub kubelet_client: kube::Client,
    /// `system:node-proxy:NAME`: reads what proxy, DNS and routes need.
    pub proxy_client: kube::Client,
    /// The kubelet's server.
    pub serving: Arc<rustls::ServerConfig>,
    /// A word that all nodes of the cluster share: the hash of its authority.
    pub cluster: String,
    /// Services that the kubelet starts after, beside the runtime.
    pub with_apiserver: bool,
}

impl Node {
    /// Beside the control plane, over function calls.
    pub fn in_process(settings: &Settings, plane: &ControlPlane) -> Result<Self, Error> {
        let name = &settings.node_name;
        let proxy = User::new(format!("system:node-proxy:{name}"), ["system:node-proxies"]);
        Ok(Self {
            kubelet_client: plane.connector.as_node(name, settings.node_ip),
            proxy_client: plane.connector.as_user(proxy),
            serving: plane.pki.kubelet_config()?,
            cluster: plane.pki.ca().public_key_hash(),
            with_apiserver: true,
        })
    }

    /// On a machine that has joined a cluster.
    pub fn joined(membership: &Membership) -> Result<Self, Error> {
        let ca = membership.ca.as_bytes();
        Ok(Self {
            kubelet_client: membership.client(&membership.kubelet)?,
            proxy_client: membership.client(&membership.proxy)?,
            serving: Arc::new(membership.serving.server_config(ca)?),
            cluster: pki::public_key_hash(ca)?,
            with_apiserver: false,
        })
    }

    /// Builds the node's services.
    pub fn services(&self, settings: &Settings) -> Result<Vec<Arc<dyn Service>>, Error> {
        let nft = Nft::new();
        let dns_listener =
            SocketAddr::new(settings.node_ip, network::names::dns_port(&settings.id));
        let mut services: Vec<Arc<dyn Service>> = Vec::new();
        let network = pod_network(settings, &nft, &mut services)?;
        let network = self.with_policies(settings, network, &nft, &mut services);
        let socket = match &settings.container_runtime_endpoint {
            Some(path) => path.clone(),
            None => {
                let mut config =
                    runtime::Config::new(&settings.id, settings.data_dir.clone(), network);
                config.socket = settings.cri_socket.clone();
                config.handlers = settings.runtime_handlers.clone();
                config.image_dirs.extend(settings.image_dir.clone());
                config.registries = settings.registries.clone();
                config.log_limits = log_limits(&settings.kubelet.configuration);
                services.push(config.build()?);
                settings.cri_socket.clone()
            }
        };
        // Routes between nodes are the plugins' business, where there are plugins.
        if settings.cni.is_none() {
            let (peers, nodes) = watch::channel(None);
            services.push(Arc::new(Peers {
                client: self.proxy_client.clone(),
                peers,
            }));
            services.push(self.routes(settings).build(nft.clone(), nodes));
        }
        if settings.runs(Part::Proxy) {
            services.push(self.proxy(settings, dns_listener).build(nft));
        }
        if settings.runs(Part::Dns) {
            let config = dns::Config {
                client: self.proxy_client.clone(),
                listen: vec![dns_listener],
                metrics: Some(SocketAddr::new(settings.node_ip, DNS_METRICS_PORT)),
                cluster_domain: settings.cluster_domain.clone(),
                cluster_dns: vec![settings.cluster_dns()],
                own_ranges: vec![settings.cluster_cidr, settings.service_cidr],
                resolv_conf: resolv_conf(),
                clock: Arc::new(SystemClock),
            };
            services.push(config.build()?);
        }
        services.push(self.kubelet(settings, socket));
        Ok(services)
    }

    /// Containers of a pod start when its network policies are in place.
    fn with_policies(
        &self,
        settings: &Settings,
        network: Arc<dyn PodNetwork>,
        nft: &Nft,
        services: &mut Vec<Arc<dyn Service>>,
    ) -> Arc<dyn PodNetwork> {
        if !settings.runs(Part::NetworkPolicy) {
            return network;
        }
        let config = policy::Config {
            id: settings.id.clone(),
            client: self.proxy_client.clone(),
            node_name: settings.node_name.clone(),
        };
        let enforcer = config.build(nft.clone());
        services.push(enforcer.clone());
        // A runtime of its own connects pods by itself: their addresses come from the API alone.
        Arc::new(policy::Gated { network, enforcer })
    }

    fn proxy(&self, settings: &Settings, dns_listener: SocketAddr) -> proxy::Config {
        let dns = settings.runs(Part::Dns).then(|| proxy::DnsRedirect {
            cluster_dns: vec![settings.cluster_dns()],
            listeners: vec![dns_listener],
        });
        proxy::Config {
            id: settings.id.clone(),
            client: self.proxy_client.clone(),
            node_name: settings.node_name.clone(),
            cluster_cidrs: vec![settings.cluster_cidr],
            service_cidrs: vec![settings.service_cidr],
            dns,
            allow_external_ips: settings.proxy.allow_external_ips,
            health: Some(SocketAddr::new(
                Ipv4Addr::UNSPECIFIED.into(),
                PROXY_HEALTH_PORT,
            )),
            metrics: Some(SocketAddr::new(
                Ipv4Addr::LOCALHOST.into(),
                PROXY_METRICS_PORT,
            )),
            node_ips: vec![settings.node_ip],
            node_port_addresses: settings.proxy.node_port_addresses.clone(),
            clock: Arc::new(SystemClock),
        }
    }

    fn routes(&self, settings: &Settings) -> network::routes::Config {
        network::routes::Config {
            id: settings.id.clone(),
            cluster: self.cluster.clone(),
            node_name: settings.node_name.clone(),
            node_ips: vec![settings.node_ip],
            cluster_cidrs: vec![settings.cluster_cidr],
            mtu: MTU,
        }
    }

    fn kubelet(&self, settings: &Settings, socket: PathBuf) -> Arc<dyn Service> {
        let mut config = kubelet::Config::new(
            &settings.node_name,
            settings.node_ip,
            self.kubelet_client.clone(),
            socket,
            &settings.data_dir,
            self.serving.clone(),
        );
        config.port = settings.kubelet_port;
        config.cluster_dns = vec![settings.cluster_dns()];
        config.cluster_domain = settings.cluster_domain.clone();
        config.cgroup_root = format!("/mainstay-{}", settings.id);
        config.resolv_conf = resolv_conf();
        for warning in &settings.kubelet.warnings {
            tracing::warn!("kubelet configuration: {warning}");
        }
        apply(&mut config, settings.kubelet.configuration.clone());
        // A flag wins over the file.
        if settings.static_pod_path.is_some() {
            config.static_pods_dir = settings.static_pod_path.clone();
        }
        config
            .allowed_unsafe_sysctls
            .extend(settings.allowed_unsafe_sysctls.clone());
        config.version = VERSION.to_owned();
        let own_runtime = settings.container_runtime_endpoint.is_none();
        config.after = match (self.with_apiserver, own_runtime) {
            (true, true) => &["apiserver", "runtime"],
            (true, false) => &["apiserver"],
            (false, true) => &["runtime"],
            (false, false) => &[],
        };
        config.build()
    }
}

/// The built-in network, or that of CNI plugins.
fn pod_network(
    settings: &Settings,
    nft: &Nft,
    services: &mut Vec<Arc<dyn Service>>,
) -> Result<Arc<dyn PodNetwork>, Error> {
    if let Some(cni) = &settings.cni {
        let config = CniConfig {
            conf_dir: cni.conf_dir.clone(),
            bin_dirs: cni.bin_dirs.clone(),
            state_dir: settings.data_dir.join("cni"),
        };
        return Ok(config.build()?);
    }
    let config = network::Config {
        id: settings.id.clone(),
        state_dir: settings.state_dir.join("network"),
        cluster_cidrs: vec![settings.cluster_cidr],
        service_cidrs: vec![settings.service_cidr],
        node_ips: vec![settings.node_ip],
        mtu: MTU,
    };
    let network = config.build(nft.clone())?;
    services.push(network.clone());
    Ok(network)
}

/// What a KubeletConfiguration changes.
fn apply(config: &mut kubelet::Config, kubelet: KubeletConfiguration) {
    let set = |text: &str| {
        Some(text)
            .filter(|text| !text.is_empty())
            .map(PathBuf::from)
    };
    if let Some(path) = set(&kubelet.resolv_conf) {
        config.resolv_conf = path;
    }
    if let Some(path) = set(&kubelet.static_pod_path) {
        config.static_pods_dir = Some(path);
    }
    if let Some(path) = set(&kubelet.pod_logs_dir) {
        config.pod_logs_dir = path;
    }
    config.allowed_unsafe_sysctls = kubelet.allowed_unsafe_sysctls.clone();
    config.node_taints = kubelet.register_with_taints.clone();
    config.status_interval = kubelet.node_status_report_frequency.0;
    config.max_pods =
        kubelet.pod_capacity(std::thread::available_parallelism().map_or(1, usize::from));
    let port = u16::try_from(kubelet.healthz_port).unwrap_or(0);
    let address = kubelet.healthz_bind_address.parse();
    config.healthz = address
        .ok()
        .filter(|_| port != 0)
        .map(|address: std::net::IpAddr| SocketAddr::new(address, port));
    config.kubelet = kubelet;
}

fn log_limits(kubelet: &KubeletConfiguration) -> runtime::LogLimits {
    let usual = runtime::LogLimits::default();
    runtime::LogLimits {
        max_bytes: kubelet.log_max_bytes().unwrap_or(usual.max_bytes),
        max_files: usize::try_from(kubelet.container_log_max_files).unwrap_or(usual.max_files),
    }
}
