//! Pod sandboxes: the namespaces, files and network that a pod's containers share, and the shim
//! that holds them. A sandbox has no process unless its containers share a PID namespace.

mod execs;
mod files;
mod run;
mod status;
mod stop;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::v1::{NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxState};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    disk,
    error::{Error, Result},
    shim::{self, protocol::Pins},
    snapshot::Size,
    spec::PodFiles,
};

use execs::Execs;
pub(crate) use execs::ExpectedExit;

/// One sandbox.
pub(crate) struct Sandbox {
    /// Its id.
    pub id: String,
    /// The CRI configuration.
    pub config: PodSandboxConfig,
    /// Immutable properties.
    pub facts: Facts,
    paths: Paths,
    /// Guards the mutable state; never held across an await.
    state: Mutex<State>,
    /// The connection to its shim.
    shim: Mutex<Option<shim::Client>>,
    /// Exec processes whose exits are waited for.
    pub(crate) execs: Execs,
    /// Held while the sandbox is stopped or removed.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

/// Immutable properties of a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// When it was created, in nanoseconds since 1970.
    pub created_at: i64,
    /// The RuntimeClass handler of its containers.
    pub handler: String,
    /// Its namespaces.
    pub pins: Pins,
    /// The parent cgroup of its containers.
    pub cgroup_parent: String,
    /// Whether this runtime created the parent cgroup and removes it with the sandbox.
    pub owns_cgroup: bool,
}

/// The mutable state of a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// The state.
    pub phase: Phase,
    /// Its addresses, the primary first.
    pub addresses: Vec<IpAddr>,
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It is being created; after a crash it is torn down.
    #[default]
    Creating,
    /// Containers can run in it.
    Ready,
    /// Its network and namespaces were removed.
    Stopped,
}

/// The directories of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// Data that survives a reboot.
    pub root: PathBuf,
    /// Data that does not survive a reboot.
    pub state: PathBuf,
}

impl Paths {
    fn new(config: &Config, id: &str) -> Self {
        Self {
            root: config.root_dir.join("sandboxes").join(id),
            state: config.state_dir.join("s").join(id),
        }
    }

    /// The shim's orders file, which it keeps locked.
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
            self.execs.give_up();
        }
    }

    /// Drops the connection to a dead shim; false if that was expected because the sandbox is being
    /// stopped.
    pub(crate) fn let_go_of_shim(&self) -> bool {
        let had = self.shim.lock().is_some();
        self.set_shim(None);
        had
    }

    /// Its directories.
    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The shared files of its containers.
    pub(crate) fn pod_files(&self) -> PodFiles {
        let host_ipc = self.facts.pins.ipc.is_none();
        let file = |name: &str| {
            let kept = self.paths.root.join(name);
            // An earlier version stored them elsewhere.
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

    /// The disk usage of the shared files.
    pub(crate) fn files_size(&self) -> Size {
        files::size(&self.paths)
    }

    /// Loads a sandbox that an earlier daemon created.
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
            execs: Execs::default(),
            changing: tokio::sync::Mutex::default(),
        }))
    }
}

/// The pod's namespace options.
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

/// The namespaces to create for a pod. A pod in the host network keeps the host's UTS namespace.
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
