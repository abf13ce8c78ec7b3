//! Duration metrics of a worker.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PodStatus;

use super::life::Life;
use crate::metrics::Metrics;

/// When the worker started, and the operation of its next evaluation.
pub(super) struct Timing {
    began: Instant,
    /// Upstream's name of the operation.
    next: &'static str,
    has_run: bool,
}

impl Timing {
    /// A pod that already runs was started by an earlier kubelet.
    pub(super) fn new(status: &PodStatus) -> Self {
        Self {
            began: Instant::now(),
            next: "create",
            has_run: !is_new(status),
        }
    }

    /// The next evaluation is for a changed pod.
    pub(super) fn updated(&mut self) {
        if self.next == "sync" {
            self.next = "update";
        }
    }

    /// An evaluation took this long.
    pub(super) fn stepped(&mut self, metrics: &Metrics, life: &Life, took: Duration) {
        let operation = match life {
            Life::Stopped(_) => "terminated",
            life if life.ending().is_some() => "kill",
            _ => self.next,
        };
        if self.next == "create" {
            metrics.worker_began(self.began.elapsed().saturating_sub(took));
        }
        self.next = "sync";
        metrics.worker_stepped(operation, took);
    }

    /// Observes the new status of a pod of this age.
    pub(super) fn saw(&mut self, metrics: &Metrics, status: &PodStatus, age: Option<Duration>) {
        if !self.has_run && status.phase.as_deref() == Some("Running") {
            self.has_run = true;
            metrics.pod_started(self.began.elapsed());
            if let Some(age) = age {
                metrics.lives.started(age);
            }
        }
    }
}

fn is_new(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), None | Some("" | "Pending"))
}

#[cfg(test)]
mod tests {
    use stdx::exposition::Exposition;

    use super::*;

    #[test]
    fn a_start_is_measured_once_and_only_where_it_was_seen() {
        let of = |phase: &str| PodStatus {
            phase: Some(phase.to_owned()),
            ..Default::default()
        };
        for (before, expected) in [("Pending", 1), ("Running", 0)] {
            let metrics = Metrics::default();
            let mut timing = Timing::new(&of(before));
            for phase in ["Pending", "Running", "Running", "Succeeded"] {
                timing.saw(&metrics, &of(phase), Some(Duration::from_secs(1)));
            }
            let mut page = Exposition::default();
            metrics.show(&mut page);
            let page = page.finish();
            for name in ["pod_start_duration", "pod_start_total_duration"] {
                let count = format!("kubelet_{name}_seconds_count {expected}\n");
                assert!(page.contains(&count), "{before}: {name}");
            }
        }
    }
}
