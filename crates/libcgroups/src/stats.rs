//! Usage in the form that libcontainer can print.

use serde::Serialize;

use crate::Usage;

/// What a cgroup has used.
#[derive(Debug, Default, Serialize)]
pub struct Stats {
    /// Processor time in nanoseconds.
    pub cpu_nanos: Option<u64>,
    /// Memory with page cache, in bytes.
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
