//! Records the metrics of one reconciliation of a Job.

use std::time::Duration;

use client::Event;
use k8s_openapi::api::{
    batch::v1::{Job, JobStatus},
    core::v1::Pod,
};

use super::{
    decide::true_condition,
    failurepolicy,
    indexes::Indexes,
    pod::{has_failed, is_tracked},
};
use crate::metrics::Metrics;
use crate::pods;

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
        self.indexes(status);
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

    /// Counts the indexes that are only in the new status.
    fn indexes(&self, status: &JobStatus) {
        let spec = self.job.spec.as_ref();
        let Some(completions) = spec.and_then(|spec| spec.completions) else {
            return;
        };
        if self.mode() != "Indexed" {
            return;
        }
        let count = |text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default();
            Indexes::parse(text, completions).len()
        };
        let is_limited = spec.is_some_and(|spec| spec.backoff_limit_per_index.is_some());
        let limit = if is_limited { "perIndex" } else { "global" };
        let before = self.job.status.clone().unwrap_or_default();
        for (result, then, now) in [
            (
                "succeeded",
                &before.completed_indexes,
                &status.completed_indexes,
            ),
            ("failed", &before.failed_indexes, &status.failed_indexes),
        ] {
            let more = usize::try_from(count(now) - count(then)).unwrap_or(0);
            let by = [("status", result), ("backoffLimit", limit)];
            self.metrics.job_indexes.add(by, more);
        }
    }

    /// Counts a pod whose finalizer was removed, if a rule of podFailurePolicy decided about it.
    pub(super) fn released(&self, pod: &Pod) {
        let Some(spec) = self.job.spec.as_ref() else {
            return;
        };
        let policy = spec.pod_failure_policy.as_ref();
        let policy = policy.filter(|_| has_failed(spec, pod));
        if let Some(rule) = policy.and_then(|policy| failurepolicy::matching_rule(policy, pod)) {
            self.metrics.job_failure_rules.add([("action", rule)], 1);
        }
    }
}

/// Counts ended pods that got or lost the finalizer of Jobs.
pub(super) fn finalizer_changed(metrics: &Metrics, event: &Event<Pod>) {
    let counts = |pod: &Pod| pods::is_terminal(pod) && is_tracked(pod);
    let (before, after) = match event {
        Event::Deleted(pod) => (counts(pod), false),
        event => (
            event.old().is_some_and(|pod| counts(pod)),
            counts(event.object()),
        ),
    };
    match (before, after) {
        (false, true) => metrics.job_ended_pods.add([("event", "add")], 1),
        (true, false) => metrics.job_ended_pods.add([("event", "delete")], 1),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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

    #[test]
    fn new_indexes_and_failures_with_a_rule_are_counted() {
        let metrics = Metrics::default();
        let rule = json!({"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}});
        let job: Job = serde_json::from_value(json!({
            "spec": {
                "completionMode": "Indexed", "completions": 8, "backoffLimitPerIndex": 1,
                "podFailurePolicy": {"rules": [rule]}, "template": {},
            },
            "status": {"completedIndexes": "0-1,9", "failedIndexes": "5"},
        }))
        .unwrap();
        let reconciled = Reconciled {
            metrics: &metrics,
            job: &job,
        };
        let status = json!({"completedIndexes": "0-3", "failedIndexes": "5-7"});
        reconciled.ended(&serde_json::from_value(status).unwrap());
        let pod = |code: i32| -> Pod {
            let state = json!({"terminated": {"exitCode": code}});
            let container = json!({"name": "c", "state": state, "image": "", "imageID": "",
                "ready": false, "restartCount": 0});
            let status = json!({"phase": "Failed", "containerStatuses": [container]});
            let metadata = json!({"finalizers": [super::super::FINALIZER]});
            serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
        };
        reconciled.released(&pod(7));
        reconciled.released(&pod(8));
        let event = |pod: Pod| Event::Added(Arc::new(pod));
        finalizer_changed(&metrics, &event(pod(1)));
        finalizer_changed(&metrics, &event(Pod::default()));
        finalizer_changed(&metrics, &Event::Deleted(Arc::new(pod(1))));
        let text = metrics.text();
        for line in [
            "job_controller_job_finished_indexes_total{status=\"succeeded\",backoffLimit=\"perIndex\"} 2",
            "job_controller_job_finished_indexes_total{status=\"failed\",backoffLimit=\"perIndex\"} 2",
            "job_controller_pod_failures_handled_by_failure_policy_total{action=\"Ignore\"} 1",
            "job_controller_terminated_pods_tracking_finalizer_total{event=\"add\"} 1",
            "job_controller_terminated_pods_tracking_finalizer_total{event=\"delete\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
