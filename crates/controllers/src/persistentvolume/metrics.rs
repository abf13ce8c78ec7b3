//! Counts volumes and claims, and measures how long provisioners take.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use client::Informer;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;
use reconcile::{
    Key,
    storage::{
        PROVISIONED_BY, STORAGE_PROVISIONER, annotation, claim_class, is_fully_bound, volume_class,
    },
};

use crate::metrics::Metrics;

/// Upstream's name of the volume plugin, with the driver of CSI volumes.
pub(crate) fn plugin_name(volume: &PersistentVolume) -> String {
    let spec = volume.spec.as_ref();
    if let Some(csi) = spec.and_then(|spec| spec.csi.as_ref()) {
        return format!("kubernetes.io/csi:{}", csi.driver);
    }
    let name = spec.and_then(|spec| {
        let host_path = spec.host_path.as_ref().map(|_| "kubernetes.io/host-path");
        let nfs = || spec.nfs.as_ref().map(|_| "kubernetes.io/nfs");
        let local = || spec.local.as_ref().map(|_| "kubernetes.io/local-volume");
        host_path.or_else(nfs).or_else(local)
    });
    name.unwrap_or("N/A").to_owned()
}

/// Updates the gauges of volumes and claims.
pub(super) fn collect(
    metrics: &Metrics,
    volumes: &Informer<PersistentVolume>,
    claims: &Informer<PersistentVolumeClaim>,
) {
    count_volumes(metrics, volumes.list().iter().map(AsRef::as_ref));
    count_claims(metrics, claims.list().iter().map(AsRef::as_ref));
}

fn count_volumes<'a>(metrics: &Metrics, volumes: impl Iterator<Item = &'a PersistentVolume>) {
    let mut total: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut by_class: BTreeMap<(bool, String), usize> = BTreeMap::new();
    for volume in volumes {
        let mode = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_mode.clone());
        let mode = mode.unwrap_or_else(|| "Filesystem".to_owned());
        *total.entry((plugin_name(volume), mode)).or_default() += 1;
        let phase = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let class = volume_class(volume).to_owned();
        *by_class.entry((phase == Some("Bound"), class)).or_default() += 1;
    }
    metrics.volumes.clear();
    metrics.volumes_bound.clear();
    metrics.volumes_unbound.clear();
    for ((plugin, mode), count) in &total {
        let by = [("plugin_name", plugin.as_str()), ("volume_mode", mode)];
        metrics.volumes.set(by, *count);
    }
    for ((is_bound, class), count) in &by_class {
        let gauges = match is_bound {
            true => &metrics.volumes_bound,
            false => &metrics.volumes_unbound,
        };
        gauges.set([("storage_class", class.as_str())], *count);
    }
}

fn count_claims<'a>(metrics: &Metrics, claims: impl Iterator<Item = &'a PersistentVolumeClaim>) {
    let mut counts: BTreeMap<(bool, [String; 3]), usize> = BTreeMap::new();
    for claim in claims {
        let phase = claim
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let spec = claim.spec.as_ref();
        let attributes = spec.and_then(|spec| spec.volume_attributes_class_name.clone());
        let labels = [
            claim.metadata.namespace.clone().unwrap_or_default(),
            claim_class(claim).to_owned(),
            attributes.unwrap_or_default(),
        ];
        *counts.entry((phase == Some("Bound"), labels)).or_default() += 1;
    }
    metrics.claims_bound.clear();
    metrics.claims_unbound.clear();
    for ((is_bound, [namespace, class, attributes]), count) in &counts {
        let gauges = match is_bound {
            true => &metrics.claims_bound,
            false => &metrics.claims_unbound,
        };
        let by = [
            ("namespace", namespace.as_str()),
            ("storage_class", class),
            ("volume_attributes_class", attributes),
        ];
        gauges.set(by, *count);
    }
}

/// What a provisioner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Provision,
    Delete,
}

/// The operations of provisioners that have not succeeded yet. In memory only: a restart loses
/// their durations.
#[derive(Default)]
pub(super) struct Operations {
    /// Guards only the map: the provisioner and the start, by claim or volume.
    started: Mutex<HashMap<Key, (Operation, String, Instant)>>,
}

impl Operations {
    /// An operation is attempted; later calls do not restart it.
    fn start(&self, key: &Key, operation: Operation, provisioner: &str) {
        let mut started = self.started.lock();
        let entry = || (operation, provisioner.to_owned(), Instant::now());
        started.entry(key.clone()).or_insert_with(entry);
    }

    /// The operation ended; it is counted if it succeeded.
    fn end(&self, key: &Key, has_succeeded: bool, metrics: &Metrics) {
        let Some((operation, plugin, start)) = self.started.lock().remove(key) else {
            return;
        };
        let name = match operation {
            Operation::Provision => "provision",
            Operation::Delete => "delete",
        };
        if has_succeeded {
            let by = [("plugin_name", plugin.as_str()), ("operation_name", name)];
            metrics.volume_operations.took(by, start.elapsed());
        }
    }

