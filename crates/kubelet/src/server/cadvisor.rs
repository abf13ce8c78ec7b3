//! `GET /metrics/cadvisor`: pods and containers under cAdvisor's metric names, from the stats
//! provider and from the cgroups.

use std::{collections::HashMap, sync::Arc};

use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stdx::exposition::{Exposition, TEXT};

use super::{
    Body,
    stats::{gather, millis, seconds},
    text, whole,
};
use crate::{
    core::Core,
    pod::spec,
    stats::{
        CpuStats, InterfaceStats, IoStats, MemoryStats, Packets, PodStats, Summary,
        cgroup::{self, CgroupStats, DeviceStats},
    },
};

/// The source of one set of samples: a container or a pod.
struct Group<'a> {
    labels: Vec<(&'static str, String)>,
    cpu: Option<&'a CpuStats>,
    memory: Option<&'a MemoryStats>,
    io: Option<&'a IoStats>,
    swap: Option<u64>,
    disk: Option<u64>,
    inodes: Option<u64>,
    processes: Option<u64>,
    start: Option<&'a Time>,
    cgroup: CgroupStats,
}

fn groups<'a>(core: &Core, summary: &'a Summary) -> Vec<Group<'a>> {
    let root = core.cgroup_root().kubepods();
    let node = &summary.node;
    let label = |container: &str, id: String, image: &str, name: &str, pod: Option<&PodStats>| {
        let of = |part: fn(&PodStats) -> &String| pod.map(part).cloned().unwrap_or_default();
        vec![
            ("container", container.to_owned()),
            ("id", id),
            ("image", image.to_owned()),
            ("name", name.to_owned()),
            ("namespace", of(|pod| &pod.pod_ref.namespace)),
            ("pod", of(|pod| &pod.pod_ref.name)),
        ]
    };
    let mut all = vec![Group {
        labels: label("", "/".into(), "", "", None),
        cpu: node.cpu.as_ref(),
        memory: node.memory.as_ref(),
        io: node.io.as_ref(),
        swap: node.swap.as_ref().and_then(|swap| swap.swap_usage_bytes),
        disk: None,
        inodes: None,
        processes: node
            .rlimit
            .as_ref()
            .and_then(|limit| u64::try_from(limit.curproc?).ok()),
        start: node.start_time.as_ref(),
        cgroup: CgroupStats::default(),
    }];
    let pods = core.registry.pods();
    let pods: HashMap<&str, &crate::registry::PublishedPod> = pods
        .iter()
        .map(|seen| (spec::uid(&seen.pod), seen))
        .collect();
    for pod in &summary.pods {
        let uid = &pod.pod_ref.uid;
        let of_pod = pods
            .get(uid.as_str())
            .map(|seen| core.cgroup_root().pod(&seen.pod));
        let path = of_pod.unwrap_or_else(|| format!("{root}/pod{uid}"));
        all.push(Group {
            labels: label("", path.clone(), "", "", Some(pod)),
            cpu: pod.cpu.as_ref(),
            memory: pod.memory.as_ref(),
            io: pod.io.as_ref(),
            swap: pod.swap.as_ref().and_then(|swap| swap.swap_usage_bytes),
            disk: None,
            inodes: None,
            processes: pod.process_stats.process_count,
            start: pod.start_time.as_ref(),
            cgroup: cgroup::read(&path),
        });
        for container in &pod.containers {
            let rootfs = container.rootfs.as_ref();
            let id = format!("{path}/{}", container.id);
            all.push(Group {
                cgroup: cgroup::read(&id),
                labels: label(
                    &container.name,
                    id,
                    &container.image,
                    &container.id,
                    Some(pod),
                ),
                cpu: container.cpu.as_ref(),
                memory: container.memory.as_ref(),
                io: container.io.as_ref(),
                swap: container
                    .swap
                    .as_ref()
                    .and_then(|swap| swap.swap_usage_bytes),
                disk: rootfs.and_then(|fs| fs.used_bytes),
                inodes: rootfs.and_then(|fs| fs.inodes_used),
                processes: None,
                start: container.start_time.as_ref(),
            });
        }
    }
    all
}

