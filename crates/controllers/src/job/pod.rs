//! What the Job controller reads from a pod: its finalizer, its index, the failures of its index,
//! and when it ended. Pure.

use std::{cmp::Ordering, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::JobSpec,
    core::v1::{ContainerStatus, Pod},
};

use crate::pods::{self, is_deleting, phase};

/// Keeps an ended pod until it is counted.
pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// The label and annotation with a pod's index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The number of failed pods of the same index before this one.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The number of those that the failure policy ignored.
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether the pod has the tracking finalizer: it is not counted yet.
pub(crate) fn is_tracked(pod: &Pod) -> bool {
    let mut finalizers = pod.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == FINALIZER)
}

fn number(pod: &Pod, annotation: &str) -> Option<i32> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let number = annotations.get(annotation)?.parse::<i32>().ok();
    number.filter(|number| *number >= 0)
}

/// The completion index; `None` if it is not a number.
pub(super) fn index(pod: &Pod) -> Option<i32> {
    number(pod, INDEX)
}

/// Failures of the pod's index before this pod: counted and ignored ones. Missing or invalid
/// annotations count as zero.
pub(super) fn earlier_failures(pod: &Pod) -> (i32, i32) {
    let count = |annotation| number(pod, annotation).unwrap_or(0);
    (count(FAILURES), count(IGNORED_FAILURES))
}

/// Whether pods are replaced only when they have failed, and not while they terminate.
pub(super) fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// Whether the pod has failed. A terminating pod counts as failed, since without a node it may
/// never get a terminal phase; except if the Job waits for that phase.
pub(super) fn has_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => is_deleting(pod) && !replaces_only_failed(spec),
    }
}

/// When the pod ended: its last container's end, the time it became unready, its deletion
/// timestamp, or its creation.
pub(super) fn finished_at(pod: &Pod) -> Timestamp {
    let unready = || {
        let ready = pods::condition(pod, "Ready").filter(|ready| ready.status == "False")?;
        Some(ready.last_transition_time.as_ref()?.0)
    };
    let deleted = || {
        let deadline = pod.metadata.deletion_timestamp.as_ref()?.0;
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        deadline.checked_sub(grace).ok()
    };
    let created = || Some(pod.metadata.creation_timestamp.as_ref()?.0);
    let known = last_container(pod).or_else(unready).or_else(deleted);
    known.or_else(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// When the last container ended, including sidecars; `None` while one runs.
fn last_container(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter());
    let sidecars: Vec<&str> = inits
        .flatten()
        .filter(|init| init.restart_policy.as_deref() == Some("Always"))
        .map(|init| init.name.as_str())
        .collect();
    let ended = |container: &ContainerStatus| {
        let terminated = container.state.as_ref()?.terminated.as_ref()?;
        Some(terminated.finished_at.as_ref()?.0)
    };
    let inits = status.init_container_statuses.iter().flatten();
    let containers = status.container_statuses.iter().flatten();
    let all = containers.chain(inits.filter(|init| sidecars.contains(&init.name.as_str())));
    let ends: Option<Vec<Timestamp>> = all.map(ended).collect();
    ends?.into_iter().max()
}

/// The order in which surplus pods are deleted: unassigned before assigned, pending before running,
/// not ready before ready, then the youngest.
pub(super) fn removal_order(a: &Pod, b: &Pod) -> Ordering {
    pods::stage(a)
        .cmp(&pods::stage(b))
        .then_with(|| pods::younger_first(pods::ready_since(a), pods::ready_since(b)))
        .then_with(|| pods::restarts(b).cmp(&pods::restarts(a)))
        .then_with(|| pods::younger_first(pods::created(a), pods::created(b)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::samples::at;

    #[test]
    fn the_finish_time_of_a_pod_comes_from_the_most_precise_source() {
        let second = |second: i64| at(second).to_string();
        let container = |name: &str, end: Option<i64>| {
            let state = match end {
                Some(end) => json!({"terminated": {"exitCode": 0, "finishedAt": second(end)}}),
                None => json!({"running": {}}),
            };
            json!({"name": name, "state": state, "image": "", "imageID": "", "ready": false,
                   "restartCount": 0})
        };
        let sidecar = json!({"initContainers": [
            {"name": "s", "restartPolicy": "Always"}, {"name": "i"},
        ], "containers": []});
        let ready = |status: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": second(30)}]);
        let table = [
            (
                json!({"status": {"containerStatuses": [
                container("a", Some(10)), container("b", Some(20))]}}),
                20,
            ),
            (
                json!({"status": {"containerStatuses": [container("a", Some(10)), container("b", None)],
                "conditions": ready("False")}}),
                30,
            ),
            (
                json!({"spec": sidecar, "status": {
                "containerStatuses": [container("a", Some(10))],
                "initContainerStatuses": [container("s", Some(15)), container("i", Some(99))]}}),
                15,
            ),
            (
                json!({"metadata": {"deletionTimestamp": second(70), "deletionGracePeriodSeconds": 30},
                "status": {"conditions": ready("True")}}),
                40,
            ),
            (json!({"metadata": {"creationTimestamp": second(5)}}), 5),
        ];
        for (pod, expected) in table {
            let read: Pod = serde_json::from_value(pod.clone()).unwrap();
            assert_eq!(finished_at(&read), at(expected), "{pod}");
        }
    }

    #[test]
    fn a_deleted_pod_has_failed_unless_the_job_waits_for_its_phase() {
        let spec = |text: &str| -> JobSpec {
            let mut spec: serde_json::Value = serde_json::from_str(text).unwrap();
            spec["template"] = json!({});
            serde_json::from_value(spec).unwrap()
        };
        let (plain, patient) = (spec("{}"), spec(r#"{"podReplacementPolicy": "Failed"}"#));
        let policy = spec(r#"{"podFailurePolicy": {"rules": []}}"#);
        let pod = |phase: &str, deleted: bool| -> Pod {
            let deleted = deleted.then(|| at(1).to_string());
            serde_json::from_value(json!({
                "metadata": {"deletionTimestamp": deleted}, "status": {"phase": phase},
            }))
            .unwrap()
        };
        for (phase, deleted, failed, failed_when_patient) in [
            ("Pending", false, false, false),
            ("Pending", true, true, false),
            ("Running", true, true, false),
            ("Failed", false, true, true),
            ("Failed", true, true, true),
            ("Succeeded", true, false, false),
        ] {
            let pod = pod(phase, deleted);
            assert_eq!(has_failed(&plain, &pod), failed, "{phase} {deleted}");
            for spec in [&patient, &policy] {
                assert_eq!(
                    has_failed(spec, &pod),
                    failed_when_patient,
                    "{phase} {deleted}"
                );
            }
        }
    }

    #[test]
    fn an_annotation_that_is_not_a_number_is_ignored() {
        for (value, expected) in [("3", 3), ("-1", 0), ("x", 0), ("99999999999", 0)] {
            let mut pod = Pod::default();
            pod.metadata.annotations = Some([(FAILURES.into(), value.into())].into());
            assert_eq!(earlier_failures(&pod), (expected, 0), "{value}");
        }
    }
}
