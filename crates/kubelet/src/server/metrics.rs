//! `GET /metrics`: the kubelet's own metrics, under upstream's names.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use http::{Response, StatusCode};

use stdx::exposition::{Exposition, TEXT};

use super::{Body, whole};
use crate::{
    config::version,
    core::Core,
    registry::PublishedPod,
    stats::{Summary, VolumeStats},
};

/// The maximum age of volume statistics.
const FRESH: Duration = Duration::from_secs(1);

/// Serves the metrics.
pub(super) async fn serve(core: &Core) -> Response<Body> {
    let mut page = Exposition::default();
    let pods = core.registry.pods();
    node(&mut page, core, &pods);
    containers(&mut page, &pods);
    evictions(&mut page, core);
    shutdown(&mut page, core);
    certificates(&mut page, core);
    core.metrics.show(&mut page);
    client::metrics::show(&mut page);
    let summary = core.stats.summary(core, FRESH).await;
    claims(&mut page, &summary);
    process(&mut page);
    whole(StatusCode::OK, TEXT, page.finish().into_bytes())
}

/// When the node last shut down.
fn shutdown(page: &mut Exposition, core: &Core) {
    let times = *core.shutdown_times.borrow();
    for (name, at, help) in [
        (
            "kubelet_graceful_shutdown_start_time_seconds",
            times.start_time,
            "Last graceful shutdown start time since unix epoch in seconds",
        ),
        (
            "kubelet_graceful_shutdown_end_time_seconds",
            times.end_time,
            "Last graceful shutdown end time since unix epoch in seconds",
        ),
    ] {
        page.family(name, "gauge", help);
        page.sample(name, &[], at.map_or(0.0, |at| at.as_second() as f64), None);
    }
}

/// How long the kubelet's certificates are valid, and whether their renewal failed.
fn certificates(page: &mut Exposition, core: &Core) {
    let known = &core.config.certificates;
    for (certificate, ttl, ttl_help, errors, errors_help) in [
        (
            &known.client,
            "kubelet_certificate_manager_client_ttl_seconds",
            "Seconds until the kubelet's client certificate expires; negative if it has expired",
            "kubelet_certificate_manager_client_expiration_renew_errors",
            "Counter of certificate renewal errors.",
        ),
        (
            &known.serving,
            "kubelet_certificate_manager_server_ttl_seconds",
            "Seconds until the kubelet's serving certificate expires; negative if it has expired",
            "kubelet_server_expiration_renew_errors",
            "Counter of renewal errors of the serving certificate.",
        ),
    ] {
        let Some(certificate) = certificate else {
            continue;
        };
        if let Some(until) = certificate.not_after() {
            page.family(ttl, "gauge", ttl_help);
            let left = until.duration_since(core.now()).as_secs_f64();
            page.sample(ttl, &[], left, None);
        }
        page.family(errors, "counter", errors_help);
        let count = certificate.renewal_errors() as f64;
        page.sample(errors, &[], count, None);
    }
}

/// `GET /metrics/probes`: results of container probes.
pub(super) fn probes(core: &Core) -> Response<Body> {
    let mut page = Exposition::default();
    core.metrics.show_probes(&mut page);
    whole(StatusCode::OK, TEXT, page.finish().into_bytes())
}

/// `GET /metrics/slis`: results of the health checks.
pub(super) fn indicators(core: &Core) -> Response<Body> {
    let mut page = Exposition::default();
    core.metrics.show_health_checks(&mut page);
    whole(StatusCode::OK, TEXT, page.finish().into_bytes())
}

/// The pods by what the kubelet does with them.
fn stages(page: &mut Exposition, pods: &[PublishedPod]) {
    let is_static = |seen: &PublishedPod| crate::pod::spec::is_static(&seen.pod);
    let is_active = |seen: &PublishedPod| seen.is_wanted && !seen.is_ending;
    let label = |yes: bool| if yes { "true" } else { "" };
    let count = |matches: &dyn Fn(&PublishedPod) -> bool| {
        let matching = pods.iter().filter(|seen| matches(seen));
        matching.count() as f64
    };
    let name = "kubelet_active_pods";
    let help = "The number of pods that count when others are admitted.";
    page.family(name, "gauge", help);
    for of_file in [false, true] {
        let active = count(&|seen| is_static(seen) == of_file && is_active(seen));
        page.sample(name, &[("static", label(of_file))], active, None);
    }
    let name = "kubelet_mirror_pods";
    page.family(
        name,
        "gauge",
        "The number of static pods that have a mirror.",
    );
    let mirrored = count(&|seen| is_static(seen) && seen.is_wanted);
    page.sample(name, &[], mirrored, None);
    let name = "kubelet_working_pods";
    let help = "The number of pods by lifecycle, and by whether a source has them.";
    page.family(name, "gauge", help);
    let stage = |seen: &PublishedPod| match (seen.is_stopped, seen.is_ending) {
        (true, _) => "terminated",
        (false, true) => "terminating",
        (false, false) => "sync",
    };
    for (config, is_wanted) in [("desired", true), ("orphan", false)] {
        for lifecycle in ["sync", "terminating", "terminated"] {
            for of_file in [false, true] {
                let working = count(&|seen| {
                    (seen.is_wanted, is_static(seen), stage(seen))
                        == (is_wanted, of_file, lifecycle)
                });
                let labels = [
                    ("config", config),
                    ("lifecycle", lifecycle),
                    ("static", label(of_file)),
                ];
                page.sample(name, &labels, working, None);
            }
        }
    }
}

