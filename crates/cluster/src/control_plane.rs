//! The control plane of a cluster: API server, controllers, scheduler and their dependencies, over
//! one store.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use apiserver::{ObjectCodec, Registry, User};
use client::kube;
use controllers::storageversionmigration;
use lifecycle::{Health, Service};
use parking_lot::Mutex;
use pki::{Leaf, Pki};
use stdx::SystemClock;
use tokio::sync::watch;

use crate::{
    Error, Part, Role, Settings, access,
    addons::Addons,
    addresses::{ServerAddresses, names},
    backup::Backups,
    connector::InProcess,
    corefile::CorefileReport,
    diagnoses::SchedulerDiagnoses,
    elected::{self, Elected, Term},
    founding,
    known_servers::KnownServers,
    marker::Marker,
    skew,
    storage::Storage,
};

/// Ports of every node: SSH, VXLAN, etcd, health and metrics of components, kubelet.
const OF_EVERY_NODE: [u16; 11] = [
    22,
    2379,
    2380,
    4789,
    network::VXLAN_PORT,
    9153,
    10248,
    10249,
    10250,
    10255,
    10256,
];

/// A control plane that is built but does not run yet.
pub(crate) struct ControlPlane {
    pub services: Vec<Arc<dyn Service>>,
    pub pki: Arc<Pki>,
    pub connector: InProcess,
    /// Closed last, after all writers have stopped.
    pub storage: Storage,
    /// A client of the administrator.
    pub admin: kube::Client,
}

impl ControlPlane {
    /// Opens the store and builds everything on it.
    pub(crate) async fn build(
        settings: &Settings,
        role: Role,
        health: &Health,
        current: &watch::Receiver<Settings>,
    ) -> Result<Self, Error> {
        let registry = Registry::builtin_and(&settings.runtime_config);
        let encryption = access::encryption(settings)?;
        let codec = ObjectCodec::new(registry.clone()).with_encryption(encryption);
        skew::check_store(settings).await?;
        let storage = Storage::open(settings, codec).await?;
        founding::ensure(settings, role, &storage).await?;
        founding::refuse_copy(settings, &storage).await?;
        skew::begin(settings, &storage).await?;
        let pki = Arc::new(Pki::ensure_for(
            &settings.data_dir.join("pki"),
            &names(settings, role),
            settings.signing_duration,
        )?);
        write_kubeconfigs(settings, role, &pki)?;
        let apiserver =
            apiserver_config(settings, &pki, health)?.build(storage.store(), registry)?;
        let connector = InProcess(apiserver.clone());
        let diagnoses = scheduler::Diagnoses::default();
        apiserver.set_diagnoses(Arc::new(SchedulerDiagnoses(diagnoses.clone())));
        let admin = connector.as_user(User::new("kubernetes-admin", ["system:masters"]));
        let mut services: Vec<Arc<dyn Service>> = vec![
            apiserver.clone(),
            Arc::new(Backups {
                storage: storage.clone(),
                data_dir: settings.data_dir.clone(),
            }),
            Arc::new(pki::Rotation::new(pki.clone(), Arc::new(SystemClock))),
            Arc::new(ServerAddresses {
                pki: pki.clone(),
                role,
                apiserver,
                current: current.clone(),
            }),
            Arc::new(Addons {
                client: admin.clone(),
                settings: settings.clone(),
                role,
                pki: pki.clone(),
                current: current.clone(),
            }),
        ];
        services.extend(singletons(settings, &pki, &connector, &diagnoses)?);
        if settings.runs(Part::Dns) {
            services.push(Arc::new(CorefileReport {
                client: admin.clone(),
                settings: settings.clone(),
            }));
        }
        if settings.server_name()?.is_some() {
            let (kubeconfigs, data_dir) = (pki.clone(), settings.data_dir.clone());
            let changed = move |servers: &[String]| {
                // The next start writes kubeconfigs before it knows the other servers.
                Marker::update(&data_dir, |marker| marker.servers = servers.to_vec())?;
                Ok(kubeconfigs.set_servers(servers)?)
            };
            services.push(Arc::new(KnownServers {
                client: admin.clone(),
                changed: Box::new(changed),
                after: &["apiserver"],
            }));
        }
        Ok(Self {
            services,
            pki,
            connector,
            storage,
            admin,
        })
    }
}

