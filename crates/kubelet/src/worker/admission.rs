//! Admission: once, before anything of the pod starts.

use std::sync::Arc;

use client::Api;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::{Change, Life, Worker};
use crate::{
    admit::{NodeView, Refusal},
    core::Core,
    eviction,
    node::register,
    pod::{spec, status::Failure},
};

impl Worker {
    /// A pod that has not begun must fit; one that runs stays.
    pub(super) async fn admit(&mut self) {
        if self.life != Life::Arrived || !self.subject.wanted {
            return;
        }
        let pod = &self.subject.pod;
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let begun = !self.runtime.observed.sandboxes.is_empty() || has_begun(pod);
        if begun || spec::is_static(pod) {
            self.core.admitted.keep(self.subject.size.shared());
            self.change(Change::Admitted);
            return;
        }
        match decide(&self.core, pod).await {
            Ok(()) => self.change(Change::Admitted),
            Err(refusal) => {
                let events = &self.core.events;
                events.warning(pod, &refusal.reason, refusal.message.clone());
                let failure = Failure {
                    reason: refusal.reason,
                    message: format!("Pod was rejected: {}", refusal.message),
                    rejected: true,
                };
                self.change(Change::Fail { failure, grace: 1 });
            }
        }
    }
}

/// Whether a kubelet has already taken the pod.
pub fn has_begun(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.start_time.is_some())
}

async fn decide(core: &Core, pod: &Arc<Pod>) -> Result<(), Refusal> {
    let config = &core.config;
    if let Some(refusal) = eviction::refusal(pod, &core.pressures.borrow()) {
        return Err(refusal);
    }
    let decide = |node: &Node| {
        let mut allocatable = core.machine.allocatable(config.max_pods, &config.kubelet);
        // Extended resources are written to the Node by others.
        let shown = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref());
        let extended = shown.into_iter().flatten();
        let extended = extended.filter(|(name, _)| name.contains('/'));
        allocatable.extend(extended.map(|(name, amount)| (name.clone(), amount.clone())));
        let view = NodeView {
            node,
            allocatable: &allocatable,
            allowed_unsafe_sysctls: &config.allowed_unsafe_sysctls,
            apparmor: core.apparmor,
        };
        core.admitted.admit(pod, &view)
    };
    let refusal = match core.nodes.get("", &config.node_name) {
        Some(node) => match decide(&node) {
            Err(refusal) if refusal.reason == "NodeAffinity" => refusal,
            decided => return decided,
        },
        None => {
            let mut node = Node::default();
            node.metadata.name = Some(config.node_name.clone());
            node.metadata.labels = Some(register::labels(config));
            return decide(&node);
        }
    };
    // A label may be newer than the watch: ask before the pod is refused for it.
    let api: Api<Node> = Api::all(config.client.clone());
    match api.get(&config.node_name).await {
        Ok(node) => decide(&node),
        Err(_) => Err(refusal),
    }
}
