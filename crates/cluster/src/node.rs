//! The components of a node: runtime, network, proxy, DNS, kubelet. They are the same in the
//! control plane's process and on a separate machine; only their clients differ.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use apiserver::User;
use client::kube;
use kubelet::configuration::KubeletConfiguration;
use lifecycle::Service;
use network::{CniConfig, PerSandbox, PodNetwork, RoutedNetwork, cni_plugin::CniServer, nft::Nft};
use stdx::SystemClock;
use tokio::sync::watch;

use crate::{
    Error, Part, Settings,
    addresses::{NodeAddresses, Rebuilt},
    agent::{self, Membership},
    cni,
    control_plane::ControlPlane,
    kubelet_root,
    marker::{self, Marker},
    peers::Peers,
    resolver::resolv_conf,
    running::version,
    settings::DATA_DIR,
};

/// The default MTU between nodes.
const MTU: u32 = 1500;

/// The ports of kube-proxy's health and metrics.
const PROXY_HEALTH_PORT: u16 = 10256;
const PROXY_METRICS_PORT: u16 = 10249;
/// CoreDNS' port.
const DNS_METRICS_PORT: u16 = 9153;

/// The usual directory of log shippers. A node with another data directory keeps its logs there.
pub(crate) const POD_LOGS_DIR: &str = "/var/log/pods";

/// The dependencies of a node beside its settings.
#[derive(Clone)]
pub(crate) struct Node {
    /// `system:node:NAME`.
    pub kubelet_client: kube::Client,
    /// `system:node-proxy:NAME`: reads what proxy, DNS and routes need.
    pub proxy_client: kube::Client,
    /// The kubelet's TLS configuration.
    pub serving: Arc<rustls::ServerConfig>,
    /// The kubelet's certificates, for its metrics.
    pub certificates: kubelet::Certificates,
    /// The cluster's CA, as PEM.
    pub authority: Vec<u8>,
    /// An ID shared by all nodes of the cluster: the hash of its CA.
    pub cluster: String,
    /// Whether the kubelet starts after the API server.
    pub with_apiserver: bool,
}

impl Node {
    /// In the control plane's process, by function calls.
    pub(crate) fn in_process(settings: &Settings, plane: &ControlPlane) -> Result<Self, Error> {
        let name = &settings.node_name;
        let proxy = User::new(format!("system:node-proxy:{name}"), ["system:node-proxies"]);
        Ok(Self {
            kubelet_client: plane.connector.as_node(name, settings.node_ip),
            proxy_client: plane.connector.as_user(proxy),
            serving: plane.pki.kubelet_config()?,
            certificates: kubelet::Certificates {
                client: match plane.pki.issued(pki::Leaf::Kubelet) {
                    Ok(issued) => Some(issued.clone()),
                    Err(_) => None,
                },
                serving: Some(plane.pki.issued(pki::Leaf::KubeletServing)?.clone()),
            },
            authority: plane.pki.ca().pem().as_bytes().to_vec(),
            cluster: plane.pki.ca().public_key_hash(),
            with_apiserver: true,
        })
    }

    /// On a machine that has joined a cluster.
    pub(crate) fn joined(membership: &Membership) -> Result<Self, Error> {
        let ca = membership.ca.as_bytes();
        Ok(Self {
            kubelet_client: membership.client(&membership.kubelet)?,
            proxy_client: membership.client(&membership.proxy)?,
            serving: Arc::new(membership.serving.server_config(ca)?),
            certificates: kubelet::Certificates {
                client: Some(membership.kubelet.clone()),
                serving: Some(membership.serving.clone()),
            },
            authority: ca.to_vec(),
            cluster: pki::public_key_hash(ca)?,
            with_apiserver: false,
        })
    }

