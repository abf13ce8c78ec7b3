//! Init containers run one after the other; sidecars among them only have to have started.

use k8s_openapi::api::core::v1::Container as Spec;

use super::{Decision, Kill, View, own_grace, reason_to_kill, start, stop::stop_pod};
use crate::pod::{
    observed::{Container, State},
    restart,
    spec::{self, Role},
};

/// Runs the init containers; true once the main containers may run.
pub(super) fn advance_init(view: &View, decision: &mut Decision) -> bool {
    let containers = spec::init_containers(view.pod);
    let was_initialized = view.observed.is_initialized(view.pod);
    // Before its sidecars, which would run again after they were stopped.
    if !was_initialized
        && containers
            .iter()
            .any(|container| has_failed(view, container))
    {
        stop_pod(view, decision);
        return false;
    }
    for container in containers {
        let active = view.observed.active(&container.name);
        let passed = if spec::is_sidecar(container) {
            keep_sidecar(view, container, active, decision)
        } else if was_initialized {
            true
        } else {
            run_init(view, containers, container, active, decision)
        };
        if !passed && !was_initialized {
            return false;
        }
    }
    true
}

/// Whether an ordinary init container has failed for good, and the pod with it.
fn has_failed(view: &View, container: &Spec) -> bool {
    let active = view.observed.active(&container.name);
    !spec::is_sidecar(container)
        && active.is_some_and(|active| {
            active.state == State::Exited
                && active.exit_code != 0
                && !restart::should_restart(container, spec::spec(view.pod), active.exit_code)
        })
}

/// Runs one ordinary init container to its end; true when it has succeeded.
fn run_init(
    view: &View,
    all: &[Spec],
    container: &Spec,
    active: Option<&Container>,
    decision: &mut Decision,
) -> bool {
    let Some(active) = active else {
        // If a later container exists, this one had succeeded and was removed.
        let position = all
            .iter()
            .position(|c| c.name == container.name)
            .unwrap_or(0);
        let later = all[position + 1..]
            .iter()
            .any(|c| view.observed.active(&c.name).is_some());
        if !later {
            start(view, Role::Init, container, None, decision);
        }
        return later;
    };
    match active.state {
        State::Running => false,
        State::Exited if active.exit_code == 0 => true,
        State::Exited | State::Created => {
            start(view, Role::Init, container, Some(active), decision);
            false
        }
        State::Unknown => {
            decision.kill(Kill::of_unknown(view, active, "Init container"));
            false
        }
    }
}

/// Keeps a sidecar running; true when it has started.
fn keep_sidecar(
    view: &View,
    container: &Spec,
    active: Option<&Container>,
    decision: &mut Decision,
) -> bool {
    let Some(active) = active else {
        start(view, Role::Sidecar, container, None, decision);
        return false;
    };
    match active.state {
        State::Running => {
            if let Some((reason, why)) = reason_to_kill(view, container, active) {
                decision.kill(Kill {
                    message: format!("Init container {} {why}", container.name),
                    grace: own_grace(view.pod, container, reason),
                    reason,
                    restart: true,
                    after: Vec::new(),
                    container: active,
                });
                return false;
            }
            let probes = view.memory.probes.get(&active.id);
            container.startup_probe.is_none()
                || probes.and_then(|probes| probes.startup) == Some(true)
        }
        State::Unknown => {
            decision.kill(Kill::of_unknown(view, active, "Container"));
            false
        }
        State::Created | State::Exited => {
            start(view, Role::Sidecar, container, Some(active), decision);
            false
        }
    }
}
