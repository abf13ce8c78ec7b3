//! What daemon and shim say to each other. A shim may be older or newer than the daemon: fields are
//! only ever added, unknown ones are ignored, and so are messages that a daemon does not know.
//! [`VERSION`] rises when that is not enough:
//!
//! 1. The first.
//! 2. A call that the shim does not know is answered with an error. Before, the shim hung up, which
//!    to a daemon looks like its death; so a call is never sent to a shim that is older than it.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::log_file::Target;

/// The protocol of this build.
pub const VERSION: u32 = 2;

/// How a shim is started: one of these on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    /// The pod sandbox that it serves.
    pub sandbox_id: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// Where it writes what it has to say about itself.
    pub log: PathBuf,
    /// The cgroup it lives in, below every hierarchy's root.
    pub cgroup: String,
    /// Namespaces to make and pin.
    pub namespaces: Pins,
    /// Set in the new UTS namespace.
    pub hostname: String,
    /// Written inside the new namespaces.
    pub sysctls: BTreeMap<String, String>,
}

/// Files that new namespaces are pinned to; what is absent stays the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// The network namespace.
    pub net: Option<PathBuf>,
    /// The IPC namespace.
    pub ipc: Option<PathBuf>,
    /// The UTS namespace.
    pub uts: Option<PathBuf>,
    /// The PID namespace that the pod's containers share, kept by an init of ours.
    pub pid: Option<PathBuf>,
}

/// A numbered call of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request<C = Call> {
    /// Repeated in the reply.
    pub id: u64,
    /// What to do.
    pub call: C,
}

/// What a shim can be asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Who are you and what do you hold?
    Hello {
        /// The daemon's protocol version.
        version: u32,
    },
    /// Create and start a container.
    Run(Run),
    /// Start a process in a running container.
    Exec(Exec),
    /// Send a signal to a container's first process, or to everything in it.
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
    /// Open the log file anew: it was moved away.
    ReopenLog {
        /// The container.
        container: String,
    },
    /// Copy the container's output to descriptors that come with this call, and input from one.
    /// Their order is stdin, stdout, stderr; each only if asked for.
    Attach {
        /// The container.
        container: String,
        /// A descriptor to read the container's input from follows.
        stdin: bool,
        /// A descriptor for its output follows.
        stdout: bool,
        /// A descriptor for its error output follows.
        stderr: bool,
    },
    /// The size of a container's terminal.
    Resize {
        /// The container.
        container: String,
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
    /// Forget an exited container.
    Forget {
        /// The container.
        container: String,
    },
    /// Kill what is left and end.
    Shutdown,
}

impl Call {
    /// The first version that knows it.
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
    /// The directory with `config.json`; the exit record is written there too.
    pub bundle: PathBuf,
    /// Where the OCI runtime keeps its state.
    pub oci_root: PathBuf,
    /// An OCI runtime binary instead of the built-in one.
    pub oci_runtime: Option<PathBuf>,
    /// The container's cgroup, below every hierarchy's root.
    pub cgroup: String,
    /// Other processes of the cgroup survive the first one and must be killed with it.
    pub kill_cgroup: bool,
    /// The file for its output.
    pub log: Option<PathBuf>,
    /// The same in more detail; older daemons do not say it.
    #[serde(default)]
    pub log_target: Option<Target>,
    /// It has a terminal.
    pub tty: bool,
    /// Its input is a pipe instead of nothing.
    pub stdin: bool,
    /// Its input is closed when the first attached client leaves.
    pub stdin_once: bool,
}

/// A process to start in a container. With a terminal, the reply carries the terminal's descriptor;
/// otherwise stdin, stdout and stderr come with the call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exec {
    /// The process' id.
    pub exec: String,
    /// The container.
    pub container: String,
    /// The file with the OCI process; removed when it has started.
    pub process: PathBuf,
    /// It has a terminal.
    pub tty: bool,
}

/// What comes from a shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// The answer to a call.
    Reply {
        /// The call's number.
        id: u64,
        /// The answer, or what went wrong.
        result: Result<Answer, String>,
    },
    /// A container has ended.
    Exited {
        /// The container.
        container: String,
        /// How.
        exit: Exit,
    },
    /// A process started by [`Call::Exec`] has ended.
    ExecExited {
        /// The process.
        exec: String,
        /// How.
        exit: Exit,
    },
}

/// An answer to a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was done.
    Done,
    /// A process runs.
    Started {
        /// Its pid on the host.
        pid: i32,
        /// The descriptor of its terminal comes with this.
        terminal: bool,
    },
    /// To [`Call::Hello`].
    Hello {
        /// The shim's protocol version.
        version: u32,
        /// The shim's own pid.
        pid: i32,
        /// What it holds.
        containers: Vec<Held>,
    },
}

/// A container that a shim knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Held {
    /// Its id.
    pub id: String,
    /// Its first process.
    pub pid: i32,
    /// When it was started, in nanoseconds since 1970.
    pub started_at: i64,
    /// Set when it has ended.
    pub exit: Option<Exit>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit code, or 128 and the signal's number.
    pub code: i32,
    /// The kernel killed something in the container for want of memory.
    pub oom: bool,
    /// When, in nanoseconds since 1970.
    pub finished_at: i64,
}

/// The file in a bundle that keeps the [`Exit`] when no daemon listens.
pub const EXIT_FILE: &str = "exit.json";

/// What the shim asks of a helper.
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
        /// A binary instead of the built-in runtime.
        oci_runtime: Option<PathBuf>,
    },
    /// Start a process in a container.
    Exec {
        /// The container.
        container: String,
        /// Its bundle.
        bundle: PathBuf,
        /// The OCI runtime's state.
        oci_root: PathBuf,
        /// A binary instead of the built-in runtime.
        oci_runtime: Option<PathBuf>,
        /// The OCI process.
        process: PathBuf,
    },
}

/// What a helper reports.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The process exists but runs nothing of the container yet.
    Created {
        /// Its pid on the host.
        pid: i32,
        /// The terminal's descriptor follows.
        terminal: bool,
    },
    /// The container's own program runs.
    Running,
    /// It could not be started.
    Failed(String),
}