impl Group<'_> {
    /// The cgroup's counters, if it has a cpu quota.
    fn limited(&self) -> Option<&CgroupStats> {
        Some(&self.cgroup).filter(|cgroup| cgroup.quota.is_some())
    }

    fn label(&self, name: &str) -> &str {
        let mut labels = self.labels.iter();
        let found = labels.find(|(label, _)| *label == name);
        found.map_or("", |(_, value)| value.as_str())
    }
}

type Read = fn(&Group<'_>) -> Option<f64>;

const CADVISOR: &[(&str, &str, &str, Read)] = &[
    (
        "container_cpu_cfs_periods_total",
        "counter",
        "Number of elapsed enforcement period intervals.",
        |group| Some(group.limited()?.periods? as f64),
    ),
    (
        "container_cpu_cfs_throttled_periods_total",
        "counter",
        "Number of throttled period intervals.",
        |group| Some(group.limited()?.throttled_periods? as f64),
    ),
    (
        "container_cpu_cfs_throttled_seconds_total",
        "counter",
        "Total time duration the container has been throttled.",
        |group| group.limited()?.throttled_seconds,
    ),
    (
        "container_spec_cpu_quota",
        "gauge",
        "CPU quota of the container.",
        |group| Some(group.limited()?.quota? as f64),
    ),
    (
        "container_spec_cpu_period",
        "gauge",
        "CPU period of the container.",
        |group| Some(group.cgroup.period? as f64),
    ),
    (
        "container_oom_events_total",
        "counter",
        "Count of out of memory events observed for the container",
        |group| Some(group.cgroup.oom_kills? as f64),
    ),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |group| Some(group.memory?.usage_bytes? as f64),
    ),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set in bytes.",
        |group| Some(group.memory?.working_set_bytes? as f64),
    ),
    (
        "container_memory_rss",
        "gauge",
        "Size of RSS in bytes.",
        |group| Some(group.memory?.rss_bytes? as f64),
    ),
    (
        "container_memory_cache",
        "gauge",
        "Number of bytes of page cache memory.",
        |group| {
            let memory = group.memory?;
            Some(memory.usage_bytes?.saturating_sub(memory.rss_bytes?) as f64)
        },
    ),
    (
        "container_memory_swap",
        "gauge",
        "Container swap usage in bytes.",
        |group| Some(group.swap? as f64),
    ),
    (
        "container_spec_memory_limit_bytes",
        "gauge",
        "Memory limit for the container.",
        |group| {
            let memory = group.memory?;
            let limit = memory.available_bytes.zip(memory.working_set_bytes);
            Some(limit.map_or(0.0, |(left, used)| (left + used) as f64))
        },
    ),
    (
        "container_fs_usage_bytes",
        "gauge",
        "Number of bytes that are consumed by the container on this filesystem.",
        |group| Some(group.disk? as f64),
    ),
    (
        "container_fs_inodes_total",
        "gauge",
        "Number of Inodes",
        |group| Some(group.inodes? as f64),
    ),
    (
        "container_processes",
        "gauge",
        "Number of processes running inside the container.",
        |group| Some(group.processes? as f64),
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds.",
        |group| Some(group.start?.0.as_second() as f64),
    ),
    (
        "container_pressure_cpu_stalled_seconds_total",
        "counter",
        "Time in which no process of the container could go on for lack of CPU, in seconds.",
        |group| Some(group.cpu?.psi?.full.total as f64 / 1e6),
    ),
    (
        "container_pressure_cpu_waiting_seconds_total",
        "counter",
        "Time in which some process of the container waited for lack of CPU, in seconds.",
        |group| Some(group.cpu?.psi?.some.total as f64 / 1e6),
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "counter",
        "Time in which no process of the container could go on for lack of memory, in seconds.",
        |group| Some(group.memory?.psi?.full.total as f64 / 1e6),
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "counter",
        "Time in which some process of the container waited for lack of memory, in seconds.",
        |group| Some(group.memory?.psi?.some.total as f64 / 1e6),
    ),
    (
        "container_pressure_io_stalled_seconds_total",
        "counter",
        "Time in which no process of the container could go on for lack of I/O, in seconds.",
        |group| Some(group.io?.psi?.full.total as f64 / 1e6),
    ),
    (
        "container_pressure_io_waiting_seconds_total",
        "counter",
        "Time in which some process of the container waited for lack of I/O, in seconds.",
        |group| Some(group.io?.psi?.some.total as f64 / 1e6),
    ),
];

