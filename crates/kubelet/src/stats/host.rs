//! The node's own statistics, from /proc and statfs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use cri::v1;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use libcgroups::{Cgroup, Pressure, PressureResource, Stalled};

use super::{
    ContainerStats, CpuStats, FsStats, InterfaceStats, IoStats, MemoryStats, NetworkStats,
    NodeStats, Packets, Provider, PsiData, PsiStats, RlimitStats, RuntimeStats, SwapStats,
};
use crate::core::Core;

/// How long the runtime is asked for its file systems.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(2);

/// The statistics of the node without its network.
pub(super) async fn node(core: &Core, provider: &Provider, now: Timestamp) -> NodeStats {
    let time = Some(Time(now));
    let meminfo = Meminfo::read();
    let root = Cgroup::new("").usage();
    let nodefs = file_system(&core.config.root_dir, now);
    let cpu = root.cpu_nanos.or_else(|| {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        processor_time(&stat)
    });
    NodeStats {
        node_name: core.config.node_name.clone(),
        system_containers: system_containers(core, provider, now),
        start_time: boot_time().map(Time),
        cpu: Some(CpuStats {
            psi: pressure(PressureResource::Cpu),
            ..provider.cpu("/", cpu, None, now)
        }),
        io: pressure(PressureResource::Io).map(|psi| IoStats {
            time: time.clone(),
            psi: Some(psi),
        }),
        memory: Some(MemoryStats {
            time: time.clone(),
            available_bytes: Some(meminfo.available),
            usage_bytes: Some(meminfo.total.saturating_sub(meminfo.free)),
            working_set_bytes: Some(meminfo.total.saturating_sub(meminfo.available)),
            rss_bytes: Some(meminfo.anonymous),
            page_faults: root.page_faults.or_else(|| vmstat("pgfault")),
            major_page_faults: root.major_page_faults.or_else(|| vmstat("pgmajfault")),
            psi: pressure(PressureResource::Memory),
        }),
        network: None,
        runtime: runtime_file_systems(core, provider, &nodefs, now).await,
        fs: Some(nodefs),
        rlimit: Some(processes(now)),
        swap: Some(SwapStats {
            time,
            swap_available_bytes: Some(meminfo.swap_free),
            swap_usage_bytes: Some(meminfo.swap_total.saturating_sub(meminfo.swap_free)),
        }),
    }
}

/// Pressure stall information (PSI) of the machine.
fn pressure(waited: PressureResource) -> Option<PsiStats> {
    let data = |stalled: Stalled| PsiData {
        total: stalled.total,
        avg10: stalled.avg10,
        avg60: stalled.avg60,
        avg300: stalled.avg300,
    };
    Pressure::of_machine(waited).map(|pressure| PsiStats {
        full: data(pressure.full),
        some: data(pressure.some),
    })
}

/// The system containers: all pods together, and this process.
fn system_containers(core: &Core, provider: &Provider, now: Timestamp) -> Vec<ContainerStats> {
    let mut all = Vec::new();
    let root = core.cgroup_root();
    if !root.is_empty() {
        let usage = Cgroup::new(root.kubepods()).usage();
        let limit = usage.memory_limit;
        all.push(ContainerStats {
            name: "pods".into(),
            start_time: boot_time().map(Time),
            cpu: Some(provider.cpu("/pods", usage.cpu_nanos, None, now)),
            memory: Some(MemoryStats {
                time: Some(Time(now)),
                available_bytes: limit
                    .zip(usage.working_set)
                    .map(|(l, used)| l.saturating_sub(used)),
                usage_bytes: usage.memory,
                working_set_bytes: usage.working_set,
                rss_bytes: usage.rss,
                page_faults: usage.page_faults,
                major_page_faults: usage.major_page_faults,
                psi: None,
            }),
            ..Default::default()
        });
    }
    all.push(own_process(provider, now));
    all
}

