//! Statistics of pods: the runtime's measurements, volumes and logs.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use cri::v1;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, Volume},
    apimachinery::pkg::apis::meta::v1::Time,
};
use stdx::DiskUsage;
use volume::storage::{Condition, Measured};

use super::{
    ContainerStats, CpuStats, Depth, Directories, FsStats, InterfaceStats, IoStats, MemoryStats,
    NetworkStats, PodReference, PodStats, ProcessStats, Provider, PsiData, PsiStats, PvcReference,
    SwapStats, VolumeHealthStats, VolumeStats, host,
};
use crate::{
    Result,
    core::Core,
    make::{labels, sandbox::log_directory},
    pod::spec,
    registry::PublishedPod,
};

/// How long the directories of all pods are measured for one request.
const PATIENCE: Duration = Duration::from_millis(200);

pub(super) async fn all(
    core: &Core,
    provider: &Provider,
    depth: Depth,
    image_fs: &FsStats,
    now: Timestamp,
) -> Result<Vec<PodStats>> {
    let mut runtime = core.runtime.client.clone().runtime;
    let request = v1::ListPodSandboxStatsRequest { filter: None };
    let measured = runtime.list_pod_sandbox_stats(request).await?.into_inner();
    let seen: BTreeMap<String, PublishedPod> = core
        .registry
        .pods()
        .into_iter()
        .map(|seen| (spec::uid(&seen.pod).to_owned(), seen))
        .collect();
    let mut all = Vec::new();
    for stats in measured.stats {
        let attributes = stats.attributes.clone().unwrap_or_default();
        let uid = attributes.labels.get(labels::POD_UID).cloned();
        // Without the label it was not created by a kubelet.
        let Some(uid) = uid else { continue };
        all.push(pod(provider, &uid, &stats, seen.get(&uid), image_fs, now));
    }
    if depth == Depth::ProcessorAndMemory {
        return Ok(all);
    }
    let claimed = claimed(core, &all, &seen, now).await;
    let walked = Walk {
        directories: provider.directories.clone(),
        root_dir: core.config.root_dir.clone(),
        logs_dir: core.config.pod_logs_dir.clone(),
        until: Instant::now() + PATIENCE,
        now,
    };
    let done = tokio::task::spawn_blocking(move || {
        for stats in &mut all {
            if let Some(seen) = seen.get(&stats.pod_ref.uid) {
                walked.measure(stats, &seen.pod);
            }
            let claimed = claimed.get(&stats.pod_ref.uid).into_iter();
            stats.volumes.extend(claimed.flatten().cloned());
        }
        all
    });
    done.await
        .map_err(|error| crate::Error::Other(error.to_string()))
}

/// Persistent volumes, by pod.
async fn claimed(
    core: &Core,
    all: &[PodStats],
    seen: &BTreeMap<String, PublishedPod>,
    now: Timestamp,
) -> BTreeMap<String, Vec<VolumeStats>> {
    let measures = all.iter().map(|stats| async move {
        let uid = &stats.pod_ref.uid;
        let measured = core.volumes.stats(uid).await;
        let pod = seen.get(uid).map(|seen| &seen.pod);
        if let Some(pod) = pod {
            record_health(core, pod, &measured);
        }
        let measured = measured.into_iter();
        let stats = measured.map(|one| volume_stats(core, pod.map(|pod| &**pod), one, now));
        (uid.clone(), stats.collect())
    });
    let measured = futures::future::join_all(measures).await;
    measured.into_iter().collect()
}

/// A driver's report on the volume's health, if the feature gate CSIVolumeHealth is on.
fn condition<'a>(core: &Core, measured: &'a Measured) -> Option<&'a Condition> {
    let gates = &core.config.kubelet.feature_gates;
    let is_open = gates.get("CSIVolumeHealth") == Some(&true);
    measured.measure.condition.as_ref().filter(|_| is_open)
}

/// Records an event for every volume that became abnormal.
fn record_health(core: &Core, pod: &Pod, measured: &[Measured]) {
    for one in measured.iter().filter(|one| one.is_new) {
        let condition = condition(core, one).filter(|condition| condition.is_abnormal);
        let Some(condition) = condition else { continue };
        let message = format!("Volume {}: {}", one.name, condition.message);
        core.events.warning(pod, "VolumeConditionAbnormal", message);
    }
}

fn volume_stats(core: &Core, pod: Option<&Pod>, measured: Measured, now: Timestamp) -> VolumeStats {
    let usage = measured.measure.usage;
    let health = condition(core, &measured).map(|condition| VolumeHealthStats {
        abnormal: condition.is_abnormal,
    });
    VolumeStats {
        pvc_ref: pod.and_then(|pod| claim_of(pod, &measured.name)),
        volume_health_stats: health,
        fs: FsStats {
            time: Some(Time(now)),
            // As upstream, which shows unknown values as zero.
            available_bytes: Some(usage.available.unwrap_or(0)),
            capacity_bytes: Some(usage.capacity.unwrap_or(0)),
            used_bytes: Some(usage.used.unwrap_or(0)),
            inodes_free: Some(usage.inodes_free.unwrap_or(0)),
            inodes: Some(usage.inodes.unwrap_or(0)),
            inodes_used: Some(usage.inodes_used.unwrap_or(0)),
            usable_bytes: None,
            device: None,
        },
        name: measured.name,
        is_local: false,
    }
}

