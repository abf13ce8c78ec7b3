//! The state of the running runtime: sandboxes, containers and event listeners, and tasks that
//! outlive the call that started them. The state is rebuilt from disk and from the shims at every
//! start.

mod events;
mod reattach;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use cri::v1::ContainerEventResponse;
use lifecycle::Context;
use parking_lot::{Mutex, RwLock};
use stdx::{Blocking, TreeUsage, Walks};
use tokio::sync::{Semaphore, broadcast, oneshot};

use crate::{
    base_mounts::BaseMounts,
    config::Config,
    container::{ALL_OUTPUT, Container},
    error::{Error, Result},
    images::Images,
    reexec::Program,
    sandbox::Sandbox,
    shim::{self, Zygote},
    snapshot::Snapshots,
    streams::Streams,
};

/// How many events a slow listener may lag behind.
const EVENT_BACKLOG: usize = 1024;

/// The number of calls that do blocking work at a time.
const BLOCKING: usize = 16;

/// The state of a running runtime.
pub(crate) struct Engine {
    /// The configuration.
    pub config: Config,
    pub(crate) program: Program,
    /// The process that shims are forked from.
    pub(crate) zygote: Zygote,
    /// The node's image store.
    pub images: Arc<Images>,
    /// How root file systems of containers are made.
    pub(crate) snapshots: Snapshots,
    /// The mount namespace that containers are created from, if it could be made.
    pub(crate) base_mounts: Option<BaseMounts>,
    /// Whether a container was created from the node's mounts instead.
    pub(crate) has_been_slow: AtomicBool,
    context: Context,
    blocking: Blocking,
    pub(crate) streams: Streams,
    /// By id; the lock guards only the map.
    pub(crate) sandboxes: RwLock<BTreeMap<String, Arc<Sandbox>>>,
    /// By id; the lock guards only the map.
    pub(crate) containers: RwLock<BTreeMap<String, Arc<Container>>>,
    pub(crate) events: broadcast::Sender<ContainerEventResponse>,
    /// Held while an event's statuses are read and sent, so that events are in the order of their
    /// statuses.
    announcing: Mutex<()>,
    /// The bytes of output that commands may still keep.
    pub(crate) exec_output: Semaphore,
    /// The lowest `oom_score_adj` that this process may set, if it is limited.
    pub(crate) lowest_oom_score: Option<i32>,
    /// The disk usage of blobs and layers.
    pub(crate) images_size: [TreeUsage; 2],
    /// Walks through trees that take long.
    pub(crate) walks: Walks,
    /// How many threads enter network namespaces at a time for port-forwards.
    pub(crate) entering: Semaphore,
}

impl Engine {
    /// Opens the stores and takes over sandboxes and containers of earlier daemons.
    pub(crate) async fn start(config: Config, context: Context) -> Result<Arc<Self>> {
        for dir in ["sandboxes", "containers"] {
            let path = config.root_dir.join(dir);
            std::fs::create_dir_all(&path).map_err(Error::file(&path))?;
        }
        std::fs::create_dir_all(&config.state_dir).map_err(Error::file(&config.state_dir))?;
        let images = Images::open(config.root_dir.clone())?;
        let images = Arc::new(images.with_limits(config.image_limits));
        let snapshots = config.snapshots.settle(&config.root_dir);
        let program = tokio::task::spawn_blocking(Program::seal)
            .await
            .map_err(|_| Error::Shim("sealing the program panicked".into()))?
            .map_err(Error::system("seal a copy of the program"))?;
        let base_mounts = BaseMounts::make(&config).inspect_err(
            |error| tracing::warn!(%error, "containers are created from the node's mounts, which is slower"),
        );
        let engine = Arc::new(Self {
            program,
            zygote: Zygote::default(),
            base_mounts: base_mounts.ok(),
            has_been_slow: AtomicBool::default(),
            images,
            snapshots,
            context,
            blocking: Blocking::new(BLOCKING),
            streams: Streams::default(),
            sandboxes: RwLock::default(),
            containers: RwLock::default(),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            announcing: Mutex::default(),
            exec_output: Semaphore::new(ALL_OUTPUT),
            lowest_oom_score: lowest_oom_score(),
            images_size: Default::default(),
            walks: Walks::default(),
            entering: Semaphore::new(BLOCKING),
            config,
        });
        engine.reattach().await?;
        Ok(engine)
    }

    pub(crate) fn token(&self) -> tokio_util::sync::CancellationToken {
        self.context.token()
    }

    /// The state directory of OCI runtimes.
    pub(crate) fn oci_root(&self) -> PathBuf {
        self.config.state_dir.join("oci")
    }

