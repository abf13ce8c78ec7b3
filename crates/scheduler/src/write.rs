//! What the scheduler writes: bindings, why a pod waits, and the pods that must go for another.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use reconcile::{Kind, Recorder};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::pod::PodInfo;

/// Writes through one client.
#[derive(Clone)]
pub(crate) struct Writes {
    pub(crate) client: kube::Client,
    pub(crate) recorder: Recorder,
    pub(crate) name: String,
}

impl Writes {
    /// Binds a pod to a node.
    pub(crate) async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), kube::Error> {
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"kind": "Node", "name": node},
        });
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/binding",
            pod.namespace, pod.name
        );
        let request = http_post(&path, &binding)?;
        self.client.request::<Value>(request).await?;
        let text = format!(
            "Successfully assigned {}/{} to {node}",
            pod.namespace, pod.name
        );
        self.recorder
            .event(&pod.pod.object_ref(&()), Kind::Normal, "Scheduled", text);
        Ok(())
    }

    /// Says on the pod and in an event why it waits.
    pub(crate) async fn explain(&self, pod: &Arc<PodInfo>, message: &str, nominated: Option<&str>) {
        let about = pod.pod.object_ref(&());
        self.recorder
            .event(&about, Kind::Warning, "FailedScheduling", message);
        let Some(mut patch) = condition_patch(&pod.pod, message) else {
            return;
        };
        if let Some(node) = nominated {
            patch["status"]["nominatedNodeName"] = json!(node);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        if let Err(error) = api.patch_status(&pod.name, &params, &patch).await {
            debug!(pod = pod.name, %error, "cannot say why the pod waits");
        }
    }

    /// Deletes a pod so that another fits.
    pub(crate) async fn evict(&self, victim: &PodInfo, preemptor: &PodInfo, node: &str) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &victim.namespace);
        let text = format!(
            "{}: preempting to accommodate a higher priority pod",
            self.name
        );
        let mut conditions = conditions(&victim.pod);
        conditions.retain(|condition| condition.type_ != "DisruptionTarget");
        conditions.push(PodCondition {
            type_: "DisruptionTarget".into(),
            status: "True".into(),
            reason: Some("PreemptionByScheduler".into()),
            message: Some(text),
            last_transition_time: Some(Time(jiff::Timestamp::now())),
            ..Default::default()
        });
        let patch = json!({"status": {"conditions": conditions}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        if let Err(error) = api.patch_status(&victim.name, &params, &patch).await {
            debug!(pod = victim.name, %error, "cannot say that the pod must go");
        }
        let uid = Preconditions {
            uid: Some(victim.uid.clone()),
            resource_version: None,
        };
        match api
            .delete(&victim.name, &DeleteParams::default().preconditions(uid))
            .await
        {
            Ok(_) => {
                let text = format!("Preempted by pod {} on node {node}", preemptor.uid);
                let about = victim.pod.object_ref(&());
                self.recorder.event(&about, Kind::Normal, "Preempted", text);
            }
            Err(error) => warn!(pod = victim.name, %error, "cannot preempt"),
        }
    }
}

fn http_post(path: &str, body: &Value) -> Result<http::Request<Vec<u8>>, kube::Error> {
    let bytes = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(bytes)
        .map_err(kube::Error::HttpError)
}

fn conditions(pod: &Pod) -> Vec<PodCondition> {
    pod.status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default()
}

/// The change of the PodScheduled condition, when it says something new.
fn condition_patch(pod: &Pod, message: &str) -> Option<Value> {
    let mut all = conditions(pod);
    let known = all
        .iter()
        .find(|condition| condition.type_ == "PodScheduled");
    if known.is_some_and(|known| {
        known.status == "False"
            && known.reason.as_deref() == Some("Unschedulable")
            && known.message.as_deref() == Some(message)
    }) {
        return None;
    }
    let since = known.filter(|known| known.status == "False");
    let since = since.and_then(|known| known.last_transition_time.clone());
    let condition = PodCondition {
        type_: "PodScheduled".into(),
        status: "False".into(),
        reason: Some("Unschedulable".into()),
        message: Some(message.to_owned()),
        last_transition_time: since.or_else(|| Some(Time(jiff::Timestamp::now()))),
        observed_generation: pod.metadata.generation,
        ..Default::default()
    };
    all.retain(|condition| condition.type_ != "PodScheduled");
    all.push(condition);
    Some(json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": all}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_reason_is_not_written_twice() {
        let mut pod = Pod::default();
        let patch = condition_patch(&pod, "0/0 nodes are available: .").unwrap();
        pod.status = serde_json::from_value(patch["status"].clone()).unwrap();
        assert!(condition_patch(&pod, "0/0 nodes are available: .").is_none());
        assert!(condition_patch(&pod, "0/1 nodes are available: 1 Insufficient cpu.").is_some());
    }
}
