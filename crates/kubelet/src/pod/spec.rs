//! Helpers that read a pod's spec.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use k8s_openapi::{
    api::core::v1::{Container, EphemeralContainer, Pod, PodSpec},
    apimachinery::pkg::api::resource::Quantity,
};
use machinery::quantity;

/// The role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs to completion before the next one.
    Init,
    /// An init container that keeps running beside the others.
    Sidecar,
    /// One of `spec.containers`.
    Main,
    /// An ephemeral container.
    Ephemeral,
}

static EMPTY: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);

/// The spec; an empty one for a pod without.
pub fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// The pod's uid.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// `name_namespace(uid)`, as events and messages name a pod.
pub fn described(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// The init containers.
pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod).init_containers.as_deref().unwrap_or_default()
}

/// The ephemeral containers.
pub fn ephemeral_containers(pod: &Pod) -> &[EphemeralContainer] {
    spec(pod)
        .ephemeral_containers
        .as_deref()
        .unwrap_or_default()
}

/// Whether an init container is a sidecar.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Every container with its role, in the order of the spec.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (Role, Cow<'_, Container>)> {
    let role = |c: &Container| {
        if is_sidecar(c) {
            Role::Sidecar
        } else {
            Role::Init
        }
    };
    let init = init_containers(pod)
        .iter()
        .map(move |c| (role(c), Cow::Borrowed(c)));
    let main = spec(pod).containers.iter();
    let main = main.map(|c| (Role::Main, Cow::Borrowed(c)));
    let ephemeral = ephemeral_containers(pod)
        .iter()
        .map(|c| (Role::Ephemeral, Cow::Owned(as_container(c))));
    init.chain(main).chain(ephemeral)
}

/// The container of this name.
pub fn find<'a>(pod: &'a Pod, name: &str) -> Option<(Role, Cow<'a, Container>)> {
    containers(pod).find(|(_, container)| container.name == name)
}

/// An ephemeral container as a Container.
pub fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        name: e.name,
        security_context: e.security_context,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
        ..Default::default()
    }
}

/// Whether the container has a postStart hook.
pub fn has_post_start(container: &Container) -> bool {
    let lifecycle = container.lifecycle.as_ref();
    lifecycle.is_some_and(|lifecycle| lifecycle.post_start.is_some())
}

/// Changes when a running container must be replaced: covers name and image.
pub fn content_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let bytes = container.name.bytes().chain([0]).chain(image.bytes());
    // FNV-1a: stable for ever, unlike the standard library's hashers.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:x}")
}

/// Whether the pod uses the node's network.
pub fn is_host_network(pod: &Pod) -> bool {
    spec(pod).host_network == Some(true)
}

/// The annotation with the source of a pod from a file.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// The annotation of a mirror pod with the static pod's hash.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The annotation with the static pod's uid.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";

/// A pod from the API. Every user who can create pods can set the source annotation, which would make the pod a static
/// and therefore critical pod; this function replaces it with `api`.
pub fn from_api(pod: Arc<Pod>) -> Arc<Pod> {
    if !is_static(&pod) {
        return pod;
    }
    let mut pod = Arc::unwrap_or_clone(pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE_ANNOTATION.to_owned(), "api".to_owned());
    Arc::new(pod)
}

/// Whether the pod came from a file of this node.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE_ANNOTATION).is_some_and(|source| source != "api")
}

/// Whether the pod is the mirror of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR_ANNOTATION).is_some()
}

/// The lowest priority of system-critical pods.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Whether the pod is critical: it is not evicted, and preempts other pods.
pub fn is_critical(pod: &Pod) -> bool {
    let priority = spec(pod).priority.unwrap_or(0);
    is_static(pod) || is_mirror(pod) || priority >= SYSTEM_CRITICAL
}