    /// A sandbox by its id or a unique prefix.
    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        by_prefix(&self.sandboxes.read(), id).ok_or_else(|| Error::NoSandbox(id.to_owned()))
    }

    /// A container by its id or a unique prefix.
    pub(crate) fn container(&self, id: &str) -> Result<Arc<Container>> {
        by_prefix(&self.containers.read(), id).ok_or_else(|| Error::NoContainer(id.to_owned()))
    }

    /// Every container of a sandbox.
    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        let containers = self.containers.read();
        containers
            .values()
            .filter(|c| c.facts.sandbox == sandbox)
            .cloned()
            .collect()
    }

    /// Runs a task that ends with the runtime.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.context.spawn(name, task);
    }

    /// Runs blocking work on a blocking thread, a few at a time.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let done = self.blocking.run(work).await;
        done.map_err(|_| Error::Shim("a task panicked".into()))
    }

    /// Runs work to its end even if the caller disconnects.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.context.spawn_draining("call", async move {
            let _ = sender.send(work.await);
        });
        receiver
            .await
            .map_err(|_| Error::Shim("the call panicked".into()))?
    }

    /// Connects to a sandbox' shim and handles its notices.
    pub(crate) async fn connect_shim(
        self: &Arc<Self>,
        sandbox: &Arc<Sandbox>,
    ) -> Result<Vec<shim::protocol::HeldContainer>> {
        let client = shim::Client::connect(&sandbox.id, &sandbox.paths().socket()).await?;
        sandbox.set_shim(Some(client.clone()));
        let (engine, of, listener) = (self.clone(), sandbox.clone(), client.clone());
        self.context.spawn("shim", async move {
            listener.listen(|notice| engine.noticed(&of, notice)).await;
            engine.shim_lost(&of).await;
        });
        let (_, held) = client
            .hello()
            .await
            .inspect_err(|_| sandbox.set_shim(None))?;
        Ok(held)
    }

    fn noticed(self: &Arc<Self>, sandbox: &Sandbox, notice: shim::Notice) {
        match notice {
            shim::Notice::ExecExited { exec, exit } => sandbox.execs.ended(&exec, exit),
            shim::Notice::Exited { container, exit } => {
                let Ok(container) = self.container(&container) else {
                    return;
                };
                let was_running = container.is_running();
                if container.record_exit(exit) {
                    self.sweep(&container);
                    // If it ended before its start was recorded, the start sends both events.
                    if was_running {
                        let stopped = cri::v1::ContainerEventType::ContainerStoppedEvent;
                        self.announce(&container, stopped);
                    }
                }
            }
        }
    }

    /// Removes the cgroup of an ended container, so that its pod's can be removed.
    fn sweep(&self, container: &Container) {
        let cgroup = crate::cgroup::Cgroup::new(&container.facts.cgroup);
        let blocking = self.blocking.clone();
        self.context.spawn_draining("sweep", async move {
            let remove = move || cgroup.remove_within(Duration::from_secs(1));
            let _ = blocking.run(remove).await;
        });
    }

    /// Handles a shim that died: its containers are killed, since their streams are lost.
    async fn shim_lost(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        if !sandbox.let_go_of_shim() || !sandbox.is_ready() {
            return;
        }
        tracing::warn!(sandbox = sandbox.id, "shim lost");
        self.bury(sandbox).await;
    }

    /// Kills and marks the containers of a sandbox that has no shim.
    pub(crate) async fn bury(self: &Arc<Self>, sandbox: &Sandbox) {
        for container in self.containers_of(&sandbox.id) {
            let cgroup = crate::cgroup::Cgroup::new(&container.facts.cgroup);
            let _ = self
                .blocking(move || cgroup.kill_all(Duration::from_secs(5)))
                .await;
            if container.lose(crate::stamp::now()) {
                self.announce(
                    &container,
                    cri::v1::ContainerEventType::ContainerStoppedEvent,
                );
            }
        }
    }
}

fn by_prefix<T: Clone>(map: &BTreeMap<String, T>, id: &str) -> Option<T> {
    if id.is_empty() {
        return None;
    }
    let mut found = map
        .range(id.to_owned()..)
        .take_while(|(key, _)| key.starts_with(id));
    let (key, value) = found.next()?;
    (key == id || found.next().is_none()).then(|| value.clone())
}

/// Without CAP_SYS_RESOURCE a process can only raise the score above its own.
fn lowest_oom_score() -> Option<i32> {
    let may = caps::has_cap(
        None,
        caps::CapSet::Effective,
        caps::Capability::CAP_SYS_RESOURCE,
    );
    if may.unwrap_or(false) {
        return None;
    }
    let own = std::fs::read_to_string("/proc/self/oom_score_adj")
        .ok()?
        .trim()
        .parse()
        .ok()?;
    tracing::warn!(
        own,
        "no CAP_SYS_RESOURCE: OOM scores of containers cannot be lower than ours"
    );
    Some(own)
}
