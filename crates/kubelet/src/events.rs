//! Events about pods and containers, with the references that Kubernetes gives them.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use reconcile::{Kind, Recorder};

use crate::pod::spec;

/// Says things about pods of this node.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    node_name: String,
}

impl Events {
    pub fn new(recorder: Recorder, node_name: &str) -> Self {
        Self {
            recorder,
            node_name: node_name.to_owned(),
        }
    }

    /// Good news about a pod.
    pub fn normal(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.recorder
            .event(&reference(pod, None), Kind::Normal, reason, message);
    }

    /// Bad news about a pod.
    pub fn warning(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.recorder
            .event(&reference(pod, None), Kind::Warning, reason, message);
    }

    /// Good news about a claim.
    pub fn claim(&self, claim: &PersistentVolumeClaim, reason: &str, message: impl Into<String>) {
        let metadata = &claim.metadata;
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
            field_path: None,
        };
        self.recorder.event(&about, Kind::Normal, reason, message);
    }

    /// News about one of its containers.
    pub fn container(
        &self,
        pod: &Pod,
        container: &str,
        kind: Kind,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.recorder
            .event(&reference(pod, Some(container)), kind, reason, message);
    }

    /// News about the node.
    pub fn node(&self, kind: Kind, reason: &str, message: impl Into<String>) {
        let about = ObjectReference {
            kind: Some("Node".into()),
            name: Some(self.node_name.clone()),
            // Upstream refers to nodes by their name here, too.
            uid: Some(self.node_name.clone()),
            ..Default::default()
        };
        self.recorder.event(&about, kind, reason, message);
    }
}

fn reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    // Events of a static pod are about its mirror, which users can see.
    let uid = if spec::is_static(pod) {
        None
    } else {
        pod.metadata.uid.clone()
    };
    let init = |name: &str| spec::init_containers(pod).iter().any(|c| c.name == name);
    let ephemeral = |name: &str| {
        spec::ephemeral_containers(pod)
            .iter()
            .any(|c| c.name == name)
    };
    let field_path = container.map(|name| {
        let list = if init(name) {
            "initContainers"
        } else if ephemeral(name) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        format!("spec.{list}{{{name}}}")
    });
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid,
        resource_version: pod.metadata.resource_version.clone(),
        field_path,
    }
}
