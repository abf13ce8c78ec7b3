//! A pod as the scheduler's watch stores it: its identity and the scheduler's projection. The API
//! object is projected and dropped while decoding, so that fifty thousand pods need only the memory
//! of their projections.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use client::FromJson;
use k8s_openapi::{NamespaceResourceScope, api::core::v1::Pod};
use kube::{Resource, api::ObjectMeta};
use parking_lot::Mutex;

use crate::pod::{PodInfo, Pods, has_ended, node_name};

/// One version of a pod.
#[derive(Debug)]
pub(crate) struct WatchedPod {
    /// Name, namespace, uid and resourceVersion.
    metadata: ObjectMeta,
    /// Its node, when it has one.
    pub(crate) node: Option<Arc<str>>,
    /// Whether its containers have ended for good.
    pub(crate) ended: bool,
    /// The scheduler's projection.
    pub(crate) info: Arc<PodInfo>,
}

/// Templates and labels that pods share. One per process, because decoding has no other way to
/// access it.
static SHARED: LazyLock<Mutex<Pods>> = LazyLock::new(Mutex::default);

impl From<&Pod> for WatchedPod {
    fn from(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        Self {
            metadata: ObjectMeta {
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                ..ObjectMeta::default()
            },
            node: node_name(pod).map(Arc::from),
            ended: has_ended(pod),
            info: Arc::new(SHARED.lock().info(pod)),
        }
    }
}

impl FromJson for WatchedPod {
    fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        Pod::from_json(text).map(|pod| Self::from(&pod))
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_watched_pod_has_the_path_of_pods_and_keeps_only_needed_fields() {
        assert_eq!(WatchedPod::url_path(&(), None), Pod::url_path(&(), None));
        let pod = |name: &str| {
            let meta = json!({"name": name, "namespace": "d", "uid": name, "resourceVersion": "7",
                "annotations": {"large": "text"}, "labels": {"app": "web"}});
            let spec = json!({"nodeName": "n1", "containers": []});
            let pod = json!({"metadata": meta, "spec": spec, "status": {"phase": "Failed"}});
            <WatchedPod as client::FromJson>::from_json(&pod.to_string()).unwrap()
        };
        let (one, other) = (pod("a"), pod("b"));
        assert_eq!(one.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(one.metadata.annotations, None);
        assert_eq!((one.node.as_deref(), one.ended), (Some("n1"), true));
        assert!(Arc::ptr_eq(&one.info.template, &other.info.template));
        assert!(Arc::ptr_eq(&one.info.label_set, &other.info.label_set));
    }
}