/// The kubelet's process, which also runs the other parts of the node.
fn own_process(provider: &Provider, now: Timestamp) -> ContainerStats {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Skip the process name, which may contain anything.
    let fields: Vec<u64> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| {
            rest.split(' ')
                .map(|field| field.parse().unwrap_or(0))
                .collect()
        })
        .unwrap_or_default();
    let field = |number: usize| fields.get(number).copied().unwrap_or(0);
    let nanos = (field(11) + field(12)) * NANOS_PER_TICK;
    let resident = field(21) * rustix::param::page_size() as u64;
    ContainerStats {
        name: "kubelet".into(),
        cpu: Some(CpuStats {
            ..provider.cpu("/kubelet", Some(nanos), None, now)
        }),
        memory: Some(MemoryStats {
            time: Some(Time(now)),
            usage_bytes: Some(resident),
            working_set_bytes: Some(resident),
            rss_bytes: Some(resident),
            page_faults: Some(field(7)),
            major_page_faults: Some(field(9)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// USER_HZ is 100 on every architecture that we build for.
const NANOS_PER_TICK: u64 = 10_000_000;

/// Busy cpu time in nanoseconds.
fn processor_time(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
    // user nice system idle iowait irq softirq steal; guest time is part of user.
    let busy = ticks
        .iter()
        .enumerate()
        .filter(|(index, _)| matches!(index, 0..=2 | 5..=7));
    Some(busy.map(|(_, ticks)| ticks * NANOS_PER_TICK).sum())
}

fn boot_time() -> Option<Timestamp> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(seconds.trim().parse().ok()?).ok()
}

fn vmstat(key: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// In bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Meminfo {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub anonymous: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

impl Meminfo {
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kilobytes =
                line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kilobytes.unwrap_or(0) * 1024
        };
        Self {
            total: value("MemTotal"),
            free: value("MemFree"),
            available: value("MemAvailable"),
            anonymous: value("AnonPages"),
            swap_total: value("SwapTotal"),
            swap_free: value("SwapFree"),
        }
    }
}

/// Statistics of a path's file system.
pub(super) fn file_system(path: &Path, now: Timestamp) -> FsStats {
    let mut stats = FsStats {
        time: Some(Time(now)),
        ..Default::default()
    };
    stats.device = rustix::fs::stat(path).ok().map(|found| found.st_dev);
    if let Ok(found) = rustix::fs::statvfs(path) {
        let bytes = |blocks: u64| Some(blocks.saturating_mul(found.f_frsize));
        stats.available_bytes = bytes(found.f_bavail);
        stats.capacity_bytes = bytes(found.f_blocks);
        stats.used_bytes = bytes(found.f_blocks.saturating_sub(found.f_bfree));
        let kept = found.f_bfree.saturating_sub(found.f_bavail);
        stats.usable_bytes = bytes(found.f_blocks.saturating_sub(kept));
        // Some file systems have no fixed number of inodes.
        if found.f_files > 0 {
            stats.inodes = Some(found.f_files);
            stats.inodes_free = Some(found.f_ffree);
            stats.inodes_used = Some(found.f_files.saturating_sub(found.f_ffree));
        }
    }
    stats
}

/// The runtime's file systems of images and containers, with their usage.
/// Asks the runtime, but not for long: without an answer the file systems that it has named before count, so that
/// eviction goes on.
async fn runtime_file_systems(
    core: &Core,
    provider: &Provider,
    nodefs: &FsStats,
    now: Timestamp,
) -> RuntimeStats {
    let mut images = core.runtime.client.clone().images;
    let request = images.image_fs_info(v1::ImageFsInfoRequest {});
    let answer = tokio::time::timeout(RUNTIME_PATIENCE, request).await;
    let Ok(Ok(answer)) = answer.map(|answer| answer.map(tonic::Response::into_inner)) else {
        let places = provider.places.lock().clone();
        let known = places.map(|place| match place {
            Some(place) => file_system(&place, now),
            None => nodefs.clone(),
        });
        let [image_fs, container_fs] = known.map(Some);
        return RuntimeStats {
            image_fs,
            container_fs,
        };
    };
    let of = |list: &[v1::FilesystemUsage]| {
        let usage = list.first()?;
        let place = PathBuf::from(&usage.fs_id.as_ref()?.mountpoint);
        let mut stats = file_system(&place, now);
        stats.used_bytes = usage.used_bytes.map(|v| v.value);
        stats.inodes_used = usage.inodes_used.map(|v| v.value);
        Some((place, stats))
    };
    let images = of(&answer.image_filesystems);
    let containers = of(&answer.container_filesystems).or_else(|| images.clone());
    let place = |found: &Option<(PathBuf, FsStats)>| found.as_ref().map(|(place, _)| place.clone());
    *provider.places.lock() = [place(&images), place(&containers)];
    RuntimeStats {
        image_fs: Some(images.map_or_else(|| nodefs.clone(), |(_, stats)| stats)),
        container_fs: containers.map(|(_, stats)| stats),
    }
}

/// The statistics of all network interfaces of the node, including one for each pod.
pub(super) fn network(now: Timestamp) -> NetworkStats {
    let text = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let interfaces = interfaces(&text);
    let default = default_link(&routes)
        .and_then(|name| interfaces.iter().find(|link| link.name == name))
        .or_else(|| interfaces.first())
        .cloned()
        .unwrap_or_default();
    NetworkStats {
        time: Some(Time(now)),
        default,
        interfaces,
    }
}

/// The interface of the default route.
fn default_link(routes: &str) -> Option<String> {
    let mut lines = routes.lines().skip(1).map(|line| line.split_whitespace());
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.next()? == "00000000").then(|| name.to_owned())
    })
}

