//! Keeps the node from running out of memory, disk, inodes and processes: observes them, frees disk
//! space on the node, and evicts pods by rank. The decisions are pure ([`decide`], [`rank`],
//! [`storage`]); this module observes and acts.

pub mod decide;
pub mod layout;
mod notify;
pub mod rank;
pub mod storage;
pub mod thresholds;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Pod, Toleration},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;
use reconcile::Kind;
use tracing::{info, warn};

use self::{
    decide::{Observation, Observations, State},
    layout::{Counted, Layout},
    notify::Notifier,
    rank::{ContainerUsage, PodUsage},
    storage::LocalUsage,
    thresholds::{Resource, Signal, Threshold},
};
use crate::{
    admit::{self, Refusal},
    collect,
    configuration::KubeletConfiguration,
    core::Core,
    disruption::{self, Disruption},
    pod::spec::{self, QosClass, Role},
    registry::PublishedPod,
    stats::{FsStats, NodeStats, PodStats, Summary},
};

/// The minimum time between two evaluations that kernel notifications trigger.
const MIN_EVALUATION_INTERVAL: Duration = Duration::from_millis(100);
/// How often the resources of the node are measured.
const INTERVAL: Duration = Duration::from_secs(2);
/// How often the local storage of pods is measured, if any pod has a limit for it.
const STORAGE_INTERVAL: Duration = Duration::from_secs(10);
/// How long an evicted pod may take to end before the next one is evicted.
const EVICTION_DEADLINE: Duration = Duration::from_secs(30);
/// How long the statistics of the pods may take.
const STATISTICS_DEADLINE: Duration = Duration::from_secs(10);
/// The grace period of hard evictions, in seconds.
const IMMEDIATE: i64 = 1;

const REASON: &str = "Evicted";

/// Observes and evicts. Never returns.
pub async fn run(core: Arc<Core>) {
    let mut settings = core.settings.subscribe();
    let mut manager = Manager {
        thresholds: thresholds(&core.settings()),
        state: State::default(),
        leaving: None,
        storage_seen: None,
    };
    let mut notifier = Notifier::new();
    loop {
        notifier.arm(&core, &manager.thresholds);
        let notified = async {
            core.config.clock.sleep(MIN_EVALUATION_INTERVAL).await;
            notifier.notified().await;
        };
        tokio::select! {
            () = core.config.clock.sleep(INTERVAL) => {}
            () = notified => {}
            _ = settings.changed() => manager.thresholds = thresholds(&core.settings()),
        }
        manager.look(&core).await;
    }
}

/// The thresholds, which were validated when the configuration was read.
fn thresholds(settings: &KubeletConfiguration) -> Vec<Threshold> {
    settings.thresholds().unwrap_or_default()
}

struct Manager {
    thresholds: Vec<Threshold>,
    state: State,
    /// The pod that was evicted last and its deadline.
    leaving: Option<(String, Timestamp)>,
    /// When pods' local storage was last observed.
    storage_seen: Option<Timestamp>,
}

impl Manager {
    async fn look(&mut self, core: &Core) {
        let node = core.stats.node(core).await;
        let seen = observations(core, &node);
        let settings = core.settings();
        let transition = settings.eviction_pressure_transition_period.0;
        let now = core.now();
        let verdict = decide::evaluate(&mut self.state, &self.thresholds, transition, &seen, now);
        show_conditions(core, &verdict.conditions);
        let pods = active_pods(core);
        let layout = layout(&node);
        if settings.local_storage_capacity_isolation
            && self
                .storage_seen
                .is_none_or(|at| now - STORAGE_INTERVAL >= at)
            && pods.iter().any(|seen| storage::has_limits(&seen.pod))
        {
            self.storage_seen = Some(now);
            let summary = summary(core, STORAGE_INTERVAL).await;
            if evict_beyond_limits(core, &pods, &summary, layout).await {
                return;
            }
        }
        let Some(threshold) = verdict.thresholds.first().copied() else {
            return;
        };
        if self.waits(&pods, now) {
            return;
        }
        let resource = threshold.signal.resource();
        let message = format!("Attempting to reclaim {resource}");
        core.events
            .node(Kind::Warning, "EvictionThresholdMet", message);
        if reclaim_node_level(core, &threshold, layout).await {
            info!(%resource, "reclaimed unused resources");
            return;
        }
        // Without the runtime's statistics pods are ranked by priority alone.
        let summary = summary(core, INTERVAL / 2).await;
        let stats = |pod: &Pod| {
            let counted = layout.counted(threshold.signal);
            usage(pod, stats_of(&summary, pod), counted)
        };
        self.evict_one(core, &pods, stats, &threshold, &seen).await;
    }

