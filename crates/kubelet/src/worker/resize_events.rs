//! Events about resizes: what began, waits, ended or failed, with the resources as JSON.

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::{
    events::Events,
    pod::{spec, status::Resize},
};

/// Records that a resize was allocated.
pub(super) fn started(events: &Events, pod: &Pod) {
    let message = message("Pod resize started", pod, "");
    events.normal(pod, "ResizeStarted", message);
}

/// Records that a resize is in effect.
pub(super) fn completed(events: &Events, pod: &Pod) {
    let message = message("Pod resize completed", pod, "");
    events.normal(pod, "ResizeCompleted", message);
}

/// Records that a resize failed and is retried.
pub(super) fn failed(events: &Events, pod: &Pod, error: &str) {
    let message = message("Pod resize error", pod, error);
    events.warning(pod, "ResizeError", message);
}

/// Records that a resize waits or cannot be done.
pub(super) fn pending(events: &Events, pod: &Pod, resize: &Resize) {
    let Resize::Pending { reason, message } = resize else {
        return;
    };
    let text = self::message(&format!("Pod resize {reason}"), pod, message);
    events.warning(pod, &format!("Resize{reason}"), text);
}

fn message(what: &str, pod: &Pod, error: &str) -> String {
    let summary = summary(pod, error);
    format!("{what}: {summary}")
}

/// The resources that the pod asks for.
fn summary(pod: &Pod, error: &str) -> String {
    let one = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        json!({"name": container.name, "resources": resources})
    };
    let containers = |list: &[Container]| list.iter().map(one).collect::<Vec<Value>>();
    let spec = spec::spec(pod);
    let init = containers(spec.init_containers.as_deref().unwrap_or_default());
    let main = containers(&spec.containers);
    // In the order in which clients know it; maps of serde_json are sorted.
    let mut parts = Vec::new();
    for (name, list) in [("initContainers", init), ("containers", main)] {
        if !list.is_empty() {
            parts.push(format!("{name:?}:{}", Value::from(list)));
        }
    }
    let generation = pod.metadata.generation.unwrap_or(0);
    parts.push(format!("\"generation\":{generation}"));
    if !error.is_empty() {
        parts.push(format!("\"error\":{}", Value::from(error)));
    }
    format!("{{{}}}", parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_the_resources_of_all_containers_the_generation_and_the_error() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"generation": 3}, "spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}}))
        .unwrap();
        assert_eq!(
            message("Pod resize Deferred", &pod, "no \"cpu\""),
            "Pod resize Deferred: {\"initContainers\":[{\"name\":\"i\",\"resources\":{}}],\
             \"containers\":[{\"name\":\"a\",\"resources\":{\"requests\":{\"cpu\":\"1\"}}}],\
             \"generation\":3,\"error\":\"no \\\"cpu\\\"\"}"
        );
    }
}
