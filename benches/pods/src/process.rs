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

/// The resident memory of these processes in bytes.
pub(crate) fn resident(pids: &[u32]) -> u64 {
    let each = pids.iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    each.sum::<u64>() * 1024
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
