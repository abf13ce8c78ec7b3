//! The kubelet as a service: starts its tasks in order and is ready once the API shows its node as
//! ready.

use std::{sync::Arc, time::Duration};

use client::Informer;
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service as KubeService},
    storage::v1::CSIDriver,
};
use lifecycle::{Context, Outcome, Run, Service};
use reconcile::{Kind, Recorder};
use stdx::{Backoff, Blocking};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use volume::{LinuxMounter, storage};

use crate::{
    Config, Error, Result,
    admit::Admitted,
    cgroups, collect,
    core::Core,
    csi_drivers::Registrar,
    dispatch, enforce,
    events::Events,
    eviction, follow_settings,
    make::apparmor,
    metrics::Metrics,
    node::{cgroup_driver, lease, machine::Machine, register, status},
    own_process, plugins,
    pull_records::PullRecords,
    pulls::Pulls,
    registry::Registry,
    relist, rotate,
    runtime::Runtime,
    server::{self, auth::Auth},
    shutdown,
    sources::Sources,
    static_pods, stats, sweep,
    volumes::{Drivers, NodeHost},
};

/// The directory of plugins' sockets, below the kubelet's root directory.
const PLUGIN_REGISTRY: &str = "plugins_registry";
/// The number of volumes that are set up or removed at a time.
const BLOCKING: usize = 16;
/// How long the start waits for the runtime to report its cgroup driver.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);

/// The kubelet service.
pub struct Kubelet {
    config: Arc<Config>,
}

impl Kubelet {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

impl Service for Kubelet {
    fn name(&self) -> &'static str {
        "kubelet"
    }

    fn after(&self) -> &'static [&'static str] {
        self.config.after
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            // Pods are stopped before the tasks that stop them.
            let token = CancellationToken::new();
            // The tasks stop even if this future is dropped.
            let _guard = token.clone().drop_guard();
            let parts = context.part_with(token);
            let outcome = run(self.config.clone(), &context, &parts).await;
            parts.end().await;
            outcome
        })
    }
}

/// The tasks run in a context of their own, so that they still work while the daemon stops.
async fn run(config: Arc<Config>, stop: &Context, context: &Context) -> Outcome {
    make_directories(&config)?;
    own_process::set(&config.kubelet);
    let drivers = Drivers::default();
    let core = Arc::new(core(&config, context, &drivers));
    // A runtime that does not answer makes the node NotReady, which must be reported soon.
    let _ = tokio::time::timeout(DRIVER_TIMEOUT, cgroup_driver::determine(&core)).await;
    cgroups::ensure_classes(&core.cgroup_root(), core.machine.page_sizes())?;
    let weight = core.admitted.burstable();
    context.spawn(
        "class weights",
        cgroups::follow_weight(core.clone(), weight),
    );
    context.spawn("reservations", enforce::run(core.clone()));
    context.spawn("settings", follow_settings::run(core.clone()));
    if config.kubelet.enable_server {
        let listener = server::bind(&core).await?;
        context.spawn("server", server::serve(core.clone(), listener));
    }
    context.spawn("healthz", server::serve_healthz(core.clone()));

    let node = retry(&config, "cannot register the node", || {
        register::register(&config)
    })
    .await;
    core.events
        .node(Kind::Normal, "Starting", "Starting kubelet.");
    start_volumes(&core, context, &node, drivers).await?;
    let (ready, mut is_ready) = watch::channel(false);
    let (node_uid, owner) = watch::channel(None);
    context.spawn(
        "node status",
        status::run(core.clone(), node, core.nodes.subscribe(), ready, node_uid),
    );
    let holder = core.clone();
    context.spawn("lease", async move { lease::run(&holder, owner).await });

    start_pods(&core, context).await;
    tokio::select! {
        ready = is_ready.wait_for(|ready| *ready) => if ready.is_ok() {
            context.ready();
        },
        () = stop.shutdown() => return Ok(()),
    }
    stop.shutdown().await;
    if config.shutdown_on_stop {
        shutdown::end_pods(&core).await;
    }
    Ok(())
}

fn make_directories(config: &Config) -> Result<()> {
    let root = &config.root_dir;
    let open = [
        root.join("pods"),
        root.join("plugins"),
        root.join(PLUGIN_REGISTRY),
        config.pod_logs_dir.clone(),
        config.container_logs_dir.clone(),
    ];
    for dir in open {
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
    }
    // Secrets of pods are below it, as with upstream.
    use std::os::unix::fs::PermissionsExt;
    let pods = root.join("pods");
    let closed = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(&pods, closed).map_err(Error::io(&pods))?;
    // Pods reach their volumes through mounts; other users of the machine have no access.
    use std::os::unix::fs::DirBuilderExt;
    let dir = &config.local_path_root;
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.map_err(Error::io(dir))
}

