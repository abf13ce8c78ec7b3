//! Stops a pod: main containers, then sidecars, then the sandbox, then the volumes.

use super::{Action, Decision, Kill, MINIMUM_GRACE, View};
use crate::pod::{
    memory::{Task, Volumes},
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

/// Stops the containers, sidecars last; true when none is left. All preStop hooks run at once.
fn stop_containers(view: &View, decision: &mut Decision) -> bool {
    let grace = view
        .stop
        .map_or_else(|| spec::grace_period(view.pod), |stop| stop.grace);
    let mut any = false;
    for container in view.observed.alive() {
        any = true;
        let after = earlier(view, &container.name);
        let begins = !view.memory.is_running(&Task::Kill(container.id.clone()));
        let late = begins && is_sidecar(view, &container.name);
        decision.kill(Kill {
            grace: if late { left(view, grace) } else { grace },
            after,
            ..Kill::of_pod(view, container)
        });
    }
    !any && !starts_run(view)
}

/// The rest of the pod's grace period.
fn left(view: &View, grace: i64) -> i64 {
    let elapsed = view
        .stop
        .map_or(0, |stop| (view.now - stop.since).get_seconds());
    grace.saturating_sub(elapsed).max(MINIMUM_GRACE.min(grace))
}

fn is_sidecar(view: &View, name: &str) -> bool {
    let mut init = spec::init_containers(view.pod).iter();
    init.any(|c| c.name == name && spec::is_sidecar(c))
}

/// The containers that end before this one: a sidecar ends after the main containers and after the sidecars that
/// started after it.
pub(super) fn earlier(view: &View, name: &str) -> Vec<String> {
    let init = spec::init_containers(view.pod);
    let Some(position) = init.iter().position(|c| c.name == name) else {
        return Vec::new();
    };
    if !spec::is_sidecar(&init[position]) {
        return Vec::new();
    }
    let later = init[position + 1..].iter().filter(|c| spec::is_sidecar(c));
    let main = &spec::spec(view.pod).containers;
    main.iter().chain(later).map(|c| c.name.clone()).collect()
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