/// The components that run once in a cluster: on the only server of an embedded store, or on the
/// elected one of several.
fn singletons(
    settings: &Settings,
    pki: &Arc<Pki>,
    connector: &InProcess,
    diagnoses: &scheduler::Diagnoses,
) -> Result<Vec<Arc<dyn Service>>, Error> {
    let controllers = controllers::Config {
        cluster_ca: pki.ca().pem().to_owned(),
        cluster_cidr: settings.cluster_cidr.to_string(),
        node_cidr_masks: settings.node_cidr_masks.clone(),
        authority: Some(controllers::Authority(pki.clone())),
        load_balancer: load_balancer(settings),
        disabled: disabled_controllers(settings),
    };
    let scheduler_user = || User::new("system:kube-scheduler", [""; 0]);
    let mut services: Vec<Arc<dyn Service>> = Vec::new();
    let Some(server) = settings.server_name()? else {
        if settings.runs(Part::Controllers) {
            services.push(Arc::new(controllers.build(Arc::new(connector.clone()))));
        }
        if settings.runs(Part::Scheduler) {
            let client = connector.as_user(scheduler_user());
            let document = settings.scheduler_config.as_ref();
            let config = scheduler_config(client, document, diagnoses);
            services.push(Arc::new(config.build()));
        }
        return Ok(services);
    };
    let elected = |name, lease, user: User, build: Box<elected::Build>| Elected {
        name,
        lease,
        identity: server.clone(),
        user,
        connector: connector.clone(),
        build,
        current: Mutex::default(),
    };
    if settings.runs(Part::Controllers) {
        let user = User::new("system:kube-controller-manager", [""; 0]);
        let build = move |term| Arc::new(controllers.clone().build(Arc::new(term))) as _;
        let lease = "kube-controller-manager";
        let part = elected("controllers", lease, user, Box::new(build));
        services.push(Arc::new(part));
    }
    if settings.runs(Part::Scheduler) {
        let (document, diagnoses) = (settings.scheduler_config.clone(), diagnoses.clone());
        let build = move |term: Term| {
            let client = term.as_user(scheduler_user());
            Arc::new(scheduler_config(client, document.as_ref(), &diagnoses).build()) as _
        };
        let user = scheduler_user();
        let part = elected("scheduler", "kube-scheduler", user, Box::new(build));
        services.push(Arc::new(part));
    }
    Ok(services)
}

/// The configured schedulers; without a configuration the default one.
fn scheduler_config(
    client: kube::Client,
    document: Option<&serde_json::Value>,
    diagnoses: &scheduler::Diagnoses,
) -> scheduler::Config {
    let configured =
        document.and_then(|document| scheduler::Config::configured(client.clone(), document).ok());
    // An invalid document was rejected with the settings.
    scheduler::Config {
        diagnoses: diagnoses.clone(),
        ..configured.unwrap_or_else(|| scheduler::Config::new(client))
    }
}

/// Ports that nodes use themselves are never assigned to a Service.
fn load_balancer(settings: &Settings) -> controllers::loadbalancer::Settings {
    let dns = network::names::dns_port(&settings.id);
    let own = [settings.https_port, settings.kubelet_port, dns];
    let node_ports = settings.node_ports.clone();
    controllers::loadbalancer::Settings {
        pool: settings.load_balancer_pool.clone(),
        reserved_ports: OF_EVERY_NODE
            .into_iter()
            .chain(own)
            .chain(node_ports)
            .collect(),
    }
}

fn disabled_controllers(settings: &Settings) -> Vec<String> {
    let parts = [
        (Part::LoadBalancer, controllers::loadbalancer::NAME),
        (Part::LocalPath, controllers::localpath::NAME),
    ];
    let disabled = parts.into_iter().filter(|(part, _)| !settings.runs(*part));
    let mut disabled: Vec<_> = disabled.map(|(_, name)| name.to_owned()).collect();
    let served = &settings.runtime_config;
    if !served
        .iter()
        .any(|v| v == storageversionmigration::GROUP_VERSION)
    {
        disabled.push(storageversionmigration::NAME.to_owned());
    }
    disabled
}

