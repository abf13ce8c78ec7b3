//! The pod that empties a released volume with the reclaim policy Recycle. Pure: [`super::reclaim`]
//! acts.
//!
//! Only the pod that this process created counts: anybody with permission to create pods in the
//! namespace could create one of that name which empties nothing.

use std::time::Duration;

use client::FromJson as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use reconcile::storage::capacity;
use serde_json::{Value, json};

use crate::pods::{ended_with, is_deleting, phase, removing_container};

/// The namespace of the pods.
pub(super) const NAMESPACE: &str = "default";
const PREFIX: &str = "recycler-for-";
const CONTAINER: &str = "pv-recycler";
/// The delay after a failed attempt.
const RETRY: Duration = Duration::from_secs(15);

/// The name of a volume's pod.
pub(super) fn pod_name(volume: &PersistentVolume) -> String {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    format!("{PREFIX}{name}")
}

/// The name of the volume that a pod empties.
pub(super) fn volume_of(pod: &Pod) -> Option<&str> {
    let is_there = pod.metadata.namespace.as_deref() == Some(NAMESPACE);
    let name = pod.metadata.name.as_deref().filter(|_| is_there)?;
    name.strip_prefix(PREFIX)
}

/// Whether a pod of such a name is one that empties a volume.
pub(super) fn is_recycler(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.any(|container| container.name == CONTAINER)
}

/// Whether volumes of this source can be recycled.
pub(super) fn is_recyclable(volume: &PersistentVolume) -> bool {
    source(volume).is_some()
}

/// The volume's source in a pod, and the minimum deadline in seconds.
fn source(volume: &PersistentVolume) -> Option<(Value, i64)> {
    let spec = volume.spec.as_ref()?;
    let host_path = spec.host_path.as_ref();
    let host_path = host_path.map(|it| (json!({"hostPath": {"path": it.path}}), 60));
    let nfs = spec.nfs.as_ref();
    let nfs = nfs.map(|it| {
        let source = json!({"nfs": {"server": it.server, "path": it.path}});
        (source, 300)
    });
    host_path.or(nfs)
}

/// Seconds until the pod fails: 30 for each GiB of the volume.
fn deadline(volume: &PersistentVolume, minimum: i64) -> i64 {
    let bytes = capacity(volume).map_or(0, |size| size.value());
    ((bytes >> 30) * 30).max(minimum)
}

/// A pod that empties a volume; `None` if its source cannot be recycled.
fn pod(volume: &PersistentVolume) -> Option<Pod> {
    let (mut source, minimum) = source(volume)?;
    source["name"] = json!("vol");
    let affinity = volume.spec.as_ref().and_then(|spec| {
        let required = spec.node_affinity.as_ref()?.required.as_ref()?;
        Some(json!({"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": required}}))
    });
    let pod = json!({
        "metadata": {"name": pod_name(volume), "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline(volume, minimum),
            "affinity": affinity,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [removing_container(CONTAINER, &["empty-volume", "/scrub"], "vol", "/scrub")],
            "volumes": [source],
        },
    });
    Pod::from_value(&pod).ok()
}

/// What this process knows about the recycling of one volume.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Attempt {
    /// The uid of the pod that it created.
    pub pod: Option<String>,
    /// When to try again after a failure.
    pub not_before: Option<Timestamp>,
}

impl Attempt {
    /// The pod of this uid runs.
    pub(super) fn running(pod: Option<String>) -> Self {
        let not_before = None;
        Self { pod, not_before }
    }

    /// Failed now.
    pub(super) fn failed(now: Timestamp) -> Self {
        Self {
            pod: None,
            not_before: Some(now + RETRY),
        }
    }
}

/// The next step of recycling.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Create this pod.
    Create(Box<Pod>),
    /// The pod's next event continues.
    Wait,
    /// Try again after this time.
    Retry(Duration),
    /// The volume is empty.
    Succeeded,
    /// This attempt failed.
    Failed(String),
}

