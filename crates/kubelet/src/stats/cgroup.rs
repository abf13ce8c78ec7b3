//! Cgroup statistics that CRI does not report: throttling, limits, block I/O and OOM kills. For
//! cgroup v1 and v2; values that a kernel does not count are absent.

use std::fs;

use super::InterfaceStats;
use crate::cgroups;

/// Counters of a cgroup.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CgroupStats {
    /// Elapsed periods with a quota, and those in which the cgroup was throttled.
    pub periods: Option<u64>,
    pub throttled_periods: Option<u64>,
    pub throttled_seconds: Option<f64>,
    /// Microseconds of cpu time per period; `None` without a limit.
    pub quota: Option<u64>,
    pub period: Option<u64>,
    pub oom_kills: Option<u64>,
    pub devices: Vec<DeviceStats>,
}

/// Input and output of one block device.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DeviceStats {
    /// `MAJOR:MINOR`.
    pub device: String,
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Reads the counters of a cgroup by its path below the mount point.
pub(crate) fn read(path: &str) -> CgroupStats {
    let text = |controller: &str, file: &str| {
        let file = cgroups::below(controller, path).join(file);
        fs::read_to_string(file).unwrap_or_default()
    };
    if cgroups::is_v2() {
        let stat = text("", "cpu.stat");
        let maximum = text("", "cpu.max");
        let mut maximum = maximum.split_whitespace().map(|word| word.parse().ok());
        return CgroupStats {
            periods: keyed(&stat, "nr_periods"),
            throttled_periods: keyed(&stat, "nr_throttled"),
            throttled_seconds: keyed(&stat, "throttled_usec").map(|micros| micros as f64 / 1e6),
            quota: maximum.next().flatten(),
            period: maximum.next().flatten(),
            oom_kills: keyed(&text("", "memory.events"), "oom_kill"),
            devices: devices_v2(&text("", "io.stat")),
        };
    }
    let stat = text("cpu", "cpu.stat");
    let number = |file: &str| text("cpu", file).trim().parse().ok();
    CgroupStats {
        periods: keyed(&stat, "nr_periods"),
        throttled_periods: keyed(&stat, "nr_throttled"),
        throttled_seconds: keyed(&stat, "throttled_time").map(|nanos| nanos as f64 / 1e9),
        quota: number("cpu.cfs_quota_us"),
        period: number("cpu.cfs_period_us"),
        oom_kills: keyed(&text("memory", "memory.oom_control"), "oom_kill"),
        devices: devices_v1(
            &text("blkio", "blkio.throttle.io_serviced"),
            &text("blkio", "blkio.throttle.io_service_bytes"),
        ),
    }
}

/// The interfaces in the network namespace of a cgroup's first process.
pub(crate) fn interfaces(path: &str) -> Vec<InterfaceStats> {
    let controller = if cgroups::is_v2() { "" } else { "pids" };
    let processes = cgroups::below(controller, path).join("cgroup.procs");
    let processes = fs::read_to_string(processes).unwrap_or_default();
    let Some(process) = processes.lines().next() else {
        return Vec::new();
    };
    let text = fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    super::host::interfaces(&text)
}

/// The number after a key at the start of a line.
fn keyed(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = lines.find(|(found, _)| *found == key)?;
    value.trim().parse().ok()
}

/// Lines such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0`.
fn devices_v2(text: &str) -> Vec<DeviceStats> {
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let mut stats = DeviceStats {
            device: words.next()?.to_owned(),
            ..Default::default()
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            let value = value.parse().unwrap_or(0);
            match key {
                "rbytes" => stats.read_bytes = value,
                "wbytes" => stats.written_bytes = value,
                "rios" => stats.reads = value,
                "wios" => stats.writes = value,
                _ => {}
            }
        }
        Some(stats)
    };
    text.lines().filter_map(device).collect()
}

/// Lines such as `8:0 Read 1`, in one file for operations and one for bytes.
fn devices_v1(operations: &str, bytes: &str) -> Vec<DeviceStats> {
    let mut all: Vec<DeviceStats> = Vec::new();
    for (text, is_bytes) in [(operations, false), (bytes, true)] {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(device), Some(kind), Some(value)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let value = value.parse().unwrap_or(0);
            let at = match all.iter().position(|one| one.device == device) {
                Some(at) => at,
                None => {
                    all.push(DeviceStats {
                        device: device.to_owned(),
                        ..Default::default()
                    });
                    all.len() - 1
                }
            };
            match (kind, is_bytes) {
                ("Read", false) => all[at].reads = value,
                ("Write", false) => all[at].writes = value,
                ("Read", true) => all[at].read_bytes = value,
                ("Write", true) => all[at].written_bytes = value,
                _ => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_both_versions_are_understood() {
        let stat = "usage_usec 9\nnr_periods 12\nnr_throttled 3\nthrottled_usec 1500\n";
        assert_eq!(keyed(stat, "nr_periods"), Some(12));
        assert_eq!(keyed(stat, "nr"), None);
        let expected = [DeviceStats {
            device: "8:0".to_owned(),
            reads: 3,
            writes: 4,
            read_bytes: 1,
            written_bytes: 2,
        }];
        let v2 = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n";
        assert_eq!(devices_v2(v2), expected);
        let operations = "8:0 Read 3\n8:0 Write 4\n8:0 Sync 7\n8:0 Total 7\nTotal 7\n";
        let bytes = "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n";
        assert_eq!(devices_v1(operations, bytes), expected);
        assert_eq!(read("/there/is/no/such/cgroup"), CgroupStats::default());
        assert_eq!(interfaces("/there/is/no/such/cgroup"), []);
    }
}