/// Writes the kubeconfigs of the administrator and the components before the API is served.
fn write_kubeconfigs(settings: &Settings, role: Role, pki: &Pki) -> Result<(), Error> {
    let known = Marker::read(&settings.data_dir)?;
    let servers = known.map(|marker| marker.servers).unwrap_or_default();
    let write = |leaf: Leaf, path: &Path| {
        pki.write_kubeconfig(pki::Kubeconfig {
            leaf,
            path: path.to_owned(),
            server: settings.server_url(),
            servers: servers.clone(),
        })
    };
    write(Leaf::Admin, &settings.data_dir.join("admin.kubeconfig"))?;
    let mut leaves = vec![
        Leaf::Scheduler,
        Leaf::ControllerManager,
        Leaf::KubeProxy,
        Leaf::Dns,
    ];
    leaves.extend((role == Role::Up).then_some(Leaf::Kubelet));
    for leaf in leaves {
        let file = format!("{}.kubeconfig", leaf.file());
        write(leaf, &settings.data_dir.join(file))?;
    }
    if let Some(path) = &settings.kubeconfig_out {
        write(Leaf::Admin, path)?;
    }
    Ok(())
}

fn apiserver_config(
    settings: &Settings,
    pki: &Arc<Pki>,
    health: &Health,
) -> Result<apiserver::Config, Error> {
    // The IPv6 wildcard accepts both families.
    let any: IpAddr = match settings.advertise_address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let services = settings.service_cidr.all().iter();
    Ok(apiserver::Config {
        listen: SocketAddr::new(any, settings.https_port),
        advertise: SocketAddr::new(settings.advertise_address, settings.https_port),
        server_name: settings.server_name()?,
        tls: pki.apiserver_config()?,
        kubelet_tls: Some(Arc::new(pki.client_config(Leaf::ApiserverKubeletClient)?)),
        front_proxy: Some(pki.client_certificate(Leaf::FrontProxyClient)?),
        service_cidrs: services
            .map(|range| (range.network(), range.prefix_len()))
            .collect(),
        node_ports: settings.node_ports.clone(),
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: health.clone(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        name_suffixes: std::sync::Arc::new(apiserver::RandomNameSuffixes),
        token_auth_file: settings.token_auth_file.clone(),
        access: settings.access.clone(),
        audit: settings.audit.clone(),
        admission: settings.admission.clone(),
        tokens: Some(Arc::new(apiserver::authn::Tokens::new(
            pki.clone(),
            &settings.cluster_domain,
            Arc::new(SystemClock),
        ))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn settings(disable: Vec<Part>) -> Settings {
        let options = Options {
            node_name: Some("one".into()),
            node_ip: "192.0.2.1".parse().ok(),
            disable: Some(disable),
            ..Options::default()
        };
        Settings::resolve(options).unwrap()
    }

    #[test]
    fn load_balancers_do_not_get_ports_that_nodes_need() {
        let settings = settings(Vec::new());
        let reserved = load_balancer(&settings).reserved_ports;
        // Packets between nodes, health of the proxy, the API server, the kubelet, node ports.
        for port in [network::VXLAN_PORT, 10256, 6443, 10250, 30000, 32767] {
            assert!(reserved.contains(&port), "{port}");
        }
        assert!(!reserved.contains(&80));
    }

    #[test]
    fn controllers_of_disabled_parts_do_not_run() {
        let optional = storageversionmigration::NAME;
        assert_eq!(disabled_controllers(&settings(Vec::new())), [optional]);
        let disabled = disabled_controllers(&settings(vec![Part::LoadBalancer]));
        assert_eq!(disabled, [controllers::loadbalancer::NAME, optional]);
        let mut migrating = settings(Vec::new());
        migrating.runtime_config = vec![storageversionmigration::GROUP_VERSION.to_owned()];
        assert!(disabled_controllers(&migrating).is_empty());
    }
}
