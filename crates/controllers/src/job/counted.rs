//! Records the metrics of one reconciliation of a Job.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobStatus};

use super::decide::true_condition;
use crate::metrics::Metrics;

pub(super) struct Reconciled<'a> {
    pub(super) metrics: &'a Metrics,
    /// The Job before the reconciliation.
    pub(super) job: &'a Job,
}

impl Reconciled<'_> {
    fn mode(&self) -> &str {
        let spec = self.job.spec.as_ref();
        let mode = spec.and_then(|spec| spec.completion_mode.as_deref());
        mode.unwrap_or("NonIndexed")
    }

    /// Counts the reconciliation and its duration.
    pub(super) fn round(&self, action: &str, is_ok: bool, took: Duration) {
        let by = [
            ("completion_mode", self.mode()),
            ("result", if is_ok { "success" } else { "error" }),
            ("action", action),
        ];
        self.metrics.job_syncs.add(by, 1);
        self.metrics.job_sync_seconds.took(by, took);
    }

    /// Counts created pods, and one failure if not all could be created.
    pub(super) fn pods_created(&self, count: usize, is_ok: bool) {
        let by = |status| [("reason", "new"), ("status", status)];
        let metric = &self.metrics.job_pods_created;
        metric.add(by("succeeded"), count);
        metric.add(by("failed"), usize::from(!is_ok));
    }

    /// Counts the pods that the new status counts and the old one did not, and the Job if it completed or failed.
    pub(super) fn ended(&self, status: &JobStatus) {
        let before = self.job.status.as_ref();
        let more = |now: Option<i32>, then: Option<i32>| {
            let more = now.unwrap_or(0).saturating_sub(then.unwrap_or(0));
            usize::try_from(more).unwrap_or(0)
        };
        let succeeded = before.and_then(|status| status.succeeded);
        let failed = before.and_then(|status| status.failed);
        for (result, count) in [
            ("succeeded", more(status.succeeded, succeeded)),
            ("failed", more(status.failed, failed)),
        ] {
            let by = [("completion_mode", self.mode()), ("result", result)];
            self.metrics.job_pods_finished.add(by, count);
        }
        let complete = true_condition(status, "Complete");
        let Some(end) = complete.or(true_condition(status, "Failed")) else {
            return;
        };
        let result = if complete.is_some() {
            "succeeded"
        } else {
            "failed"
        };
        let by = [
            ("completion_mode", self.mode()),
            ("result", result),
            ("reason", end.reason.as_deref().unwrap_or_default()),
        ];
        self.metrics.jobs_finished.add(by, 1);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_and_jobs_are_counted_when_the_status_counts_them() {
        let metrics = Metrics::default();
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": "a"}, "status": {"succeeded": 1},
        }))
        .unwrap();
        let condition =
            json!({"type": "Complete", "status": "True", "reason": "CompletionsReached"});
        let status = json!({"succeeded": 3, "conditions": [condition]});
        let reconciled = Reconciled {
            metrics: &metrics,
            job: &job,
        };
        reconciled.ended(&serde_json::from_value(status).unwrap());
        reconciled.round("reconciling", true, Duration::from_millis(1));
        let text = metrics.text();
        for line in [
            "job_controller_job_pods_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\"} 2",
            "job_controller_jobs_finished_total{completion_mode=\"NonIndexed\",result=\"succeeded\",reason=\"CompletionsReached\"} 1",
            "job_controller_job_syncs_total{completion_mode=\"NonIndexed\",result=\"success\",action=\"reconciling\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
