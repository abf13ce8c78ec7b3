//! Resource usage of the node and its pods: one provider for `/stats/summary`, `/metrics/resource`,
//! `/metrics/cadvisor` and eviction. Pods and containers are read from the runtime over CRI, the
//! node from the kernel, volumes and logs from their directories.

pub(crate) mod cgroup;
mod directories;
mod host;
mod pods;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;
use serde::Serialize;

pub(crate) use directories::Directories;

/// The maximum number of processes and threads of the node.
pub(crate) fn max_pids() -> Option<i64> {
    host::processes(Timestamp::UNIX_EPOCH).maxpid
}

use crate::core::Core;

/// All statistics at one time, in the format of `/stats/summary`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
    /// Why pods are missing: the runtime's error.
    #[serde(skip)]
    pub pods_missing: Option<String>,
}

/// Statistics of the node.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: Option<Time>,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    pub network: Option<NetworkStats>,
    pub fs: Option<FsStats>,
    pub runtime: RuntimeStats,
    pub rlimit: Option<RlimitStats>,
    pub swap: Option<SwapStats>,
}

/// File systems of images and containers.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    pub image_fs: Option<FsStats>,
    pub container_fs: Option<FsStats>,
}

/// Processes of the node.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RlimitStats {
    pub time: Option<Time>,
    pub maxpid: Option<i64>,
    pub curproc: Option<i64>,
}

/// Cpu time.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

/// Block I/O.
#[derive(Debug, Clone, Default, Serialize)]
pub struct IoStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

/// Pressure stall information: `full` when all processes stall, `some` when any does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PsiStats {
    pub full: PsiData,
    pub some: PsiData,
}

/// Total in microseconds, and averages as percentages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PsiData {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// Memory.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

/// Swap.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_usage_bytes: Option<u64>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    pub rx_bytes: Option<u64>,
    pub rx_errors: Option<u64>,
    pub tx_bytes: Option<u64>,
    pub tx_errors: Option<u64>,
    #[serde(skip)]
    pub packets: Option<Packets>,
}

/// Packet counters of an interface, which the summary does not contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packets {
    pub received: u64,
    pub receive_dropped: u64,
    pub transmitted: u64,
    pub transmit_dropped: u64,
}

/// The default interface and all interfaces.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NetworkStats {
    pub time: Option<Time>,
    #[serde(flatten)]
    pub default: InterfaceStats,
    pub interfaces: Vec<InterfaceStats>,
}

/// A file system, or the usage of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
    /// The capacity without blocks reserved for root.
    #[serde(skip)]
    pub usable_bytes: Option<u64>,
    /// The number of the file system's device.
    #[serde(skip)]
    pub device: Option<u64>,
}

/// Identifies a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PodReference {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

/// Statistics of a pod.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodReference,
    pub start_time: Option<Time>,
    pub containers: Vec<ContainerStats>,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage")]
    pub ephemeral_storage: FsStats,
    #[serde(rename = "process_stats")]
    pub process_stats: ProcessStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

/// Processes and threads.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ProcessStats {
    pub process_count: Option<u64>,
}

/// Statistics of a volume.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: FsStats,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc_ref: Option<PvcReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_health_stats: Option<VolumeHealthStats>,
    /// Whether it counts as ephemeral storage.
    #[serde(skip)]
    pub is_local: bool,
}

/// The health of a volume as its CSI driver reports it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VolumeHealthStats {
    pub abnormal: bool,
}

/// The claim of a volume.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PvcReference {
    pub name: String,
    pub namespace: String,
}

/// Statistics of a container.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: Option<Time>,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
    /// The runtime's id.
    #[serde(skip)]
    pub id: String,
    /// The image in the pod's status.
    #[serde(skip)]
    pub image: String,
}

/// The statistics provider. Concurrent callers share one result.
#[derive(Default)]
pub struct Provider {
    /// Held while statistics are gathered.
    last: tokio::sync::Mutex<Option<(Timestamp, Arc<Summary>)>>,
    /// The last cpu times, by owner.
    samples: Mutex<HashMap<String, Sample>>,
    pub directories: Directories,
    /// Where the runtime has images and containers.
    places: Mutex<[Option<std::path::PathBuf>; 2]>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Timestamp,
    nanos: u64,
    rate: Option<u64>,
}

/// Which statistics are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The runtime's statistics of pods without volumes and logs, and those of the node without its network.
    ProcessorAndMemory,
    Everything,
}

