//! Metrics of this process from the kernel, with the names of Prometheus' client libraries.

use std::fs;

/// The kernel counts processor time in hundredths of a second, on every platform we run on.
const TICKS: f64 = 100.0;

/// Appends the metrics; those that cannot be read are left out.
pub(super) fn write(out: &mut String) {
    let mut put = |name: &str, kind: &str, about: &str, value: Option<f64>| {
        if let Some(value) = value {
            *out += &format!("# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    };
    let fields = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name may contain spaces; it ends with the last parenthesis.
    let fields = fields.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let fields: Vec<f64> = fields
        .split(' ')
        .map(|field| field.trim().parse().unwrap_or_default())
        .collect();
    // Numbered as in proc(5), where the state is the third.
    let field = |number: usize| fields.get(number - 3).copied();
    let cpu = field(14).zip(field(15));
    let cpu = cpu.map(|(user, system)| (user + system) / TICKS);
    let about = "Processor time used, in seconds.";
    put("process_cpu_seconds_total", "counter", about, cpu);
    let about = "Files open.";
    let open = fs::read_dir("/proc/self/fd").ok();
    let open = open.map(|files| files.count() as f64);
    put("process_open_fds", "gauge", about, open);
    let about = "Maximum number of open file descriptors.";
    put("process_max_fds", "gauge", about, most_files());
    let about = "Memory in use, in bytes.";
    put("process_resident_memory_bytes", "gauge", about, resident());
    let about = "Address space in use, in bytes.";
    put("process_virtual_memory_bytes", "gauge", about, field(23));
    let about = "When the process began, in seconds since the epoch.";
    let start = field(22).zip(booted());
    let start = start.map(|(ticks, booted)| booted + ticks / TICKS);
    put("process_start_time_seconds", "gauge", about, start);
}

/// Resident memory in bytes.
fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

/// The soft limit of open files.
fn most_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The boot time, in seconds since the epoch.
fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}