/// An annotation's value.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The pod's current grace period in seconds.
pub fn grace_period(pod: &Pod) -> i64 {
    pod.metadata
        .deletion_grace_period_seconds
        .filter(|_| pod.metadata.deletion_timestamp.is_some())
        .or(spec(pod).termination_grace_period_seconds)
        .unwrap_or(30)
}

/// The QoS class of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has limits for cpu and memory, equal to its requests.
    Guaranteed,
    /// Some container has a request or limit.
    Burstable,
    /// No container has a request or limit.
    BestEffort,
}

impl QosClass {
    /// The name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The pod's QoS class, from its own or its containers' resources.
pub fn qos_class(pod: &Pod) -> QosClass {
    let spec = spec(pod);
    let of_pod = spec
        .resources
        .as_ref()
        .map(|r| (r.requests.as_ref(), r.limits.as_ref()));
    let of_containers: Vec<_> = init_containers(pod)
        .iter()
        .chain(&spec.containers)
        .map(|c| {
            let r = c.resources.as_ref();
            (
                r.and_then(|r| r.requests.as_ref()),
                r.and_then(|r| r.limits.as_ref()),
            )
        })
        .collect();
    let parts = match of_pod {
        Some(part) if part.0.is_some() || part.1.is_some() => vec![part],
        _ => of_containers,
    };
    let asks = |list: Option<&BTreeMap<String, Quantity>>, key: &str| {
        list.and_then(|list| list.get(key))
            .and_then(|amount| quantity::millis(&amount.0))
            .filter(|amount| *amount > 0)
    };
    let any = parts.iter().any(|(requests, limits)| {
        ["cpu", "memory"]
            .iter()
            .any(|k| asks(*requests, k).or(asks(*limits, k)).is_some())
    });
    if !any {
        return QosClass::BestEffort;
    }
    let all = parts.iter().all(|(requests, limits)| {
        ["cpu", "memory"].iter().all(|key| {
            let limit = asks(*limits, key);
            limit.is_some() && asks(*requests, key).is_none_or(|request| Some(request) == limit)
        })
    });
    if all {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn qos_follows_requests_and_limits() {
        let full = serde_json::json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let differing = serde_json::json!({"limits": {"cpu": "1", "memory": "1Gi"},
            "requests": {"cpu": "500m", "memory": "1Gi"}});
        let cases = [
            (serde_json::json!([{"name": "a"}]), QosClass::BestEffort),
            (
                serde_json::json!([{"name": "a", "resources": full}]),
                QosClass::Guaranteed,
            ),
            (
                serde_json::json!([{"name": "a", "resources": differing}]),
                QosClass::Burstable,
            ),
            (
                serde_json::json!([{"name": "a", "resources": full}, {"name": "b"}]),
                QosClass::Burstable,
            ),
        ];
        for (containers, class) in cases {
            assert_eq!(qos_class(&pod(containers.clone())), class, "{containers}");
        }
    }

    #[test]
    fn a_new_image_is_a_new_container_and_nothing_else_is() {
        let of = |json| content_hash(&serde_json::from_value(json).unwrap());
        let one = of(serde_json::json!({"name": "a", "image": "x"}));
        assert_eq!(
            one,
            of(serde_json::json!({"name": "a", "image": "x", "tty": true}))
        );
        assert_ne!(one, of(serde_json::json!({"name": "a", "image": "y"})));
    }

    #[test]
    fn the_config_source_annotation_of_api_pods_is_ignored() {
        let pod = |source: &str| {
            let mut pod = Pod::default();
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(SOURCE_ANNOTATION.to_owned(), source.to_owned());
            Arc::new(pod)
        };
        assert!(is_static(&pod("file")) && is_critical(&pod("file")));
        for source in ["file", "http", "", "api"] {
            let pod = from_api(pod(source));
            assert!(!is_static(&pod) && !is_critical(&pod), "{source}");
        }
        let plain = Arc::new(Pod::default());
        assert!(Arc::ptr_eq(&plain, &from_api(plain.clone())));
    }
}
