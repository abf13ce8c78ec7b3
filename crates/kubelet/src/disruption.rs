//! Ends a pod for good because of node pressure, preemption or node shutdown. The condition
//! DisruptionTarget shows it in the API.

use std::time::Duration;

use client::Api;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tracing::warn;

use crate::{
    core::Core,
    pod::{spec, status::time},
    registry::Message,
};

/// The deadline for marking the pod.
const DEADLINE: Duration = Duration::from_secs(5);
/// After which time the pod ends before it is marked: a hanging API server must not delay its end.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why and how a pod ends.
pub(crate) struct Disruption<'a> {
    pub reason: &'static str,
    pub message: &'a str,
    /// The message of the condition; `None`: the pod gets no condition.
    pub condition: Option<&'a str>,
    /// The grace period, if shorter than the pod's.
    pub grace: Option<i64>,
}

/// Sets the condition in the API and tells the pod's worker.
pub(crate) async fn end(core: &Core, pod: &Pod, disruption: Disruption<'_>) {
    let fail = Message::Fail {
        reason: disruption.reason,
        message: disruption.message.to_owned(),
        grace: disruption.grace,
    };
    let uid = spec::uid(pod);
    let Some(message) = disruption.condition else {
        core.registry.send(uid, fail);
        return;
    };
    let marking = tokio::time::timeout(DEADLINE, mark(core, pod, message));
    tokio::pin!(marking);
    // Controllers should see the condition when they see the pod fail, but the node may need its resources now.
    let in_time = tokio::time::timeout(PATIENCE, &mut marking).await;
    core.registry.send(uid, fail);
    let marked = match in_time {
        Ok(marked) => marked,
        Err(_) => marking.await,
    };
    match marked {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            warn!(pod = spec::described(pod), %error, "cannot set the DisruptionTarget condition");
        }
        Err(_) => warn!(
            pod = spec::described(pod),
            "timeout while setting the DisruptionTarget condition"
        ),
    }
}

async fn mark(core: &Core, pod: &Pod, message: &str) -> crate::Result<()> {
    let api: Api<Pod> = Api::namespaced(core.config.client.clone(), spec::namespace(pod));
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": message,
        "lastTransitionTime": time(core.now()),
        "observedGeneration": pod.metadata.generation,
    });
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": spec::uid(pod)},
        "status": {"conditions": [condition]},
    }));
    api.patch_status(spec::name(pod), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}
