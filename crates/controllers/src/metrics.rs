//! The metrics of the controllers, under the names of kube-controller-manager. The doc comment of a metric is its help
//! text.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// The labels of one time series.
pub(crate) fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    let owned = labels.map(|(name, value)| (name, value.to_owned()));
    owned.into()
}

/// Counters by labels. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Counts(Family<Labels, Counter>);

impl Counts {
    pub(crate) fn add<const N: usize>(&self, by: [(&'static str, &str); N], count: usize) {
        if count > 0 {
            self.0.get_or_create(&labels(by)).inc_by(count as u64);
        }
    }
}

impl Counts {
    /// Counts reconciliations that wait because a cache is too old, by the kind in the cache.
    pub(crate) fn skips(&self) -> impl Fn(&str, &str) + Send + Sync + 'static {
        let counts = self.clone();
        move |group, resource| counts.add([("group", group), ("resource", resource)], 1)
    }
}

/// Gauges by labels. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Gauges(Family<Labels, Gauge>);

impl Gauges {
    pub(crate) fn set<const N: usize>(&self, by: [(&'static str, &str); N], value: usize) {
        let gauge = self.0.get_or_create(&labels(by));
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(crate) fn remove<const N: usize>(&self, by: [(&'static str, &str); N]) {
        self.0.remove(&labels(by));
    }

    pub(crate) fn clear(&self) {
        self.0.clear();
    }

    /// For counters whose upstream name does not end in `_total`, which the format of counters
    /// would append.
    pub(crate) fn increase<const N: usize>(&self, by: [(&'static str, &str); N]) {
        self.0.get_or_create(&labels(by)).inc();
    }
}

/// Computes gauges from caches when the metrics are read. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Collectors(Arc<Mutex<Vec<Collector>>>);

type Collector = Box<dyn Fn(&Metrics) + Send + Sync>;

impl Collectors {
    /// Adds one.
    pub(crate) fn add(&self, collector: impl Fn(&Metrics) + Send + Sync + 'static) {
        self.0.lock().push(Box::new(collector));
    }

    /// Drops all, and with them the caches that they read.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Updates the gauges and returns all metrics. The lock is held, so that two readers do not see
    /// each other's half-written gauges.
    pub(crate) fn text(&self, metrics: &Metrics) -> String {
        let collectors = self.0.lock();
        for collect in collectors.iter() {
            collect(metrics);
        }
        metrics.text()
    }
}

/// Histograms by labels. Clones share them.
#[derive(Clone)]
pub(crate) struct Spread(Histograms);

impl Spread {
    fn new(buckets: fn() -> Histogram) -> Self {
        Self(Family::new_with_constructor(buckets))
    }

    pub(crate) fn observe<const N: usize>(&self, by: [(&'static str, &str); N], value: f64) {
        self.0.get_or_create(&labels(by)).observe(value);
    }

    pub(crate) fn took<const N: usize>(&self, by: [(&'static str, &str); N], time: Duration) {
        self.observe(by, time.as_secs_f64());
    }
}

macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ident $name:literal $(from $first:literal by $factor:literal times $count:literal)? $(in $buckets:ident)?;)*) => {
        /// All metrics of the controllers. Clones share them.
        #[derive(Clone)]
        pub(crate) struct Metrics {
            $($(#[doc = $help])+ pub(crate) $field: $kind,)*
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self {
                    $($field: metrics!(@make $kind $($first, $factor, $count)? $($buckets)?),)*
                }
            }
        }

        impl Metrics {
            /// The metrics in the OpenMetrics text format.
            pub(crate) fn text(&self) -> String {
                let mut registry = Registry::default();
                $(
                    let help = concat!($($help),+).trim();
                    registry.register($name, help, self.$field.0.clone());
                )*
                let mut text = String::new();
                // Writing to a string cannot fail.
                let _ = text::encode(&mut text, &registry);
                text
            }
        }
    };
    (@make Spread $first:literal, $factor:literal, $count:literal) => {
        Spread::new(|| Histogram::new(exponential_buckets($first, $factor, $count)))
    };
    (@make Spread $buckets:ident) => { Spread::new(|| Histogram::new($buckets.into_iter())) };
    (@make $kind:ident) => { $kind::default() };
}

/// The buckets of operations on volumes.
const STORAGE: [f64; 13] = [
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

metrics! {
    /// Duration of a reconciliation of a Job
    job_sync_seconds: Spread "job_controller_job_sync_duration_seconds" from 0.004 by 2.0 times 15;
    /// Reconciliations of Jobs
    job_syncs: Counts "job_controller_job_syncs";
    /// Jobs that completed or failed
    jobs_finished: Counts "job_controller_jobs_finished";
    /// Finished pods that were counted in the status of their Job
    job_pods_finished: Counts "job_controller_job_pods_finished";
    /// Pods created for Jobs
    job_pods_created: Counts "job_controller_job_pods_creation";
    /// Failed pods of Jobs for which a rule of podFailurePolicy decided
    job_failure_rules: Counts "job_controller_pod_failures_handled_by_failure_policy";
    /// Ended pods that got or lost the finalizer of Jobs
    job_ended_pods: Counts "job_controller_terminated_pods_tracking_finalizer";
    /// Indexes of Jobs that succeeded or failed
    job_indexes: Counts "job_controller_job_finished_indexes";
    /// Jobs managed by another controller
    jobs_external: Counts "job_controller_jobs_by_external_controller";
    /// Reconciliations of Jobs that waited because a cache was too old
    job_skips: Counts "job_controller_stale_sync_skips";
    /// Reconciliations of DaemonSets that waited because a cache was too old
    daemon_skips: Counts "daemonset_controller_stale_sync_skips";
    /// Reconciliations of ReplicaSets and ReplicationControllers that waited because a cache was too old
    replica_skips: Counts "replicaset_controller_stale_sync_skips";
    /// Ages of the ready pods that a ReplicaSet deletes, in times of that of its youngest one
    deletion_age_ratio: Spread "replicaset_controller_sorting_deletion_age_ratio" from 0.25 by 2.0 times 6;
    /// Time between the scheduled time of a CronJob and the creation of its Job
    cronjob_skew: Spread "cronjob_controller_job_creation_skew_duration_seconds" from 1.0 by 2.0 times 10;
    /// Time between the expiry of a finished Job and its deletion
    expired_jobs: Spread "ttl_after_finished_controller_job_deletion_duration_seconds" from 0.1 by 2.0 times 14;
    /// Pods deleted because of a taint
    taint_evictions: Counts "taint_eviction_controller_pod_deletions";
    /// Time between the latest taint that a pod does not tolerate and the deletion of the pod
    taint_eviction_seconds: Spread "taint_eviction_controller_pod_deletion_duration_seconds" from 0.005 by 4.0 times 9;
    /// Pods force deleted by the pod garbage collector
    pods_removed: Counts "pod_gc_collector_force_delete_pods";
    /// Errors of the pod garbage collector when it force deletes pods
    pods_not_removed: Counts "pod_gc_collector_force_delete_pod_errors";
    /// Nodes of a zone
    zone_size: Gauges "node_collector_zone_size";
    /// Percentage of healthy nodes of a zone
    zone_health: Gauges "node_collector_zone_health";
    /// Unhealthy nodes of a zone
    zone_unhealthy: Gauges "node_collector_unhealthy_nodes_in_zone";
    /// Nodes whose pods were evicted
    node_evictions: Counts "node_collector_evictions";
    /// Duration of a check of the health of one node
    node_look_seconds: Spread "node_collector_update_node_health_duration_seconds" from 0.001 by 4.0 times 8;
    /// Duration of a check of the health of all nodes
    node_pass_seconds: Spread "node_collector_update_all_nodes_health_duration_seconds" from 0.01 by 4.0 times 8;
    /// Reconciliations of the EndpointSlices of Services
    slice_syncs: Counts "endpoint_slice_controller_syncs";
    /// Writes of EndpointSlices
    slice_changes: Counts "endpoint_slice_controller_changes";
    /// EndpointSlices written by a reconciliation
    slices_changed: Spread "endpoint_slice_controller_endpointslices_changed_per_sync" from 1.0 by 2.0 times 8;
    /// Endpoints added by a reconciliation
    slice_endpoints_added: Spread "endpoint_slice_controller_endpoints_added_per_sync" from 2.0 by 2.0 times 15;
    /// Endpoints removed by a reconciliation
    slice_endpoints_removed: Spread "endpoint_slice_controller_endpoints_removed_per_sync" from 2.0 by 2.0 times 15;
    /// Endpoints that EndpointSlices should have
    slice_endpoints: Gauges "endpoint_slice_controller_endpoints_desired";
    /// EndpointSlices
    slices: Gauges "endpoint_slice_controller_num_endpoint_slices";
    /// EndpointSlices that would be enough if all were full
    slices_desired: Gauges "endpoint_slice_controller_desired_endpoint_slices";
    /// Endpoints added to mirrored EndpointSlices by a reconciliation
    mirror_added: Spread "endpoint_slice_mirroring_controller_endpoints_added_per_sync" from 2.0 by 2.0 times 15;
    /// Endpoints changed in mirrored EndpointSlices by a reconciliation
    mirror_updated: Spread "endpoint_slice_mirroring_controller_endpoints_updated_per_sync" from 2.0 by 2.0 times 15;
    /// Endpoints removed from mirrored EndpointSlices by a reconciliation
    mirror_removed: Spread "endpoint_slice_mirroring_controller_endpoints_removed_per_sync" from 2.0 by 2.0 times 15;
    /// Addresses of Endpoints that are not mirrored, because they are invalid or too many
    mirror_skipped: Spread "endpoint_slice_mirroring_controller_addresses_skipped_per_sync" from 2.0 by 2.0 times 15;
    /// Duration of a reconciliation of Endpoints
    mirror_seconds: Spread "endpoint_slice_mirroring_controller_endpoints_sync_duration" from 0.001 by 2.0 times 15;
    /// Endpoints that mirrored EndpointSlices should have
    mirror_endpoints: Gauges "endpoint_slice_mirroring_controller_endpoints_desired";
    /// Mirrored EndpointSlices
    mirror_slices: Gauges "endpoint_slice_mirroring_controller_num_endpoint_slices";
    /// Mirrored EndpointSlices that would be enough if all were full
    mirror_slices_desired: Gauges "endpoint_slice_mirroring_controller_desired_endpoint_slices";
    /// Writes of mirrored EndpointSlices
    mirror_changes: Counts "endpoint_slice_mirroring_controller_changes";
    /// PersistentVolumeClaims created for ephemeral volumes of pods
    ephemeral_created: Counts "ephemeral_volume_controller_create";
    /// PersistentVolumeClaims for ephemeral volumes of pods that could not be created
    ephemeral_failed: Counts "ephemeral_volume_controller_create_failures";
    /// ResourceClaims created for pods
    resource_claims_created: Counts "resourceclaim_controller_creates";
    /// ResourceClaims
    resource_claims: Gauges "resourceclaim_controller_resource_claims";
    /// Pods deleted because of a taint of a device
    device_taint_evictions: Counts "device_taint_eviction_controller_pod_deletions";
    /// Time between the effect of a device's taint and the deletion of the pod
    device_taint_eviction_seconds: Spread "device_taint_eviction_controller_pod_deletion_duration_seconds" from 0.005 by 4.0 times 9;
    /// Writes of the cluster's CA certificate into namespaces
    root_ca_syncs: Counts "root_ca_cert_publisher_sync";
    /// Duration of a write of the cluster's CA certificate into a namespace
    root_ca_seconds: Spread "root_ca_cert_publisher_sync_duration_seconds" from 0.001 by 2.0 times 15;
    /// Reconciliations of HorizontalPodAutoscalers
    autoscaler_syncs: Counts "horizontal_pod_autoscaler_controller_reconciliations";
    /// Duration of a reconciliation of a HorizontalPodAutoscaler
    autoscaler_seconds: Spread "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds" from 0.001 by 2.0 times 15;
    /// Computations of one metric of a HorizontalPodAutoscaler
    autoscaler_metrics: Counts "horizontal_pod_autoscaler_controller_metric_computation";
    /// Duration of a computation of one metric of a HorizontalPodAutoscaler
    autoscaler_metric_seconds: Spread "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds" from 0.001 by 2.0 times 15;
    /// HorizontalPodAutoscalers
    autoscalers: Gauges "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers";
    /// Replicas that a HorizontalPodAutoscaler decided on last
    autoscaler_replicas: Gauges "horizontal_pod_autoscaler_controller_desired_replicas";
    /// Pod CIDRs allocated to nodes
    ranges_allocated: Counts "node_ipam_controller_cidrset_cidrs_allocations";
    /// PersistentVolumes by plugin and volume mode
    volumes: Gauges "pv_collector_total_pv_count";
    /// Bound PersistentVolumes
    volumes_bound: Gauges "pv_collector_bound_pv_count";
    /// PersistentVolumes that are not bound
    volumes_unbound: Gauges "pv_collector_unbound_pv_count";
    /// Bound PersistentVolumeClaims
    claims_bound: Gauges "pv_collector_bound_pvc_count";
    /// PersistentVolumeClaims that are not bound
    claims_unbound: Gauges "pv_collector_unbound_pvc_count";
    /// Default StorageClasses assigned to existing PersistentVolumeClaims
    classes_assigned: Counts "retroactive_storageclass";
    /// Default StorageClasses that could not be assigned to existing PersistentVolumeClaims
    classes_not_assigned: Counts "retroactive_storageclass_errors";
    /// Time from the first attempt to provision or delete a PersistentVolume to its success
    volume_operations: Spread "volume_operation_total_seconds" in STORAGE;
    /// Duration of attaching or detaching a volume, to the answer of its driver
    storage_operations: Spread "storage_operation_duration_seconds" in STORAGE;
    /// Failed attempts to provision or delete PersistentVolumes
    volume_errors: Counts "volume_operation_errors";
    /// Attachable volumes that pods use on a node
    attachable_in_use: Gauges "storage_count_attachable_volumes_in_use";
    /// Volumes that are or should be attached
    attached_volumes: Gauges "attachdetach_controller_total_volumes";
    /// Detached volumes that their node had not unmounted
    forced_detaches: Gauges "attach_detach_controller_attachdetach_controller_forced_detaches";
    /// API group versions that the garbage collector could not discover
    kinds_not_followed: Counts "garbagecollector_controller_resources_sync_error";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_upstreams_names_and_labels() {
        let metrics = Metrics::default();
        let by = [
            ("completion_mode", "Indexed"),
            ("result", "succeeded"),
            ("reason", ""),
        ];
        metrics.jobs_finished.add(by, 2);
        metrics.cronjob_skew.took([], Duration::from_secs(3));
        metrics.zone_size.set([("zone", "b")], 1);
        metrics.zone_size.clear();
        metrics.zone_size.set([("zone", "c")], 1);
        metrics.zone_size.remove([("zone", "c")]);
        metrics.zone_size.set([("zone", "a")], 7);
        metrics.job_skips.skips()("batch", "jobs");
        metrics.autoscaler_metrics.add(
            [
                ("action", "none"),
                ("error", "spec"),
                ("metric_type", "Pods"),
            ],
            1,
        );
        metrics.node_look_seconds.took([], Duration::from_millis(2));
        let text = metrics.text();
        for line in [
            "job_controller_jobs_finished_total{completion_mode=\"Indexed\",result=\"succeeded\",reason=\"\"} 2",
            "cronjob_controller_job_creation_skew_duration_seconds_count{} 1",
            "node_collector_zone_size{zone=\"a\"} 7",
            "job_controller_stale_sync_skips_total{group=\"batch\",resource=\"jobs\"} 1",
            "horizontal_pod_autoscaler_controller_metric_computation_total{action=\"none\",error=\"spec\",metric_type=\"Pods\"} 1",
            "node_collector_update_node_health_duration_seconds_bucket{le=\"0.004\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("zone=\"b\"") && !text.contains("zone=\"c\""));
    }
}
