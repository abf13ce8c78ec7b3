//! The stream of container events: each carries the pod as it is at that moment, so that a kubelet
//! need not ask.

use cri::v1::{ContainerEventResponse, ContainerEventType};

use super::Engine;
use crate::{container::Container, sandbox::Sandbox, stamp};

impl Engine {
    /// Tells listeners what happened to a container.
    pub(crate) fn announce(&self, container: &Container, kind: ContainerEventType) {
        let sandbox = self.sandbox(&container.facts.sandbox).ok();
        self.send(&container.id, sandbox.as_deref(), kind);
    }

    /// A sandbox is ready: its event is that of a container with the sandbox' id.
    pub(crate) fn announce_sandbox_ready(&self, sandbox: &Sandbox) {
        let started = ContainerEventType::ContainerStartedEvent;
        self.send(&sandbox.id, Some(sandbox), started);
    }

    /// The same when it is gone.
    pub(crate) fn announce_sandbox_removed(&self, sandbox: &Sandbox) {
        self.send(
            &sandbox.id,
            Some(sandbox),
            ContainerEventType::ContainerDeletedEvent,
        );
    }

    fn send(&self, id: &str, sandbox: Option<&Sandbox>, kind: ContainerEventType) {
        // A later event must not carry older statuses: listeners keep the last ones.
        let _in_order = self.announcing.lock();
        let containers = sandbox
            .map(|sandbox| self.containers_of(&sandbox.id))
            .unwrap_or_default();
        // It is fine when there are no listeners.
        let _ = self.events.send(ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: stamp::now(),
            pod_sandbox_status: sandbox.map(Sandbox::status),
            containers_statuses: containers.iter().map(|c| c.cri_status()).collect(),
        });
    }
}
