//! The parts of a node: runtime, network, proxy, DNS, kubelet.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use apiserver::User;
use lifecycle::Service;
use network::nft::Nft;
use pki::Pki;
use tokio::sync::watch;

use crate::{Error, Part, Settings, connector::InProcess, running::VERSION};

/// Largest packet between nodes where the machine does not say otherwise.
const MTU: u32 = 1500;

/// Where the machine's own resolvers stand.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Builds the node's services.
pub fn services(
    settings: &Settings,
    pki: &Arc<Pki>,
    connector: &InProcess,
) -> Result<Vec<Arc<dyn Service>>, Error> {
    let nft = Nft::new();
    let dns_listener = SocketAddr::new(settings.node_ip, network::names::dns_port(&settings.id));
    let network = network::Config {
        id: settings.id.clone(),
        state_dir: settings.state_dir.join("network"),
        cluster_cidrs: vec![settings.cluster_cidr],
        service_cidrs: vec![settings.service_cidr],
        node_ips: vec![settings.node_ip],
        mtu: MTU,
    };
    let network = network.build(nft.clone())?;
    let mut services: Vec<Arc<dyn Service>> = vec![network.clone()];
    let socket = match &settings.container_runtime_endpoint {
        Some(path) => path.clone(),
        None => {
            let mut config = runtime::Config::new(&settings.id, settings.data_dir.clone(), network);
            config.socket = settings.cri_socket.clone();
            services.push(config.build()?);
            settings.cri_socket.clone()
        }
    };
    let (peers, nodes) = watch::channel(Vec::new());
    if settings.runs(Part::Proxy) {
        let dns = settings.runs(Part::Dns).then(|| proxy::DnsRedirect {
            cluster_dns: vec![settings.cluster_dns()],
            listeners: vec![dns_listener],
        });
        let config = proxy::Config {
            id: settings.id.clone(),
            client: connector.as_user(User::new("system:kube-proxy", [""; 0])),
            node_name: settings.node_name.clone(),
            cluster_cidrs: vec![settings.cluster_cidr],
            service_cidrs: vec![settings.service_cidr],
            dns,
            allow_external_ips: false,
            peers: Some(peers),
        };
        services.push(config.build(nft.clone()));
        let routes = network::routes::Config {
            id: settings.id.clone(),
            cluster: pki.ca().public_key_hash(),
            node_name: settings.node_name.clone(),
            node_ips: vec![settings.node_ip],
            cluster_cidrs: vec![settings.cluster_cidr],
            mtu: MTU,
        };
        services.push(routes.build(nft, nodes));
    }
    if settings.runs(Part::Dns) {
        let client = connector.as_user(User::new("system:mainstay:dns", [""; 0]));
        let config = dns::Config {
            client,
            listen: vec![dns_listener],
            cluster_domain: settings.cluster_domain.clone(),
            cluster_dns: vec![settings.cluster_dns()],
            own_ranges: vec![settings.cluster_cidr, settings.service_cidr],
            resolv_conf: RESOLV_CONF.into(),
        };
        services.push(config.build()?);
    }
    services.push(kubelet(settings, pki, connector, socket)?);
    Ok(services)
}

fn kubelet(
    settings: &Settings,
    pki: &Pki,
    connector: &InProcess,
    socket: PathBuf,
) -> Result<Arc<dyn Service>, Error> {
    let user = User::new(
        format!("system:node:{}", settings.node_name),
        ["system:nodes"],
    );
    let mut config = kubelet::Config::new(
        &settings.node_name,
        settings.node_ip,
        connector.as_user(user),
        socket,
        &settings.data_dir,
        pki.kubelet_config()?,
    );
    config.port = settings.kubelet_port;
    config.cluster_dns = vec![settings.cluster_dns()];
    config.cluster_domain = settings.cluster_domain.clone();
    config.cgroup_root = format!("/mainstay-{}", settings.id);
    config.resolv_conf = RESOLV_CONF.into();
    config.version = VERSION.to_owned();
    config.after = match settings.container_runtime_endpoint {
        Some(_) => &["apiserver"],
        None => &["apiserver", "runtime"],
    };
    Ok(config.build())
}
