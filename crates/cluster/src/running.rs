//! A cluster that runs: every part built from the settings, wired to its neighbours, supervised.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use apiserver::{ObjectCodec, Registry, User};
use client::kube::{self, Api};
use k8s_openapi::api::core::v1::Node;
use lifecycle::{Health, Service, Supervisor};
use pki::{Leaf, Pki};
use stdx::SystemClock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Part, Settings,
    addons::Addons,
    addresses::{Addresses, names},
    backup::Backups,
    connector::InProcess,
    host,
    lock::DataLock,
    node,
    storage::Storage,
};

/// How long parts get to end their work at shutdown.
const DRAIN: Duration = Duration::from_secs(20);

/// The version of the Kubernetes API that is served, and ours behind it.
pub const VERSION: &str = concat!("v1.36.4+mainstay-", env!("CARGO_PKG_VERSION"));

/// A running cluster. Dropping it does not stop it; cancelling its token does.
pub struct Running {
    settings: Settings,
    health: Health,
    supervisor: JoinHandle<Vec<&'static str>>,
    admin: kube::Client,
}

impl Running {
    /// Builds everything and starts it; returns before all of it is ready.
    pub async fn up(settings: Settings, shutdown: CancellationToken) -> Result<Self, Error> {
        let lock = DataLock::take(&settings.data_dir)?;
        make_state_directory(&settings.state_dir)?;
        let pki = Arc::new(Pki::ensure(
            &settings.data_dir.join("pki"),
            &names(&settings, host::addresses()),
        )?);
        write_kubeconfigs(&settings, &pki)?;
        let health = Health::default();
        let registry = Registry::builtin();
        let codec = ObjectCodec::new(registry.clone());
        let storage = Storage::open(&settings, codec).await?;
        let apiserver =
            apiserver_config(&settings, &pki, &health)?.build(storage.store(), registry)?;
        let connector = InProcess(apiserver.clone());
        let admin = connector.as_user(User::new("kubernetes-admin", ["system:masters"]));

        let mut services: Vec<Arc<dyn Service>> = vec![
            apiserver,
            Arc::new(Backups {
                storage: storage.clone(),
                data_dir: settings.data_dir.clone(),
            }),
            Arc::new(pki::Rotation::new(pki.clone(), Arc::new(SystemClock))),
            Arc::new(Addresses {
                pki: pki.clone(),
                settings: settings.clone(),
            }),
            Arc::new(Addons {
                client: admin.clone(),
                cluster_dns: settings.cluster_dns(),
            }),
        ];
        if settings.runs(Part::Controllers) {
            let config = controllers::Config {
                cluster_ca: pki.ca().pem().to_owned(),
                cluster_cidr: settings.cluster_cidr.to_string(),
                authority: Some(controllers::Authority(pki.clone())),
                ..controllers::Config::default()
            };
            services.push(Arc::new(config.build(Arc::new(connector.clone()))));
        }
        if settings.runs(Part::Scheduler) {
            let client = connector.as_user(User::new("system:kube-scheduler", [""; 0]));
            services.push(Arc::new(scheduler::Config::new(client).build()));
        }
        services.extend(node::services(&settings, &pki, &connector)?);
        let supervisor = Supervisor::new(services, DRAIN, health.clone())?;
        let run = async move {
            let unfinished = supervisor.run(shutdown).await;
            // The last to go: everybody who writes has stopped.
            storage.close();
            drop(lock);
            unfinished
        };
        let supervisor = tokio::spawn(run);
        Ok(Self {
            settings,
            health,
            supervisor,
            admin,
        })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The parts in the order in which they become ready, each with a line for people.
    pub fn parts(&self) -> Vec<(&'static str, String)> {
        let settings = &self.settings;
        let address = SocketAddr::new(settings.advertise_address, settings.https_port);
        let known = [
            ("apiserver", format!("API server at https://{address}")),
            ("controllers", "controllers".to_owned()),
            ("scheduler", "scheduler".to_owned()),
            ("runtime", "container runtime".to_owned()),
            ("proxy", "service proxy".to_owned()),
            (
                "dns",
                format!(
                    "DNS for {} at {}",
                    settings.cluster_domain,
                    settings.cluster_dns()
                ),
            ),
            ("kubelet", "kubelet".to_owned()),
        ];
        let names: Vec<&str> = self.health.all().iter().map(|health| health.name).collect();
        known
            .into_iter()
            .filter(|(name, _)| names.contains(name))
            .collect()
    }

    /// Waits until this machine's node is Ready.
    pub async fn node_ready(&self) {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let is_ready = |node: Option<&Node>| {
            let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
            conditions
                .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
        };
        let ready = kube::runtime::wait::await_condition(nodes, &self.settings.node_name, is_ready);
        if let Err(error) = ready.await {
            tracing::warn!(%error, "cannot watch the node");
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the end; gives the parts that did not stop in time.
    pub async fn stopped(self) -> Vec<&'static str> {
        self.supervisor.await.unwrap_or_else(|_| vec!["supervisor"])
    }
}

fn make_state_directory(directory: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|source| Error::Directory {
        path: directory.to_owned(),
        source,
    })
}

/// The kubeconfigs of the administrator and of the components are there before the API answers.
fn write_kubeconfigs(settings: &Settings, pki: &Pki) -> Result<(), Error> {
    let server = format!(
        "https://{}",
        SocketAddr::new(settings.advertise_address, settings.https_port)
    );
    let write = |leaf: Leaf, path: &Path| {
        pki.write_kubeconfig(pki::Kubeconfig {
            leaf,
            path: path.to_owned(),
            server: server.clone(),
        })
    };
    write(Leaf::Admin, &settings.data_dir.join("admin.kubeconfig"))?;
    for leaf in [
        Leaf::Scheduler,
        Leaf::ControllerManager,
        Leaf::KubeProxy,
        Leaf::Dns,
        Leaf::Kubelet,
    ] {
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
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let services = settings.service_cidr;
    Ok(apiserver::Config {
        listen: SocketAddr::new(any, settings.https_port),
        advertise: SocketAddr::new(settings.advertise_address, settings.https_port),
        tls: pki.apiserver_config()?,
        kubelet_tls: Some(Arc::new(pki.client_config(Leaf::ApiserverKubeletClient)?)),
        service_cidrs: vec![(services.network(), services.prefix_len())],
        node_ports: settings.node_ports.clone(),
        client_ca: pki.ca().pem().to_owned(),
        front_proxy_ca: pki.front_proxy_ca().pem().to_owned(),
        health: health.clone(),
        clock: Arc::new(SystemClock),
        limits: apiserver::Limits::default(),
        endings: std::sync::Arc::new(apiserver::RandomEndings),
        token_auth_file: settings.token_auth_file.clone(),
        audit: settings.audit.clone(),
        admission: settings.admission.clone(),
        tokens: Some(Arc::new(apiserver::authn::Tokens::new(
            pki.clone(),
            &settings.cluster_domain,
            Arc::new(SystemClock),
        ))),
    })
}
