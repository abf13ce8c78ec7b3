//! Figures for metrics collectors: the summary of what pods use, and a few counters.

use cri::v1;
use http::Response;
use serde_json::{Value, json};

use super::Body;
use crate::{core::Core, make::labels, node::machine, pod::status::time};

/// `GET /stats/summary`.
pub async fn summary(core: &Core) -> Response<Body> {
    let request = v1::ListPodSandboxStatsRequest { filter: None };
    let answer = core
        .runtime
        .client
        .clone()
        .runtime
        .list_pod_sandbox_stats(request)
        .await;
    let stats = answer
        .map(|answer| answer.into_inner().stats)
        .unwrap_or_default();
    let now = time(core.now());
    let (size, free) = machine::storage(&core.config.root_dir);
    let used = core.machine.memory - machine::available_memory();
    super::json(&json!({
        "node": {
            "nodeName": core.config.node_name,
            "startTime": now,
            "memory": {
                "time": now,
                "availableBytes": machine::available_memory(),
                "usageBytes": used,
                "workingSetBytes": used,
            },
            "fs": {
                "time": now, "availableBytes": free, "capacityBytes": size, "usedBytes": size - free,
            },
        },
        "pods": stats.iter().map(pod).collect::<Vec<_>>(),
    }))
}

fn value(value: &Option<v1::UInt64Value>) -> Value {
    value
        .as_ref()
        .map_or(Value::Null, |value| value.value.into())
}

fn at(nanos: i64) -> Value {
    let at = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
    json!(time(at))
}

fn cpu(usage: &v1::CpuUsage) -> Value {
    json!({
        "time": at(usage.timestamp),
        "usageNanoCores": value(&usage.usage_nano_cores),
        "usageCoreNanoSeconds": value(&usage.usage_core_nano_seconds),
    })
}

fn memory(usage: &v1::MemoryUsage) -> Value {
    json!({
        "time": at(usage.timestamp),
        "workingSetBytes": value(&usage.working_set_bytes),
        "usageBytes": value(&usage.usage_bytes),
        "rssBytes": value(&usage.rss_bytes),
        "pageFaults": value(&usage.page_faults),
        "majorPageFaults": value(&usage.major_page_faults),
    })
}

fn pod(stats: &v1::PodSandboxStats) -> Value {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let metadata = attributes.metadata.unwrap_or_default();
    let linux = stats.linux.clone().unwrap_or_default();
    json!({
        "podRef": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid},
        "cpu": linux.cpu.as_ref().map(cpu),
        "memory": linux.memory.as_ref().map(memory),
        "containers": linux.containers.iter().map(container).collect::<Vec<_>>(),
    })
}

fn container(stats: &v1::ContainerStats) -> Value {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let name = attributes.labels.get(labels::CONTAINER_NAME).cloned();
    json!({
        "name": name.or(attributes.metadata.map(|metadata| metadata.name)),
        "cpu": stats.cpu.as_ref().map(cpu),
        "memory": stats.memory.as_ref().map(memory),
        "rootfs": stats.writable_layer.as_ref().map(|layer| json!({
            "time": at(layer.timestamp), "usedBytes": value(&layer.used_bytes),
            "inodesUsed": value(&layer.inodes_used),
        })),
    })
}

/// `GET /metrics`.
pub fn metrics(core: &Core) -> Response<Body> {
    let pods = core.registry.pods();
    let running = pods
        .iter()
        .filter(|seen| seen.status.phase.as_deref() == Some("Running"))
        .count();
    let containers: usize = pods
        .iter()
        .flat_map(|seen| seen.status.container_statuses.iter().flatten())
        .filter(|status| {
            status
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
        })
        .count();
    let lines = [
        "# HELP kubelet_node_name The node's name. The count is always 1.".to_owned(),
        "# TYPE kubelet_node_name gauge".to_owned(),
        format!("kubelet_node_name{{node=\"{}\"}} 1", core.config.node_name),
        "# HELP kubelet_running_pods Number of pods that have a running pod sandbox".to_owned(),
        "# TYPE kubelet_running_pods gauge".to_owned(),
        format!("kubelet_running_pods {running}"),
        "# HELP kubelet_running_containers Number of containers currently running".to_owned(),
        "# TYPE kubelet_running_containers gauge".to_owned(),
        format!("kubelet_running_containers{{container_state=\"running\"}} {containers}"),
    ];
    let body = lines.join("\n") + "\n";
    super::whole(
        http::StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        body.into_bytes(),
    )
}
