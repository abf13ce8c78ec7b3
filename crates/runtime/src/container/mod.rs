//! Containers of a sandbox: their record on disk, their life and what CRI is told about them.

mod create;
mod exec;
mod remove;
mod start;
mod status;
mod stop;
mod update;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cri::v1::{ContainerConfig, LinuxContainerResources};
pub(crate) use exec::Process;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    config::Config,
    disk,
    error::Result,
    shim::protocol::{EXIT_FILE, Exit},
    snapshot::{self, Measured, Size},
    spec::Identity,
};

/// One container.
pub(crate) struct Container {
    /// Its id.
    pub id: String,
    /// How it was asked for.
    pub config: ContainerConfig,
    /// What does not change.
    pub facts: Facts,
    /// What changes; watched by whoever waits for its end.
    status: watch::Sender<Status>,
    dir: PathBuf,
    /// Its limits as they were changed last, if they were.
    limits: Mutex<Option<LinuxContainerResources>>,
    /// What it has written to its root.
    written: Measured,
    /// Held while it is started, changed or removed.
    changing: tokio::sync::Mutex<()>,
}

/// What is known about a container once it exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The sandbox it belongs to.
    pub sandbox: String,
    /// When it was made, in nanoseconds since 1970.
    pub created_at: i64,
    /// The image's id.
    pub image_id: String,
    /// How the image can be pulled again, or its id.
    pub image_ref: String,
    /// The image's layers that it stands on.
    pub layers: Vec<String>,
    /// Its cgroup.
    pub cgroup: String,
    /// Its log, if it has one.
    pub log: Option<PathBuf>,
    /// Whom it runs as.
    pub identity: Identity,
    /// Its other processes survive the first one.
    pub shares_pids: bool,
    /// The number of the signal that asks it to end.
    pub stop_signal: i32,
    /// Another OCI runtime than the built-in one.
    pub oci_runtime: Option<PathBuf>,
}

/// Where a container stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It is being made; found after a crash, it is removed.
    #[default]
    Creating,
    /// It can be started.
    Created,
    /// Its process is being started, or runs.
    Running,
    /// Its process has ended.
    Exited,
}

/// What changes about a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Where it stands.
    pub phase: Phase,
    /// Its first process on the node.
    pub pid: i32,
    /// When it was started.
    pub started_at: i64,
    /// When it ended.
    pub finished_at: i64,
    /// How it ended.
    pub exit_code: i32,
    /// Why, in a word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

impl Status {
    /// The state after its process has ended.
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

    /// The state of a container whose shim is gone: nobody knows how it ended.
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
    /// Where its things are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it has written beside its image, as measured not long ago.
    pub(crate) fn written(&self) -> Size {
        self.written.get(|| snapshot::written(&self.dir))
    }

    /// Its status now.
    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Whether its process is there.
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

    /// Writes the new status down, then shows it.
    fn set_status(&self, status: Status) -> Result<()> {
        let saved = disk::record(&self.dir.join("status.json"), &status);
        self.status.send_replace(status);
        saved
    }

    /// Its process has ended. `false` if that was known.
    pub(crate) fn settle(&self, exit: Exit) -> bool {
        let status = self.status();
        if status.phase == Phase::Exited {
            return false;
        }
        if let Err(error) = self.set_status(status.exited(exit)) {
            tracing::warn!(container = self.id, %error, "exit not written down");
        }
        true
    }

    /// Its shim is gone. `false` if it had ended before.
    pub(crate) fn lose(&self, now: i64) -> bool {
        let status = self.status();
        if status.phase != Phase::Running {
            return false;
        }
        // The shim may have kept the exit just before it died.
        let status = match disk::load::<Exit>(&self.dir.join(EXIT_FILE)) {
            Ok(exit) => status.exited(exit),
            Err(_) => status.lost(now),
        };
        if let Err(error) = self.set_status(status) {
            tracing::warn!(container = self.id, %error, "loss not written down");
        }
        true
    }

    /// The shim says that it runs: a daemon that died may not have written that down.
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
            tracing::warn!(container = self.id, %error, "adoption not written down");
        }
    }

    /// Reads a container that an earlier daemon has made.
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
            written: Measured::default(),
            changing: tokio::sync::Mutex::default(),
        }))
    }
}

/// Where a container's things are.
pub(crate) fn dir(config: &Config, id: &str) -> PathBuf {
    config.root_dir.join("containers").join(id)
}
