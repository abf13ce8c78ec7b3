//! Memory and CPU time of processes.

use std::{fmt, time::Duration};

/// Memory of processes, in megabytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// All that is resident, also the pages of the program itself.
    resident: u64,
    /// Without files.
    anonymous: u64,
}

impl Memory {
    /// Of these processes; zero if they cannot be read.
    pub(crate) fn of(processes: &[u32]) -> Self {
        let mut memory = Self::default();
        for process in processes {
            let status = std::fs::read_to_string(format!("/proc/{process}/status"));
            let status = status.unwrap_or_default();
            memory.resident += megabytes(&status, "VmRSS:");
            memory.anonymous += megabytes(&status, "RssAnon:");
        }
        memory
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} ({})", self.resident, self.anonymous))
    }
}

fn megabytes(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) / 1024
}

/// The CPU time of processes; zero if they cannot be read.
pub(crate) fn cpu(processes: &[u32]) -> Duration {
    let ticks = processes.iter().filter_map(|process| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name in parentheses may contain anything; user and system time are the 12th and 13th
        // fields after it.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let (user, system) = (fields.next()?, fields.next()?);
        Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
    });
    // USER_HZ is 100.
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_megabytes_and_shown_with_and_without_files() {
        let status = "Name:\tx\nVmRSS:\t  204800 kB\nRssAnon:\t  102400 kB\n";
        let memory = Memory {
            resident: megabytes(status, "VmRSS:"),
            anonymous: megabytes(status, "RssAnon:"),
        };
        assert_eq!(format!("{memory:>10}"), " 200 (100)");
        assert_eq!(megabytes("", "VmRSS:"), 0);
        assert!(Memory::of(&[std::process::id()]).resident > 0);
    }
}
