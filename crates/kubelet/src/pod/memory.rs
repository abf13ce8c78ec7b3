//! What a pod's worker remembers between looks at the runtime. Lost at restart, and that is fine:
//! everything that must last is in the runtime and in the API.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::restart::CrashBackoff;

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
    Failed { retry_at: Timestamp },
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
    Resize,
    TearDown,
}

/// A sandbox that could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFailure {
    pub retry_at: Timestamp,
    pub times: u32,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
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
    /// When the pod began to stop.
    pub stopping_since: Option<Timestamp>,
}

impl Memory {
    /// Whether this work is under way.
    pub fn is_running(&self, task: &Task) -> bool {
        self.running.contains_key(task)
    }

    /// Whether a container of this name is being started.
    pub fn is_starting(&self, name: &str) -> bool {
        self.is_running(&Task::Start(name.to_owned()))
    }
}
