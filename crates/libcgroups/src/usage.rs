//! A cgroup's usage, in one form for both versions.

use std::{fs, path::Path};

use crate::Cgroup;

/// Counters and gauges of one cgroup; absent without the controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Cpu time in nanoseconds.
    pub cpu_nanos: Option<u64>,
    /// Memory including page cache.
    pub memory: Option<u64>,
    /// Memory without inactive page cache.
    pub working_set: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// The limit, if there is one.
    pub memory_limit: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Major page faults.
    pub major_page_faults: Option<u64>,
    /// Swap.
    pub swap: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// Limits from this value on mean unlimited.
const UNLIMITED: u64 = 1 << 60;

impl Cgroup {
    /// Reads the current usage.
    pub fn usage(&self) -> Usage {
        if self.hierarchies.is_unified() {
            self.usage_unified()
        } else {
            self.usage_split()
        }
    }

    fn usage_unified(&self) -> Usage {
        let Some(dir) = self.dir("") else {
            return Usage::default();
        };
        // Read once: the kernel computes it for each read.
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let memory = number(&dir.join("memory.current"));
        let inactive = value(&stat, "inactive_file").unwrap_or(0);
        Usage {
            cpu_nanos: keyed(&dir.join("cpu.stat"), "usage_usec").map(|usec| usec * 1000),
            memory,
            working_set: memory.map(|used| used.saturating_sub(inactive)),
            rss: value(&stat, "anon"),
            memory_limit: number(&dir.join("memory.max")),
            page_faults: value(&stat, "pgfault"),
            major_page_faults: value(&stat, "pgmajfault"),
            swap: number(&dir.join("memory.swap.current")),
            pids: number(&dir.join("pids.current")),
        }
    }

    fn usage_split(&self) -> Usage {
        let mut usage = Usage {
            cpu_nanos: self
                .dir("cpuacct")
                .and_then(|dir| number(&dir.join("cpuacct.usage"))),
            pids: self
                .dir("pids")
                .and_then(|dir| number(&dir.join("pids.current"))),
            ..Usage::default()
        };
        let Some(dir) = self.dir("memory") else {
            return usage;
        };
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        usage.memory = number(&dir.join("memory.usage_in_bytes"));
        let inactive = value(&stat, "total_inactive_file").unwrap_or(0);
        usage.working_set = usage.memory.map(|used| used.saturating_sub(inactive));
        usage.rss = value(&stat, "total_rss");
        let limit = number(&dir.join("memory.limit_in_bytes"));
        usage.memory_limit = limit.filter(|limit| *limit < UNLIMITED);
        usage.page_faults = value(&stat, "total_pgfault");
        usage.major_page_faults = value(&stat, "total_pgmajfault");
        usage.swap = value(&stat, "total_swap");
        usage
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The value of a key in a file of `key value` lines.
pub(crate) fn keyed(file: &Path, key: &str) -> Option<u64> {
    value(&fs::read_to_string(file).ok()?, key)
}

fn value(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_matched_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "oom_kill_disable 1\nunder_oom 0\noom_kill 3\n").unwrap();
        assert_eq!(keyed(file.path(), "oom_kill"), Some(3));
        assert_eq!(keyed(file.path(), "oom"), None);
    }
}
