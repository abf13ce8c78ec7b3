//! The protocol between daemon and shim. A shim may be older or newer than the daemon: fields are
//! only ever added, and unknown fields and messages are ignored. [`VERSION`] is raised when that is
//! not enough:
//!
//! 1. The first version.
//! 2. The shim answers an unknown call with an error. A shim of version 1 closes the connection, as
//!    if it had died; so the daemon sends it no newer calls.
//! 3. The shim takes the descriptor that comes with [`Run::base_mounts`].

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::log_file::Target;
use crate::{base_mounts::Slots, cgroup::Hierarchies, helper::Base};

/// The protocol version of this build.
pub const VERSION: u32 = 3;

/// The first version with [`Run::base_mounts`].
pub const BASE_MOUNTS: u32 = 3;

/// The orders of a shim, passed on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    /// Its pod sandbox.
    pub sandbox_id: String,
    /// The socket to listen on.
    pub socket: PathBuf,
    /// The shim's own log.
    pub log: PathBuf,
    /// The shim's cgroup, below every hierarchy's root.
    pub cgroup: String,
    /// Namespaces to create and pin.
    pub namespaces: Pins,
    /// The host name in the new UTS namespace.
    pub hostname: String,
    /// Set in the new namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// The cgroup hierarchies, as the daemon has read them.
    #[serde(default)]
    pub hierarchies: Option<Hierarchies>,
}

/// Files that new namespaces are pinned to; `None`: the host's namespace is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// The network namespace.
    pub net: Option<PathBuf>,
    /// The IPC namespace.
    pub ipc: Option<PathBuf>,
    /// The UTS namespace.
    pub uts: Option<PathBuf>,
    /// The PID namespace that the pod's containers share, kept by an init process.
    pub pid: Option<PathBuf>,
}

/// A numbered call of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request<C = Call> {
    /// Repeated in the reply.
    pub id: u64,
    /// The call.
    pub call: C,
}

/// A call to the shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Asks for version, pid and containers.
    Hello {
        /// The daemon's protocol version.
        version: u32,
    },
    /// Create and start a container.
    Run(Run),
    /// Start a process in a running container.
    Exec(Exec),
    /// Send a signal to a container's first process, or to all of its processes.
    Signal {
        /// The container.
        container: String,
        /// The signal's number.
        signal: i32,
        /// To every process of the container's cgroup.
        all: bool,
    },
    /// Send a signal to a process started by [`Call::Exec`].
    SignalExec {
        /// The process.
        exec: String,
        /// The signal's number.
        signal: i32,
    },
    /// Reopen the log file after it was renamed.
    ReopenLog {
        /// The container.
        container: String,
    },
    /// Copy the container's output to descriptors that are sent with this call, and input from one.
    /// Their order is stdin, stdout, stderr; each only if requested.
    Attach {
        /// The container.
        container: String,
        /// Whether a descriptor for its input follows.
        stdin: bool,
        /// Whether a descriptor for its output follows.
        stdout: bool,
        /// Whether a descriptor for its error output follows.
        stderr: bool,
    },
    /// Set the size of a container's terminal.
    Resize {
        /// The container.
        container: String,
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
    /// Drop an exited container.
    Forget {
        /// The container.
        container: String,
    },
    /// Kill everything and exit.
    Shutdown,
}

impl Call {
    /// The first version with this call.
    pub fn since(&self) -> u32 {
        match self {
            Self::Hello { .. }
            | Self::Run(_)
            | Self::Exec(_)
            | Self::Signal { .. }
            | Self::SignalExec { .. }
            | Self::ReopenLog { .. }
            | Self::Attach { .. }
            | Self::Resize { .. }
            | Self::Forget { .. }
            | Self::Shutdown => 1,
        }
    }
}