    /// Builds the node's services.
    pub(crate) fn services(
        &self,
        settings: &Settings,
        current: &watch::Receiver<Settings>,
    ) -> Result<Vec<Arc<dyn Service>>, Error> {
        let nft = Nft::new();
        let marker = Marker::read(&settings.data_dir)?;
        let cgroup_root = format!("/{}", marker::cgroup(&settings.id, marker.as_ref()));
        let mut services: Vec<Arc<dyn Service>> = Vec::new();
        let (network, routed) = pod_network(settings, &nft, &mut services)?;
        let network = self.with_policies(settings, network, &nft, &mut services);
        let network = PerSandbox::new(network);
        let (kubelet_ips, node_ip_changes) = watch::channel(settings.node_ips());
        services.push(Arc::new(NodeAddresses {
            routed: routed.clone(),
            kubelet: kubelet_ips,
            current: current.clone(),
        }));
        let (peers, nodes) = watch::channel(None);
        let socket = match &settings.container_runtime_endpoint {
            Some(path) => {
                // The runtime connects pods by calling this binary as a CNI plugin.
                services.extend(routed.map(|routed| {
                    Arc::new(CniServer {
                        socket: cni::socket(&settings.state_dir),
                        network,
                        routed,
                        nodes: nodes.clone(),
                        node_name: settings.node_name.clone(),
                    }) as Arc<dyn Service>
                }));
                path.clone()
            }
            None => {
                let mut config =
                    runtime::Config::new(&settings.id, settings.data_dir.clone(), network);
                config.socket = settings.cri_socket.clone();
                config.cgroup_root.clone_from(&cgroup_root);
                config.handlers = settings.runtime_handlers.clone();
                config.image_dirs.extend(settings.image_dir.clone());
                config.registries = settings.registries.clone();
                config.log_limits = log_limits(&settings.kubelet.configuration);
                config.systemd_cgroups = settings.kubelet.configuration.cgroup_driver == "systemd";
                services.push(config.build()?);
                settings.cri_socket.clone()
            }
        };
        // CNI plugins make their own routes between nodes.
        if settings.cni.is_none() {
            services.push(Arc::new(Peers {
                client: self.proxy_client.clone(),
                peers,
            }));
            let (node, nft) = (self.clone(), nft.clone());
            let build = move |settings: &Settings| -> Result<Arc<dyn Service>, Error> {
                Ok(node.routes(settings).build(nft.clone(), nodes.clone()))
            };
            services.push(Rebuilt::new(current.clone(), Box::new(build))?);
        }
        if settings.runs(Part::Proxy) {
            let node = self.clone();
            let build = move |settings: &Settings| -> Result<Arc<dyn Service>, Error> {
                Ok(node.proxy(settings).build(nft.clone()))
            };
            services.push(Rebuilt::new(current.clone(), Box::new(build))?);
        }
        if settings.runs(Part::Dns) {
            let node = self.clone();
            let build = move |settings: &Settings| -> Result<Arc<dyn Service>, Error> {
                Ok(node.dns(settings).build()?)
            };
            services.push(Rebuilt::new(current.clone(), Box::new(build))?);
        }
        kubelet_root::share(&settings.kubelet_root)?;
        services.push(self.kubelet(settings, cgroup_root, socket, node_ip_changes));
        Ok(services)
    }

    fn dns(&self, settings: &Settings) -> dns::Config {
        dns::Config {
            client: self.proxy_client.clone(),
            // The API server in the same process has its own store.
            saved: (!self.with_apiserver).then(|| agent::saved_names(&settings.data_dir)),
            listen: dns_listeners(settings),
            holder: Some(dns_holder(&settings.state_dir)),
            metrics: Some(SocketAddr::new(settings.node_ip, DNS_METRICS_PORT)),
            cluster_domain: settings.cluster_domain.clone(),
            cluster_dns: settings.all_cluster_dns(),
            own_ranges: [settings.cluster_cidr.all(), settings.service_cidr.all()].concat(),
            resolv_conf: resolv_conf(),
            clock: Arc::new(SystemClock),
        }
    }

