//! What the node uses, for metrics collectors: `/stats/summary`, `/metrics/resource` and
//! `/metrics/cadvisor`, all from one provider and under upstream's names.

use std::{sync::Arc, time::Duration};

use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stdx::exposition::{Exposition, TEXT};
use tracing::warn;

use super::{Body, text, whole};
use crate::{
    core::Core,
    make::cgroups,
    stats::{ContainerStats, CpuStats, MemoryStats, PodStats, Summary},
};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

async fn gather(core: &Core) -> Result<Arc<Summary>, String> {
    let summary = core.stats.summary(core, FRESH).await;
    match &summary.pods_missing {
        None => Ok(summary),
        Some(why) => Err(why.clone()),
    }
}

/// `GET /stats/summary`; `only_cpu_and_memory=true` leaves the rest out.
pub async fn summary(core: &Core, only_cpu_and_memory: bool) -> Response<Body> {
    let summary = match gather(core).await {
        Ok(summary) => summary,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error),
    };
    let summary = if only_cpu_and_memory {
        Arc::new(reduced(&summary))
    } else {
        summary
    };
    match serde_json::to_value(&*summary) {
        Ok(value) => super::json(&value),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn reduced(summary: &Summary) -> Summary {
    let mut summary = summary.clone();
    let node = &mut summary.node;
    (node.network, node.fs, node.rlimit) = (None, None, None);
    (node.runtime.image_fs, node.runtime.container_fs) = (None, None);
    for pod in &mut summary.pods {
        pod.network = None;
        pod.volumes = Vec::new();
        pod.ephemeral_storage = Default::default();
        for container in &mut pod.containers {
            (container.rootfs, container.logs) = (None, None);
        }
    }
    summary
}

fn seconds(cpu: Option<&CpuStats>) -> Option<(f64, Option<i64>)> {
    let cpu = cpu?;
    let nanos = cpu.usage_core_nano_seconds?;
    Some((nanos as f64 / 1e9, millis(cpu.time.as_ref())))
}

fn working_set(memory: Option<&MemoryStats>) -> Option<(f64, Option<i64>)> {
    let memory = memory?;
    Some((
        memory.working_set_bytes? as f64,
        millis(memory.time.as_ref()),
    ))
}

fn millis(time: Option<&Time>) -> Option<i64> {
    time.map(|time| time.0.as_millisecond())
}

fn of_containers(
    summary: &Summary,
) -> impl Iterator<Item = ([(&'static str, &str); 3], &ContainerStats)> {
    summary.pods.iter().flat_map(|pod| {
        pod.containers.iter().map(move |container| {
            let labels = [
                ("container", container.name.as_str()),
                ("namespace", pod.pod_ref.namespace.as_str()),
                ("pod", pod.pod_ref.name.as_str()),
            ];
            (labels, container)
        })
    })
}

fn pod_labels(pod: &PodStats) -> [(&'static str, &str); 2] {
    [
        ("namespace", pod.pod_ref.namespace.as_str()),
        ("pod", pod.pod_ref.name.as_str()),
    ]
}

/// `GET /metrics/resource`.
pub async fn resource(core: &Core) -> Response<Body> {
    let mut page = Exposition::default();
    let gathered = gather(core).await;
    let failed = f64::from(u8::from(gathered.is_err()));
    match gathered {
        Ok(summary) => resource_families(&mut page, &summary),
        Err(error) => warn!(error, "cannot gather stats"),
    }
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    for name in ["resource_scrape_error", "scrape_error"] {
        page.family(name, "gauge", help)
            .sample(name, &[], failed, None);
    }
    whole(StatusCode::OK, TEXT, page.finish().into_bytes())
}

fn resource_families(page: &mut Exposition, summary: &Summary) {
    let name = "container_cpu_usage_seconds_total";
    page.family(
        name,
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
    );
    for (labels, container) in of_containers(summary) {
        if let Some((value, at)) = seconds(container.cpu.as_ref()) {
            page.sample(name, &labels, value, at);
        }
    }
    let name = "container_memory_working_set_bytes";
    page.family(
        name,
        "gauge",
        "Current working set of the container in bytes",
    );
    for (labels, container) in of_containers(summary) {
        if let Some((value, at)) = working_set(container.memory.as_ref()) {
            page.sample(name, &labels, value, at);
        }
    }
    let name = "container_start_time_seconds";
    page.family(
        name,
        "gauge",
        "Start time of the container since unix epoch in seconds",
    );
    for (labels, container) in of_containers(summary) {
        if let Some(at) = &container.start_time {
            page.sample(name, &labels, at.0.as_millisecond() as f64 / 1e3, None);
        }
    }
    let name = "container_swap_usage_bytes";
    page.family(
        name,
        "gauge",
        "Current amount of the container swap usage in bytes",
    );
    for (labels, container) in of_containers(summary) {
        if let Some(used) = container
            .swap
            .as_ref()
            .and_then(|swap| swap.swap_usage_bytes)
        {
            page.sample(name, &labels, used as f64, None);
        }
    }
    node_and_pods(page, summary);
}

fn node_and_pods(page: &mut Exposition, summary: &Summary) {
    let node = &summary.node;
    let name = "node_cpu_usage_seconds_total";
    page.family(
        name,
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
    );
    if let Some((value, at)) = seconds(node.cpu.as_ref()) {
        page.sample(name, &[], value, at);
    }
    let name = "node_memory_working_set_bytes";
    page.family(name, "gauge", "Current working set of the node in bytes");
    if let Some((value, at)) = working_set(node.memory.as_ref()) {
        page.sample(name, &[], value, at);
    }
    let name = "node_swap_usage_bytes";
    page.family(name, "gauge", "Current swap usage of the node in bytes");
    if let Some(used) = node.swap.as_ref().and_then(|swap| swap.swap_usage_bytes) {
        page.sample(name, &[], used as f64, None);
    }
    let name = "pod_cpu_usage_seconds_total";
    page.family(
        name,
        "counter",
        "Cumulative cpu time consumed by the pod in core-seconds",
    );
    for pod in &summary.pods {
        if let Some((value, at)) = seconds(pod.cpu.as_ref()) {
            page.sample(name, &pod_labels(pod), value, at);
        }
    }
    let name = "pod_memory_working_set_bytes";
    page.family(name, "gauge", "Current working set of the pod in bytes");
    for pod in &summary.pods {
        if let Some((value, at)) = working_set(pod.memory.as_ref()) {
            page.sample(name, &pod_labels(pod), value, at);
        }
    }
}

/// One line of `/metrics/cadvisor`: a container, or a pod as a whole.
struct Group<'a> {
    labels: Vec<(&'static str, String)>,
    cpu: Option<&'a CpuStats>,
    memory: Option<&'a MemoryStats>,
    swap: Option<u64>,
    disk: Option<u64>,
    inodes: Option<u64>,
    processes: Option<u64>,
    start: Option<&'a Time>,
}

fn groups<'a>(core: &Core, summary: &'a Summary) -> Vec<Group<'a>> {
    let root = cgroups::kubepods(&core.config.cgroup_root);
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
        swap: node.swap.as_ref().and_then(|swap| swap.swap_usage_bytes),
        disk: None,
        inodes: None,
        processes: node
            .rlimit
            .as_ref()
            .and_then(|limit| u64::try_from(limit.curproc?).ok()),
        start: node.start_time.as_ref(),
    }];
    for pod in &summary.pods {
        let uid = &pod.pod_ref.uid;
        let of_pod = core
            .registry
            .pods()
            .into_iter()
            .find(|seen| seen.pod.metadata.uid.as_ref() == Some(uid))
            .map(|seen| cgroups::pod(&core.config.cgroup_root, &seen.pod));
        let path = of_pod.unwrap_or_else(|| format!("{root}/pod{uid}"));
        all.push(Group {
            labels: label("", path.clone(), "", "", Some(pod)),
            cpu: pod.cpu.as_ref(),
            memory: pod.memory.as_ref(),
            swap: None,
            disk: None,
            inodes: None,
            processes: pod.process_stats.process_count,
            start: pod.start_time.as_ref(),
        });
        for container in &pod.containers {
            let rootfs = container.rootfs.as_ref();
            let id = format!("{path}/{}", container.id);
            all.push(Group {
                labels: label(
                    &container.name,
                    id,
                    &container.image,
                    &container.id,
                    Some(pod),
                ),
                cpu: container.cpu.as_ref(),
                memory: container.memory.as_ref(),
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

type Read = fn(&Group<'_>) -> Option<f64>;

const CADVISOR: &[(&str, &str, &str, Read)] = &[
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
];

/// `GET /metrics/cadvisor`.
pub async fn cadvisor(core: &Core) -> Response<Body> {
    let summary = match gather(core).await {
        Ok(summary) => summary,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error),
    };
    let mut page = Exposition::default();
    let groups = groups(core, &summary);
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
    network(&mut page, &summary);
    machine(&mut page, core);
    whole(StatusCode::OK, TEXT, page.finish().into_bytes())
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

fn network(page: &mut Exposition, summary: &Summary) {
    type Counter = fn(&crate::stats::InterfaceStats) -> Option<u64>;
    let families: [(&str, &str, Counter); 4] = [
        (
            "container_network_receive_bytes_total",
            "Cumulative count of bytes received",
            |link| link.rx_bytes,
        ),
        (
            "container_network_receive_errors_total",
            "Cumulative count of errors encountered while receiving",
            |link| link.rx_errors,
        ),
        (
            "container_network_transmit_bytes_total",
            "Cumulative count of bytes transmitted",
            |link| link.tx_bytes,
        ),
        (
            "container_network_transmit_errors_total",
            "Cumulative count of errors encountered while transmitting",
            |link| link.tx_errors,
        ),
    ];
    for (name, help, read) in families {
        page.family(name, "counter", help);
        let node = summary.node.network.iter().map(|network| (None, network));
        let pods = summary.pods.iter();
        let pods = pods.filter_map(|pod| Some((Some(pod), pod.network.as_ref()?)));
        for (pod, network) in node.chain(pods) {
            let at = millis(network.time.as_ref());
            for link in &network.interfaces {
                let Some(value) = read(link) else { continue };
                let (namespace, name_of) = pod.map_or(("", ""), |pod| {
                    (pod.pod_ref.namespace.as_str(), pod.pod_ref.name.as_str())
                });
                let labels = [
                    ("interface", link.name.as_str()),
                    ("namespace", namespace),
                    ("pod", name_of),
                ];
                page.sample(name, &labels, value as f64, at);
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
