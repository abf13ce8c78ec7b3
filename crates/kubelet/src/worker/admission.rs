//! Admits a pod once, before anything of it starts.

use std::sync::Arc;

use client::Api;
use k8s_openapi::api::core::v1::{Node, Pod};

use tracing::info;

use super::{Change, Life, Worker};
use crate::{
    admit::{AdmitResult, NodeView, Refusal},
    allocation::Allocation,
    core::Core,
    disruption::{self, Disruption},
    eviction,
    node::register,
    pod::{spec, status::Failure},
    shutdown,
};

const PREEMPTING: &str = "Preempting";

impl Worker {
    /// Admits the pod unless it already runs. A critical pod preempts others if necessary.
    pub(super) async fn admit(&mut self) {
        if self.life != Life::Arrived || !self.subject.wanted {
            return;
        }
        let pod = &self.subject.pod;
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        // A static pod that has ended and begins again gave its resources back.
        let sandboxes = &self.runtime.observed.sandboxes;
        let runs = sandboxes
            .iter()
            .any(|sandbox| sandbox.ready || !spec::is_static(pod));
        let begun = runs || has_begun(pod);
        if begun {
            self.core.admitted.keep(self.subject.size.shared());
            self.change(Change::Admitted);
            return;
        }
        match decide(&self.core, pod).await {
            Ok(AdmitResult::Here) => {
                let dir = self.core.pod_dir(&self.subject.uid);
                Allocation::from_pod(pod).write(&dir);
                self.change(Change::Admitted);
            }
            // A message arrives when a victim has ended.
            Ok(AdmitResult::After(victims)) => preempt(&self.core, &victims).await,
            Err(refusal) => self.reject(refusal),
        }
    }

    /// Ends the pod: it cannot run on this node.
    pub(super) fn reject(&mut self, refusal: Refusal) {
        let events = &self.core.events;
        let pod = &self.subject.pod;
        events.warning(pod, &refusal.reason, refusal.message.clone());
        self.core.metrics.lives.rejected(&refusal.reason);
        let failure = Failure {
            reason: refusal.reason,
            message: format!("Pod was rejected: {}", refusal.message),
            rejected: true,
        };
        self.change(Change::Fail { failure, grace: 1 });
    }
}

/// Whether a kubelet has already admitted the pod.
pub(crate) fn has_begun(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.start_time.is_some())
}

/// Ends pods to make room for a critical one.
async fn preempt(core: &Core, victims: &[Arc<Pod>]) {
    let message = "Preempted in order to admit critical pod";
    let ends = victims.iter().map(|victim| {
        info!(pod = spec::described(victim), "preempted by a critical pod");
        core.events.warning(victim, PREEMPTING, message);
        let disruption = Disruption {
            reason: PREEMPTING,
            message,
            condition: Some("Pod was preempted by Kubelet to accommodate a critical pod."),
            grace: None,
        };
        disruption::end(core, victim, disruption)
    });
    futures::future::join_all(ends).await;
}

async fn decide(core: &Core, pod: &Arc<Pod>) -> Result<AdmitResult, Refusal> {
    let config = &core.config;
    if let Some(refusal) = shutdown::refusal(core) {
        return Err(refusal);
    }
    if let Some(refusal) = eviction::refusal(pod, &core.pressures.borrow()) {
        return Err(refusal);
    }
    let mut sysctls = core.settings().allowed_unsafe_sysctls.clone();
    sysctls.extend(config.allowed_unsafe_sysctls.iter().cloned());
    let decide = |node: &Node| {
        let mut allocatable = core.allocatable();
        // Other components write extended resources to the Node.
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
            allowed_unsafe_sysctls: &sysctls,
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
    // The informer may lag behind a label change: read the Node before rejecting the pod for it.
    let api: Api<Node> = Api::all(config.client.clone());
    match api.get(&config.node_name).await {
        Ok(node) => decide(&node),
        Err(_) => Err(refusal),
    }
}