    /// Containers of a pod start only when its network policies are in place.
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
        // An external runtime connects pods itself: their addresses come only from the API.
        Arc::new(policy::Gated { network, enforcer })
    }

    fn proxy(&self, settings: &Settings) -> proxy::Config {
        let dns = settings.runs(Part::Dns).then(|| proxy::DnsRedirect {
            cluster_dns: settings.all_cluster_dns(),
            listeners: dns_listeners(settings),
        });
        proxy::Config {
            id: settings.id.clone(),
            client: self.proxy_client.clone(),
            node_name: settings.node_name.clone(),
            cluster_cidrs: settings.cluster_cidr.all().to_vec(),
            service_cidrs: settings.service_cidr.all().to_vec(),
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
            node_ips: settings.node_ips(),
            node_port_addresses: settings.proxy.node_port_addresses.clone(),
            clock: Arc::new(SystemClock),
        }
    }

    fn routes(&self, settings: &Settings) -> network::routes::Config {
        network::routes::Config {
            id: settings.id.clone(),
            cluster: self.cluster.clone(),
            node_name: settings.node_name.clone(),
            node_ips: settings.node_ips(),
            cluster_cidrs: settings.cluster_cidr.all().to_vec(),
            mtu: MTU,
        }
    }

    fn kubelet(
        &self,
        settings: &Settings,
        cgroup_root: String,
        socket: PathBuf,
        node_ip_changes: watch::Receiver<Vec<IpAddr>>,
    ) -> Arc<dyn Service> {
        let mut config = kubelet::Config::new(
            &settings.node_name,
            settings.node_ip,
            self.kubelet_client.clone(),
            socket,
            &settings.data_dir,
            self.serving.clone(),
        );
        config.client_ca.clone_from(&self.authority);
        config.certificates = self.certificates.clone();
        config.node_ips = settings.node_ips();
        config.node_ip_changes = Some(node_ip_changes);
        config.port = settings.kubelet_port;
        config.root_dir.clone_from(&settings.kubelet_root);
        config.cluster_dns = vec![settings.cluster_dns()];
        config.cluster_domain = settings.cluster_domain.clone();
        config.cgroup_root = cgroup_root;
        config.resolv_conf = resolv_conf();
        config.shutdown_on_stop = settings.shutdown_on_stop;
        config.kubelet_sources = settings.kubelet.sources.clone();
        if settings.data_dir == Path::new(DATA_DIR) {
            keep_logs_at(&mut config, POD_LOGS_DIR.into());
        }
        apply(&mut config, settings.kubelet.configuration.clone());
        // A flag takes precedence over the file.
        if settings.static_pod_path.is_some() {
            config.static_pods_dir = settings.static_pod_path.clone();
        }
        config.allowed_unsafe_sysctls = settings.allowed_unsafe_sysctls.clone();
        config.version = version();
        config.cloud = kubelet::Cloud {
            is_external: settings.cloud.is_external,
            provider_id: settings.cloud.provider_id.clone(),
            given_ip: settings.cloud.given_ip,
        };
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

/// The addresses of the cluster's DNS on this node.
fn dns_listeners(settings: &Settings) -> Vec<SocketAddr> {
    let port = network::names::dns_port(&settings.id);
    let ips = settings.node_ips().into_iter();
    ips.map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Where the process listens that keeps the sockets of the DNS while the daemon is away.
pub(crate) fn dns_holder(state_dir: &Path) -> PathBuf {
    state_dir.join("dns-sockets")
}

/// The network of pods, and the same when it is the built-in one.
type Networks = (Arc<dyn PodNetwork>, Option<Arc<RoutedNetwork>>);

/// The built-in network, or that of CNI plugins.
fn pod_network(
    settings: &Settings,
    nft: &Nft,
    services: &mut Vec<Arc<dyn Service>>,
) -> Result<Networks, Error> {
    if let Some(cni) = &settings.cni {
        let config = CniConfig {
            conf_dir: cni.conf_dir.clone(),
            bin_dirs: cni.bin_dirs.clone(),
            state_dir: settings.data_dir.join("cni"),
        };
        return Ok((config.build()?, None));
    }
    let config = network::Config {
        id: settings.id.clone(),
        state_dir: settings.state_dir.join("network"),
        cluster_cidrs: settings.cluster_cidr.all().to_vec(),
        service_cidrs: settings.service_cidr.all().to_vec(),
        node_ips: settings.node_ips(),
        mtu: MTU,
    };
    let network = config.build(nft.clone())?;
    services.push(network.clone());
    Ok((network.clone(), Some(network)))
}

/// Keeps containers' logs in a directory that may be shared.
fn keep_logs_at(config: &mut kubelet::Config, path: PathBuf) {
    config.container_logs_dir = path.with_file_name("containers");
    config.pod_logs_dir = path;
    config.shares_pod_logs_dir = true;
}

/// Applies a KubeletConfiguration.
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
        keep_logs_at(config, path);
    }
    config.node_taints = kubelet.register_with_taints.clone();
    if !kubelet.cluster_dns.is_empty() {
        let servers = kubelet.cluster_dns.iter();
        config.cluster_dns = servers.filter_map(|server| server.parse().ok()).collect();
    }
    if !kubelet.cluster_domain.is_empty() {
        config.cluster_domain = kubelet.cluster_domain.clone();
    }
    if !kubelet.cgroup_root.is_empty() {
        config.cgroup_root = kubelet.cgroup_root.clone();
    }
    if let Ok(address) = kubelet.address.parse() {
        config.listen = address;
    }
    config.image_socket = kubelet.image_socket();
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