fn claim_of(pod: &Pod, name: &str) -> Option<PvcReference> {
    let mut volumes = spec::spec(pod).volumes.iter().flatten();
    let volume = volumes.find(|volume| volume.name == name)?;
    Some(PvcReference {
        name: volume::storage::resolve::claim_name(spec::name(pod), volume)?,
        namespace: spec::namespace(pod).to_owned(),
    })
}

fn number(value: Option<v1::UInt64Value>) -> Option<u64> {
    value.map(|value| value.value)
}

fn memory(usage: &v1::MemoryUsage, now: Timestamp) -> MemoryStats {
    MemoryStats {
        time: Some(Time(now)),
        available_bytes: number(usage.available_bytes),
        usage_bytes: number(usage.usage_bytes),
        working_set_bytes: number(usage.working_set_bytes),
        rss_bytes: number(usage.rss_bytes),
        page_faults: number(usage.page_faults),
        major_page_faults: number(usage.major_page_faults),
        psi: psi(usage.psi),
    }
}

fn psi(stats: Option<v1::PsiStats>) -> Option<PsiStats> {
    let data = |data: Option<v1::PsiData>| {
        let data = data.unwrap_or_default();
        PsiData {
            total: data.total,
            avg10: data.avg10,
            avg60: data.avg60,
            avg300: data.avg300,
        }
    };
    stats.map(|stats| PsiStats {
        full: data(stats.full),
        some: data(stats.some),
    })
}

fn cpu(
    provider: &Provider,
    whose: &str,
    usage: Option<&v1::CpuUsage>,
    now: Timestamp,
) -> Option<CpuStats> {
    let usage = usage?;
    let nanos = number(usage.usage_core_nano_seconds);
    Some(CpuStats {
        psi: psi(usage.psi),
        ..provider.cpu(whose, nanos, number(usage.usage_nano_cores), now)
    })
}

fn io(usage: Option<&v1::IoUsage>, now: Timestamp) -> Option<IoStats> {
    usage.map(|usage| IoStats {
        time: Some(Time(now)),
        psi: psi(usage.psi),
    })
}

/// The swap usage of all containers of a pod.
fn swap(containers: &[ContainerStats], now: Timestamp) -> Option<SwapStats> {
    let used = containers.iter().filter_map(|c| c.swap.as_ref());
    let used: Vec<u64> = used.filter_map(|swap| swap.swap_usage_bytes).collect();
    (!used.is_empty()).then(|| SwapStats {
        time: Some(Time(now)),
        swap_available_bytes: None,
        swap_usage_bytes: Some(used.iter().sum()),
    })
}

fn pod(
    provider: &Provider,
    uid: &str,
    stats: &v1::PodSandboxStats,
    seen: Option<&PublishedPod>,
    image_fs: &FsStats,
    now: Timestamp,
) -> PodStats {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let metadata = attributes.metadata.unwrap_or_default();
    let linux = stats.linux.clone().unwrap_or_default();
    let containers: Vec<ContainerStats> = linux
        .containers
        .iter()
        .map(|stats| container(provider, stats, seen, image_fs, now))
        .collect();
    PodStats {
        pod_ref: PodReference {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: uid.to_owned(),
        },
        start_time: seen.and_then(|seen| seen.status.start_time.clone()),
        swap: swap(&containers, now),
        containers,
        cpu: cpu(provider, uid, linux.cpu.as_ref(), now),
        io: io(linux.io.as_ref(), now),
        memory: linux.memory.as_ref().map(|usage| memory(usage, now)),
        network: linux.network.as_ref().map(|usage| network(usage, now)),
        process_stats: ProcessStats {
            process_count: linux
                .process
                .and_then(|process| number(process.process_count)),
        },
        ..Default::default()
    }
}

fn status_of<'a>(seen: &'a PublishedPod, name: &str) -> Option<&'a ContainerStatus> {
    let status = &seen.status;
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flat_map(|list| list.iter().flatten());
    all.find(|status| status.name == name)
}

