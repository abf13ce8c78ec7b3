//! Usage in the form that libcontainer prints.

use serde::Serialize;

use crate::Usage;

/// What a cgroup has used.
#[derive(Debug, Default, Serialize)]
pub struct Stats {
    /// Cpu time in nanoseconds.
    pub cpu_nanos: Option<u64>,
    /// Memory including page cache, in bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

impl From<Usage> for Stats {
    fn from(usage: Usage) -> Self {
        Self {
            cpu_nanos: usage.cpu_nanos,
            memory: usage.memory,
            pids: usage.pids,
        }
    }
}
