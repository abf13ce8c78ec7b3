//! Containers of a sandbox: their records on disk, their state and their CRI status.

mod create;
mod exec;
mod remove;
mod start;
mod status;
mod stop;
mod update;

use std::{path::PathBuf, sync::Arc};

use cri::v1::{ContainerConfig, LinuxContainerResources};
pub(crate) use exec::{ALL_OUTPUT, Process};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    config::Config,
    disk,
    error::Result,
    shim::protocol::{EXIT_FILE, Exit},
    snapshot::{Measured, Size, Sizing},
    spec::Identity,
};

/// One container.
pub(crate) struct Container {
    /// Its id.
    pub id: String,
    /// The CRI configuration.
    pub config: ContainerConfig,
    /// Immutable properties.
    pub facts: Facts,
    /// The current status, watched by callers that wait for its end.
    status: watch::Sender<Status>,
    dir: PathBuf,
    /// Resources after the last update, if there was one.
    limits: Mutex<Option<LinuxContainerResources>>,
    /// Its disk usage.
    measured: Measured,
    /// Held while the container is started, changed or removed.
    changing: tokio::sync::Mutex<()>,
}

/// Immutable properties of a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The sandbox of the container.
    pub sandbox: String,
    /// When it was created, in nanoseconds since 1970.
    pub created_at: i64,
    /// The image's id.
    pub image_id: String,
    /// A pullable reference of the image, or its id.
    pub image_ref: String,
    /// The image layers that it uses.
    pub layers: Vec<String>,
    /// Its cgroup.
    pub cgroup: String,
    /// The path of its log, if it has one.
    pub log: Option<PathBuf>,
    /// The user and groups of its process.
    pub identity: Identity,
    /// Whether other processes survive the first one (a shared PID namespace).
    pub shares_pids: bool,
    /// The number of the stop signal.
    pub stop_signal: i32,
    /// The OCI runtime, if not the built-in one.
    pub oci_runtime: Option<PathBuf>,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It is being created; after a crash it is removed.
    #[default]
    Creating,
    /// It can be started.
    Created,
    /// Its process is being started, or runs.
    Running,
    /// Its process has ended.
    Exited,
}

/// The mutable state of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The state.
    pub phase: Phase,
    /// The host pid of its first process.
    pub pid: i32,
    /// When it was started.
    pub started_at: i64,
    /// When it ended.
    pub finished_at: i64,
    /// The exit code.
    pub exit_code: i32,
    /// The reason, such as `OOMKilled`.
    pub reason: String,
    /// The message.
    pub message: String,
}

impl Status {
    /// The status after its process has ended.
    pub(crate) fn exited(&self, exit: Exit) -> Self {
        let reason = match (exit.oom, exit.code) {
            (true, _) => "OOMKilled",
            (false, 0) => "Completed",
            (false, _) => "Error",
        };
        Self {
            phase: Phase::Exited,
            finished_at: exit.finished_at,
            exit_code: exit.code,
            reason: reason.to_owned(),
            ..self.clone()
        }
    }

    /// The status of a container whose shim died, so that its exit code is unknown.
    pub(crate) fn lost(&self, now: i64) -> Self {
        Self {
            phase: Phase::Exited,
            finished_at: now,
            exit_code: 137,
            reason: "ContainerStatusUnknown".to_owned(),
            message: "The container could not be located when its shim was lost".to_owned(),
            ..self.clone()
        }
    }
}

impl Container {
    /// The usage of its writable layer, possibly cached.
    pub(crate) fn written(&self, sizing: &Sizing) -> Size {
        self.measured.written(&self.dir, sizing)
    }

    /// Everything that it uses on the node's disk, possibly cached.
    pub(crate) fn taken(&self, sizing: &Sizing) -> Size {
        self.measured.taken(&self.dir, sizing)
    }

    /// Its status now.
    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Whether its process runs.
    pub(crate) fn is_running(&self) -> bool {
        self.status.borrow().phase == Phase::Running
    }

    /// Waits until it is not running.
    pub(crate) async fn ended(&self) {
        let mut status = self.status.subscribe();
        // The sender lives as long as the container, which is borrowed here.
        let _ = status
            .wait_for(|status| status.phase != Phase::Running)
            .await;
    }

    /// Persists the new status, then publishes it.
    fn set_status(&self, status: Status) -> Result<()> {
        let saved = disk::record(&self.dir.join("status.json"), &status);
        self.status.send_replace(status);
        saved
    }

    /// Records the exit of its process; false if it was recorded before.
    pub(crate) fn record_exit(&self, exit: Exit) -> bool {
        let status = self.status();
        if status.phase == Phase::Exited {
            return false;
        }
        if let Err(error) = self.set_status(status.exited(exit)) {
            tracing::warn!(container = self.id, %error, "cannot record container exit status");
        }
        true
    }

    /// Records the loss of its shim; false if the container had ended before.
    pub(crate) fn lose(&self, now: i64) -> bool {
        let status = self.status();
        if status.phase != Phase::Running {
            return false;
        }
        // The shim may have written the exit record just before it died.
        let status = match disk::load::<Exit>(&self.dir.join(EXIT_FILE)) {
            Ok(exit) => status.exited(exit),
            Err(_) => status.lost(now),
        };
        if let Err(error) = self.set_status(status) {
            tracing::warn!(container = self.id, %error, "cannot record lost container");
        }
        true
    }

    /// The shim reports that it runs: a daemon that crashed may not have recorded that.
    pub(crate) fn adopt(&self, pid: i32, started_at: i64) {
        let status = self.status();
        if status.pid == pid && status.phase == Phase::Running {
            return;
        }
        let running = Status {
            phase: Phase::Running,
            pid,
            started_at,
            ..status
        };
        if let Err(error) = self.set_status(running) {
            tracing::warn!(container = self.id, %error, "cannot record adopted container");
        }
    }

    /// Loads a container that an earlier daemon created.
    pub(crate) fn load(config: &Config, id: &str) -> Result<Arc<Self>> {
        let dir = dir(config, id);
        let status = disk::load_last(&dir.join("status.json"))?;
        Ok(Arc::new(Self {
            id: id.to_owned(),
            config: disk::load_message(&dir.join("config.pb"))?,
            facts: disk::load(&dir.join("facts.json"))?,
            status: watch::Sender::new(status),
            limits: Mutex::new(disk::load_message(&dir.join(update::FILE)).ok()),
            dir,
            measured: Measured::default(),
            changing: tokio::sync::Mutex::default(),
        }))
    }
}

/// The directory of a container.
pub(crate) fn dir(config: &Config, id: &str) -> PathBuf {
    config.root_dir.join("containers").join(id)
}
