//! The scheduler's writes: bindings, pod conditions, nominations, and preemptions. Conditions are
//! written one at a time, so that those of other writers stay.

use std::sync::Arc;

use client::Api;
use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::Pod, resource::v1::ResourceClaim},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use reconcile::{Kind, Recorder, devices::FINALIZER};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::{
    bindings::Bindings,
    metrics::Devices,
    pod::{PodInfo, Unscheduled},
};

/// The maximum length of an event's note.
const NOTE_LIMIT: usize = 1024;
/// How often a conflicting write of a claim is retried.
const MAX_CONFLICT_RETRIES: usize = 5;

/// Writes with one client for one scheduler.
#[derive(Clone)]
pub struct Writes {
    pub(crate) client: kube::Client,
    pub(crate) recorder: Recorder,
    pub(crate) name: String,
    /// What PreBind waits for; `None` if nothing is watched.
    pub(crate) bindings: Option<Bindings>,
    /// The metrics of devices.
    pub(crate) devices: Devices,
}

/// A ResourceClaim that is released, because its devices do not help its pod.
#[derive(Debug, Clone)]
pub enum Release {
    /// It can be allocated again.
    Deallocate(Arc<ResourceClaim>),
    /// It was made by the scheduler.
    Delete(Arc<ResourceClaim>),
}

/// A change of `status.nominatedNodeName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nomination {
    /// Unchanged.
    Keep,
    /// Set to this node.
    Set(String),
    /// Cleared.
    Clear,
}

/// A binding request: serialized directly, since there is one for each pod.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Binding<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Identity<'a>,
    target: Target<'a>,
}

#[derive(Serialize)]
struct Identity<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
struct Target<'a> {
    kind: &'static str,
    name: &'a str,
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