/// Volumes of earlier runs are reconstructed before the first pod starts; plugins may register at
/// any time.
async fn start_volumes(
    core: &Arc<Core>,
    context: &Context,
    node: &Node,
    drivers: Drivers,
) -> Result<()> {
    let config = &core.config;
    let status = node.status.clone().unwrap_or_default();
    let in_use = status.volumes_in_use.into_iter().flatten();
    let attached = status.volumes_attached.into_iter().flatten();
    let shown = in_use.chain(attached.map(|volume| volume.name)).collect();
    core.volumes.rebuild(&shown)?;
    context.spawn("volumes", core.volumes.clone().run());
    let registrar = Arc::new(Registrar {
        config: config.clone(),
        drivers,
        volumes: core.volumes.clone(),
        writes: tokio::sync::Mutex::default(),
        metrics: core.metrics.volumes.clone(),
    });
    retry(config, "cannot make the CSINode", || {
        registrar.ensure_csi_node(node)
    })
    .await;
    let handlers: plugins::Handlers = [registrar as Arc<dyn plugins::Handler>].into();
    let registry = config.root_dir.join(PLUGIN_REGISTRY);
    let clock = config.clock.clone();
    context.spawn("plugins", plugins::run(registry, handlers, clock));
    Ok(())
}

/// Starts the pods once both the API's and the runtime's view of them are known.
async fn start_pods(core: &Arc<Core>, context: &Context) {
    let config = &core.config;
    let mine = format!("spec.nodeName={}", config.node_name);
    let pods = Informer::<Pod>::builder(config.client.clone())
        .fields(mine)
        .start(context);
    pods.synced().await;
    core.services.synced().await;
    core.nodes.synced().await;
    let files = static_pods::read_all(core);
    dispatch::begin_with(core, pods.list());
    static_pods::begin_with(core, &files);
    context.spawn("static pods", static_pods::follow(core.clone(), files));
    context.spawn("pods", dispatch::follow_api(core.clone(), pods));
    context.spawn("orphans", relist::run(core.clone()));
    context.spawn("runtime events", dispatch::follow_runtime(core.clone()));
    context.spawn("garbage", collect::run(core.clone()));
    context.spawn("logs", rotate::run(core.clone()));
    context.spawn("sweep", sweep::run(core.clone()));
    context.spawn("eviction", eviction::run(core.clone()));
    context.spawn("shutdown", shutdown::run(core.clone()));
    core.volumes.unstage_idle();
}

fn core(config: &Arc<Config>, context: &Context, drivers: &Drivers) -> Core {
    let client = config.client.clone();
    let recorder = Recorder::from_host(context, client.clone(), "kubelet", &config.node_name);
    let registry = Registry::default();
    let nodes = Informer::<Node>::builder(client.clone())
        .fields(format!("metadata.name={}", config.node_name))
        .start(context);
    let sources = Sources::new(client.clone(), context.clone(), registry.clone());
    let sources = Arc::new(sources);
    let host = NodeHost {
        config: config.clone(),
        nodes: nodes.clone(),
        csi_drivers: Informer::<CSIDriver>::builder(client.clone()).start(context),
        sources: sources.clone(),
        drivers: drivers.clone(),
        blocking: Blocking::new(BLOCKING),
    };
    let volumes = storage::Manager::new(Arc::new(host), config.clock.clone());
    let runtime = cri::connect_within(
        &config.cri_socket,
        config.image_socket.as_deref(),
        config.kubelet.runtime_request_timeout.0,
    );
    let metrics = Metrics::default();
    metrics.count_calls(&runtime.calls);
    volumes.observe(metrics.volumes.clone());
    Core {
        runtime: Runtime {
            client: runtime,
            events: watch::Sender::new(false),
            logs_dir: config.pod_logs_dir.clone(),
            name: Arc::default(),
            driver: Arc::default(),
        },
        events: Events::new(recorder, &config.node_name, context, &config.kubelet),
        sources,
        volumes: Arc::new(volumes),
        services: Informer::<KubeService>::builder(client).start(context),
        nodes,
        admitted: Admitted::default(),
        apparmor: apparmor::host_support(),
        started: config.clock.now(),
        registry,
        uids_at_start: Default::default(),
        machine: Machine::read(&config.root_dir),
        mounter: LinuxMounter,
        blocking: Blocking::new(BLOCKING),
        auth: Auth::new(config),
        stats: stats::Provider::default(),
        metrics,
        pulls: parking_lot::Mutex::new(Arc::new(Pulls::new(&config.kubelet))),
        pull_records: Arc::new(PullRecords::load(&config.root_dir)),
        settings: watch::Sender::new(Arc::new(config.kubelet.clone())),
        evictions: parking_lot::Mutex::default(),
        images_seen: parking_lot::Mutex::default(),
        pressures: watch::Sender::new(Vec::new()),
        shutting_down: watch::Sender::new(false),
        shutdown_times: watch::Sender::default(),
        status_seen: watch::Sender::new(None),
        context: context.clone(),
        config: config.clone(),
    }
}

/// Retries until `attempt` succeeds.
async fn retry<T, F>(config: &Config, what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    let mut known = String::new();
    loop {
        match attempt().await.map_err(|error| error.to_string()) {
            Ok(value) => return value,
            // Servers may be away for hours.
            Err(error) if error == known => debug!(error, "{what}"),
            Err(error) => {
                warn!(error, "{what}, trying again");
                known = error;
            }
        }
        config.clock.sleep(backoff.step()).await;
    }
}
