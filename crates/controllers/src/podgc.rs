//! Deletes pods that no kubelet will ever delete: on nodes that are gone or out of service, deleted
//! before they had a node, or terminated beyond the limit.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use client::{Api, Informer};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Preconditions};
use reconcile::{StatusPatch, placement};
use tracing::{info, warn};

use crate::{
    metrics::Metrics,
    pods::{self, is_terminal},
    shared::{DELETING, ENDED, NODE, STATE, Shared},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "pod-garbage-collector";
const ACCOUNT: &str = "pod-garbage-collector";
const PERIOD: Duration = Duration::from_secs(20);
/// How long a node must be missing: it may only be registering again.
const QUARANTINE: Duration = Duration::from_secs(40);
/// How many terminated pods are kept.
const KEPT: usize = 12_500;
/// How many pods are deleted concurrently.
const PARALLEL: usize = 16;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

struct Collector {
    client: kube::Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// Missing nodes of bound pods, and since when.
    missing: HashMap<String, Timestamp>,
    metrics: Metrics,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let mut collector = Collector {
        client: shared.client(ACCOUNT),
        nodes: shared.informer(),
        pods: shared.informer(),
        missing: HashMap::new(),
        metrics: shared.metrics.clone(),
    };
    let (starting, shared) = (shared.starting(NAME), shared.clone());
    shared.context.clone().spawn(NAME, async move {
        collector.nodes.synced().await;
        collector.pods.synced().await;
        drop(starting);
        loop {
            if !collector.nodes.is_behind() && !collector.pods.is_behind() {
                collector.pass(shared.now()).await;
            }
            shared.clock().sleep(PERIOD).await;
        }
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    TooMany,
    OutOfService,
    NodeGone,
    NeverScheduled,
}

impl Reason {
    /// As metrics name it.
    fn label(self) -> &'static str {
        match self {
            Self::TooMany => "terminated",
            Self::OutOfService => "out-of-service",
            Self::NodeGone => "orphaned",
            Self::NeverScheduled => "unscheduled",
        }
    }
}

/// Which pods must go. `gone` are the nodes that have been missing for long enough.
fn decide<'a>(
    pods: &[Arc<Pod>],
    node: impl Fn(&str) -> Option<Arc<Node>> + 'a,
    gone: &HashSet<String>,
) -> Vec<(Arc<Pod>, Reason)> {
    let mut doomed: Vec<_> = surplus(pods)
        .into_iter()
        .map(|pod| (pod, Reason::TooMany))
        .collect();
    for pod in pods {
        let name = pods::node(pod);
        let reason = if gone.contains(name) {
            Some(Reason::NodeGone)
        } else if !pods::is_deleting(pod) {
            None
        } else if name.is_empty() {
            Some(Reason::NeverScheduled)
        } else {
            let is_out_of_service = node(name).is_some_and(|node| is_out_of_service(&node));
            is_out_of_service.then_some(Reason::OutOfService)
        };
        doomed.extend(reason.map(|reason| (pod.clone(), reason)));
    }
    doomed
}

/// The terminated pods beyond the limit: evicted ones first, then the oldest.
fn surplus(pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let mut ended: Vec<_> = pods
        .iter()
        .filter(|pod| is_terminal(pod))
        .cloned()
        .collect();
    let surplus = ended.len().saturating_sub(KEPT);
    if surplus > 0 {
        ended.sort_by_cached_key(|pod| {
            let status = pod.status.as_ref();
            let reason = status.and_then(|status| status.reason.as_deref());
            let meta = &pod.metadata;
            (
                reason != Some("Evicted"),
                meta.creation_timestamp.clone(),
                meta.name.clone(),
            )
        });
    }
    ended.truncate(surplus);
    ended
}

/// Whether the node has the out-of-service taint and is not ready.
fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == OUT_OF_SERVICE) && !placement::is_ready(node)
}

impl Collector {
    async fn pass(&mut self, now: Timestamp) {
        let gone = self.gone_nodes(now).await;
        let pods = self.candidates(&gone);
        let doomed = decide(&pods, |name| self.nodes.get("", name), &gone);
        stream::iter(doomed)
            .for_each_concurrent(PARALLEL, |(pod, reason)| self.remove(pod, reason, now))
            .await;
    }

    /// The pods to consider: those of missing nodes, those being deleted, and terminated ones if
    /// there are too many.
    fn candidates(&self, gone: &HashSet<String>) -> Vec<Arc<Pod>> {
        let mut found: Vec<_> = gone
            .iter()
            .flat_map(|node| self.pods.by_index(NODE, node))
            .collect();
        found.extend(self.pods.by_index(STATE, DELETING));
        if self.pods.count_by_index(STATE, ENDED) > KEPT {
            found.extend(self.pods.by_index(STATE, ENDED));
        }
        let mut seen = HashSet::new();
        found.retain(|pod| seen.insert(pod.metadata.uid.clone()));
        found
    }

    /// The nodes of bound pods that have been missing for the quarantine. The API server confirms
    /// it, since the cache may be outdated.
    async fn gone_nodes(&mut self, now: Timestamp) -> HashSet<String> {
        let bound = self.pods.index_keys(NODE).into_iter();
        let missing: HashSet<String> = bound
            .filter(|name| !name.is_empty() && self.nodes.get("", name).is_none())
            .collect();
        self.missing.retain(|node, _| missing.contains(node));
        let mut gone = HashSet::new();
        for node in missing {
            let since = *self.missing.entry(node.clone()).or_insert(now);
            if since + QUARANTINE > now {
                continue;
            }
            let api: Api<Node> = Api::all(self.client.clone());
            match api.get_metadata_opt(&node).await {
                Ok(None) => {
                    gone.insert(node);
                }
                Ok(Some(_)) => {}
                Err(error) => warn!(node, %error, "cannot get node"),
            }
        }
        gone
    }