/// Decides from the pod in the cache.
pub(super) fn next(
    volume: &PersistentVolume,
    found: Option<&Pod>,
    attempt: &Attempt,
    now: Timestamp,
) -> Step {
    let Some(found) = found else {
        return match (&attempt.pod, attempt.not_before) {
            (Some(_), _) => {
                Step::Failed("failed to recycle volume: recycler pod was deleted".into())
            }
            (None, Some(time)) if time > now => {
                let left = Duration::try_from(time.duration_since(now));
                Step::Retry(left.unwrap_or(RETRY))
            }
            (None, _) => pod(volume).map_or(Step::Wait, |pod| Step::Create(Box::new(pod))),
        };
    };
    if attempt.pod.is_none() || attempt.pod != found.metadata.uid {
        return match is_deleting(found) {
            true => Step::Wait,
            false => Step::Failed("old recycler pod found, will retry later".into()),
        };
    }
    match phase(found) {
        "Succeeded" => Step::Succeeded,
        "Failed" => {
            let message = Some(ended_with(found)).filter(|message| !message.is_empty());
            let message = message.unwrap_or("pod failed, pod.Status.Message unknown".into());
            Step::Failed(format!("failed to recycle volume: {}", message.trim()))
        }
        _ => Step::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(spec: Value) -> PersistentVolume {
        let volume = json!({"metadata": {"name": "pv", "uid": "v"}, "spec": spec});
        serde_json::from_value(volume).unwrap()
    }

    fn found(uid: &str, status: Value) -> Pod {
        let metadata = json!({"name": "recycler-for-pv", "namespace": "default", "uid": uid});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    #[test]
    fn only_the_pod_that_this_process_created_counts() {
        let volume = volume(json!({"hostPath": {"path": "/data"}}));
        let now = Timestamp::UNIX_EPOCH;
        let ours = Attempt::running(Some("p1".into()));
        let done = found("p1", json!({"phase": "Succeeded"}));
        let running = found("p1", json!({"phase": "Running"}));
        let next = |pod: Option<&Pod>, attempt: &Attempt| next(&volume, pod, attempt, now);
        assert_eq!(next(Some(&done), &ours), Step::Succeeded);
        assert_eq!(next(Some(&running), &ours), Step::Wait);
        let old = Step::Failed("old recycler pod found, will retry later".into());
        let forged = found("p2", json!({"phase": "Succeeded"}));
        assert_eq!(next(Some(&forged), &ours), old);
        assert_eq!(next(Some(&done), &Attempt::default()), old);
        let mut leaving = forged;
        leaving.metadata.deletion_timestamp = Some(serde_json::from_value(json!(now)).unwrap());
        assert_eq!(next(Some(&leaving), &Attempt::default()), Step::Wait);
        let deleted = "failed to recycle volume: recycler pod was deleted";
        assert_eq!(next(None, &ours), Step::Failed(deleted.into()));
    }

    #[test]
    fn a_failed_pod_explains_why_and_is_retried_later() {
        let volume = volume(json!({"hostPath": {"path": "/data"}}));
        let now = Timestamp::UNIX_EPOCH;
        let ours = Attempt::running(Some("p1".into()));
        for (status, why) in [
            (
                json!({"phase": "Failed"}),
                "pod failed, pod.Status.Message unknown",
            ),
            (
                json!({"phase": "Failed", "message": "too slow"}),
                "too slow",
            ),
        ] {
            let pod = found("p1", status);
            let why = format!("failed to recycle volume: {why}");
            assert_eq!(next(&volume, Some(&pod), &ours, now), Step::Failed(why));
        }
        let failed = Attempt::failed(now);
        assert_eq!(next(&volume, None, &failed, now), Step::Retry(RETRY));
        let later = next(&volume, None, &failed, now + RETRY);
        assert!(matches!(later, Step::Create(_)), "{later:?}");
    }

    #[test]
    fn the_pod_mounts_the_volume_where_it_can_and_has_time_for_its_size() {
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]});
        let host_path = volume(json!({"hostPath": {"path": "/data", "type": "Directory"},
            "capacity": {"storage": "1Gi"}, "nodeAffinity": {"required": terms}}));
        let nfs = volume(
            json!({"nfs": {"server": "s", "path": "/x", "readOnly": true},
            "capacity": {"storage": "100Gi"}}),
        );
        let pods = [&host_path, &nfs].map(|it| serde_json::to_value(pod(it).unwrap()).unwrap());
        let sources = pods.clone().map(|pod| pod["spec"]["volumes"][0].clone());
        let wanted = [
            json!({"name": "vol", "hostPath": {"path": "/data"}}),
            json!({"name": "vol", "nfs": {"server": "s", "path": "/x"}}),
        ];
        assert_eq!(sources, wanted);
        let seconds = pods
            .clone()
            .map(|pod| pod["spec"]["activeDeadlineSeconds"].clone());
        assert_eq!(seconds, [json!(60), json!(3000)]);
        let affinity = &pods[0]["spec"]["affinity"]["nodeAffinity"];
        assert_eq!(
            affinity["requiredDuringSchedulingIgnoredDuringExecution"],
            terms
        );
        let name = pod_name(&host_path);
        assert_eq!(pods[0]["metadata"]["name"], json!(name));
        assert_eq!(volume_of(&pod(&host_path).unwrap()), Some("pv"));
        assert!(!is_recyclable(&volume(json!({"local": {"path": "/data"}}))));
    }
}
