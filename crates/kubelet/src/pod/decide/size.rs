//! Resizes running containers: in place, or by a restart if the container's resizePolicy says so.

use k8s_openapi::api::core::v1::Container as Spec;

use super::{Action, Decision, View};
use crate::{
    make::resources::Bounds,
    pod::{
        observed::{Container, State},
        spec::{self, Role},
    },
};

/// Resizes containers that differ from their spec and need no restart, after those that need one have ended: until then
/// they use memory that the new limits may not leave them.
pub(super) fn resize(view: &View, decision: &mut Decision) {
    let restarts = spec::containers(view.pod).any(|(_, container)| {
        let seen = view.observed.active(&container.name);
        seen.is_some_and(|seen| {
            seen.state == State::Running && needs_restart(view, &container, seen)
        })
    });
    if restarts {
        return;
    }
    let killed = |id: &str| {
        decision
            .actions
            .iter()
            .any(|action| matches!(action, Action::Kill { id: k, .. } if k == id))
    };
    let containers: Vec<(String, String)> = spec::containers(view.pod)
        .filter(|(role, _)| *role != Role::Ephemeral)
        .filter_map(|(_, container)| {
            let seen = view.observed.active(&container.name)?;
            let fits = seen.state == State::Running
                && differs(view, &container, seen)
                && !killed(&seen.id);
            fits.then(|| (seen.id.clone(), seen.name.clone()))
        })
        .collect();
    if containers.is_empty() && !view.memory.pod_grows {
        return;
    }
    match &view.memory.resize_failure {
        Some(failure) if failure.retry_at > view.now => decision.wake_at(failure.retry_at),
        _ => decision.actions.push(Action::Resize { containers }),
    }
}

fn differs(view: &View, container: &Spec, seen: &Container) -> bool {
    let wanted = Bounds::wanted(view.pod, container, view.memory.cfs);
    let held = view.memory.held(seen);
    held.is_some_and(|held| !held.are(&wanted))
}

/// Whether a resize of this container needs a restart.
pub(super) fn needs_restart(view: &View, container: &Spec, seen: &Container) -> bool {
    let Some(bounds) = view.memory.held(seen) else {
        return false;
    };
    let wanted = Bounds::wanted(view.pod, container, view.memory.cfs);
    let cpu = (bounds.cpu_shares, bounds.cpu_quota) != (wanted.cpu_shares, wanted.cpu_quota);
    let memory = bounds.memory != wanted.memory || bounds.requests_other_memory(&wanted);
    container.resize_policy.iter().flatten().any(|policy| {
        policy.restart_policy == "RestartContainer"
            && ((cpu && policy.resource_name == "cpu")
                || (memory && policy.resource_name == "memory"))
    })
}
