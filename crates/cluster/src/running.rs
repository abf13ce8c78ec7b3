//! A running cluster: all components built from the settings, connected, and supervised.

use std::{path::Path, sync::Arc, time::Duration};

use client::kube::{self, Api};
use k8s_openapi::api::core::v1::Node as KubeNode;
use lifecycle::{Health, Service, Supervisor};
use stdx::{Backoff, SystemClock};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Role, Settings,
    addresses::HostAddresses,
    agent::{self, Certificates, Join},
    control_plane::ControlPlane,
    known_servers::KnownServers,
    kubelet_root,
    lock::DataLock,
    marker::{self, Marker},
    networks,
    node::Node,
    reset,
    storage::Storage,
};

/// How long components get to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(20);

/// The served Kubernetes API version, followed by ours.
pub fn version() -> String {
    let kubernetes = stdx::Version::own();
    format!("{kubernetes}+mainstay-{}", env!("CARGO_PKG_VERSION"))
}

/// A running cluster. Dropping it does not stop it; cancelling its token does.
pub struct Running {
    role: Role,
    settings: Settings,
    health: Health,
    supervisor: JoinHandle<Vec<&'static str>>,
    /// May read this machine's node.
    viewer: kube::Client,
    /// Of a server.
    kubeconfigs: Option<watch::Receiver<u64>>,
}

/// All components of a run.
struct Parts {
    role: Role,
    settings: Settings,
    services: Vec<Arc<dyn Service>>,
    health: Health,
    lock: DataLock,
    storage: Option<Storage>,
    viewer: kube::Client,
    kubeconfigs: Option<watch::Receiver<u64>>,
}

impl Parts {
    fn start(self, shutdown: CancellationToken) -> Result<Running, Error> {
        let mut drain = DRAIN;
        if self.settings.shutdown_on_stop {
            drain += kubelet::shutdown_period(&self.settings.kubelet.configuration);
        }
        let supervisor = Supervisor::new(self.services, drain, self.health.clone())?;
        let (storage, lock) = (self.storage, self.lock);
        let run = async move {
            let unfinished = supervisor.run(shutdown).await;
            // Last: all writers have stopped.
            if let Some(storage) = storage {
                storage.close();
            }
            drop(lock);
            unfinished
        };
        Ok(Running {
            role: self.role,
            settings: self.settings,
            health: self.health,
            supervisor: tokio::spawn(run),
            viewer: self.viewer,
            kubeconfigs: self.kubeconfigs,
        })
    }
}

impl Running {
    /// A control plane and a node in one process. Returns before everything is ready.
    pub async fn up(settings: Settings, shutdown: CancellationToken) -> Result<Self, Error> {
        let lock = prepare(&settings, Role::Up).await?;
        let health = Health::default();
        let addresses = HostAddresses::new(&settings);
        let current = addresses.current.subscribe();
        let plane = ControlPlane::build(&settings, Role::Up, &health, &current).await?;
        let node = Node::in_process(&settings, &plane)?;
        let mut services = plane.services;
        services.push(addresses);
        services.extend(node.services(&settings, &current)?);
        let running = Parts {
            role: Role::Up,
            settings,
            services,
            health,
            lock,
            storage: Some(plane.storage),
            viewer: plane.admin,
            kubeconfigs: Some(plane.pki.written_kubeconfigs()),
        };
        running.start(shutdown)
    }

    /// A control plane without a node.
    pub async fn server(settings: Settings, shutdown: CancellationToken) -> Result<Self, Error> {
        let lock = prepare(&settings, Role::Server).await?;
        let health = Health::default();
        let addresses = HostAddresses::new(&settings);
        let current = addresses.current.subscribe();
        let plane = ControlPlane::build(&settings, Role::Server, &health, &current).await?;
        let mut services = plane.services;
        services.push(addresses);
        let running = Parts {
            role: Role::Server,
            settings,
            services,
            health,
            lock,
            storage: Some(plane.storage),
            viewer: plane.admin,
            kubeconfigs: Some(plane.pki.written_kubeconfigs()),
        };
        running.start(shutdown)
    }