    async fn remove(&self, pod: Arc<Pod>, reason: Reason, now: Timestamp) {
        let (namespace, name) = (
            pod.metadata.namespace.as_deref().unwrap_or_default(),
            pod.metadata.name.as_deref().unwrap_or_default(),
        );
        info!(namespace, pod = name, ?reason, "removing pod");
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        // Mark an unfinished pod as Failed, so that its owner counts it.
        if let Some(patch) = failed(&pod, reason, now) {
            match patch.send(&api, name).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
                Err(error) => {
                    warn!(namespace, pod = name, %error, "cannot mark the pod as failed");
                    return;
                }
            }
        }
        let uid = Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        };
        let params = DeleteParams::default().grace_period(0).preconditions(uid);
        let by = [("namespace", namespace), ("reason", reason.label())];
        match api.delete(name, &params).await {
            Ok(_) => self.metrics.pods_removed.add(by, 1),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                self.metrics.pods_not_removed.add(by, 1);
                warn!(namespace, pod = name, %error, "cannot remove the pod");
            }
        }
    }
}

/// The patch that marks an unfinished pod as Failed.
fn failed(pod: &Pod, reason: Reason, now: Timestamp) -> Option<StatusPatch> {
    if is_terminal(pod) {
        return None;
    }
    let patch = if reason == Reason::NodeGone {
        pods::disruption(pod, "DeletionByPodGC", "PodGC: node no longer exists", now)
    } else {
        StatusPatch::new(pod)
    };
    let patch = patch.field("phase", "Failed");
    Some(match pod.metadata.generation {
        Some(generation) => patch.field("observedGeneration", generation),
        None => patch,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{NodeSpec, Taint},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::pods::samples::{at, pod};

    fn deleting(mut pod: Pod) -> Arc<Pod> {
        pod.metadata.deletion_timestamp = Some(Time(at(0)));
        Arc::new(pod)
    }

    fn reasons(pods: &[Arc<Pod>], node: Option<&Node>, gone: &[&str]) -> Vec<Reason> {
        let node = node.cloned().map(Arc::new);
        let gone = gone.iter().map(|name| (*name).to_owned()).collect();
        let doomed = decide(pods, |_| node.clone(), &gone);
        doomed.into_iter().map(|(_, reason)| reason).collect()
    }

    #[test]
    fn pods_of_a_deleted_node_are_deleted() {
        let pods = [Arc::new(pod("a", None))];
        assert!(reasons(&pods, None, &[]).is_empty());
        assert_eq!(reasons(&pods, None, &["n1"]), [Reason::NodeGone]);
    }

    #[test]
    fn a_pod_deleted_before_it_had_a_node_goes_at_once_and_counts_as_failed() {
        let mut waiting = pod("a", None);
        waiting.spec = None;
        let status = waiting.status.as_mut().unwrap();
        status.phase = Some("Pending".into());
        assert!(reasons(&[Arc::new(waiting.clone())], None, &[]).is_empty());
        let waiting = deleting(waiting);
        let seen = reasons(std::slice::from_ref(&waiting), None, &[]);
        assert_eq!(seen, [Reason::NeverScheduled]);
        let patch = failed(&waiting, Reason::NeverScheduled, at(5)).unwrap();
        assert_eq!(patch.body()["status"]["phase"], "Failed");
        assert!(patch.body()["status"].get("conditions").is_none());
    }

    #[test]
    fn a_deleted_pod_goes_when_its_node_is_out_of_service_and_not_ready() {
        let taint = Taint {
            key: OUT_OF_SERVICE.into(),
            effect: "NoExecute".into(),
            ..Default::default()
        };
        let node = Node {
            spec: Some(NodeSpec {
                taints: Some(vec![taint]),
                ..Default::default()
            }),
            ..Default::default()
        };
        let (running, leaving) = (Arc::new(pod("a", None)), deleting(pod("b", None)));
        let seen = reasons(&[running, leaving.clone()], Some(&node), &[]);
        assert_eq!(seen, [Reason::OutOfService]);
        let well = crate::nodelifecycle::samples::node(
            &[("Ready", "True")],
            &[(OUT_OF_SERVICE, "NoExecute")],
        );
        assert!(reasons(&[leaving], Some(&well), &[]).is_empty());
    }

    #[test]
    fn of_too_many_ended_pods_evicted_ones_go_first_and_then_the_oldest() {
        let mut pods: Vec<Pod> = (0..KEPT + 2)
            .map(|number| {
                let mut pod = pod(&format!("p{number}"), None);
                let seconds = i64::try_from(number).unwrap();
                pod.metadata.creation_timestamp = Some(Time(at(seconds)));
                pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
                pod
            })
            .collect();
        pods[700].status.as_mut().unwrap().reason = Some("Evicted".into());
        let pods: Vec<_> = pods.into_iter().map(Arc::new).collect();
        let gone = surplus(&pods);
        let names: Vec<_> = gone
            .iter()
            .map(|pod| pod.metadata.name.as_deref())
            .collect();
        assert_eq!(names, [Some("p700"), Some("p0")]);
        assert!(failed(&gone[0], Reason::TooMany, at(0)).is_none());
    }
}