    /// Whether the pod that was evicted last is still ending.
    fn waits(&mut self, pods: &[PublishedPod], now: Timestamp) -> bool {
        let Some((uid, until)) = &self.leaving else {
            return false;
        };
        let there = pods.iter().any(|seen| spec::uid(&seen.pod) == uid);
        if there && now < *until {
            return true;
        }
        self.leaving = None;
        false
    }

    async fn evict_one(
        &mut self,
        core: &Core,
        pods: &[PublishedPod],
        usage: impl Fn(&Pod) -> PodUsage,
        threshold: &Threshold,
        seen: &Observations,
    ) {
        let mut ranked: Vec<PodUsage> = pods.iter().map(|seen| usage(&seen.pod)).collect();
        rank::rank(&mut ranked, threshold.signal.resource());
        let Some(first) = ranked.iter().find(|pod| !pod.is_critical) else {
            warn!("node under pressure, but no pod can be evicted");
            return;
        };
        let grace = if threshold.is_hard() {
            IMMEDIATE
        } else {
            let most = i64::from(core.settings().eviction_max_pod_grace_period);
            most.min(first.grace_period).max(IMMEDIATE)
        };
        let message = rank::message(first, threshold, seen);
        let found = pods.iter().find(|seen| spec::uid(&seen.pod) == first.uid);
        if let Some(seen) = found {
            let annotations = rank::annotations(first, threshold.signal.resource());
            core.events
                .evicted(&seen.pod, REASON, &message, annotations);
            evict(core, &seen.pod, grace, &message, true).await;
            *core
                .evictions
                .lock()
                .entry(threshold.signal.name())
                .or_default() += 1;
            let wait = EVICTION_DEADLINE + Duration::from_secs(u64::try_from(grace).unwrap_or(0));
            self.leaving = Some((first.uid.clone(), core.now() + wait));
        }
    }
}

/// The statistics of the pods; none if the runtime does not answer in time.
async fn summary(core: &Core, max_age: Duration) -> Arc<Summary> {
    let measured = tokio::time::timeout(STATISTICS_DEADLINE, core.stats.summary(core, max_age));
    measured.await.unwrap_or_default()
}

/// Pods that have not ended.
fn active_pods(core: &Core) -> Vec<PublishedPod> {
    let ended =
        |seen: &PublishedPod| matches!(seen.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let all = core.registry.pods().into_iter();
    all.filter(|seen| !ended(seen)).collect()
}

fn stats_of<'a>(summary: &'a Summary, pod: &Pod) -> Option<&'a PodStats> {
    summary
        .pods
        .iter()
        .find(|stats| stats.pod_ref.uid == spec::uid(pod))
}

