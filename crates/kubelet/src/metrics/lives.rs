//! Counters of what happens to whole pods, to their sandboxes and to images.

use std::time::Duration;

use stdx::exposition::{Counter, Exposition, Family, Histogram};

use super::{DEFAULT, STARTUP, counts};

const PULL: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
    1200.0, 1800.0, 2700.0, 3600.0,
];

/// Upstream's labels for sizes of images, by their lower bounds in MiB.
const SIZES: &[(u64, &str)] = &[
    (0, "0-10MB"),
    (10, "10MB-100MB"),
    (100, "100MB-500MB"),
    (500, "500MB-1GB"),
    (1 << 10, "1GB-5GB"),
    (5 << 10, "5GB-10GB"),
    (10 << 10, "10GB-20GB"),
    (20 << 10, "20GB-30GB"),
    (30 << 10, "30GB-40GB"),
    (40 << 10, "40GB-60GB"),
    (60 << 10, "60GB-100GB"),
    (100 << 10, "GT100GB"),
];

/// The reasons of rejections that have a label of their own.
const REJECTIONS: &[&str] = &[
    "AppArmor",
    "Evicted",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodOSNotSupported",
    "SysctlForbidden",
    "UnexpectedAdmissionError",
    "VolumeAttachmentLimitExceeded",
];

/// The counters.
pub struct LifeMetrics {
    started: Family<Histogram>,
    rejections: Family<Counter>,
    restarted: Family<Counter>,
    orphaned: Family<Counter>,
    sandboxes: Family<Histogram>,
    sandbox_errors: Family<Counter>,
    pulls: Family<Histogram>,
    images_collected: Family<Counter>,
}

impl Default for LifeMetrics {
    fn default() -> Self {
        let metrics = Self {
            started: Family::new(&[], || Histogram::new(STARTUP)),
            rejections: counts(&["reason"]),
            restarted: counts(&["static"]),
            orphaned: counts(&[]),
            sandboxes: Family::new(&["runtime_handler"], || Histogram::new(DEFAULT)),
            sandbox_errors: counts(&["runtime_handler"]),
            pulls: Family::new(&["image_size_in_bytes"], || Histogram::new(PULL)),
            images_collected: counts(&["reason"]),
        };
        // Metrics without labels are exposed before they first change.
        metrics.orphaned.with(&[]);
        metrics.started.with(&[]);
        metrics
    }
}

impl LifeMetrics {
    /// A pod runs, this long after its creation.
    pub fn started(&self, after: Duration) {
        self.started.with(&[]).took(after);
    }

    /// A pod was rejected.
    pub fn rejected(&self, reason: &str) {
        self.rejections.with(&[rejection(reason)]).increment();
    }

    /// A pod that had ended begins again with the same uid.
    pub fn restarted(&self, is_static: bool) {
        let label = if is_static { "true" } else { "" };
        self.restarted.with(&[label]).increment();
    }

    /// The runtime has a pod that neither the API nor a file has.
    pub fn orphaned(&self) {
        self.orphaned.with(&[]).increment();
    }

    /// The runtime made a sandbox, or failed to.
    pub fn sandbox_run(&self, handler: &str, took: Duration, succeeded: bool) {
        self.sandboxes.with(&[handler]).took(took);
        if !succeeded {
            self.sandbox_errors.with(&[handler]).increment();
        }
    }

    /// An image of this size was pulled.
    pub fn pulled(&self, bytes: u64, took: Duration) {
        self.pulls.with(&[size(bytes)]).took(took);
    }

    /// An unused image was removed: `age` or `space`.
    pub fn image_collected(&self, reason: &str) {
        self.images_collected.with(&[reason]).increment();
    }

    pub(super) fn show(&self, page: &mut Exposition) {
        for (name, help, family) in [
            (
                "kubelet_pod_start_total_duration_seconds",
                "From the creation of a pod to it running.",
                &self.started,
            ),
            (
                "kubelet_run_podsandbox_duration_seconds",
                "How long the creation of sandboxes took.",
                &self.sandboxes,
            ),
            (
                "kubelet_image_pull_duration_seconds",
                "How long pulls of images took.",
                &self.pulls,
            ),
        ] {
            page.histograms(name, help, family);
        }
        for (name, help, family) in [
            (
                "kubelet_admission_rejections_total",
                "Pods that were rejected, by reason.",
                &self.rejections,
            ),
            (
                "kubelet_restarted_pods_total",
                "Pods that were removed and created again with the same uid.",
                &self.restarted,
            ),
            (
                "kubelet_orphaned_runtime_pods_total",
                "Pods that only the runtime had.",
                &self.orphaned,
            ),
            (
                "kubelet_run_podsandbox_errors_total",
                "Sandboxes that could not be created.",
                &self.sandbox_errors,
            ),
            (
                "kubelet_image_garbage_collected_total",
                "Unused images that were removed, by reason.",
                &self.images_collected,
            ),
        ] {
            page.counters(name, help, family);
        }
    }
}

/// The label of a rejection: users can name any extended resource.
fn rejection(reason: &str) -> &str {
    match reason {
        known if REJECTIONS.contains(&known) => known,
        other if other.starts_with("OutOf") => "OutOfExtendedResources",
        _ => "Other",
    }
}

fn size(bytes: u64) -> &'static str {
    let fitting = SIZES.iter().rev().find(|(above, _)| bytes > above << 20);
    fitting.map_or("N/A", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_upstreams_and_users_cannot_make_new_ones() {
        for (reason, expected) in [
            ("OutOfcpu", "OutOfcpu"),
            ("OutOfexample.com/x", "OutOfExtendedResources"),
            ("NodeAffinity", "Other"),
        ] {
            assert_eq!(rejection(reason), expected);
        }
        let mib = 1 << 20;
        for (bytes, expected) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * mib, "0-10MB"),
            (10 * mib + 1, "10MB-100MB"),
            (6 << 30, "5GB-10GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
        let metrics = LifeMetrics::default();
        metrics.rejected("OutOfexample.com/x");
        metrics.restarted(true);
        metrics.pulled(1, Duration::from_secs(2));
        let mut page = Exposition::default();
        metrics.show(&mut page);
        let page = page.finish();
        for line in [
            "kubelet_admission_rejections_total{reason=\"OutOfExtendedResources\"} 1",
            "kubelet_restarted_pods_total{static=\"true\"} 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"0-10MB\"} 1",
            "kubelet_orphaned_runtime_pods_total 0",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
