//! Pods that nobody will ever finish: on nodes that are gone, deleted before they had a node, or
//! ended and too many to keep.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tracing::{info, warn};

use crate::{
    pods::{self, is_terminal},
    shared::Shared,
};

/// As in the table of controllers.
pub const NAME: &str = "pod-garbage-collector";
const ACCOUNT: &str = "pod-garbage-collector";
const PERIOD: Duration = Duration::from_secs(20);
/// A node that vanished may only have been registered anew.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many ended pods are kept.
const KEPT: usize = 12_500;

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let (nodes, pods) = (shared.informer::<Node>(), shared.informer::<Pod>());
    let (client, shared) = (shared.client(ACCOUNT), shared.clone());
    shared.context.clone().spawn(NAME, async move {
        nodes.synced().await;
        pods.synced().await;
        let mut missing: HashMap<String, Timestamp> = HashMap::new();
        loop {
            let exists = |name: &str| nodes.get("", name).is_some();
            let doomed = decide(&pods.list(), exists, &mut missing, shared.now());
            for (pod, reason) in doomed {
                remove(&client, &pod, reason, shared.now()).await;
            }
            shared.clock().sleep(PERIOD).await;
        }
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    NodeGone,
    NeverScheduled,
    TooMany,
}

/// Who must go. `missing` remembers since when a node has not been there.
fn decide(
    pods: &[Arc<Pod>],
    exists: impl Fn(&str) -> bool,
    missing: &mut HashMap<String, Timestamp>,
    now: Timestamp,
) -> Vec<(Arc<Pod>, Reason)> {
    missing.retain(|node, _| !exists(node));
    let mut doomed = Vec::new();
    for pod in pods {
        let node = pods::node(pod);
        if node.is_empty() {
            if pods::is_deleting(pod) {
                doomed.push((pod.clone(), Reason::NeverScheduled));
            }
        } else if !exists(node) {
            let since = *missing.entry(node.to_owned()).or_insert(now);
            if since + QUARANTINE <= now {
                doomed.push((pod.clone(), Reason::NodeGone));
            }
        }
    }
    let ended = pods
        .iter()
        .filter(|pod| is_terminal(pod) && !pods::is_deleting(pod));
    let mut ended: Vec<_> = ended.cloned().collect();
    if ended.len() > KEPT {
        ended.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        let surplus = ended.len() - KEPT;
        doomed.extend(ended.drain(..surplus).map(|pod| (pod, Reason::TooMany)));
    }
    doomed
}

async fn remove(client: &kube::Client, pod: &Pod, reason: Reason, now: Timestamp) {
    let (namespace, name) = (
        pod.metadata.namespace.as_deref(),
        pod.metadata.name.as_deref(),
    );
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    info!(
        namespace,
        pod = name,
        ?reason,
        "nobody will finish this pod"
    );
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    if !is_terminal(pod) && reason == Reason::NodeGone {
        let (reason, message) = ("DeletionByPodGC", "PodGC: node no longer exists");
        let conditions = pods::disrupted(pod, reason, message, now);
        let patch = json!({"status": {"phase": "Failed", "conditions": conditions}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        if let Err(error) = api.patch_status(name, &params, &patch).await {
            warn!(namespace, pod = name, %error, "cannot mark the pod as failed");
        }
    }
    let uid = Preconditions {
        uid: pod.metadata.uid.clone(),
        resource_version: None,
    };
    let params = DeleteParams::default().grace_period(0).preconditions(uid);
    match api.delete(name, &params).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => warn!(namespace, pod = name, %error, "cannot remove the pod"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::pods::samples::{at, pod};

    #[test]
    fn pods_of_a_vanished_node_go_after_a_while_and_stay_if_it_comes_back() {
        let pods = [Arc::new(pod("a", None))];
        let mut missing = HashMap::new();
        assert!(decide(&pods, |_| false, &mut missing, at(0)).is_empty());
        assert!(decide(&pods, |_| true, &mut missing, at(30)).is_empty());
        assert!(decide(&pods, |_| false, &mut missing, at(60)).is_empty());
        let doomed = decide(&pods, |_| false, &mut missing, at(100));
        assert_eq!(doomed[0].1, Reason::NodeGone);
    }

    #[test]
    fn a_pod_deleted_before_it_had_a_node_goes_at_once() {
        let mut waiting = pod("a", None);
        waiting.spec = None;
        waiting.metadata.deletion_timestamp = Some(Time(at(0)));
        let doomed = decide(&[Arc::new(waiting)], |_| true, &mut HashMap::new(), at(0));
        assert_eq!(doomed[0].1, Reason::NeverScheduled);
    }
}