/// Updates the node's pressure conditions.
fn show_conditions(core: &Core, conditions: &[&'static str]) {
    let changed = core.pressures.send_if_modified(|shown| {
        let changed = shown != conditions;
        *shown = conditions.to_vec();
        changed
    });
    if changed {
        info!(?conditions, "node pressure conditions changed");
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Observes all signals.
fn observations(core: &Core, node: &NodeStats) -> Observations {
    let mut seen = Observations::new();
    let mut put = |signal, available: Option<u64>, capacity: Option<u64>| {
        if let (Some(available), Some(capacity)) = (available, capacity) {
            let observation = Observation {
                available: signed(available),
                capacity: signed(capacity),
            };
            seen.insert(signal, observation);
        }
    };
    let total = u64::try_from(core.machine.memory).ok();
    let memory = node.memory.as_ref();
    put(
        Signal::MemoryAvailable,
        memory.and_then(|m| m.available_bytes),
        total,
    );
    let pods = node
        .system_containers
        .iter()
        .find(|system| system.name == "pods");
    let used = pods.and_then(|pods| pods.memory.as_ref()?.working_set_bytes);
    let reserved = core.settings().reserved("memory").value();
    let allowed = u64::try_from(core.machine.memory - reserved).ok();
    let left = allowed
        .zip(used)
        .map(|(allowed, used)| allowed.saturating_sub(used));
    put(Signal::AllocatableMemoryAvailable, left, allowed);
    let disks: [(Option<&FsStats>, Signal, Signal); 3] = [
        (
            node.fs.as_ref(),
            Signal::NodeFsAvailable,
            Signal::NodeFsInodesFree,
        ),
        (
            node.runtime.image_fs.as_ref(),
            Signal::ImageFsAvailable,
            Signal::ImageFsInodesFree,
        ),
        (
            node.runtime.container_fs.as_ref(),
            Signal::ContainerFsAvailable,
            Signal::ContainerFsInodesFree,
        ),
    ];
    for (fs, bytes, inodes) in disks {
        let Some(fs) = fs else { continue };
        // Blocks reserved for root count neither as capacity nor as available: percentages refer to
        // the usable space.
        let usable = fs.usable_bytes;
        put(bytes, fs.available_bytes, usable.or(fs.capacity_bytes));
        put(inodes, fs.inodes_free, fs.inodes);
    }
    if let Some(limit) = &node.rlimit {
        let max = limit.maxpid.and_then(|max| u64::try_from(max).ok());
        let left = limit.maxpid.zip(limit.curproc).map(|(max, now)| max - now);
        put(
            Signal::PidAvailable,
            left.and_then(|left| u64::try_from(left).ok()),
            max,
        );
    }
    seen
}

/// On which file systems pods and images are.
fn layout(node: &NodeStats) -> Layout {
    let device = |fs: Option<&FsStats>| fs.and_then(|fs| fs.device);
    Layout::from_devices(
        device(node.fs.as_ref()),
        device(node.runtime.image_fs.as_ref()),
        device(node.runtime.container_fs.as_ref()),
    )
}

/// Frees disk space by removing dead containers and unused images; returns whether that was enough.
async fn reclaim_node_level(core: &Core, threshold: &Threshold, layout: Layout) -> bool {
    let resource = threshold.signal.resource();
    if !matches!(resource, Resource::EphemeralStorage | Resource::Inodes) {
        return false;
    }
    let reclaimed = layout.reclaimed(threshold.signal);
    if reclaimed.containers {
        if let Err(error) = collect::dead_containers(core).await {
            warn!(%error, "cannot remove dead containers");
        }
        if let Err(error) = collect::ended_pods(core).await {
            warn!(%error, "cannot remove containers of ended pods");
        }
    }
    if reclaimed.images
        && let Err(error) = collect::unused_images(core).await
    {
        warn!(%error, "cannot remove unused images");
    }
    let node = core.stats.node(core).await;
    !decide::is_met(threshold, &observations(core, &node), true)
}

/// Evicts pods that exceed their local storage limits; returns whether there were any.
async fn evict_beyond_limits(
    core: &Core,
    pods: &[PublishedPod],
    summary: &Summary,
    layout: Layout,
) -> bool {
    let mut any = false;
    for seen in pods {
        if spec::is_critical(&seen.pod) || seen.pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Some(stats) = stats_of(summary, &seen.pod) else {
            continue;
        };
        if let Some(message) = storage::exceeded(&seen.pod, &local_usage(stats, layout)) {
            core.events.warning(&seen.pod, REASON, &message);
            evict(core, &seen.pod, IMMEDIATE, &message, false).await;
            *core
                .evictions
                .lock()
                .entry("localStorageLimit")
                .or_default() += 1;
            any = true;
        }
    }
    any
}

fn bytes(fs: Option<&FsStats>) -> i64 {
    signed(fs.and_then(|fs| fs.used_bytes).unwrap_or(0))
}

/// A pod's usage that its limits bound. With a separate file system for images, the writable layer of a container does
/// not count for the container's own limit, as upstream.
fn local_usage(stats: &PodStats, layout: Layout) -> LocalUsage {
    let containers = stats.containers.iter().map(|container| {
        let layer = match layout {
            Layout::Single => bytes(container.rootfs.as_ref()),
            Layout::Images | Layout::Split => 0,
        };
        let used = layer.saturating_add(bytes(container.logs.as_ref()));
        (container.name.clone(), used)
    });
    let volumes = stats.volumes.iter();
    LocalUsage {
        volumes: volumes
            .map(|v| (v.name.clone(), bytes(Some(&v.fs))))
            .collect(),
        containers: containers.collect(),
        total: bytes(Some(&stats.ephemeral_storage)),
    }
}

fn priority(pod: &Pod) -> i32 {
    spec::spec(pod).priority.unwrap_or(0)
}

/// A pod's usage on one file system: bytes and inodes.
fn on_disk(stats: &PodStats, counted: Counted) -> [i64; 2] {
    let inodes = |fs: Option<&FsStats>| signed(fs.and_then(|fs| fs.inodes_used).unwrap_or(0));
    let all = Some(&stats.ephemeral_storage);
    let layers = stats.containers.iter().map(|c| c.rootfs.as_ref());
    let (all, layers) = (
        [bytes(all), inodes(all)],
        layers.fold([0_i64; 2], |[used, files], layer| {
            [
                used.saturating_add(bytes(layer)),
                files.saturating_add(inodes(layer)),
            ]
        }),
    );
    match counted {
        Counted::All => all,
        Counted::WithoutLayers => [0, 1].map(|i| all[i].saturating_sub(layers[i])),
        Counted::Layers => layers,
        Counted::Nothing => [0; 2],
    }
}

fn usage(pod: &Pod, stats: Option<&PodStats>, counted: Counted) -> PodUsage {
    let local = stats.map(|stats| local_usage(stats, Layout::Single));
    let on_disk = stats.map(|stats| on_disk(stats, counted));
    let storage = "ephemeral-storage";
    let amount = |requests: Option<&BTreeMap<String, Quantity>>, name: &str| {
        let amount = requests?.get(name)?;
        quantity::value(&amount.0)
    };
    // Ephemeral containers cannot have requests and are not blamed.
    let blamed = spec::containers(pod).filter(|(role, _)| *role != Role::Ephemeral);
    let requests: BTreeMap<String, [i64; 2]> = blamed
        .map(|(_, container)| {
            let resources = container.resources.as_ref();
            let requests = resources.and_then(|resources| resources.requests.as_ref());
            let of = |name| amount(requests, name).unwrap_or(0);
            (container.name.clone(), [of("memory"), of(storage)])
        })
        .collect();
    let of_pod = spec::spec(pod).resources.as_ref();
    let of_pod = of_pod.and_then(|resources| resources.requests.as_ref());
    let containers = stats.into_iter().flat_map(|stats| &stats.containers);
    let containers = containers.filter_map(|container| {
        let memory = container.memory.as_ref().and_then(|m| m.working_set_bytes);
        let disk = local
            .as_ref()
            .and_then(|local| local.containers.get(&container.name));
        let [memory_request, disk_request] = *requests.get(&container.name)?;
        Some(ContainerUsage {
            name: container.name.clone(),
            memory: signed(memory.unwrap_or(0)),
            memory_request,
            disk: disk.copied().unwrap_or(0),
            disk_request,
        })
    });
    PodUsage {
        uid: spec::uid(pod).to_owned(),
        name: spec::name(pod).to_owned(),
        priority: priority(pod),
        is_critical: spec::is_critical(pod),
        grace_period: spec::grace_period(pod),
        memory: stats
            .and_then(|stats| stats.memory.as_ref()?.working_set_bytes)
            .map(signed),
        memory_request: admit::request(pod, "memory"),
        pod_level_memory_request: amount(of_pod, "memory"),
        disk: on_disk.map(|[bytes, _]| bytes),
        disk_request: admit::request(pod, storage),
        inodes: on_disk.map(|[_, inodes]| inodes),
        processes: signed(
            stats
                .and_then(|stats| stats.process_stats.process_count)
                .unwrap_or(0),
        ),
        containers: containers.collect(),
    }
}

/// Evicts a pod. With `disrupts`, it gets the condition DisruptionTarget.
async fn evict(core: &Core, pod: &Pod, grace: i64, message: &str, disrupts: bool) {
    warn!(pod = spec::described(pod), message, "evicting pod");
    let disruption = Disruption {
        reason: REASON,
        message,
        condition: disrupts.then_some(message),
        grace: Some(grace),
    };
    disruption::end(core, pod, disruption).await;
}

/// Rejects a pod while the node is under pressure, with the reason.
pub fn refusal(pod: &Pod, pressures: &[&'static str]) -> Option<Refusal> {
    if pressures.is_empty() || spec::is_critical(pod) {
        return None;
    }
    if pressures == ["MemoryPressure"] {
        let asks = spec::qos_class(pod) != QosClass::BestEffort;
        let tolerates = spec::spec(pod)
            .tolerations
            .iter()
            .flatten()
            .any(tolerates_memory_pressure);
        if asks || tolerates {
            return None;
        }
    }
    Some(Refusal {
        reason: REASON.into(),
        message: format!("The node had condition: [{}]. ", pressures.join(" ")),
    })
}

fn tolerates_memory_pressure(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let matches = (key.is_empty() && exists)
        || (key == "node.kubernetes.io/memory-pressure" && (exists || value.is_empty()));
    matches && matches!(effect, "" | "NoSchedule")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn pressure_conditions_decide_which_pods_are_admitted() {
        let plain = pod(json!({"containers": [{"name": "a"}]}));
        let asking = pod(json!({"containers": [{"name": "a",
            "resources": {"requests": {"memory": "1Mi"}}}]}));
        let critical = pod(json!({"containers": [{"name": "a"}], "priority": 2_000_001_000}));
        let tolerant = pod(json!({"containers": [{"name": "a"}], "tolerations": [
            {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}]}));
        let memory: &[&str] = &["MemoryPressure"];
        let both: &[&str] = &["DiskPressure", "MemoryPressure"];
        for (pod, pressures, refused) in [
            (&plain, &[][..], false),
            (&plain, memory, true),
            (&asking, memory, false),
            (&tolerant, memory, false),
            (&critical, both, false),
            (&asking, both, true),
            (&tolerant, both, true),
        ] {
            assert_eq!(refusal(pod, pressures).is_some(), refused, "{pressures:?}");
        }
        let reported = refusal(&plain, both).unwrap();
        assert_eq!(
            reported.message,
            "The node had condition: [DiskPressure MemoryPressure]. "
        );
    }

    #[test]
    fn a_pods_usage_is_gathered_from_its_parts() {
        let pod = pod(json!({"containers": [{"name": "a",
            "resources": {"requests": {"memory": "10Mi", "ephemeral-storage": "1Mi"}}}], "priority": 7,
            "initContainers": [{"name": "side", "restartPolicy": "Always",
                "resources": {"requests": {"memory": "3Mi"}}}],
            "ephemeralContainers": [{"name": "debug"}],
            "resources": {"requests": {"memory": "13Mi"}}}));
        let fs = |bytes| FsStats {
            used_bytes: Some(bytes),
            ..Default::default()
        };
        let container = |name: &str| crate::stats::ContainerStats {
            name: name.into(),
            rootfs: Some(fs(100)),
            logs: Some(fs(20)),
            ..Default::default()
        };
        let stats = PodStats {
            containers: ["a", "side", "debug"].map(container).into(),
            ephemeral_storage: fs(430),
            ..Default::default()
        };
        let on_disk = |counted| usage(&pod, Some(&stats), counted).disk;
        assert_eq!(on_disk(Counted::Layers), Some(300));
        assert_eq!(on_disk(Counted::WithoutLayers), Some(130));
        let limited = local_usage(&stats, Layout::Images);
        assert_eq!(limited.containers["a"], 20);
        let usage = usage(&pod, Some(&stats), Counted::All);
        assert_eq!(
            (usage.priority, usage.disk, usage.memory),
            (7, Some(430), None)
        );
        assert_eq!(
            (usage.containers[0].disk, usage.containers[0].disk_request),
            (120, 1 << 20)
        );
        assert_eq!(usage.pod_level_memory_request, Some(13 << 20));
        // A sidecar has its own request; an ephemeral container is not blamed.
        let requests = usage.containers.iter();
        let requests: Vec<_> = requests
            .map(|container| (container.name.as_str(), container.memory_request >> 20))
            .collect();
        assert_eq!(requests, [("a", 10), ("side", 3)]);
    }
}