impl Writes {
    /// Binds a pod to a node.
    pub(crate) async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), kube::Error> {
        let (namespace, name) = (pod.namespace(), &pod.name);
        let binding = Binding {
            api_version: "v1",
            kind: "Binding",
            metadata: Identity {
                name,
                namespace,
                uid: &pod.uid,
            },
            target: Target {
                kind: "Node",
                name: node,
            },
        };
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        // The response contains nothing of interest.
        self.client
            .request_text(http_post(&path, &binding)?)
            .await?;
        self.say_bound(pod, node);
        Ok(())
    }

    /// The node of a pod that exists.
    pub(crate) async fn node_of(&self, pod: &PodInfo) -> Option<String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), pod.namespace());
        let found = api.get_opt(&pod.name).await.ok().flatten()?;
        let is_same = found.metadata.uid.as_deref() == Some(&*pod.uid);
        let node = found.spec.and_then(|spec| spec.node_name);
        node.filter(|node| is_same && !node.is_empty())
    }

    /// Records an event that the pod was assigned.
    pub(crate) fn say_bound(&self, pod: &PodInfo, node: &str) {
        if self.recorder.is_full() {
            return;
        }
        let (namespace, name) = (pod.namespace(), &pod.name);
        let text = format!("Successfully assigned {namespace}/{name} to {node}");
        let about = pod.reference();
        self.recorder.event(&about, Kind::Normal, "Scheduled", text);
    }

    /// Writes the pod's condition and nomination, and records an event.
    pub(crate) async fn explain(&self, pod: &PodInfo, why: &Unscheduled, nomination: &Nomination) {
        let note = truncated(&why.message);
        let about = pod.reference();
        self.recorder
            .event(&about, Kind::Warning, "FailedScheduling", note);
        if let Some(patch) = status_patch(pod, Some(why), nomination) {
            self.patch_status(pod, &patch)
                .await
                .unwrap_or_else(|error| {
                    debug!(pod = &*pod.name, %error, "cannot update the PodScheduled condition");
                });
        }
    }

    /// Writes the condition of a gated pod, without an event.
    pub(crate) async fn gated(&self, pod: &PodInfo, why: &Unscheduled) {
        if let Some(patch) = status_patch(pod, Some(why), &Nomination::Keep) {
            self.patch_status(pod, &patch)
                .await
                .unwrap_or_else(|error| {
                    debug!(pod = &*pod.name, %error, "cannot update the PodScheduled condition");
                });
        }
    }

    /// Clears a pod's nomination: a pod of higher priority gets the node.
    pub(crate) async fn clear_nomination(&self, pod: &PodInfo) {
        let patch = status_patch(pod, None, &Nomination::Clear).unwrap_or_default();
        self.patch_status(pod, &patch)
            .await
            .unwrap_or_else(|error| {
                debug!(pod = &*pod.name, %error, "cannot clear nominatedNodeName");
            });
    }

    /// Releases a claim. The pod is scheduled again when the watch shows it.
    pub(crate) async fn release(&self, release: &Release) {
        let (Release::Deallocate(claim) | Release::Delete(claim)) = release;
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let released = match release {
            Release::Deallocate(claim) => deallocate(&api, claim).await,
            Release::Delete(claim) => delete_claim(&api, claim).await,
        };
        match released {
            Err(error) if !is_gone(&error) => {
                let claim = claim.metadata.name.as_deref();
                warn!(namespace, claim, %error, "cannot release a ResourceClaim");
            }
            _ => {}
        }
    }

    async fn patch_status(&self, pod: &PodInfo, patch: &Value) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), pod.namespace());
        let params = PatchParams {
            field_manager: Some("kube-scheduler".into()),
            ..PatchParams::default()
        };
        api.patch_status(&pod.name, &params, &Patch::Strategic(patch))
            .await?;
        Ok(())
    }

    /// Deletes a victim; returns whether it is deleted or gone.
    pub(crate) async fn evict(&self, victim: &PodInfo, preemptor: &PodInfo, node: &str) -> bool {
        let message = format!(
            "{}: preempting to accommodate a higher priority pod",
            self.name
        );
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": message, "lastTransitionTime": Time(Timestamp::now()),
            "observedGeneration": victim.generation,
        });
        let patch =
            json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [condition]}});
        match self.patch_status(victim, &patch).await {
            Ok(()) => {}
            Err(error) if is_gone(&error) => return true,
            Err(error) => {
                warn!(pod = &*victim.name, %error, "cannot set the DisruptionTarget condition");
                return false;
            }
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), victim.namespace());
        let uid = Preconditions {
            uid: Some(victim.uid.to_string()),
            resource_version: None,
        };
        let params = DeleteParams::default().preconditions(uid);
        match api.delete(&victim.name, &params).await {
            Ok(_) => {
                let text = format!("Preempted by pod {} on node {node}", preemptor.uid);
                let about = victim.reference();
                self.recorder.event(&about, Kind::Normal, "Preempted", text);
                true
            }
            Err(error) if is_gone(&error) => true,
            Err(error) => {
                warn!(pod = &*victim.name, %error, "cannot delete preemption victim");
                false
            }
        }
    }
}

async fn deallocate(api: &Api<ResourceClaim>, claim: &ResourceClaim) -> Result<(), kube::Error> {
    let mut claim = claim.clone();
    claim.status = None;
    let name = claim.metadata.name.clone().unwrap_or_default();
    api.replace_status(&name, &PostParams::default(), &claim)
        .await?;
    Ok(())
}

/// Removes the finalizer, then deletes the claim.
async fn delete_claim(api: &Api<ResourceClaim>, claim: &ResourceClaim) -> Result<(), kube::Error> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let mut newest = claim.clone();
    for _ in 0..MAX_CONFLICT_RETRIES {
        let finalizers = newest.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|one| one == FINALIZER) {
            break;
        }
        finalizers.retain(|one| one != FINALIZER);
        match api.replace(&name, &PostParams::default(), &newest).await {
            Err(kube::Error::Api(status)) if status.code == 409 => newest = api.get(&name).await?,
            updated => newest = updated?,
        }
    }
    let uid = Preconditions {
        uid: claim.metadata.uid.clone(),
        resource_version: None,
    };
    api.delete(&name, &DeleteParams::default().preconditions(uid))
        .await
}

