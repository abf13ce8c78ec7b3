//! RestartAllContainers: a container's end restarts the whole pod in its sandbox. Every container
//! is stopped and removed, and the pod starts again with its init containers.

use k8s_openapi::api::core::v1::Pod;

use super::{Action, Decision, Kill, KillReason, View, crash_loop};
use crate::pod::{
    observed::{Container, Observed, State},
    restart::{self, Verdict},
    spec::{self, Role},
};

/// Advances such a restart; true while it is under way.
pub(super) fn restart_all(view: &View, decision: &mut Decision) -> bool {
    let Some(source) = source(view.pod, view.observed) else {
        return false;
    };
    let finished = source.finished_at.unwrap_or(source.created_at);
    let crashes = view.memory.crashes.get(&source.name);
    let longest = view.memory.longest_restart_delay();
    let crash = match restart::verdict(crashes, &source.hash, finished, view.now, longest) {
        Verdict::Go(crash) => crash,
        Verdict::Wait { until, delay } => {
            let waiting = crash_loop(view.pod, &source.name, delay);
            decision.waiting.push((source.name.clone(), waiting));
            decision.wake_at(until);
            return true;
        }
    };
    let mut stopping = false;
    for container in view.observed.alive().filter(|c| is_reset(view, c)) {
        stopping = true;
        decision.kill(Kill {
            reason: KillReason::RestartAll,
            message: format!("Container {} is restarted with its pod", container.name),
            ..Kill::of_pod(view, container)
        });
    }
    let starting = view.memory.running.keys().any(|task| task.is_start());
    if !stopping && !starting {
        // The container whose rule triggered it is removed last: until then the reason can be
        // observed.
        let mut containers: Vec<&Container> = view.observed.containers.iter().collect();
        containers.retain(|c| is_reset(view, c));
        containers.sort_by_key(|c| c.id == source.id);
        let containers = containers.into_iter().map(|c| c.id.clone()).collect();
        let crash = (source.name.clone(), crash);
        decision.actions.push(Action::Reset { containers, crash });
    }
    true
}

/// Ephemeral containers stay.
fn is_reset(view: &View, container: &Container) -> bool {
    let role = spec::find(view.pod, &container.name).map(|(role, _)| role);
    role.is_some_and(|role| role != Role::Ephemeral)
}

/// The ended container whose rule triggers it.
pub fn source<'a>(pod: &Pod, observed: &'a Observed) -> Option<&'a Container> {
    spec::containers(pod).find_map(|(_, container)| {
        let latest = observed.active(&container.name)?;
        let asks =
            latest.state == State::Exited && restart::restarts_all(&container, latest.exit_code);
        asks.then_some(latest)
    })
}
