//! What a pod's worker remembers between looks at the runtime. Lost at restart, and that is fine:
//! everything that must last is in the runtime and in the API.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{
    observed::Container,
    restart::{self, CrashBackoff},
};
use crate::make::resources::{Bounds, CfsQuota};

/// Why a container waits, as users see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

/// A start that failed and will be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    pub waiting: Waiting,
    /// What users see once the failure is no longer news, and from when.
    pub then: Option<(Timestamp, Waiting)>,
    pub retry_at: Timestamp,
    /// How often it failed in a row.
    pub times: u32,
}

/// The last results of a container's probes; `None` until known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probes {
    pub startup: Option<bool>,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
}

/// Where the pod's volumes stand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Volumes {
    /// Not set up in this life of the worker.
    #[default]
    Pending,
    /// In place.
    Ready,
    /// Could not be set up; tried again then.
    Failed { retry_at: Timestamp, times: u32 },
    /// Could not be taken down; tried again then. The pod is not gone before they are.
    Stuck { retry_at: Timestamp, times: u32 },
    /// Taken down.
    Gone,
}

/// Work that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    SetUpVolumes,
    CreateSandbox,
    StopSandbox(String),
    Start(String),
    Kill(String),
    Reset,
    Resize,
    TearDown,
}

impl Task {
    /// Whether it starts a container.
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Start(_))
    }
}

/// A container that was killed to run again.
#[derive(Debug, Clone, PartialEq)]
pub struct Replaced {
    /// As it was when it was killed.
    pub was: Container,
    /// Until then users see it as it was: the next one is about to take its place.
    pub shown_until: Option<Timestamp>,
}

/// A sandbox that could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFailure {
    pub retry_at: Timestamp,
    pub times: u32,
}

/// A changed size that could not be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeFailure {
    pub message: String,
    pub retry_at: Timestamp,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// The longest delay between two restarts, where the node sets one.
    pub longest_restart_delay: Option<Duration>,
    /// How the node limits processor time.
    pub cfs: CfsQuota,
    /// By container name.
    pub crashes: BTreeMap<String, CrashBackoff>,
    /// By container name.
    pub failures: BTreeMap<String, StartFailure>,
    /// By container id.
    pub probes: BTreeMap<String, Probes>,
    pub volumes: Volumes,
    pub sandbox_failure: Option<SandboxFailure>,
    /// With the grace period of kills.
    pub running: BTreeMap<Task, i64>,
    /// By container name.
    pub replaced: BTreeMap<String, Replaced>,
    /// The bounds that the runtime has accepted, by container id.
    pub sizes: BTreeMap<String, Bounds>,
    /// The pod's own bounds are to follow a new size.
    pub pod_grows: bool,
    pub resize_failure: Option<ResizeFailure>,
    /// Why containers waited at the last look, by name: each reason makes one event.
    pub announced: BTreeMap<String, Waiting>,
}

impl Memory {
    /// The longest delay between two restarts.
    pub fn longest_restart_delay(&self) -> Duration {
        self.longest_restart_delay.unwrap_or(restart::CAP)
    }

    /// Whether this work is under way.
    pub fn is_running(&self, task: &Task) -> bool {
        self.running.contains_key(task)
    }

    /// Whether a container of this name is being started.
    pub fn is_starting(&self, name: &str) -> bool {
        self.is_running(&Task::Start(name.to_owned()))
    }

    /// Whether this container was killed in order to run again: its exit code says nothing.
    pub fn was_killed_to_restart(&self, container: &Container) -> bool {
        let replaced = self.replaced.get(&container.name);
        replaced.is_some_and(|replaced| replaced.was.id == container.id)
    }

    /// A ConfigMap or Secret changed: what failed for the lack of one is tried again now.
    pub fn retry_after_sources_changed(&mut self) {
        if let Volumes::Failed { .. } = self.volumes {
            self.volumes = Volumes::Pending;
        }
        self.failures
            .retain(|_, failure| failure.waiting.reason != "CreateContainerConfigError");
    }
}
