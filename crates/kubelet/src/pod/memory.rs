//! What a pod's worker remembers between two evaluations. It is lost at a restart of the kubelet:
//! everything that must survive is in the runtime and in the API.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{
    observed::Container,
    restart::{self, CrashBackoff},
};
use crate::make::resources::{Bounds, CfsQuota};

/// Why a container waits, as its status shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}

/// A failed start that will be retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    pub waiting: Waiting,
    /// The waiting reason that is shown later, and from when on.
    pub then: Option<(Timestamp, Waiting)>,
    pub retry_at: Timestamp,
    /// The number of consecutive failures.
    pub times: u32,
}

/// The last results of a container's probes; `None` until known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probes {
    pub startup: Option<bool>,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
}

/// The state of the pod's volumes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Volumes {
    /// Not set up by this worker.
    #[default]
    Pending,
    /// In place.
    Ready,
    /// Setting up failed; when to retry.
    Failed { retry_at: Timestamp, times: u32 },
    /// Tearing down failed; when to retry. The pod is not gone before its volumes are.
    Stuck { retry_at: Timestamp, times: u32 },
    /// Torn down.
    Gone,
}

/// A running task.
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
    /// Whether the task starts a container.
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Start(_))
    }
}

/// A container that was killed in order to restart.
#[derive(Debug, Clone, PartialEq)]
pub struct Replaced {
    /// Its state when it was killed.
    pub was: Container,
    /// Until then the status shows the old state, since the new container is about to start.
    pub shown_until: Option<Timestamp>,
}

/// A failed creation of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFailure {
    pub retry_at: Timestamp,
    pub times: u32,
}

/// A failed resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeFailure {
    pub message: String,
    pub retry_at: Timestamp,
}

/// What a pod's worker remembers between two decisions.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// The maximum delay between two restarts, if configured.
    pub longest_restart_delay: Option<Duration>,
    /// The node's CFS quota settings.
    pub cfs: CfsQuota,
    /// By container name.
    pub crashes: BTreeMap<String, CrashBackoff>,
    /// By container name.
    pub failures: BTreeMap<String, StartFailure>,
    /// By container id.
    pub probes: BTreeMap<String, Probes>,
    pub volumes: Volumes,
    pub sandbox_failure: Option<SandboxFailure>,
    /// Running tasks, with the grace period of kills.
    pub running: BTreeMap<Task, i64>,
    /// By container name.
    pub replaced: BTreeMap<String, Replaced>,
    /// The resources that the runtime accepted, by container id.
    pub sizes: BTreeMap<String, Bounds>,
    /// Ids of containers that a restart of the whole pod removed, by container name, until the next ones run.
    pub reset: BTreeMap<String, String>,
    /// The pod's cgroup must be resized.
    pub pod_grows: bool,
    /// Whether a resize was allocated or in progress since this kubelet has the pod. Without one, the memory requests
    /// of running containers are those of the spec.
    pub was_resized: bool,
    pub resize_failure: Option<ResizeFailure>,
    /// The last waiting reasons of the containers, by name: each new reason is reported in one event.
    pub announced: BTreeMap<String, Waiting>,
}

impl Memory {
    /// The maximum delay between two restarts.
    pub fn longest_restart_delay(&self) -> Duration {
        self.longest_restart_delay.unwrap_or(restart::CAP)
    }

    /// Whether this task runs.
    pub fn is_running(&self, task: &Task) -> bool {
        self.running.contains_key(task)
    }

    /// Whether a container of this name is being started.
    pub fn is_starting(&self, name: &str) -> bool {
        self.is_running(&Task::Start(name.to_owned()))
    }

    /// The resources of a container that are in effect. Values that the runtime accepted count even if it reports
    /// others, since some runtimes round.
    pub fn held(&self, container: &Container) -> Option<Bounds> {
        let accepted = self.sizes.get(&container.id).copied();
        let mut held = accepted.or(container.bounds)?;
        if !self.was_resized {
            held.memory_request = None;
        }
        Some(held)
    }

    /// Whether this container was killed in order to restart, so that its exit code does not
    /// matter.
    pub fn was_killed_to_restart(&self, container: &Container) -> bool {
        let replaced = self.replaced.get(&container.name);
        replaced.is_some_and(|replaced| replaced.was.id == container.id)
    }

    /// A ConfigMap or Secret changed: starts that failed for lack of one are retried now.
    pub fn retry_after_sources_changed(&mut self) {
        if let Volumes::Failed { .. } = self.volumes {
            self.volumes = Volumes::Pending;
        }
        self.failures
            .retain(|_, failure| failure.waiting.reason != "CreateContainerConfigError");
    }
}
