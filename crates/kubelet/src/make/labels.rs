//! The labels and annotations by which the kubelet finds its containers after a restart.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::resources;
use crate::pod::spec;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const MEMORY_REQUEST: &str = "io.kubernetes.container.memoryRequest";
pub const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

/// Labels of the sandbox: the pod's own and its name, namespace and uid.
pub fn of_sandbox(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = pod
        .metadata
        .labels
        .clone()
        .unwrap_or_default()
        .into_iter()
        .collect();
    labels.extend(identity(pod));
    labels
}

fn identity(pod: &Pod) -> [(String, String); 3] {
    [
        (POD_NAME.into(), spec::name(pod).into()),
        (POD_NAMESPACE.into(), spec::namespace(pod).into()),
        (POD_UID.into(), spec::uid(pod).into()),
    ]
}

/// Labels of a container.
pub fn of_container(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from(identity(pod));
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    labels
}

/// Annotations of a container.
pub fn annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let path = container
        .termination_message_path
        .as_deref()
        .unwrap_or("/dev/termination-log");
    let policy = container
        .termination_message_policy
        .as_deref()
        .unwrap_or("File");
    BTreeMap::from([
        (HASH.into(), spec::content_hash(container)),
        (RESTART_COUNT.into(), restart_count.to_string()),
        (MESSAGE_PATH.into(), path.into()),
        (MESSAGE_POLICY.into(), policy.into()),
        (
            MEMORY_REQUEST.into(),
            resources::memory_request(container).to_string(),
        ),
        (GRACE.into(), spec::grace_period(pod).to_string()),
    ])
}
