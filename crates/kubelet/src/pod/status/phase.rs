//! A pod's phase from the states of its containers.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::pod::{restart, spec};

#[derive(Default)]
struct Count {
    pending_init: usize,
    pending_sidecars: usize,
    failed_init: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
}

/// A container's state: running, terminated with a code, waiting after an exit code, or waiting for
/// the first start.
enum Seen {
    Missing,
    Running { started: bool },
    Ended(i32),
    WaitingAfter(i32),
    Waiting,
    Unknown,
}

fn container_progress(all: &[&ContainerStatus], name: &str) -> Seen {
    let Some(status) = all.iter().find(|status| status.name == name) else {
        return Seen::Missing;
    };
    let Some(state) = &status.state else {
        return Seen::Unknown;
    };
    let last = status
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    if state.running.is_some() {
        Seen::Running {
            started: status.started == Some(true),
        }
    } else if let Some(ended) = &state.terminated {
        Seen::Ended(ended.exit_code)
    } else if state.waiting.is_some() {
        last.map_or(Seen::Waiting, |last| Seen::WaitingAfter(last.exit_code))
    } else {
        Seen::Unknown
    }
}

/// The phase. `terminal`: nothing starts again, whatever the restart policy. `restarts`: the container of this name starts
/// again, whatever its exit code.
pub(super) fn phase(
    pod: &Pod,
    all: &[&ContainerStatus],
    terminal: bool,
    initialized: bool,
    restarts: &dyn Fn(&str) -> bool,
) -> &'static str {
    let count = count(pod, all, restarts);
    if count.failed_init > 0 {
        // Its sidecars end first: a pod in a terminal phase has no running container.
        return if count.running > 0 {
            "Pending"
        } else {
            "Failed"
        };
    }
    let initializing = count.pending_init > 0 || (count.pending_sidecars > 0 && !initialized);
    if initializing || count.waiting > 0 {
        return "Pending";
    }
    if count.running > 0 && count.unknown == 0 {
        return "Running";
    }
    if count.running == 0 && count.stopped > 0 && count.unknown == 0 {
        let restarting = count.stopped != count.stopped_for_good;
        return match (
            terminal && !spec::is_static(pod),
            count.stopped == count.succeeded,
        ) {
            (false, _) if restarting => "Running",
            (_, true) => "Succeeded",
            (_, false) => "Failed",
        };
    }
    "Pending"
}

fn count(pod: &Pod, all: &[&ContainerStatus], restarts: &dyn Fn(&str) -> bool) -> Count {
    let mut count = Count::default();
    let spec = spec::spec(pod);
    for container in spec::init_containers(pod) {
        let state = container_progress(all, &container.name);
        if spec::is_sidecar(container) {
            count_sidecar(state, &mut count);
            continue;
        }
        match state {
            Seen::Ended(0) => {}
            Seen::Ended(code) | Seen::WaitingAfter(code) => {
                let again =
                    restarts(&container.name) || restart::should_restart(container, spec, code);
                count.failed_init += usize::from(code != 0 && !again);
            }
            _ => count.pending_init += 1,
        }
    }
    for container in &spec.containers {
        let restarts =
            |code| restarts(&container.name) || restart::should_restart(container, spec, code);
        match container_progress(all, &container.name) {
            Seen::Running { .. } => count.running += 1,
            Seen::Ended(code) => {
                count.stopped += 1;
                count.succeeded += usize::from(code == 0);
                count.stopped_for_good += usize::from(!restarts(code));
            }
            Seen::WaitingAfter(code) => {
                count.stopped += 1;
                count.stopped_for_good += usize::from(!restarts(code));
            }
            Seen::Waiting => count.waiting += 1,
            Seen::Missing | Seen::Unknown => count.unknown += 1,
        }
    }
    count
}

fn count_sidecar(state: Seen, count: &mut Count) {
    match state {
        Seen::Running { started } => {
            count.pending_sidecars += usize::from(!started);
            count.running += 1;
        }
        // An ended sidecar does not count for the phase.
        Seen::Ended(_) | Seen::WaitingAfter(_) => {}
        Seen::Waiting => {
            count.pending_sidecars += 1;
            count.waiting += 1;
        }
        Seen::Unknown => {
            count.pending_sidecars += 1;
            count.unknown += 1;
        }
        Seen::Missing => count.unknown += 1,
    }
}
