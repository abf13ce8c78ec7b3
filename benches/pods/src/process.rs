//! Processes of this machine, as `/proc` shows them.

use std::{fs, time::Duration};

/// USER_HZ, the same on every Linux that we know.
const TICKS: u64 = 100;

/// The CPU time of these processes so far.
pub(crate) fn cpu(pids: &[u32]) -> Duration {
    let ticks = pids.iter().filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may contain anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(field(11)? + field(12)?)
    });
    Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS)
}

/// The memory of processes in bytes.
#[derive(Default)]
pub(crate) struct Memory {
    /// All of it, with the pages of the program's file.
    pub resident: u64,
    /// What the processes themselves have written to.
    pub anonymous: u64,
}

/// The memory of these processes.
pub(crate) fn memory(pids: &[u32]) -> Memory {
    let mut sum = Memory::default();
    for pid in pids {
        let shown = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = |name: &str| {
            let line = shown.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            kilobytes.unwrap_or(0_u64) * 1024
        };
        sum.resident += line("Rss:");
        sum.anonymous += line("Anonymous:");
    }
    sum
}

/// The number of processes with this in their environment.
pub(crate) fn count(mark: &str) -> usize {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = entries.filter(|entry| {
        let name = entry.file_name();
        let is_process = name
            .to_string_lossy()
            .bytes()
            .all(|byte| byte.is_ascii_digit());
        is_process
            && fs::read(entry.path().join("environ")).is_ok_and(|all| {
                all.split(|byte| *byte == 0)
                    .any(|one| one == mark.as_bytes())
            })
    });
    marked.count()
}
