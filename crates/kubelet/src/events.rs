//! Events about pods and containers, with the references that Kubernetes gives them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use lifecycle::Context;
use reconcile::{Kind, Recorder};
use tokio::sync::mpsc;

use crate::{configuration::KubeletConfiguration, pod::spec, rate::Rate};

/// The maximum number of queued events; further ones are dropped.
const QUEUE_LENGTH: usize = 1000;

/// Records events about pods and containers of this node.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    /// The queue of events, if their rate is limited.
    paced: Option<mpsc::Sender<Event>>,
    node_name: String,
}

struct Event {
    about: ObjectReference,
    kind: Kind,
    reason: String,
    message: String,
    annotations: Annotations,
}

type Annotations = BTreeMap<String, String>;

impl Events {
    pub fn new(
        recorder: Recorder,
        node_name: &str,
        context: &Context,
        settings: &KubeletConfiguration,
    ) -> Self {
        let rate = Rate::new(settings.event_record_qps, settings.event_burst);
        let paced = rate.map(|rate| {
            let (sender, mut waiting) = mpsc::channel::<Event>(QUEUE_LENGTH);
            let recorder = recorder.clone();
            context.spawn("events", async move {
                while let Some(event) = waiting.recv().await {
                    rate.wait().await;
                    let (about, reason) = (&event.about, &event.reason);
                    let annotations = event.annotations;
                    recorder.annotated(about, event.kind, reason, event.message, annotations);
                }
            });
            sender
        });
        Self {
            recorder,
            paced,
            node_name: node_name.to_owned(),
        }
    }

    fn record(&self, about: ObjectReference, kind: Kind, reason: &str, message: impl Into<String>) {
        self.annotated(about, kind, reason, message, Annotations::new());
    }

    fn annotated(
        &self,
        about: ObjectReference,
        kind: Kind,
        reason: &str,
        message: impl Into<String>,
        annotations: Annotations,
    ) {
        match &self.paced {
            None => {
                let recorder = &self.recorder;
                recorder.annotated(&about, kind, reason, message, annotations);
            }
            Some(paced) => {
                let _ = paced.try_send(Event {
                    about,
                    kind,
                    reason: reason.to_owned(),
                    message: message.into(),
                    annotations,
                });
            }
        }
    }

    /// Records that a pod is evicted, with annotations about the reason.
    pub fn evicted(&self, pod: &Pod, reason: &str, message: &str, annotations: Annotations) {
        let about = reference(pod, None);
        self.annotated(about, Kind::Warning, reason, message, annotations);
    }

    /// Records a Normal event about a pod.
    pub fn normal(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.record(reference(pod, None), Kind::Normal, reason, message);
    }

    /// Records a Warning event about a pod.
    pub fn warning(&self, pod: &Pod, reason: &str, message: impl Into<String>) {
        self.record(reference(pod, None), Kind::Warning, reason, message);
    }

    /// Records a Normal event about a claim.
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
        self.record(about, Kind::Normal, reason, message);
    }

    /// Records an event about one container of a pod.
    pub fn container(
        &self,
        pod: &Pod,
        container: &str,
        kind: Kind,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.record(reference(pod, Some(container)), kind, reason, message);
    }

    /// Records an event about the node.
    pub fn node(&self, kind: Kind, reason: &str, message: impl Into<String>) {
        let about = ObjectReference {
            kind: Some("Node".into()),
            name: Some(self.node_name.clone()),
            // Upstream uses the node's name as uid here, too.
            uid: Some(self.node_name.clone()),
            ..Default::default()
        };
        self.record(about, kind, reason, message);
    }
}

fn reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    // Events of a static pod are about its mirror pod, which the API shows.
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
