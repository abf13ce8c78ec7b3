//! Stops a pod: main containers, then sidecars, then the sandbox, then the volumes.

use super::{Action, Decision, Kill, MINIMUM_GRACE, View};
use crate::pod::{
    memory::{Task, Volumes},
    observed::Container,
    spec,
};

/// Stops a pod step by step.
pub(super) fn stop_pod(view: &View, decision: &mut Decision) {
    if !stop_containers(view, decision) {
        return;
    }
    decision.ended = true;
    let ready: Vec<_> = view
        .observed
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .collect();
    for sandbox in &ready {
        decision.actions.push(Action::StopSandbox {
            id: sandbox.id.clone(),
        });
    }
    if !ready.is_empty() {
        return;
    }
    match view.memory.volumes {
        Volumes::Gone => decision.stopped = true,
        Volumes::Stuck { retry_at, .. } if retry_at > view.now => decision.wake_at(retry_at),
        _ => decision.actions.push(Action::TearDown),
    }
}

/// Stops the containers, sidecars last; true when none is left.
fn stop_containers(view: &View, decision: &mut Decision) -> bool {
    let grace = view
        .stop
        .map_or_else(|| spec::grace_period(view.pod), |stop| stop.grace);
    let sidecars: Vec<&str> = spec::init_containers(view.pod)
        .iter()
        .filter(|c| spec::is_sidecar(c))
        .map(|c| c.name.as_str())
        .collect();
    let is_sidecar = |c: &Container| sidecars.contains(&c.name.as_str());
    let (last, first): (Vec<_>, Vec<_>) = view.observed.alive().partition(|c| is_sidecar(c));
    for container in &first {
        decision.kill(Kill {
            grace,
            ..Kill::of_pod(view, container)
        });
    }
    if !first.is_empty() || starts_run(view) {
        return false;
    }
    // Sidecars end in the reverse order of their start, within the rest of the pod's grace period.
    let elapsed = view
        .stop
        .map_or(0, |stop| (view.now - stop.since).get_seconds());
    let left = grace.saturating_sub(elapsed).max(MINIMUM_GRACE);
    let newest = sidecars
        .iter()
        .rev()
        .find(|name| last.iter().any(|c| c.name == **name));
    let Some(name) = newest else { return true };
    for container in last.iter().filter(|c| c.name == **name) {
        decision.kill(Kill {
            grace: left,
            ..Kill::of_pod(view, container)
        });
    }
    false
}

/// Whether a running task creates something that has to be removed again.
fn starts_run(view: &View) -> bool {
    view.memory.running.keys().any(|task| {
        matches!(
            task,
            Task::Start(_) | Task::CreateSandbox | Task::SetUpVolumes | Task::Kill(_) | Task::Reset
        )
    })
}