    /// A node of another cluster; joins first, if it has not before.
    pub async fn agent(
        mut settings: Settings,
        join: &Join,
        shutdown: CancellationToken,
    ) -> Result<Self, Error> {
        let lock = lock(&settings, Role::Agent)?;
        let membership = Arc::new(agent::membership(&settings, join).await?);
        settings.adopt(&membership.facts)?;
        networks::claim(&settings).await?;
        let node = Node::joined(&membership)?;
        let viewer = node.kubelet_client.clone();
        let addresses = HostAddresses::new(&settings);
        let current = addresses.current.subscribe();
        let mut services = node.services(&settings, &current)?;
        services.push(addresses);
        services.push(Arc::new(KnownServers {
            client: node.proxy_client.clone(),
            changed: agent::follow_servers(&settings, &membership),
            after: &[],
        }));
        services.push(Arc::new(Certificates {
            current,
            client: viewer.clone(),
            membership,
            clock: Arc::new(SystemClock),
        }));
        let running = Parts {
            role: Role::Agent,
            settings,
            services,
            health: Health::default(),
            lock,
            storage: None,
            viewer,
            kubeconfigs: None,
        };
        running.start(shutdown)
    }

    pub fn role(&self) -> Role {
        self.role
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes whenever this server has written its administrator's kubeconfig; none of an agent.
    pub fn kubeconfigs(&self) -> Option<watch::Receiver<u64>> {
        self.kubeconfigs.clone()
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The components in the order in which they become ready, each with a line for people.
    pub fn parts(&self) -> Vec<(&'static str, String)> {
        let settings = &self.settings;
        let known = [
            (
                "apiserver",
                format!("API server at {}", settings.server_url()),
            ),
            ("controllers", "controllers".to_owned()),
            ("scheduler", "scheduler".to_owned()),
            ("runtime", "container runtime".to_owned()),
            ("network-policy", "network policies".to_owned()),
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

    /// Waits until the API server has finished its start: its service is ready before the default
    /// roles are written.
    pub async fn api_started(&self) {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            let request = http::Request::get("/livez").body(Vec::new());
            // Static parts make a valid request.
            let Ok(request) = request else { return };
            match self.viewer.request_text(request).await {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "the API server has not finished its start"),
            }
            tokio::time::sleep(backoff.step()).await;
        }
    }

    /// Waits until this machine's node is Ready. The servers may be away when an agent starts.
    pub async fn node_ready(&self) {
        let is_ready = |node: Option<&KubeNode>| node.is_some_and(reconcile::placement::is_ready);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            let nodes: Api<KubeNode> = Api::all(self.viewer.clone());
            let name = &self.settings.node_name;
            match kube::runtime::wait::await_condition(nodes, name, is_ready).await {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "cannot watch the node"),
            }
            tokio::time::sleep(backoff.step()).await;
        }
    }

    /// Waits for the end; returns the components that did not stop in time.
    pub async fn stopped(self) -> Vec<&'static str> {
        self.supervisor.await.unwrap_or_else(|_| vec!["supervisor"])
    }
}

/// Claims the machine: no other daemon runs from the directory, and the cluster's addresses are
/// free.
async fn prepare(settings: &Settings, role: Role) -> Result<DataLock, Error> {
    let lock = lock(settings, role)?;
    if role == Role::Up {
        networks::claim(settings).await?;
    }
    Ok(lock)
}

fn lock(settings: &Settings, role: Role) -> Result<DataLock, Error> {
    let lock = DataLock::take(&settings.data_dir)?;
    marker::check_role(&settings.data_dir, role)?;
    Marker::update(&settings.data_dir, |_| {})?;
    kubelet_root::claim(&settings.data_dir, &settings.kubelet_root)?;
    make_state_directory(&settings.state_dir)?;
    note_cgroup(settings)?;
    Ok(lock)
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

/// Notes the name of the cluster's cgroup for a reset after the data directory was removed.
fn note_cgroup(settings: &Settings) -> Result<(), Error> {
    let marker = Marker::read(&settings.data_dir)?;
    let name = marker::cgroup(&settings.id, marker.as_ref());
    let path = settings.state_dir.join(reset::CGROUP_FILE);
    let noted = std::fs::write(&path, name);
    noted.map_err(|source| Error::Directory { path, source })
}
