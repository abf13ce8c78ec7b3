//! Resource usage for metrics collectors: `/stats/summary` and `/metrics/resource`, under
//! upstream's names.

use std::{sync::Arc, time::Duration};

use http::{Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stdx::exposition::{Exposition, TEXT};
use tracing::warn;

use super::{Body, text, whole};
use crate::{
    core::Core,
    stats::{ContainerStats, CpuStats, MemoryStats, PodStats, Summary},
};

/// The maximum age of statistics.
const FRESH: Duration = Duration::from_secs(1);

pub(super) async fn gather(core: &Core) -> Result<Arc<Summary>, String> {
    complete(core.stats.summary(core, FRESH).await)
}

fn complete(summary: Arc<Summary>) -> Result<Arc<Summary>, String> {
    match &summary.pods_missing {
        None => Ok(summary),
        Some(why) => Err(why.clone()),
    }
}

/// `GET /stats/summary`; `only_cpu_and_memory=true` omits the rest.
pub(super) async fn summary(core: &Core, only_cpu_and_memory: bool) -> Response<Body> {
    let gathered = match only_cpu_and_memory {
        true => complete(core.stats.processor_and_memory(core, FRESH).await),
        false => gather(core).await,
    };
    let summary = match gathered {
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

pub(super) fn seconds(cpu: Option<&CpuStats>) -> Option<(f64, Option<i64>)> {
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

pub(super) fn millis(time: Option<&Time>) -> Option<i64> {
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
pub(super) async fn resource(core: &Core) -> Response<Body> {
    let mut page = Exposition::default();
    let gathered = complete(core.stats.processor_and_memory(core, FRESH).await);
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
