//! Memory and CPU time of processes.

use std::time::Duration;

/// The total resident memory of processes, in megabytes.
pub(crate) fn memory(processes: &[u32]) -> Option<u64> {
    let kilobytes = processes.iter().map(|process| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let all: Vec<u64> = kilobytes.collect::<Option<_>>()?;
    (!all.is_empty()).then(|| all.iter().sum::<u64>() / 1024)
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