/// Serves the metrics. Cgroups are read on a blocking thread.
pub(super) async fn serve(core: Arc<Core>) -> Response<Body> {
    let summary = match gather(&core).await {
        Ok(summary) => summary,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error),
    };
    let page = tokio::task::spawn_blocking(move || page(&core, &summary));
    match page.await {
        Ok(page) => whole(StatusCode::OK, TEXT, page.into_bytes()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn page(core: &Core, summary: &Summary) -> String {
    let mut page = Exposition::default();
    let groups = groups(core, summary);
    let at = millis(summary.node.cpu.as_ref().and_then(|cpu| cpu.time.as_ref()));
    let borrowed = |group: &Group<'_>| -> Vec<(&'static str, String)> { group.labels.clone() };
    for (name, kind, help, read) in CADVISOR {
        page.family(name, kind, help);
        for group in &groups {
            if let Some(value) = read(group) {
                put(&mut page, name, borrowed(group), value, at);
            }
        }
    }
    let name = "container_cpu_usage_seconds_total";
    page.family(name, "counter", "Cumulative cpu time consumed in seconds.");
    for group in &groups {
        if let Some((value, at)) = seconds(group.cpu) {
            let mut labels = borrowed(group);
            labels.insert(1, ("cpu", "total".into()));
            put(&mut page, name, labels, value, at);
        }
    }
    let name = "container_memory_failures_total";
    page.family(
        name,
        "counter",
        "Cumulative count of memory allocation failures.",
    );
    for group in &groups {
        let Some(memory) = group.memory else { continue };
        for (kind, count) in [
            ("pgfault", memory.page_faults),
            ("pgmajfault", memory.major_page_faults),
        ] {
            let Some(count) = count else { continue };
            let mut labels = borrowed(group);
            labels.insert(1, ("failure_type", kind.into()));
            labels.push(("scope", "container".into()));
            put(&mut page, name, labels, count as f64, at);
        }
    }
    devices(&mut page, &groups, at);
    network(&mut page, &links(summary, &groups));
    machine(&mut page, core);
    page.finish()
}

fn put(
    page: &mut Exposition,
    name: &str,
    labels: Vec<(&'static str, String)>,
    value: f64,
    at: Option<i64>,
) {
    let labels: Vec<(&str, &str)> = labels
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    page.sample(name, &labels, value, at);
}

type OfDevice = fn(&DeviceStats) -> u64;

const DEVICES: &[(&str, &str, OfDevice)] = &[
    (
        "container_fs_reads_total",
        "Cumulative count of reads completed",
        |device| device.reads,
    ),
    (
        "container_fs_writes_total",
        "Cumulative count of writes completed",
        |device| device.writes,
    ),
    (
        "container_fs_reads_bytes_total",
        "Cumulative count of bytes read",
        |device| device.read_bytes,
    ),
    (
        "container_fs_writes_bytes_total",
        "Cumulative count of bytes written",
        |device| device.written_bytes,
    ),
];

fn devices(page: &mut Exposition, groups: &[Group<'_>], at: Option<i64>) {
    for (name, help, read) in DEVICES {
        page.family(name, "counter", help);
        for group in groups {
            for device in &group.cgroup.devices {
                let mut labels = group.labels.clone();
                labels.insert(1, ("device", device.device.clone()));
                put(page, name, labels, read(device) as f64, at);
            }
        }
    }
}

/// A network interface of the node or of a pod.
struct Link<'a> {
    labels: Vec<(&'static str, String)>,
    stats: &'a InterfaceStats,
    packets: Option<Packets>,
    at: Option<i64>,
}

/// The interfaces of the node and of pods with their own network namespace. Packet counters of pods
/// are read in the network namespace of a container's process.
fn links<'a>(summary: &'a Summary, groups: &[Group<'_>]) -> Vec<Link<'a>> {
    let mut all = Vec::new();
    if let Some(network) = &summary.node.network {
        all.extend(network.interfaces.iter().map(|stats| Link {
            labels: link_labels("/", stats, "", ""),
            packets: stats.packets,
            at: millis(network.time.as_ref()),
            stats,
        }));
    }
    let mut by_pod: HashMap<_, Vec<&str>> = HashMap::new();
    for group in groups {
        let pod = (group.label("namespace"), group.label("pod"));
        by_pod.entry(pod).or_default().push(group.label("id"));
    }
    for pod in &summary.pods {
        let Some(network) = &pod.network else {
            continue;
        };
        let (namespace, name) = (&pod.pod_ref.namespace, &pod.pod_ref.name);
        let own = by_pod.get(&(namespace.as_str(), name.as_str()));
        let mut paths = own.into_iter().flatten().copied();
        // The pod's cgroup comes first; only the containers' cgroups have processes.
        let of_pod = paths.next().unwrap_or_default();
        let mut counted = paths.map(cgroup::interfaces);
        let counted = counted.find(|found| !found.is_empty()).unwrap_or_default();
        all.extend(network.interfaces.iter().map(|stats| {
            let own = counted.iter().find(|one| one.name == stats.name);
            Link {
                labels: link_labels(of_pod, stats, namespace, name),
                packets: own.and_then(|own| own.packets),
                at: millis(network.time.as_ref()),
                stats,
            }
        }));
    }
    all
}

fn link_labels(
    id: &str,
    stats: &InterfaceStats,
    namespace: &str,
    pod: &str,
) -> Vec<(&'static str, String)> {
    vec![
        ("id", id.to_owned()),
        ("interface", stats.name.clone()),
        ("namespace", namespace.to_owned()),
        ("pod", pod.to_owned()),
    ]
}

type OfLink = fn(&Link<'_>) -> Option<u64>;

const LINKS: &[(&str, &str, OfLink)] = &[
    (
        "container_network_receive_bytes_total",
        "Cumulative count of bytes received",
        |link| link.stats.rx_bytes,
    ),
    (
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        |link| link.stats.rx_errors,
    ),
    (
        "container_network_receive_packets_total",
        "Cumulative count of packets received",
        |link| Some(link.packets?.received),
    ),
    (
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        |link| Some(link.packets?.receive_dropped),
    ),
    (
        "container_network_transmit_bytes_total",
        "Cumulative count of bytes transmitted",
        |link| link.stats.tx_bytes,
    ),
    (
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        |link| link.stats.tx_errors,
    ),
    (
        "container_network_transmit_packets_total",
        "Cumulative count of packets transmitted",
        |link| Some(link.packets?.transmitted),
    ),
    (
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        |link| Some(link.packets?.transmit_dropped),
    ),
];

fn network(page: &mut Exposition, links: &[Link<'_>]) {
    for (name, help, read) in LINKS {
        page.family(name, "counter", help);
        for link in links {
            if let Some(value) = read(link) {
                put(page, name, link.labels.clone(), value as f64, link.at);
            }
        }
    }
}

fn machine(page: &mut Exposition, core: &Core) {
    let info = &core.machine.info;
    let labels = [
        ("boot_id", info.boot_id.as_str()),
        ("machine_id", info.machine_id.as_str()),
        ("system_uuid", info.system_uuid.as_str()),
    ];
    page.family("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
    page.sample("machine_cpu_cores", &labels, core.machine.cpus as f64, None);
    page.family(
        "machine_memory_bytes",
        "gauge",
        "Amount of memory installed on the machine.",
    );
    page.sample(
        "machine_memory_bytes",
        &labels,
        core.machine.memory as f64,
        None,
    );
}
