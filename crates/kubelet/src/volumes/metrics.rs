//! Metrics of volumes, with upstream's names and buckets.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Volume};
use parking_lot::Mutex;
use stdx::exposition::{Counter, Exposition, Family, Histogram};
use volume::{
    plugin_for,
    storage::{Observer, Spec, resolve},
};

const BUCKETS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// Counts of volumes by plugin.
type Plugins = BTreeMap<String, usize>;

/// The volumes of one pod.
#[derive(Default)]
struct PodVolumes {
    /// Absent from the start of their removal.
    desired: Plugins,
    mounted: Plugins,
}

/// The metrics. Clones share them.
#[derive(Clone)]
pub(crate) struct VolumeMetrics {
    operations: Arc<Family<Histogram>>,
    csi: Arc<Family<Histogram>>,
    rebuilt: Arc<Family<Counter>>,
    not_rebuilt: Arc<Family<Counter>>,
    /// By pod. Guards only the map.
    pods: Arc<Mutex<HashMap<String, PodVolumes>>>,
}

impl Default for VolumeMetrics {
    fn default() -> Self {
        const OPERATION: &[&str] = &["volume_plugin", "operation_name", "status", "migrated"];
        const CALL: &[&str] = &["driver_name", "method_name", "grpc_status_code", "migrated"];
        let histograms = |labels| Arc::new(Family::new(labels, || Histogram::new(BUCKETS)));
        let counters = || {
            let family: Family<Counter> = Family::new(&[], Counter::default);
            // Metrics without labels are exposed before they first change.
            family.with(&[]);
            Arc::new(family)
        };
        Self {
            operations: histograms(OPERATION),
            csi: histograms(CALL),
            rebuilt: counters(),
            not_rebuilt: counters(),
            pods: Arc::default(),
        }
    }
}

impl Observer for VolumeMetrics {
    fn operation(&self, plugin: &str, name: &'static str, took: Duration, has_succeeded: bool) {
        let status = if has_succeeded {
            "success"
        } else {
            "fail-unknown"
        };
        let labels = [plugin, name, status, "false"];
        self.operations.with(&labels).took(took);
    }

    fn rebuilt(&self, has_succeeded: bool) {
        self.rebuilt.with(&[]).increment();
        if !has_succeeded {
            self.not_rebuilt.with(&[]).increment();
        }
    }
}

/// The plugin of a persistent volume, with the driver of CSI volumes.
pub(crate) fn storage_plugin(spec: &Spec) -> String {
    let volume = spec.volume.as_ref().and_then(|volume| volume.spec.as_ref());
    let driver = volume.and_then(|volume| Some(volume.csi.as_ref()?.driver.clone()));
    let inline = spec.inline.csi.as_ref().map(|csi| csi.driver.clone());
    match (driver.or(inline), resolve::plugin(spec)) {
        (Some(driver), _) => format!("kubernetes.io/csi:{driver}"),
        (None, Ok(plugin)) => plugin.name().to_owned(),
        (None, Err(_)) => "N/A".to_owned(),
    }
}

fn own_plugin(volume: &Volume) -> String {
    plugin_for(volume).map_or("N/A".to_owned(), |plugin| plugin.name().to_owned())
}

impl VolumeMetrics {
    /// A volume mount began at `begun` and ended now.
    pub(crate) fn mounted(&self, plugin: &str, is_block: bool, begun: Instant, is_ok: bool) {
        let name = match is_block {
            true => "map_volume",
            false => "volume_mount",
        };
        self.operation(plugin, name, begun.elapsed(), is_ok);
    }

    /// A driver answered a call.
    pub(crate) fn called(&self, driver: &str, method: &str, took: Duration, code: &str) {
        let method = format!("/csi.v1.Node/{method}");
        let labels = [driver, method.as_str(), code, "false"];
        self.csi.with(&labels).took(took);
    }

