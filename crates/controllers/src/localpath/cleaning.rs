//! The pods that remove data of deleted volumes: one at a time per node, each for many volumes, so
//! that a thousand deleted claims take no more of a node than one. A volume that fails, such as for
//! a busy mount, does not delay others: it is retried alone.

use std::{collections::HashMap, time::Duration};

use client::FromJson as _;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{PersistentVolume, Pod},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use serde_json::json;
use stdx::Backoff;

use super::NAMESPACE;
use crate::pods::{ended_with, is_active, removing_container};

/// The prefix of the pods' names.
pub(super) const PREFIX: &str = "local-path-cleanup-";
/// The maximum number of volumes per pod.
const MAX_BATCH: usize = 64;

/// The first delay on a node after a pod failed there.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LAST_WAIT: Duration = Duration::from_secs(300);

/// The location of volumes' data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    /// The node's name.
    pub node: String,
    /// Tells nodes of the same name apart.
    pub node_uid: String,
    /// The directory of the node's volumes.
    pub root: String,
}

impl Site {
    /// The name of the node's cleanup pod, of which there is one at a time.
    pub(super) fn pod_name(&self) -> String {
        format!("{PREFIX}{}", self.node_uid)
    }
}

/// Past failures. Kept in memory only: after a restart they happen once more.
#[derive(Default)]
pub(super) struct Failures {
    /// Failure counts of volumes that are retried alone, by name.
    apart: HashMap<String, u32>,
    /// By node: the last failed pod, its backoff, and when to retry.
    nodes: HashMap<String, (String, Backoff, Timestamp)>,
}

impl Failures {
    /// Records a failed pod; false if it was recorded before.
    pub(super) fn record(
        &mut self,
        site: &Site,
        pod: &Pod,
        failed: &[&str],
        now: Timestamp,
    ) -> bool {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let fresh = || (String::new(), Backoff::new(FIRST_WAIT, LAST_WAIT), now);
        let entry = self.nodes.entry(site.node.clone()).or_insert_with(fresh);
        if entry.0 == uid {
            return false;
        }
        // A volume that fails alone delays no others; a pod that does not run at all does.
        if !failed.is_empty() && failed.iter().all(|name| !self.apart.contains_key(*name)) {
            entry.1.reset();
        }
        entry.2 = now + entry.1.step();
        entry.0 = uid;
        for name in failed {
            *self.apart.entry((*name).to_owned()).or_default() += 1;
        }
        true
    }

    /// How long to wait before the node's next pod.
    pub(super) fn wait(&self, site: &Site, now: Timestamp) -> Option<Duration> {
        let (_, _, until) = self.nodes.get(&site.node)?;
        let left = Duration::try_from(until.duration_since(now)).ok()?;
        (!left.is_zero()).then_some(left)
    }

    /// Drops a deleted volume.
    pub(super) fn forget(&mut self, volume: &str) {
        self.apart.remove(volume);
    }

    /// The volumes of the next pod: those that never failed, or else the one with the fewest
    /// failures.
    pub(super) fn batch<'a>(
        &self,
        mut volumes: Vec<&'a PersistentVolume>,
    ) -> Vec<&'a PersistentVolume> {
        let failures = |volume: &&PersistentVolume| self.apart.get(name(volume)).copied();
        volumes.sort_by(|a, b| (failures(a), name(a)).cmp(&(failures(b), name(b))));
        let whole = volumes.iter().take_while(|v| failures(v).is_none()).count();
        volumes.truncate(whole.clamp(1, MAX_BATCH));
        volumes
    }
}