/// A container to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub container: String,
    /// The directory with `config.json` and the exit record.
    pub bundle: PathBuf,
    /// Where the OCI runtime keeps its state.
    pub oci_root: PathBuf,
    /// The OCI runtime's binary, if not the built-in one.
    pub oci_runtime: Option<PathBuf>,
    /// The container's cgroup, below every hierarchy's root.
    pub cgroup: String,
    /// Whether other processes of the cgroup survive the first one and must be killed.
    pub kill_cgroup: bool,
    /// The log file.
    pub log: Option<PathBuf>,
    /// The log file with its limits; absent from older daemons.
    #[serde(default)]
    pub log_target: Option<Target>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Whether its input is a pipe.
    pub stdin: bool,
    /// Whether its input is closed when the first attached client leaves.
    pub stdin_once: bool,
    /// The slots of the mount namespace from which the container is created, whose descriptor comes with the call. Only
    /// for shims since version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_mounts: Option<Slots>,
}

/// A process to start in a container. With a terminal, the reply carries its descriptor; otherwise
/// stdin, stdout and stderr are sent with the call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exec {
    /// The process' id.
    pub exec: String,
    /// The container.
    pub container: String,
    /// The file with the OCI process; removed once it has started.
    pub process: PathBuf,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// A message of a shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The reply to a call.
    Reply {
        /// The call's number.
        id: u64,
        /// The result.
        result: Result<Answer, String>,
    },
    /// A container has ended.
    Exited {
        /// The container.
        container: String,
        /// Its exit status.
        exit: Exit,
    },
    /// A process started by [`Call::Exec`] has ended.
    ExecExited {
        /// The process.
        exec: String,
        /// Its exit status.
        exit: Exit,
    },
}

/// The result of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Success without a result.
    Done,
    /// A process runs.
    Started {
        /// Its pid on the host.
        pid: i32,
        /// Whether the descriptor of its terminal is attached.
        terminal: bool,
        /// Why the container was created from the node's mounts although it need not be, which is slower.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slow: Option<String>,
    },
    /// The reply to [`Call::Hello`].
    Hello {
        /// The shim's protocol version.
        version: u32,
        /// The shim's own pid.
        pid: i32,
        /// The containers.
        containers: Vec<HeldContainer>,
    },
}

/// A container that a shim holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeldContainer {
    /// Its id.
    pub id: String,
    /// Its first process.
    pub pid: i32,
    /// When it was started, in nanoseconds since 1970.
    pub started_at: i64,
    /// Set once it has ended.
    pub exit: Option<Exit>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code, or 128 plus the signal's number.
    pub code: i32,
    /// Whether the OOM killer killed a process of the container.
    pub oom: bool,
    /// When, in nanoseconds since 1970.
    pub finished_at: i64,
}

/// The file in a bundle with the [`Exit`], for when no daemon listens.
pub const EXIT_FILE: &str = "exit.json";

/// A job for a helper.
#[derive(Debug)]
pub enum Job {
    /// Create and start a container.
    Run {
        /// The container.
        container: String,
        /// Its bundle.
        bundle: PathBuf,
        /// The OCI runtime's state.
        oci_root: PathBuf,
        /// The OCI runtime's binary, if not the built-in one.
        oci_runtime: Option<PathBuf>,
        /// The mount namespace from which it is created, if not the node's.
        base: Option<Base>,
    },
    /// Start a process in a container.
    Exec {
        /// The container.
        container: String,
        /// Its bundle.
        bundle: PathBuf,
        /// The OCI runtime's state.
        oci_root: PathBuf,
        /// The OCI runtime's binary, if not the built-in one.
        oci_runtime: Option<PathBuf>,
        /// The OCI process.
        process: PathBuf,
    },
}

/// A report of a helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The process exists but has not executed the program.
    Created {
        /// Its pid on the host.
        pid: i32,
        /// Whether the terminal's descriptor follows.
        terminal: bool,
    },
    /// The program was executed.
    Running {
        /// Why it was slower than necessary.
        slow: Option<String>,
    },
    /// The process could not be started.
    Failed(String),
}