fn truncated(message: &str) -> String {
    if message.len() <= NOTE_LIMIT {
        return message.to_owned();
    }
    let mut end = NOTE_LIMIT - 4;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} ...", &message[..end])
}

fn http_post(path: &str, body: &impl Serialize) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let bytes = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(bytes)
        .map_err(kube::Error::HttpError)
}

/// A strategic merge patch of the PodScheduled condition and the nomination; `None` if both are
/// unchanged. Conditions of other types are not touched.
fn status_patch(
    pod: &PodInfo,
    why: Option<&Unscheduled>,
    nomination: &Nomination,
) -> Option<Value> {
    let mut status = json!({});
    let known = pod.unscheduled.as_deref();
    if let Some(why) = why.filter(|why| known != Some(why)) {
        let mut condition = json!({
            "type": "PodScheduled", "status": "False",
            "reason": why.reason, "message": why.message,
            "observedGeneration": pod.generation,
        });
        if known.is_none() {
            condition["lastTransitionTime"] = json!(Time(Timestamp::now()));
        }
        status["conditions"] = json!([condition]);
    }
    match nomination {
        Nomination::Set(node) if pod.nominated.as_deref() != Some(node) => {
            status["nominatedNodeName"] = json!(node);
        }
        Nomination::Clear if pod.nominated.is_some() => status["nominatedNodeName"] = Value::Null,
        _ => {}
    }
    let changed = status.as_object().is_some_and(|fields| !fields.is_empty());
    changed.then(|| json!({"metadata": {"uid": &*pod.uid}, "status": status}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn pod(status: Value) -> PodInfo {
        let mut pod = samples::api_pod("a", &[]);
        pod.status = serde_json::from_value(status).unwrap();
        PodInfo::new(&pod)
    }

    fn why(message: &str) -> Unscheduled {
        Unscheduled {
            reason: "Unschedulable".into(),
            message: message.into(),
        }
    }

    #[test]
    fn the_same_reason_is_not_written_twice_and_the_time_of_the_transition_stays() {
        let keep = Nomination::Keep;
        let new = status_patch(&pod(json!({})), Some(&why("no")), &keep).unwrap();
        let condition = &new["status"]["conditions"][0];
        assert!(condition["lastTransitionTime"].is_string());
        let waiting = pod(
            json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "no"}]}),
        );
        assert_eq!(status_patch(&waiting, Some(&why("no")), &keep), None);
        let other = status_patch(&waiting, Some(&why("still no")), &keep).unwrap();
        let condition = &other["status"]["conditions"][0];
        assert_eq!(condition["message"], "still no");
        assert_eq!(condition.get("lastTransitionTime"), None);
        assert_eq!(other["status"]["conditions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_nomination_is_written_also_when_the_message_stays_the_same() {
        let status = json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "no"}]});
        let waiting = pod(status.clone());
        let set = Nomination::Set("n1".into());
        let patch = status_patch(&waiting, Some(&why("no")), &set).unwrap();
        assert_eq!(patch["status"], json!({"nominatedNodeName": "n1"}));
        assert_eq!(
            status_patch(&waiting, Some(&why("no")), &Nomination::Clear),
            None
        );
        let mut nominated = status;
        nominated["nominatedNodeName"] = json!("n1");
        let nominated = pod(nominated);
        assert_eq!(status_patch(&nominated, Some(&why("no")), &set), None);
        let patch = status_patch(&nominated, Some(&why("no")), &Nomination::Clear).unwrap();
        assert_eq!(patch["status"], json!({"nominatedNodeName": null}));
    }

    #[test]
    fn long_notes_are_cut() {
        let long = "ä".repeat(600);
        assert!(truncated(&long).len() <= NOTE_LIMIT);
        assert!(truncated(&long).ends_with(" ..."));
        assert_eq!(truncated("short"), "short");
    }
}