fn name(volume: &PersistentVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

/// The volumes that a pod cleans up.
pub(super) fn volumes_of(pod: &Pod) -> impl Iterator<Item = &OwnerReference> {
    let is_ours = pod.metadata.namespace.as_deref() == Some(NAMESPACE)
        && pod
            .metadata
            .name
            .as_deref()
            .is_some_and(|name| name.starts_with(PREFIX));
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.filter(move |owner| is_ours && owner.kind == "PersistentVolume")
}

/// Whether a pod cleans up a volume.
pub(super) fn is_for(pod: &Pod, volume: &PersistentVolume) -> bool {
    let uid = volume.metadata.uid.as_deref().unwrap_or_default();
    !uid.is_empty() && volumes_of(pod).any(|owner| owner.uid == uid)
}

/// Whether a pod has not ended, is not being deleted, and cleans up a volume.
pub(super) fn will_remove(pod: &Pod, volume: &PersistentVolume) -> bool {
    is_active(pod) && is_for(pod, volume)
}

/// The error for each volume that a failed pod could not remove.
pub(super) fn complaints(pod: &Pod) -> Vec<(&str, String)> {
    let said = ended_with(pod);
    let of = |volume: &str| {
        let mut lines = said.lines();
        lines.find_map(|line| {
            line.strip_prefix(volume)?
                .strip_prefix(": ")
                .map(str::to_owned)
        })
    };
    let names = volumes_of(pod).map(|owner| owner.name.as_str());
    names.filter_map(|name| Some((name, of(name)?))).collect()
}

/// A pod that removes the data of volumes. They own it, so that it is deleted with the last.
pub(super) fn cleaner(volumes: &[&PersistentVolume], site: &Site) -> Pod {
    let owner = |volume: &&PersistentVolume| {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "name": name(volume),
            "uid": volume.metadata.uid, "blockOwnerDeletion": false,
        })
    };
    let owners: Vec<_> = volumes.iter().map(owner).collect();
    let mut args = vec!["remove-volume", "/volumes"];
    args.extend(volumes.iter().map(|volume| name(volume)));
    let pod = json!({
        "metadata": {
            "name": site.pod_name(),
            "namespace": NAMESPACE,
            "ownerReferences": owners,
        },
        "spec": {
            // Bypasses the scheduler: the data is on this node, cordoned or not.
            "nodeName": site.node,
            "restartPolicy": "Never",
            "priorityClassName": "system-node-critical",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [removing_container("remove", &args, "volumes", "/volumes")],
            "volumes": [{
                "name": "volumes",
                "hostPath": {"path": site.root, "type": "DirectoryOrCreate"},
            }],
        },
    });
    // The literal above is a valid Pod.
    Pod::from_value(&pod).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site {
            node: "n1".into(),
            node_uid: "u1".into(),
            root: "/data/volumes".into(),
        }
    }

    fn volume(name: &str) -> PersistentVolume {
        let meta = json!({"name": name, "uid": format!("uid-{name}")});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    fn names<'a>(volumes: &[&'a PersistentVolume]) -> Vec<&'a str> {
        volumes.iter().map(|volume| name(volume)).collect()
    }

    fn failed(volumes: &[&PersistentVolume], uid: &str, said: &str) -> Pod {
        let mut pod = serde_json::to_value(cleaner(volumes, &site())).unwrap();
        pod["metadata"]["uid"] = json!(uid);
        pod["status"] = json!({"phase": "Failed", "containerStatuses": [{
            "name": "remove", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "message": said}}}]});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn one_pod_removes_many_volumes_and_belongs_to_all_of_them() {
        let all: Vec<_> = (0..70)
            .map(|index| volume(&format!("pvc-{index:02}")))
            .collect();
        let batch = Failures::default().batch(all.iter().collect());
        assert_eq!(batch.len(), MAX_BATCH);
        let pod = cleaner(&batch, &site());
        assert!(is_for(&pod, &all[0]) && is_for(&pod, &all[63]) && !is_for(&pod, &all[64]));
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(pod["metadata"]["name"], "local-path-cleanup-u1");
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(
            pod["spec"]["volumes"][0]["hostPath"]["path"],
            "/data/volumes"
        );
        let args = &pod["spec"]["containers"][0]["args"];
        assert_eq!(args[0], "remove-volume");
        assert_eq!(args[65], "pvc-63");
        assert_eq!(args[66], json!(null));
    }

    #[test]
    fn a_volume_that_cannot_be_removed_blocks_no_other() {
        let all = ["pvc-a", "pvc-b", "pvc-c"].map(volume);
        let all: Vec<_> = all.iter().collect();
        let mut failures = Failures::default();
        let said = "hello: not removed:\npvc-a: x: is a mount and stays\npvc-bb: y";
        let pod = failed(&all, "p1", said);
        let complaints = complaints(&pod);
        let why = "x: is a mount and stays".to_owned();
        assert_eq!(complaints, [("pvc-a", why)]);
        let now = Timestamp::UNIX_EPOCH;
        assert!(failures.record(&site(), &pod, &["pvc-a"], now));
        assert!(
            !failures.record(&site(), &pod, &["pvc-a"], now),
            "it is known"
        );
        assert_eq!(names(&failures.batch(all.clone())), ["pvc-b", "pvc-c"]);
        assert_eq!(names(&failures.batch(vec![all[0]])), ["pvc-a"]);
        let pod = failed(&all[1..], "p2", "");
        assert!(failures.record(&site(), &pod, &["pvc-b", "pvc-c"], now));
        let pod = failed(&all[1..2], "p3", "");
        assert!(failures.record(&site(), &pod, &["pvc-b"], now));
        assert_eq!(
            names(&failures.batch(all.clone())),
            ["pvc-a"],
            "one at a time"
        );
        failures.forget("pvc-c");
        assert_eq!(names(&failures.batch(all)), ["pvc-c"]);
    }

    #[test]
    fn a_node_where_cleanup_pods_fail_is_retried_with_backoff() {
        let all = [volume("pvc-a")];
        let mut failures = Failures::default();
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(failures.wait(&site(), now), None);
        let mut before = Duration::ZERO;
        for uid in ["p1", "p2", "p3"] {
            failures.record(&site(), &failed(&[&all[0]], uid, ""), &[], now);
            let wait = failures.wait(&site(), now).unwrap();
            assert!(wait > before, "{wait:?}");
            before = wait;
        }
        assert_eq!(failures.wait(&site(), now + before), None);
    }
}
