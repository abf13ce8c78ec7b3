//! Pod sandboxes: the namespaces, files and network that a pod's containers share, and the shim that
//! holds them. There is no process in a sandbox unless its containers share a PID namespace.

mod files;
mod run;
mod status;
mod stop;

use std::{
    collections::HashMap,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::v1::{NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    config::Config,
    disk,
    error::{Error, Result},
    shim::{
        self,
        protocol::{Exit, Pins},
    },
    snapshot::Size,
    spec::PodFiles,
};

/// One sandbox.
pub(crate) struct Sandbox {
    /// Its id.
    pub id: String,
    /// How it was asked for.
    pub config: PodSandboxConfig,
    /// What does not change.
    pub facts: Facts,
    paths: Paths,
    /// Guards what changes; never held over an await.
    state: Mutex<State>,
    /// The connection to its shim.
    shim: Mutex<Option<shim::Client>>,
    /// Who waits for processes that run in its containers.
    execs: Mutex<HashMap<String, oneshot::Sender<Exit>>>,
    /// Held while it is stopped or removed.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

/// What is known about a sandbox once it exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// When it was made, in nanoseconds since 1970.
    pub created_at: i64,
    /// The runtime handler that its containers use.
    pub handler: String,
    /// Its namespaces.
    pub pins: Pins,
    /// The cgroup that its containers are below.
    pub cgroup_parent: String,
    /// The parent cgroup was made by us and goes with the sandbox.
    pub owns_cgroup: bool,
}

/// What changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// Where it stands.
    pub phase: Phase,
    /// Its addresses, the primary first.
    pub addresses: Vec<IpAddr>,
}

/// Where a sandbox stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It is being made; found after a crash, it is taken down.
    #[default]
    Creating,
    /// Containers can run in it.
    Ready,
    /// Its network and namespaces are gone.
    Stopped,
}

/// Where a sandbox' things are.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// What survives a reboot.
    pub root: PathBuf,
    /// What does not.
    pub state: PathBuf,
}

impl Paths {
    fn new(config: &Config, id: &str) -> Self {
        Self {
            root: config.root_dir.join("sandboxes").join(id),
            state: config.state_dir.join("s").join(id),
        }
    }

    /// The shim's orders, which it keeps locked.
    pub(crate) fn orders(&self) -> PathBuf {
        self.state.join("shim.json")
    }

    /// The shim's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.state.join("shim.sock")
    }
}

impl Sandbox {
    /// Its state now.
    pub(crate) fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Whether containers can run in it.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.lock().phase == Phase::Ready
    }

    fn cri_state(&self) -> PodSandboxState {
        if self.is_ready() && self.shim.lock().is_some() {
            PodSandboxState::SandboxReady
        } else {
            PodSandboxState::SandboxNotready
        }
    }

    fn set_state(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let state = {
            let mut state = self.state.lock();
            change(&mut state);
            state.clone()
        };
        disk::record(&self.paths.root.join("state.json"), &state)
    }

    /// The connection to its shim.
    pub(crate) fn shim(&self) -> Result<shim::Client> {
        self.shim
            .lock()
            .clone()
            .ok_or_else(|| Error::ShimGone(self.id.clone()))
    }

    pub(crate) fn set_shim(&self, client: Option<shim::Client>) {
        *self.shim.lock() = client;
        if self.shim.lock().is_none() {
            self.execs.lock().clear();
        }
    }

    /// Its shim is gone. `false` if that was expected: the sandbox is being stopped.
    pub(crate) fn let_go_of_shim(&self) -> bool {
        let had = self.shim.lock().is_some();
        self.set_shim(None);
        had
    }

    /// Where its things are.
    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The files that its containers see.
    pub(crate) fn pod_files(&self) -> PodFiles {
        let host_ipc = self.facts.pins.ipc.is_none();
        let file = |name: &str| {
            let kept = self.paths.root.join(name);
            // An earlier version has put them elsewhere.
            if kept.exists() {
                kept
            } else {
                self.paths.state.join(name)
            }
        };
        PodFiles {
            hostname: file("hostname"),
            hosts: file("hosts"),
            resolv_conf: file("resolv.conf"),
            shm: if host_ipc {
                "/dev/shm".into()
            } else {
                self.paths.state.join("shm")
            },
        }
    }

    /// What containers may have written to them.
    pub(crate) fn files_size(&self) -> Size {
        files::size(&self.paths)
    }

    /// Waits for a process that is about to run in one of its containers.
    pub(crate) fn expect_exec(&self, exec: &str) -> oneshot::Receiver<Exit> {
        let (sender, receiver) = oneshot::channel();
        self.execs.lock().insert(exec.to_owned(), sender);
        receiver
    }

    /// A process has ended.
    pub(crate) fn settle_exec(&self, exec: &str, exit: Exit) {
        if let Some(sender) = self.execs.lock().remove(exec) {
            let _ = sender.send(exit);
        }
    }

    /// Reads a sandbox that an earlier daemon has made.
    pub(crate) fn load(config: &Config, id: &str) -> Result<Arc<Self>> {
        let paths = Paths::new(config, id);
        let state = disk::load_last(&paths.root.join("state.json"))?;
        Ok(Arc::new(Self {
            id: id.to_owned(),
            config: disk::load_message(&paths.root.join("config.pb"))?,
            facts: disk::load(&paths.root.join("facts.json"))?,
            paths,
            state: Mutex::new(state),
            shim: Mutex::default(),
            execs: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        }))
    }
}

/// What a pod wants to share with the node.
pub(crate) fn namespace_options(config: &PodSandboxConfig) -> NamespaceOption {
    let security = config
        .linux
        .as_ref()
        .and_then(|linux| linux.security_context.as_ref());
    security
        .and_then(|security| security.namespace_options.clone())
        .unwrap_or_default()
}

fn is_node(mode: i32) -> bool {
    mode == i32::from(NamespaceMode::Node)
}

/// The namespaces to make for a pod. A pod in the node's network also keeps the node's host name.
fn pins(options: &NamespaceOption, dir: &Path) -> Pins {
    let own = |wanted: bool, name: &str| wanted.then(|| dir.join(name));
    let own_net = !is_node(options.network);
    Pins {
        net: own(own_net, "net"),
        ipc: own(!is_node(options.ipc), "ipc"),
        uts: own(own_net, "uts"),
        pid: own(options.pid == i32::from(NamespaceMode::Pod), "pid"),
    }
}
