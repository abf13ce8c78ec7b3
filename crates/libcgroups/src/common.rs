//! The part of libcontainer's interface that is independent of the cgroup version.

use std::{io, path::PathBuf, time::Duration};

use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::LinuxResources;

pub use crate::stats::Stats;
use crate::{Cgroup, Hierarchies, hierarchies::BESIDE};

/// Where cgroups are mounted.
pub const DEFAULT_CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// How long the removal of a cgroup after a failed start may take.
const REMOVE_DEADLINE: Duration = Duration::from_secs(1);

/// libcontainer's operations on a container's cgroup.
pub trait CgroupManager {
    /// The error type.
    type Error;

    /// Moves a process into it.
    fn add_task(&self, pid: Pid) -> Result<(), Self::Error>;
    /// Sets its limits.
    fn apply(&self, options: &ControllerOpt) -> Result<(), Self::Error>;
    /// Removes it.
    fn remove(&self) -> Result<(), Self::Error>;
    /// Freezes or thaws its processes.
    fn freeze(&self, state: FreezerState) -> Result<(), Self::Error>;
    /// Its usage.
    fn stats(&self) -> Result<Stats, Self::Error>;
    /// Its processes.
    fn get_all_pids(&self) -> Result<Vec<Pid>, Self::Error>;
}

/// A file could not be read or written; the message names it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct AnyManagerError(#[from] io::Error);

/// Why a manager could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CreateCgroupSetupError {
    /// The systemd driver is not supported.
    #[error("cgroups managed by systemd are not supported")]
    Systemd,
}

/// No cgroups are mounted.
#[derive(Debug, thiserror::Error)]
pub enum GetCgroupSetupError {
    /// Neither version is mounted.
    #[error("no cgroups are mounted")]
    FailedToDetect,
}

/// The mounted cgroup versions.
#[derive(Debug)]
pub enum CgroupSetup {
    /// v1 with a v2 hierarchy beside it.
    Hybrid,
    /// v1.
    Legacy,
    /// v2.
    Unified,
}

/// Whether a cgroup is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreezerState {
    /// Unknown.
    Undefined,
    /// Frozen.
    Frozen,
    /// Running.
    Thawed,
}

/// What to apply. OOM scores and the freezer are set elsewhere.
#[derive(Clone, Debug)]
pub struct ControllerOpt<'a> {
    /// The limits.
    pub resources: &'a LinuxResources,
    /// Unused.
    pub disable_oom_killer: bool,
    /// Unused.
    pub oom_score_adj: Option<i32>,
    /// Unused.
    pub freezer_state: Option<FreezerState>,
}

/// Identifies a cgroup.
#[derive(Clone)]
pub struct CgroupConfig {
    /// The path below every hierarchy's root.
    pub cgroup_path: PathBuf,
    /// Unsupported.
    pub systemd_cgroup: bool,
    /// The container.
    pub container_name: String,
}

/// A container's cgroup.
pub struct AnyCgroupManager(Cgroup);

impl AnyCgroupManager {
    /// Rootless containers are not supported; this has no effect.
    pub fn with_rootless(self, _rootless: bool) -> Self {
        self
    }
}

impl CgroupManager for AnyCgroupManager {
    type Error = AnyManagerError;

    fn add_task(&self, pid: Pid) -> Result<(), Self::Error> {
        // libcontainer moves the calling process, before it clones the container's first one.
        if pid == Pid::this() {
            self.0.enter()?;
        } else {
            self.0.adopt(pid.as_raw())?;
        }
        Ok(())
    }

    fn apply(&self, options: &ControllerOpt) -> Result<(), Self::Error> {
        Ok(self.0.limit(options.resources)?)
    }

    fn remove(&self) -> Result<(), Self::Error> {
        Ok(self.0.remove_within(REMOVE_DEADLINE)?)
    }

    fn freeze(&self, state: FreezerState) -> Result<(), Self::Error> {
        Ok(self.0.freeze(state == FreezerState::Frozen)?)
    }

    fn stats(&self) -> Result<Stats, Self::Error> {
        Ok(Stats::from(self.0.usage()))
    }

    fn get_all_pids(&self) -> Result<Vec<Pid>, Self::Error> {
        Ok(self.0.processes().into_iter().map(Pid::from_raw).collect())
    }
}

/// The manager of a cgroup.
pub fn create_cgroup_manager(
    config: CgroupConfig,
) -> Result<AnyCgroupManager, CreateCgroupSetupError> {
    if config.systemd_cgroup {
        return Err(CreateCgroupSetupError::Systemd);
    }
    Ok(AnyCgroupManager(Cgroup::new(config.cgroup_path)))
}

/// The cgroup versions of this machine.
pub fn get_cgroup_setup() -> Result<CgroupSetup, GetCgroupSetupError> {
    match Hierarchies::host() {
        Hierarchies::Unified(_) => Ok(CgroupSetup::Unified),
        Hierarchies::Split(roots) if roots.is_empty() => Err(GetCgroupSetupError::FailedToDetect),
        Hierarchies::Split(roots) if roots.contains_key(BESIDE) => Ok(CgroupSetup::Hybrid),
        Hierarchies::Split(_) => Ok(CgroupSetup::Legacy),
    }
}