fn container(
    provider: &Provider,
    stats: &v1::ContainerStats,
    seen: Option<&PublishedPod>,
    image_fs: &FsStats,
    now: Timestamp,
) -> ContainerStats {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let name = attributes.labels.get(labels::CONTAINER_NAME).cloned();
    let name = name
        .or(attributes.metadata.map(|metadata| metadata.name))
        .unwrap_or_default();
    let status = seen.and_then(|seen| status_of(seen, &name));
    let running = status.and_then(|status| status.state.as_ref()?.running.as_ref());
    ContainerStats {
        start_time: running.and_then(|running| running.started_at.clone()),
        cpu: cpu(provider, &attributes.id, stats.cpu.as_ref(), now),
        io: io(stats.io.as_ref(), now),
        memory: stats.memory.as_ref().map(|usage| memory(usage, now)),
        rootfs: stats.writable_layer.as_ref().map(|layer| FsStats {
            used_bytes: number(layer.used_bytes),
            inodes_used: number(layer.inodes_used),
            ..image_fs.clone()
        }),
        swap: stats.swap.as_ref().map(|swap| SwapStats {
            time: Some(Time(now)),
            swap_available_bytes: number(swap.swap_available_bytes),
            swap_usage_bytes: number(swap.swap_usage_bytes),
        }),
        image: status
            .map(|status| status.image.clone())
            .unwrap_or_default(),
        id: attributes.id,
        name,
        ..Default::default()
    }
}

fn network(usage: &v1::NetworkUsage, now: Timestamp) -> NetworkStats {
    let link = |usage: &v1::NetworkInterfaceUsage| InterfaceStats {
        name: usage.name.clone(),
        rx_bytes: number(usage.rx_bytes),
        rx_errors: number(usage.rx_errors),
        tx_bytes: number(usage.tx_bytes),
        tx_errors: number(usage.tx_errors),
        packets: None,
    };
    NetworkStats {
        time: Some(Time(now)),
        default: usage
            .default_interface
            .as_ref()
            .map(link)
            .unwrap_or_default(),
        interfaces: usage.interfaces.iter().map(link).collect(),
    }
}

/// The part that walks directories.
struct Walk {
    directories: Directories,
    root_dir: std::path::PathBuf,
    logs_dir: std::path::PathBuf,
    /// When trees that are not measured yet count with their last known usage.
    until: Instant,
    now: Timestamp,
}

impl Walk {
    fn used(&self, uid: &str, dir: &Path) -> DiskUsage {
        self.directories.usage(uid, dir, self.until)
    }

    fn own_files(&self, uid: &str, path: &Path) -> DiskUsage {
        use std::os::unix::fs::MetadataExt;
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => self.used(uid, path),
            Ok(meta) => DiskUsage {
                bytes: meta.blocks() * 512,
                inodes: 1,
            },
            Err(_) => DiskUsage::default(),
        }
    }

    fn measure(&self, stats: &mut PodStats, pod: &Pod) {
        let uid = stats.pod_ref.uid.clone();
        let nodefs = host::file_system(&self.root_dir, self.now);
        let logs = log_directory(&self.logs_dir.to_string_lossy(), pod);
        let mut total = DiskUsage::default();
        for container in &mut stats.containers {
            let used = self.used(&uid, &Path::new(&logs).join(&container.name));
            container.logs = Some(taken(&nodefs, used));
        }
        // Logs of ended containers count, too.
        total = total + self.used(&uid, Path::new(&logs));
        let dir = self.root_dir.join("pods").join(&uid);
        // The hosts file and termination messages.
        for own in ["etc-hosts", "containers"] {
            total = total + self.own_files(&uid, &dir.join(own));
        }
        for volume in spec::spec(pod).volumes.iter().flatten() {
            let Some(stats_of) = self.volume(&uid, &dir, volume, &nodefs) else {
                continue;
            };
            if stats_of.is_local {
                total.bytes += stats_of.fs.used_bytes.unwrap_or(0);
                total.inodes += stats_of.fs.inodes_used.unwrap_or(0);
            }
            stats.volumes.push(stats_of);
        }
        for rootfs in stats.containers.iter().filter_map(|c| c.rootfs.as_ref()) {
            total.bytes += rootfs.used_bytes.unwrap_or(0);
            total.inodes += rootfs.inodes_used.unwrap_or(0);
        }
        stats.ephemeral_storage = taken(&nodefs, total);
    }

    fn volume(
        &self,
        uid: &str,
        pod_dir: &Path,
        volume: &Volume,
        nodefs: &FsStats,
    ) -> Option<VolumeStats> {
        let plugin = volume::plugin_for(volume).ok()?;
        let dir = volume::volume_dir(pod_dir, plugin.name(), &volume.name);
        if !dir.is_dir() {
            return None;
        }
        let in_memory = volume
            .empty_dir
            .as_ref()
            .is_some_and(|source| source.medium.as_deref() == Some("Memory"));
        let fs = if in_memory {
            host::file_system(&dir, self.now)
        } else if volume.host_path.is_some() {
            // A hostPath volume's files are not the pod's.
            return None;
        } else {
            taken(nodefs, self.used(uid, &dir))
        };
        Some(VolumeStats {
            fs,
            name: volume.name.clone(),
            is_local: !in_memory,
            pvc_ref: None,
            volume_health_stats: None,
        })
    }
}

fn taken(of: &FsStats, used: DiskUsage) -> FsStats {
    FsStats {
        used_bytes: Some(used.bytes),
        inodes_used: Some(used.inodes),
        ..of.clone()
    }
}
