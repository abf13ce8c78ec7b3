//! The stream of container events: each contains the current state of the pod, so that a kubelet
//! need not ask for it.

use cri::v1::{ContainerEventResponse, ContainerEventType};

use super::Engine;
use crate::{container::Container, sandbox::Sandbox, stamp};

impl Engine {
    /// Sends an event about a container.
    pub(crate) fn announce(&self, container: &Container, kind: ContainerEventType) {
        let sandbox = self.sandbox(&container.facts.sandbox).ok();
        self.send(&container.id, sandbox.as_deref(), kind);
    }

    /// Sends the event of a ready sandbox: that of a container with the sandbox' id.
    pub(crate) fn announce_sandbox_ready(&self, sandbox: &Sandbox) {
        let started = ContainerEventType::ContainerStartedEvent;
        self.send(&sandbox.id, Some(sandbox), started);
    }

    /// Sends the event of a removed sandbox.
    pub(crate) fn announce_sandbox_removed(&self, sandbox: &Sandbox) {
        self.send(
            &sandbox.id,
            Some(sandbox),
            ContainerEventType::ContainerDeletedEvent,
        );
    }

    fn send(&self, id: &str, sandbox: Option<&Sandbox>, kind: ContainerEventType) {
        // A later event must not contain older statuses: listeners keep the last ones.
        let _in_order = self.announcing.lock();
        let containers = sandbox
            .map(|sandbox| self.containers_of(&sandbox.id))
            .unwrap_or_default();
        // No listeners are no error.
        let _ = self.events.send(ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: stamp::now(),
            pod_sandbox_status: sandbox.map(Sandbox::status),
            containers_statuses: containers.iter().map(|c| c.cri_status()).collect(),
        });
    }
}
