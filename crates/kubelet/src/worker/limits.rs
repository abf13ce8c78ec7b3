//! What a pod may have here: admission once, a changed size, and telling about containers that wait.

use k8s_openapi::api::core::v1::Pod;
use reconcile::Kind;

use super::Worker;
use crate::{
    admit,
    make::resources::Bounds,
    node::register,
    pod::{
        decide::Decision,
        memory::Task,
        observed::{Observed, State},
        spec::{self, Role},
        status::Resize,
    },
};

impl Worker {
    /// A pod that has not begun must fit; one that runs stays.
    pub(super) fn admit(&mut self) {
        if self.admitted || self.removed {
            return;
        }
        self.admitted = true;
        let begun = !self.observed.sandboxes.is_empty() || self.status.start_time.is_some();
        if begun || spec::is_static(&self.pod) || self.pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let others = self.other_pods();
        let others: Vec<&Pod> = others.iter().map(AsRef::as_ref).collect();
        let core = &self.core;
        let allocatable = core.machine.allocatable(core.config.max_pods);
        let labels = register::labels(&core.config);
        if let Err(refusal) = admit::admit(&self.pod, &others, &allocatable, &labels) {
            core.events
                .warning(&self.pod, &refusal.reason, refusal.message.clone());
            self.failed = Some((refusal.reason, refusal.message));
        }
    }

    /// Pods beside this one that use the node.
    fn other_pods(&self) -> Vec<std::sync::Arc<Pod>> {
        let all = self.core.registry.pods().into_iter();
        all.filter(|seen| spec::uid(&seen.pod) != self.uid)
            .filter(|seen| !matches!(seen.status.phase.as_deref(), Some("Succeeded" | "Failed")))
            .map(|seen| seen.pod)
            .collect()
    }

    /// Where a changed size stands; `None` if every container has what its spec says.
    pub(super) fn resize_state(&self, seen: &Observed) -> Option<Resize> {
        let differs = spec::containers(&self.pod).iter().any(|(role, container)| {
            matches!(role, Role::Main | Role::Sidecar)
                && seen.active(&container.name).is_some_and(|seen| {
                    seen.state == State::Running
                        && seen
                            .bounds
                            .is_some_and(|has| has != Bounds::wanted(&self.pod, container))
                })
        });
        if !differs {
            return self
                .memory
                .is_running(&Task::Resize)
                .then_some(Resize::InProgress);
        }
        let core = &self.core;
        let allocatable = core.machine.allocatable(core.config.max_pods);
        let short = |others: &[&Pod], reason| {
            let short = admit::shortage(&self.pod, others, &allocatable)?;
            let message = format!(
                "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
                short.resource, short.requested, short.used, short.capacity
            );
            Some(Resize::Pending { reason, message })
        };
        let others = self.other_pods();
        let others: Vec<&Pod> = others.iter().map(AsRef::as_ref).collect();
        short(&[], "Infeasible")
            .or_else(|| short(&others, "Deferred"))
            .or(Some(Resize::InProgress))
    }

    /// Says once that a container backs off.
    pub(super) fn tell_waiting(&mut self, decision: &Decision) {
        let now: Vec<(String, String)> = decision
            .waiting
            .iter()
            .map(|(name, waiting)| {
                (
                    name.clone(),
                    format!("{} {}", waiting.reason, waiting.message),
                )
            })
            .collect();
        for ((name, waiting), key) in decision.waiting.iter().zip(&now) {
            if self.told.contains(key) {
                continue;
            }
            let say = |kind, reason: &str, message: String| {
                self.core
                    .events
                    .container(&self.pod, name, kind, reason, message);
            };
            match waiting.reason.as_str() {
                "CrashLoopBackOff" => {
                    let pod = spec::described(&self.pod);
                    let message =
                        format!("Back-off restarting failed container {name} in pod {pod}");
                    say(Kind::Warning, "BackOff", message);
                }
                "ImagePullBackOff" => {
                    let image = spec::find(&self.pod, name).and_then(|(_, c)| c.image);
                    let image = image.unwrap_or_default();
                    say(
                        Kind::Normal,
                        "BackOff",
                        format!("Back-off pulling image {image:?}"),
                    );
                    say(Kind::Warning, "Failed", "Error: ImagePullBackOff".into());
                }
                _ => {}
            }
        }
        self.told = now;
    }
}