fn node(page: &mut Exposition, core: &Core, pods: &[PublishedPod]) {
    let name = "kubelet_node_name";
    page.family(name, "gauge", "The node's name. The count is always 1.");
    page.sample(name, &[("node", &core.config.node_name)], 1.0, None);
    let running = pods
        .iter()
        .filter(|seen| seen.status.phase.as_deref() == Some("Running"));
    let name = "kubelet_running_pods";
    page.family(
        name,
        "gauge",
        "Number of pods that have a running pod sandbox",
    );
    page.sample(name, &[], running.count() as f64, None);
    let name = "kubelet_desired_pods";
    page.family(
        name,
        "gauge",
        "The number of pods the kubelet is being instructed to run",
    );
    let of_files = pods
        .iter()
        .filter(|seen| crate::pod::spec::is_static(&seen.pod))
        .count();
    for (is_static, count) in [("", pods.len() - of_files), ("true", of_files)] {
        page.sample(name, &[("static", is_static)], count as f64, None);
    }
    stages(page, pods);
    let name = "kubernetes_build_info";
    page.family(name, "gauge", "The version of this program.");
    let arch = crate::node::machine::architecture();
    let platform = format!("linux/{arch}");
    page.sample(
        name,
        &[("git_version", &version()), ("platform", &platform)],
        1.0,
        None,
    );
}

fn containers(page: &mut Exposition, pods: &[PublishedPod]) {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    let statuses = pods.iter().flat_map(|seen| {
        let status = &seen.status;
        let lists = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ];
        lists.into_iter().flat_map(|list| list.iter().flatten())
    });
    for state in statuses.filter_map(|status| status.state.as_ref()) {
        let name = match state {
            state if state.running.is_some() => "running",
            state if state.terminated.is_some() => "exited",
            _ => "created",
        };
        *states.entry(name).or_default() += 1;
    }
    states.entry("running").or_default();
    let name = "kubelet_running_containers";
    page.family(name, "gauge", "Number of containers currently running");
    for (state, count) in states {
        page.sample(name, &[("container_state", state)], count as f64, None);
    }
}

fn evictions(page: &mut Exposition, core: &Core) {
    let name = "kubelet_evictions";
    page.family(
        name,
        "counter",
        "Cumulative number of pod evictions by eviction signal",
    );
    for (signal, count) in core.evictions.lock().iter() {
        page.sample(name, &[("eviction_signal", signal)], *count as f64, None);
    }
}

type Read = fn(&VolumeStats) -> Option<u64>;

const CLAIMS: &[(&str, &str, Read)] = &[
    (
        "kubelet_volume_stats_capacity_bytes",
        "Capacity in bytes of the volume",
        |volume| Some(volume.fs.capacity_bytes.unwrap_or(0)),
    ),
    (
        "kubelet_volume_stats_available_bytes",
        "Number of available bytes in the volume",
        |volume| Some(volume.fs.available_bytes.unwrap_or(0)),
    ),
    (
        "kubelet_volume_stats_used_bytes",
        "Number of used bytes in the volume",
        |volume| Some(volume.fs.used_bytes.unwrap_or(0)),
    ),
    (
        "kubelet_volume_stats_inodes",
        "Maximum number of inodes in the volume",
        |volume| Some(volume.fs.inodes.unwrap_or(0)),
    ),
    (
        "kubelet_volume_stats_inodes_free",
        "Number of free inodes in the volume",
        |volume| Some(volume.fs.inodes_free.unwrap_or(0)),
    ),
    (
        "kubelet_volume_stats_inodes_used",
        "Number of used inodes in the volume",
        |volume| Some(volume.fs.inodes_used.unwrap_or(0)),
    ),
    (
        "kubelet_volume_stats_health_status_abnormal",
        "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is \
         unhealthy, 0 indicates volume is healthy",
        |volume| {
            let health = volume.volume_health_stats.as_ref()?;
            Some(u64::from(health.abnormal))
        },
    ),
];

/// Volume usage by claim; a claim that several pods use counts once.
fn claims(page: &mut Exposition, summary: &Summary) {
    for (name, help, read) in CLAIMS {
        page.family(name, "gauge", help);
        let mut seen = BTreeSet::new();
        let volumes = summary.pods.iter().flat_map(|pod| &pod.volumes);
        for volume in volumes {
            let Some(claim) = &volume.pvc_ref else {
                continue;
            };
            if !seen.insert((&claim.namespace, &claim.name)) {
                continue;
            }
            let labels = [
                ("namespace", claim.namespace.as_str()),
                ("persistentvolumeclaim", claim.name.as_str()),
            ];
            if let Some(value) = read(volume) {
                page.sample(name, &labels, value as f64, None);
            }
        }
    }
}

/// The process metrics of Prometheus client libraries.
fn process(page: &mut Exposition) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/self/stat");
    let fields: Vec<f64> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| {
            rest.split(' ')
                .map(|field| field.parse().unwrap_or(0.0))
                .collect()
        })
        .unwrap_or_default();
    let field = |number: usize| fields.get(number).copied().unwrap_or(0.0);
    let boot = read("/proc/stat")
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse::<f64>().ok())
        .unwrap_or(0.0);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let page_size = rustix::param::page_size() as f64;
    for (name, kind, help, value) in [
        (
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            (field(11) + field(12)) / 100.0,
        ),
        (
            "process_open_fds",
            "gauge",
            "Number of open file descriptors.",
            open as f64,
        ),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            field(21) * page_size,
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            boot + field(19) / 100.0,
        ),
        (
            "process_virtual_memory_bytes",
            "gauge",
            "Virtual memory size in bytes.",
            field(20),
        ),
    ] {
        page.family(name, kind, help).sample(name, &[], value, None);
    }
}
