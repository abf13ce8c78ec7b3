//! The pods of this node, from the kubelet's workers and from the runtime.

use std::collections::BTreeMap;

use http::{Response, StatusCode};
use serde_json::json;

use super::{Body, text};
use crate::{core::Core, make::labels};

/// Every pod with its current status.
pub(super) fn all(core: &Core) -> Response<Body> {
    let items: Vec<_> = core
        .registry
        .pods()
        .into_iter()
        .map(|seen| {
            let mut pod = (*seen.pod).clone();
            pod.status = Some((*seen.status).clone());
            pod
        })
        .collect();
    super::json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// Every pod with a running container, from the runtime.
pub(super) async fn running(core: &Core) -> Response<Body> {
    let listed = match core.runtime.list_containers(BTreeMap::new()).await {
        Ok(listed) => listed,
        Err(status) => return text(StatusCode::INTERNAL_SERVER_ERROR, status.message()),
    };
    let mut pods: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    for container in listed
        .iter()
        .filter(|c| c.state() == cri::v1::ContainerState::ContainerRunning)
    {
        let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
        let pod = pods.entry(label(labels::POD_UID)).or_insert_with(|| {
            json!({
                "metadata": {
                    "name": label(labels::POD_NAME),
                    "namespace": label(labels::POD_NAMESPACE),
                    "uid": label(labels::POD_UID),
                    "creationTimestamp": null,
                },
                "spec": {"containers": []},
                "status": {},
            })
        });
        let image = container.image.as_ref().map(|image| image.image.clone());
        if let Some(list) = pod["spec"]["containers"].as_array_mut() {
            list.push(json!({
                "name": label(labels::CONTAINER_NAME), "image": image, "resources": {}}));
        }
    }
    let items: Vec<_> = pods.into_values().collect();
    super::json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}