/// The minimum time between two samples for a rate.
const MIN_WINDOW: Duration = Duration::from_millis(900);

impl Provider {
    /// The current statistics, at most `max_age` old.
    pub async fn summary(&self, core: &Core, max_age: Duration) -> Arc<Summary> {
        let mut last = self.last.lock().await;
        let now = core.now();
        if let Some((at, summary)) = &*last
            && now - max_age <= *at
        {
            return summary.clone();
        }
        let summary = Arc::new(self.measure(core, Depth::Everything, now).await);
        *last = Some((now, summary.clone()));
        summary
    }

    /// CPU time and memory, at most `max_age` old. Does not measure directories.
    pub async fn processor_and_memory(&self, core: &Core, max_age: Duration) -> Arc<Summary> {
        let now = core.now();
        // A measurement of everything is not waited for.
        if let Ok(last) = self.last.try_lock()
            && let Some((at, summary)) = &*last
            && now - max_age <= *at
        {
            return summary.clone();
        }
        Arc::new(self.measure(core, Depth::ProcessorAndMemory, now).await)
    }

    async fn measure(&self, core: &Core, depth: Depth, now: Timestamp) -> Summary {
        let mut node = host::node(core, self, now).await;
        if depth == Depth::Everything {
            node.network = Some(host::network(now));
        }
        let image_fs = node.runtime.image_fs.clone().unwrap_or_default();
        let (pods, pods_missing) = match pods::all(core, self, depth, &image_fs, now).await {
            Ok(pods) => (pods, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        if pods_missing.is_none() {
            self.forget_others(&pods);
        }
        Summary {
            node,
            pods,
            pods_missing,
        }
    }

    /// The statistics of the node only and without its network: cheap to measure.
    pub async fn node(&self, core: &Core) -> NodeStats {
        host::node(core, self, core.now()).await
    }

    /// Cpu time with the rate since the last sample.
    fn cpu(
        &self,
        whose: &str,
        nanos: Option<u64>,
        given_rate: Option<u64>,
        now: Timestamp,
    ) -> CpuStats {
        let rate = given_rate.or_else(|| self.rate(whose, nanos?, now));
        CpuStats {
            time: Some(Time(now)),
            usage_nano_cores: rate,
            usage_core_nano_seconds: nanos,
            psi: None,
        }
    }

    fn rate(&self, whose: &str, nanos: u64, now: Timestamp) -> Option<u64> {
        let mut samples = self.samples.lock();
        let before = samples.get(whose).copied();
        let Some(before) = before.filter(|before| before.nanos <= nanos) else {
            let rate = None;
            samples.insert(
                whose.to_owned(),
                Sample {
                    at: now,
                    nanos,
                    rate,
                },
            );
            return None;
        };
        let window = Duration::try_from(now - before.at).unwrap_or_default();
        if window < MIN_WINDOW {
            return before.rate;
        }
        let spent = u128::from(nanos - before.nanos) * 1_000_000_000;
        let rate = u64::try_from(spent / window.as_nanos().max(1)).ok();
        samples.insert(
            whose.to_owned(),
            Sample {
                at: now,
                nanos,
                rate,
            },
        );
        rate
    }

    fn forget_others(&self, pods: &[PodStats]) {
        let known: std::collections::HashSet<&str> = pods
            .iter()
            .flat_map(|pod| {
                let containers = pod.containers.iter().map(|container| container.id.as_str());
                containers.chain([pod.pod_ref.uid.as_str()])
            })
            .collect();
        self.samples
            .lock()
            .retain(|whose, _| whose.starts_with('/') || known.contains(whose.as_str()));
        self.directories.retain(|owner| known.contains(owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_rate_is_computed_from_two_samples() {
        let provider = Provider::default();
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let rate = |nanos, millis| {
            provider
                .cpu("/", Some(nanos), None, at(millis))
                .usage_nano_cores
        };
        assert_eq!(rate(1_000_000_000, 0), None);
        assert_eq!(rate(2_000_000_000, 2000), Some(500_000_000));
        // Too soon: the last rate is kept.
        assert_eq!(rate(2_100_000_000, 2100), Some(500_000_000));
        // The counter of a cgroup that was created again starts at zero.
        assert_eq!(rate(5, 4000), None);
        assert_eq!(
            provider
                .cpu("/", Some(9), Some(7), at(9000))
                .usage_nano_cores,
            Some(7)
        );
    }
}
