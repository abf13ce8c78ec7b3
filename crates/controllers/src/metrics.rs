//! What controllers do, under the names that kube-controller-manager's metrics have.

use std::time::Duration;

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

/// The labels of one value.
pub(crate) fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    let owned = labels.map(|(name, value)| (name, value.to_owned()));
    owned.into()
}

/// Counts by labels. Cloning shares them.
#[derive(Clone, Default)]
pub(crate) struct Counts(Family<Labels, Counter>);

impl Counts {
    pub(crate) fn add<const N: usize>(&self, by: [(&'static str, &str); N], count: usize) {
        if count > 0 {
            self.0.get_or_create(&labels(by)).inc_by(count as u64);
        }
    }
}

/// Numbers by labels. Cloning shares them.
#[derive(Clone, Default)]
pub(crate) struct Gauges(Family<Labels, Gauge>);

impl Gauges {
    pub(crate) fn set<const N: usize>(&self, by: [(&'static str, &str); N], value: usize) {
        let gauge = self.0.get_or_create(&labels(by));
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(crate) fn clear(&self) {
        self.0.clear();
    }
}

/// How something is spread, by labels. Cloning shares it.
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
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ident $name:literal $(from $first:literal by $factor:literal times $count:literal)?;)*) => {
        /// All of them. Cloning shares them.
        #[derive(Clone)]
        pub(crate) struct Metrics {
            $($(#[doc = $help])+ pub(crate) $field: $kind,)*
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self {
                    $($field: metrics!(@make $kind $($first, $factor, $count)?),)*
                }
            }
        }

        impl Metrics {
            /// In the text format of OpenMetrics.
            pub(crate) fn text(&self) -> String {
                let mut registry = Registry::default();
                $(
                    let help = concat!($($help),+).trim();
                    registry.register($name, help, self.$field.0.clone());
                )*
                let mut text = String::new();
                // Writing into a string cannot fail.
                let _ = text::encode(&mut text, &registry);
                text
            }
        }
    };
    (@make Spread $first:literal, $factor:literal, $count:literal) => {
        Spread::new(|| Histogram::new(exponential_buckets($first, $factor, $count)))
    };
    (@make $kind:ident) => { $kind::default() };
}

metrics! {
    /// How long a reconciliation of a Job took
    job_sync_seconds: Spread "job_controller_job_sync_duration_seconds" from 0.004 by 2.0 times 15;
    /// Reconciliations of Jobs
    job_syncs: Counts "job_controller_job_syncs";
    /// Jobs that have ended
    jobs_finished: Counts "job_controller_jobs_finished";
    /// Pods of Jobs that have ended and were counted
    job_pods_finished: Counts "job_controller_job_pods_finished";
    /// Pods that were made for Jobs
    job_pods_created: Counts "job_controller_job_pods_creation";
    /// Jobs that another controller manages
    jobs_external: Counts "job_controller_jobs_by_external_controller";
    /// How late a CronJob's Job was made
    cronjob_skew: Spread "cronjob_controller_job_creation_skew_duration_seconds" from 1.0 by 2.0 times 10;
    /// How late a Job was deleted after its time
    expired_jobs: Spread "ttl_after_finished_controller_job_deletion_duration_seconds" from 0.1 by 2.0 times 14;
    /// Pods that were deleted because of a taint
    taint_evictions: Counts "taint_eviction_controller_pod_deletions";
    /// How long after a taint its pods were deleted
    taint_eviction_seconds: Spread "taint_eviction_controller_pod_deletion_duration_seconds" from 0.005 by 4.0 times 9;
    /// Pods that were removed because nothing else would
    pods_removed: Counts "pod_gc_collector_force_delete_pods";
    /// Pods that should have been removed and could not be
    pods_not_removed: Counts "pod_gc_collector_force_delete_pod_errors";
    /// Nodes of a zone
    zone_size: Gauges "node_collector_zone_size";
    /// How many of a hundred nodes of a zone are well
    zone_health: Gauges "node_collector_zone_health";
    /// Nodes of a zone that are not well
    zone_unhealthy: Gauges "node_collector_unhealthy_nodes_in_zone";
    /// Nodes whose pods were evicted
    node_evictions: Counts "node_collector_evictions";
    /// How long it took to look at all nodes
    node_pass_seconds: Spread "node_collector_update_all_nodes_health_duration_seconds" from 0.01 by 4.0 times 8;
    /// Reconciliations of the slices of Services
    slice_syncs: Counts "endpoint_slice_controller_syncs";
    /// Writes of slices
    slice_changes: Counts "endpoint_slice_controller_changes";
    /// Slices that a reconciliation wrote
    slices_changed: Spread "endpoint_slice_controller_endpointslices_changed_per_sync" from 1.0 by 2.0 times 8;
    /// Claims that were made for volumes of pods
    ephemeral_created: Counts "ephemeral_volume_controller_create";
    /// Claims that should have been made for volumes of pods
    ephemeral_failed: Counts "ephemeral_volume_controller_create_failures";
    /// Namespaces that were given the cluster's authority
    root_ca_syncs: Counts "root_ca_cert_publisher_sync";
    /// How long it took to give a namespace the cluster's authority
    root_ca_seconds: Spread "root_ca_cert_publisher_sync_duration_seconds" from 0.001 by 2.0 times 15;
    /// Reconciliations of autoscalers
    autoscaler_syncs: Counts "horizontal_pod_autoscaler_controller_reconciliations";
    /// How long a reconciliation of an autoscaler took
    autoscaler_seconds: Spread "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds" from 0.001 by 2.0 times 15;
    /// Ranges of addresses that nodes were given
    ranges_allocated: Counts "node_ipam_controller_cidrset_cidrs_allocations";
    /// Kinds that the garbage collector could not follow
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
        metrics.zone_size.set([("zone", "a")], 7);
        let text = metrics.text();
        for line in [
            "job_controller_jobs_finished_total{completion_mode=\"Indexed\",result=\"succeeded\",reason=\"\"} 2",
            "cronjob_controller_job_creation_skew_duration_seconds_count{} 1",
            "node_collector_zone_size{zone=\"a\"} 7",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("zone=\"b\""));
    }
}
