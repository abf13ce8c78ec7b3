//! Helpers for pods that many controllers use. Pure.

use std::{
    cmp::{Ordering, Reverse},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use reconcile::{StatusPatch, condition};
use serde_json::{Value, json};

/// The phase; empty if not set.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether all its containers have ended for good.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether it has a deletion timestamp.
pub(crate) fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Neither terminated nor being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_deleting(pod)
}

/// Being deleted, and not terminated.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    !is_terminal(pod) && is_deleting(pod)
}

/// A condition by type.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    condition::find(conditions(pod), type_)
}

/// All its conditions.
pub(crate) fn conditions(pod: &Pod) -> impl Iterator<Item = &PodCondition> {
    let status = pod.status.iter();
    status.flat_map(|status| status.conditions.iter().flatten())
}

/// A status patch with the condition DisruptionTarget. Empty if the pod has it.
pub(crate) fn disruption(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> StatusPatch {
    let condition = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        observed_generation: pod.metadata.generation,
        ..Default::default()
    };
    let patch = StatusPatch::new(pod);
    match condition::transition(conditions(pod), condition, now) {
        Some(condition) => patch.condition(&condition),
        None => patch,
    }
}

/// Why it ended: the termination message of its first container, or else the status' message.
pub(crate) fn ended_with(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let mut ends = statuses.into_iter().flatten().filter_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        ended.message.clone()
    });
    let why = || status.and_then(|status| status.message.clone());
    ends.next().or_else(why).unwrap_or_default()
}

/// Whether the condition Ready is True.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// Since when it has been ready.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let condition = condition(pod, "Ready").filter(|condition| condition.status == "True")?;
    condition.last_transition_time.as_ref().map(|time| time.0)
}

/// How long until the pod has been ready for `min_ready_seconds`; zero if it has, `None` if it is
/// not ready.
pub(crate) fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let since = || ready_since(pod);
    is_ready(pod).then(|| available_after(since, min_ready_seconds, now))?
}

/// The same for a pod that is ready `since` this time.
pub(crate) fn available_after(
    since: impl FnOnce() -> Option<Timestamp>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    let wanted = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    if wanted.is_zero() {
        return Some(Duration::ZERO);
    }
    let passed = Duration::try_from(now.duration_since(since()?)).unwrap_or_default();
    Some(wanted.saturating_sub(passed))
}

/// Whether it has been ready for long enough.
pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO)
}

/// The node; empty if it is not scheduled.
pub(crate) fn node(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// When it was created.
pub(crate) fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Whether it is scheduled, its phase, and whether it is ready; less advanced pods sort first.
pub(crate) fn stage(pod: &Pod) -> (bool, u8, bool) {
    let phase = match phase(pod) {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    (!node(pod).is_empty(), phase, is_ready(pod))
}

/// Later times first; no time counts as the latest.
pub(crate) fn younger_first(a: Option<Timestamp>, b: Option<Timestamp>) -> Ordering {
    let key = |time: Option<Timestamp>| (time.is_some(), Reverse(time));
    key(a).cmp(&key(b))
}

/// The largest number of restarts of a container.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    statuses
        .map(|status| status.restart_count)
        .max()
        .unwrap_or(0)
}

/// A container that removes files of any owner in a volume, with no other permissions.
pub(crate) fn removing_container(name: &str, args: &[&str], volume: &str, path: &str) -> Value {
    json!({
        "name": name,
        "image": "mainstay.local/hello",
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": 0,
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
        },
        "volumeMounts": [{"name": volume, "mountPath": path}],
    })
}

#[cfg(test)]
pub(crate) mod samples {
    //! Pods for tests.

    use k8s_openapi::{
        api::core::v1::{PodSpec, PodStatus},
        apimachinery::pkg::apis::meta::v1::Time,
    };
    use kube::api::ObjectMeta;

    use super::*;

    pub(crate) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A running pod that has been ready since `ready`, or is not ready.
    pub(crate) fn pod(name: &str, ready: Option<i64>) -> Pod {
        let condition = ready.map(|second| PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            last_transition_time: Some(Time(at(second))),
            ..Default::default()
        });
        Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("default".into()),
                uid: Some(format!("uid-{name}")),
                creation_timestamp: Some(Time(at(0))),
                ..Default::default()
            },
            spec: Some(PodSpec {
                node_name: Some("n1".into()),
                ..Default::default()
            }),
            status: Some(PodStatus {
                phase: Some("Running".into()),
                conditions: condition.map(|condition| vec![condition]),
                ..Default::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{samples::*, *};

    #[test]
    fn a_pod_is_available_when_it_was_ready_for_long_enough() {
        let pod = pod("a", Some(100));
        assert!(is_available(&pod, 0, at(100)));
        assert!(!is_available(&pod, 10, at(105)));
        assert_eq!(
            available_in(&pod, 10, at(105)),
            Some(Duration::from_secs(5))
        );
        assert!(is_available(&pod, 10, at(110)));
        assert_eq!(available_in(&samples::pod("b", None), 10, at(110)), None);
    }
}