    /// The volumes that a pod needs; persistent ones are added by [`Self::want_storage`].
    pub(crate) fn want<'a>(&self, pod: &Pod, own: impl Iterator<Item = &'a Volume>) {
        let mut desired = Plugins::new();
        for volume in own {
            *desired.entry(own_plugin(volume)).or_default() += 1;
        }
        self.with(pod, |volumes| volumes.desired = desired);
    }

    /// The persistent volumes that a pod needs.
    pub(crate) fn want_storage(&self, pod: &Pod, specs: &[Spec]) {
        let plugins: Vec<String> = specs.iter().map(storage_plugin).collect();
        self.with(pod, |volumes| {
            for plugin in plugins {
                *volumes.desired.entry(plugin).or_default() += 1;
            }
        });
    }

    /// All volumes of a pod are mounted.
    pub(crate) fn all_mounted(&self, pod: &Pod) {
        self.with(pod, |volumes| volumes.mounted = volumes.desired.clone());
    }

    fn with(&self, pod: &Pod, change: impl FnOnce(&mut PodVolumes)) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        change(self.pods.lock().entry(uid).or_default());
    }

    /// The removal of a pod's volumes begins.
    pub(crate) fn removing(&self, pod: &str) {
        if let Some(volumes) = self.pods.lock().get_mut(pod) {
            volumes.desired.clear();
        }
    }

    /// The volumes of a pod are removed.
    pub(crate) fn removed(&self, pod: &str) {
        self.pods.lock().remove(pod);
    }

    /// Adds the metrics to a page.
    pub(crate) fn show(&self, page: &mut Exposition) {
        let help = "How long operations on volumes took.";
        page.histograms("storage_operation_duration_seconds", help, &self.operations);
        let help = "How long calls of CSI drivers took.";
        page.histograms("csi_operations_seconds", help, &self.csi);
        let help = "Volumes of earlier runs of the kubelet that were found on the node.";
        page.counters("reconstruct_volume_operations_total", help, &self.rebuilt);
        let help = "Volumes of earlier runs of the kubelet without a record.";
        let name = "reconstruct_volume_operations_errors_total";
        page.counters(name, help, &self.not_rebuilt);
        let mut totals: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let pods = self.pods.lock();
        for volumes in pods.values() {
            for (state, plugins) in [
                ("actual_state_of_world", &volumes.mounted),
                ("desired_state_of_world", &volumes.desired),
            ] {
                for (plugin, count) in plugins {
                    *totals.entry((plugin, state)).or_default() += count;
                }
            }
        }
        let name = "volume_manager_total_volumes";
        page.family(name, "gauge", "Number of volumes in Volume Manager");
        for ((plugin, state), count) in totals {
            let labels = [("plugin_name", plugin), ("state", state)];
            page.sample(name, &labels, count as f64, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(metrics: &VolumeMetrics) -> String {
        let mut page = Exposition::default();
        metrics.show(&mut page);
        page.finish()
    }

    #[test]
    fn volumes_count_as_desired_until_their_removal_begins_and_as_mounted_until_it_ends() {
        let metrics = VolumeMetrics::default();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}})).unwrap();
        let volumes: Vec<Volume> = serde_json::from_value(json!([
            {"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]))
        .unwrap();
        let line = |state: &str| {
            let name = "volume_manager_total_volumes{plugin_name=\"kubernetes.io/empty-dir\"";
            format!("{name},state=\"{state}_state_of_world\"}} 2")
        };
        let (desired, actual) = (line("desired"), line("actual"));
        let shown = |metrics: &VolumeMetrics| {
            let page = page(metrics);
            (page.contains(&desired), page.contains(&actual))
        };
        metrics.want(&pod, volumes.iter());
        assert_eq!(shown(&metrics), (true, false), "{}", page(&metrics));
        metrics.all_mounted(&pod);
        assert_eq!(shown(&metrics), (true, true));
        metrics.removing("u");
        assert_eq!(shown(&metrics), (false, true));
        metrics.removed("u");
        assert_eq!(shown(&metrics), (false, false));
    }

    #[test]
    fn operations_and_calls_have_upstreams_labels() {
        let metrics = VolumeMetrics::default();
        metrics.mounted("kubernetes.io/csi:x.io", true, Instant::now(), false);
        metrics.called("x.io", "NodeStageVolume", Duration::from_secs(1), "OK");
        metrics.rebuilt(true);
        metrics.rebuilt(false);
        let page = page(&metrics);
        for line in [
            "storage_operation_duration_seconds_count{volume_plugin=\"kubernetes.io/csi:x.io\",operation_name=\"map_volume\",status=\"fail-unknown\",migrated=\"false\"} 1",
            "csi_operations_seconds_count{driver_name=\"x.io\",method_name=\"/csi.v1.Node/NodeStageVolume\",grpc_status_code=\"OK\",migrated=\"false\"} 1",
            "reconstruct_volume_operations_total 2",
            "reconstruct_volume_operations_errors_total 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