/// The interfaces listed in a `/proc/net/dev`.
pub(super) fn interfaces(text: &str) -> Vec<InterfaceStats> {
    let line = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let numbers: Vec<u64> = counters.split_whitespace().flat_map(str::parse).collect();
        Some(InterfaceStats {
            name: name.trim().to_owned(),
            rx_bytes: numbers.first().copied(),
            rx_errors: numbers.get(2).copied(),
            tx_bytes: numbers.get(8).copied(),
            tx_errors: numbers.get(10).copied(),
            packets: numbers.get(11).map(|transmit_dropped| Packets {
                received: numbers[1],
                receive_dropped: numbers[3],
                transmitted: numbers[9],
                transmit_dropped: *transmit_dropped,
            }),
        })
    };
    let all = text.lines().skip(2).filter_map(line);
    all.filter(|link| link.name != "lo").collect()
}

/// The current and the maximum number of processes and threads.
pub(super) fn processes(now: Timestamp) -> RlimitStats {
    let number = |path: &str| {
        let text = fs::read_to_string(path).ok()?;
        text.trim().parse::<i64>().ok()
    };
    let max = number("/proc/sys/kernel/pid_max");
    let threads = number("/proc/sys/kernel/threads-max");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let now_running = load
        .split(' ')
        .nth(3)
        .and_then(|pair| pair.split('/').nth(1)?.parse().ok());
    RlimitStats {
        time: Some(Time(now)),
        maxpid: max.into_iter().chain(threads).min(),
        curproc: now_running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        let stat = "cpu  10 1 5 1000 7 2 3 4 9 0\ncpu0 1 1 1 1\nbtime 5\n";
        assert_eq!(processor_time(stat), Some(25 * NANOS_PER_TICK));
        let text = "MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 60 kB\nAnonPages: 5 kB\n";
        let memory = Meminfo::parse(text);
        assert_eq!((memory.total, memory.available), (102_400, 61_440));
        let routes = "Iface Destination Gateway\neth1 000011AC 0\neth0 00000000 0101\n";
        assert_eq!(default_link(routes).as_deref(), Some("eth0"));
        let dev =
            "Inter-| R\n face |b\n  lo: 1 2 3 4 5 6 7 8 9 10 11\neth0: 5 1 2 0 0 0 0 0 7 1 3 0\n";
        let found = interfaces(dev);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].rx_bytes, found[0].tx_bytes, found[0].tx_errors),
            (Some(5), Some(7), Some(3))
        );
    }

    #[test]
    fn a_file_system_has_a_size() {
        let found = file_system(Path::new("/"), Timestamp::UNIX_EPOCH);
        assert!(found.capacity_bytes > Some(0) && found.available_bytes <= found.capacity_bytes);
        assert!(boot_time().unwrap() > Timestamp::UNIX_EPOCH);
    }
}
