//! The part of libcontainer's interface that does not depend on the version.

use std::{io, path::PathBuf, time::Duration};

use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::LinuxResources;

pub use crate::stats::Stats;
use crate::{Cgroup, Hierarchies, hierarchies::BESIDE};

/// Where cgroups are mounted.
pub const DEFAULT_CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// How long a cgroup may linger that is removed after a failed start.
const REMOVE_DEADLINE: Duration = Duration::from_secs(1);

/// What libcontainer does with a container's cgroup.
pub trait CgroupManager {
    /// What goes wrong.
    type Error;

    /// Moves a process into it.
    fn add_task(&self, pid: Pid) -> Result<(), Self::Error>;
    /// Sets its limits.
    fn apply(&self, options: &ControllerOpt) -> Result<(), Self::Error>;
    /// Removes it.
    fn remove(&self) -> Result<(), Self::Error>;
    /// Stops or continues what is in it.
    fn freeze(&self, state: FreezerState) -> Result<(), Self::Error>;
    /// What it has used.
    fn stats(&self) -> Result<Stats, Self::Error>;
    /// What is in it.
    fn get_all_pids(&self) -> Result<Vec<Pid>, Self::Error>;
}

/// A file could not be read or written; the message names it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct AnyManagerError(#[from] io::Error);

/// There is no way to make a manager.
#[derive(Debug, thiserror::Error)]
pub enum CreateCgroupSetupError {
    /// Only the files are used here.
    #[error("cgroups managed by systemd are not supported")]
    Systemd,
}

/// No cgroups are mounted.
#[derive(Debug, thiserror::Error)]
pub enum GetCgroupSetupError {
    /// Neither version.
    #[error("no cgroups are mounted")]
    FailedToDetect,
}

/// What is mounted.
#[derive(Debug)]
pub enum CgroupSetup {
    /// Version 1 with a tree of version 2 beside.
    Hybrid,
    /// Version 1.
    Legacy,
    /// Version 2.
    Unified,
}

/// Whether a cgroup's processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreezerState {
    /// Nobody knows.
    Undefined,
    /// They stand still.
    Frozen,
    /// They run.
    Thawed,
}

/// What to apply. Scores and the freezer are set elsewhere.
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

/// Which cgroup.
#[derive(Clone)]
pub struct CgroupConfig {
    /// Below every hierarchy's root.
    pub cgroup_path: PathBuf,
    /// Unsupported.
    pub systemd_cgroup: bool,
    /// The container.
    pub container_name: String,
}

/// A container's cgroup.
pub struct AnyCgroupManager(Cgroup);

impl AnyCgroupManager {
    /// Containers of other users than root are not made here.
    pub fn with_rootless(self, _rootless: bool) -> Self {
        self
    }
}

impl CgroupManager for AnyCgroupManager {
    type Error = AnyManagerError;

    fn add_task(&self, pid: Pid) -> Result<(), Self::Error> {
        // libcontainer moves the process that asks, before it clones the container's first one.
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

/// What this machine has.
pub fn get_cgroup_setup() -> Result<CgroupSetup, GetCgroupSetupError> {
    match Hierarchies::host() {
        Hierarchies::Unified(_) => Ok(CgroupSetup::Unified),
        Hierarchies::Split(roots) if roots.is_empty() => Err(GetCgroupSetupError::FailedToDetect),
        Hierarchies::Split(roots) if roots.contains_key(BESIDE) => Ok(CgroupSetup::Hybrid),
        Hierarchies::Split(_) => Ok(CgroupSetup::Legacy),
    }
}