    /// Follows a claim from the request for a volume to its binding.
    pub(super) fn observe_claim(
        &self,
        key: &Key,
        claim: Option<&PersistentVolumeClaim>,
        metrics: &Metrics,
    ) {
        let Some(claim) = claim else {
            return self.end(key, false, metrics);
        };
        match annotation(&claim.metadata, STORAGE_PROVISIONER) {
            _ if is_fully_bound(claim) => self.end(key, true, metrics),
            Some(provisioner) => self.start(key, Operation::Provision, provisioner),
            None => {}
        }
    }

    /// Follows a volume from its release to its deletion by the provisioner.
    pub(super) fn observe_volume(
        &self,
        key: &Key,
        volume: Option<&PersistentVolume>,
        metrics: &Metrics,
    ) {
        let Some(volume) = volume else {
            return self.end(key, true, metrics);
        };
        let spec = volume.spec.as_ref();
        let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let phase = volume
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let is_released = matches!(phase, Some("Released" | "Failed"));
        match annotation(&volume.metadata, PROVISIONED_BY) {
            Some(by) if is_released && policy == Some("Delete") => {
                self.start(key, Operation::Delete, by);
            }
            _ => self.end(key, false, metrics),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(spec: Value, phase: &str) -> PersistentVolume {
        let by = json!({PROVISIONED_BY: "x.io/made"});
        let volume = json!({"metadata": {"name": "pv", "annotations": by}, "spec": spec,
            "status": {"phase": phase}});
        serde_json::from_value(volume).unwrap()
    }

    fn claim(class: &str, phase: &str) -> PersistentVolumeClaim {
        let claim = json!({"metadata": {"name": "c", "namespace": "n",
                "annotations": {STORAGE_PROVISIONER: "x.io/made"}},
            "spec": {"storageClassName": class}, "status": {"phase": phase}});
        serde_json::from_value(claim).unwrap()
    }

    fn assert_lines(metrics: &Metrics, lines: &[&str]) {
        let text = metrics.text();
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line}\n{text}");
        }
    }

    #[test]
    fn volumes_and_claims_are_counted_by_class_and_binding() {
        let metrics = Metrics::default();
        let csi = json!({"csi": {"driver": "x.io", "volumeHandle": "1"}, "volumeMode": "Block",
            "storageClassName": "fast"});
        let volumes = [
            volume(csi.clone(), "Bound"),
            volume(csi, "Bound"),
            volume(json!({"hostPath": {"path": "/x"}}), "Available"),
            volume(json!({"rbd": {"image": "i", "monitors": []}}), "Released"),
        ];
        count_volumes(&metrics, volumes.iter());
        let claims = [claim("fast", "Bound"), claim("fast", "Pending")];
        count_claims(&metrics, claims.iter());
        assert_lines(
            &metrics,
            &[
                "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:x.io\",volume_mode=\"Block\"} 2",
                "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Filesystem\"} 1",
                "pv_collector_total_pv_count{plugin_name=\"N/A\",volume_mode=\"Filesystem\"} 1",
                "pv_collector_bound_pv_count{storage_class=\"fast\"} 2",
                "pv_collector_unbound_pv_count{storage_class=\"\"} 2",
                "pv_collector_bound_pvc_count{namespace=\"n\",storage_class=\"fast\",volume_attributes_class=\"\"} 1",
                "pv_collector_unbound_pvc_count{namespace=\"n\",storage_class=\"fast\",volume_attributes_class=\"\"} 1",
            ],
        );
        count_volumes(&metrics, [].iter());
        assert!(!metrics.text().contains("pv_collector_bound_pv_count{"));
    }

    #[test]
    fn an_operation_is_measured_from_its_first_attempt_to_its_success() {
        let (metrics, operations) = (Metrics::default(), Operations::default());
        let (of_claim, of_volume) = (Key::new("n", "c"), Key::new("", "pv"));
        let pending = claim("fast", "Pending");
        for _ in 0..2 {
            operations.observe_claim(&of_claim, Some(&pending), &metrics);
        }
        let spec = |policy| json!({"persistentVolumeReclaimPolicy": policy});
        let released = volume(spec("Delete"), "Released");
        operations.observe_volume(&of_volume, Some(&released), &metrics);
        assert!(
            !metrics
                .text()
                .contains("volume_operation_total_seconds_count{")
        );
        operations.observe_volume(&of_volume, None, &metrics);
        operations.observe_volume(&of_volume, None, &metrics);
        let count = "volume_operation_total_seconds_count";
        let line = format!("{count}{{plugin_name=\"x.io/made\",operation_name=\"delete\"}} 1");
        assert_lines(&metrics, &[&line]);
        // Neither a deleted claim nor a volume that is kept is a success.
        operations.observe_claim(&of_claim, None, &metrics);
        let kept = volume(spec("Retain"), "Released");
        operations.observe_volume(&of_volume, Some(&released), &metrics);
        operations.observe_volume(&of_volume, Some(&kept), &metrics);
        operations.observe_volume(&of_volume, None, &metrics);
        assert_lines(&metrics, &[&line]);
        assert!(!metrics.text().contains("operation_name=\"provision\""));
    }
}
