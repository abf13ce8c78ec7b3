//! What should happen to a pod next: a pure function from the desired and the observed state to
//! actions, and the time of the next evaluation.
//!
//! Nothing is started twice: running tasks are part of the view. A pod that stops first loses its
//! containers (sidecars last), then its sandbox, then its volumes.

mod beside;
mod init;
mod kill;
mod reset;
mod size;
mod stop;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use init::advance_init;
pub use kill::KillReason;
use kill::{Kill, own_grace, reason_to_kill};
pub use reset::source as restart_all_source;
use stop::stop_pod;

use super::{
    memory::{Memory, StartFailure, Task, Volumes, Waiting},
    observed::{Container, Observed, SandboxNeed, State},
    restart::{self, CrashBackoff, Verdict},
    spec::{self, Role},
};

/// The minimum grace period between SIGTERM and SIGKILL, in seconds.
pub const MINIMUM_GRACE: i64 = 2;

/// The inputs of a decision.
pub struct View<'a> {
    /// The pod with its allocated resources.
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    pub now: Timestamp,
    /// Set if the pod must end: it is being deleted, is gone, or has failed for good.
    pub stop: Option<Stop>,
}

/// How a pod is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The grace period of its containers in seconds.
    pub grace: i64,
    /// When the pod began to stop.
    pub since: Timestamp,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    SetUpVolumes,
    CreateSandbox {
        attempt: u32,
    },
    StopSandbox {
        id: String,
    },
    Start {
        role: Role,
        name: String,
        restart_count: u32,
        crash: Option<CrashBackoff>,
    },
    Kill {
        id: String,
        name: String,
        reason: KillReason,
        message: String,
        grace: i64,
        /// The container is started again, whatever its restart policy says about the exit code.
        restart: bool,
        /// Containers that end first, by name. Meanwhile the preStop hook runs, within the grace period.
        after: Vec<String>,
    },
    /// All containers have ended for a RestartAllContainers rule: they are removed, and the pod
    /// starts again.
    Reset {
        containers: Vec<String>,
        /// The container whose rule triggered it, with its backoff.
        crash: (String, CrashBackoff),
    },
    /// Resize running containers to their specs: ids and names.
    Resize {
        containers: Vec<(String, String)>,
    },
    TearDown,
}

impl Action {
    /// The key in [`Memory::running`].
    pub fn task(&self) -> Task {
        match self {
            Self::SetUpVolumes => Task::SetUpVolumes,
            Self::CreateSandbox { .. } => Task::CreateSandbox,
            Self::StopSandbox { id } => Task::StopSandbox(id.clone()),
            Self::Start { name, .. } => Task::Start(name.clone()),
            Self::Kill { id, .. } => Task::Kill(id.clone()),
            Self::Reset { .. } => Task::Reset,
            Self::Resize { .. } => Task::Resize,
            Self::TearDown => Task::TearDown,
        }
    }
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub actions: Vec<Action>,
    /// When to evaluate again if nothing happens before.
    pub wake: Option<Timestamp>,
    /// Containers that wait, with the reason for the status.
    pub waiting: Vec<(String, Waiting)>,
    /// No container of the pod runs, and none will.
    pub ended: bool,
    /// Containers, sandbox and volumes of the pod are all gone.
    pub stopped: bool,
}

impl Decision {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Decides about a pod.
pub fn decide(view: &View) -> Decision {
    let mut decision = Decision::default();
    if view.stop.is_some() {
        stop_pod(view, &mut decision);
    } else {
        run_pod(view, &mut decision);
    }
    // A running task is not started again, except a kill with a shorter grace period.
    decision
        .actions
        .retain(|action| match view.memory.running.get(&action.task()) {
            None => true,
            Some(begun) => matches!(action, Action::Kill { grace, .. } if grace < begun),
        });
    decision
}

fn run_pod(view: &View, decision: &mut Decision) {
    match view.observed.sandbox_need(view.pod) {
        SandboxNeed::New { attempt, .. } => replace_sandbox(view, attempt, decision),
        SandboxNeed::Use(id) => {
            kill_leftovers(view, &id, decision);
            // The sandbox is there before all that belongs to it, such as the pod's cgroup with its limits.
            if view.memory.is_running(&Task::CreateSandbox) {
                return;
            }
            if !volumes_ready(view, decision) {
                return;
            }
            if reset::restart_all(view, decision) {
                return;
            }
            start_ephemeral(view, decision);
            if advance_init(view, decision) {
                run_main(view, decision);
            }
            size::resize(view, decision);
        }
    }
}

/// Whether volumes are set up; if not, adds the action when it is due.
fn volumes_ready(view: &View, decision: &mut Decision) -> bool {
    match view.memory.volumes {
        Volumes::Ready => return true,
        Volumes::Failed { retry_at, .. } if retry_at > view.now => decision.wake_at(retry_at),
        _ => decision.actions.push(Action::SetUpVolumes),
    }
    false
}

fn replace_sandbox(view: &View, attempt: u32, decision: &mut Decision) {
    if is_done_without_sandbox(view, attempt) {
        stop_pod(view, decision);
        return;
    }
    for container in view.observed.alive() {
        let after = stop::earlier(view, &container.name);
        decision.kill(Kill {
            after,
            ..Kill::of_pod(view, container)
        });
    }
    if !decision.actions.is_empty() {
        return;
    }
    for sandbox in view
        .observed
        .sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
    {
        decision.actions.push(Action::StopSandbox {
            id: sandbox.id.clone(),
        });
    }
    if !decision.actions.is_empty() {
        return;
    }
    if !volumes_ready(view, decision) && !beside::are_volumes_beside(view) {
        return;
    }
    match &view.memory.sandbox_failure {
        Some(failure) if failure.retry_at > view.now => decision.wake_at(failure.retry_at),
        _ => decision.actions.push(Action::CreateSandbox { attempt }),
    }
}

/// Whether all containers have ended for good, so that no new sandbox is needed.
fn is_done_without_sandbox(view: &View, attempt: u32) -> bool {
    let spec = spec::spec(view.pod);
    let restarts_anything = spec.restart_policy.as_deref() != Some("Never")
        || spec.containers.iter().any(|c| c.restart_policy.is_some());
    if !restarts_anything && attempt != 0 && !view.observed.containers.is_empty() {
        return true;
    }
    let finished = |container: &Spec| {
        let policy = container
            .restart_policy
            .as_deref()
            .or(spec.restart_policy.as_deref());
        let latest = view.observed.latest(&container.name);
        policy == Some("OnFailure")
            && latest.is_some_and(|c| c.state == State::Exited && c.exit_code == 0)
    };
    view.observed.has_main_container(view.pod) && spec.containers.iter().all(finished)
}

/// Kills containers of older sandboxes.
fn kill_leftovers(view: &View, sandbox: &str, decision: &mut Decision) {
    for container in view.observed.alive().filter(|c| c.sandbox_id != sandbox) {
        decision.kill(Kill::of_pod(view, container));
    }
}

fn start_ephemeral(view: &View, decision: &mut Decision) {
    for ephemeral in spec::ephemeral_containers(view.pod) {
        if view.observed.latest(&ephemeral.name).is_none() {
            let container = spec::as_container(ephemeral);
            start(view, Role::Ephemeral, &container, None, decision);
        }
    }
}

fn run_main(view: &View, decision: &mut Decision) {
    let spec = spec::spec(view.pod);
    let mut alive = false;
    let mut held = false;
    for container in &spec.containers {
        if held && view.observed.active(&container.name).is_none() {
            // An earlier container's postStart hook still runs.
            alive = true;
            continue;
        }
        alive |= keep_main(view, container, decision);
        let hooked = spec::has_post_start(container);
        let starting = decision
            .actions
            .iter()
            .any(|action| matches!(action, Action::Start { name, .. } if *name == container.name));
        held |= hooked && (starting || view.memory.is_starting(&container.name));
    }
    if !alive {
        // Sidecars must not keep a finished pod alive.
        decision
            .actions
            .retain(|action| !matches!(action, Action::Start { .. }));
        stop_pod(view, decision);
    }
}

/// Keeps one of the pod's main containers as its policy says; false when it has ended for good.
fn keep_main(view: &View, container: &Spec, decision: &mut Decision) -> bool {
    let spec = spec::spec(view.pod);
    let latest = view.observed.latest(&container.name);
    let active = view.observed.active(&container.name);
    match (latest, active) {
        (_, Some(running)) if running.state == State::Running => {
            if let Some((reason, why)) = reason_to_kill(view, container, running) {
                let restart =
                    reason == KillReason::Changed || restart::restarts_after_kill(container, spec);
                let then = if restart { ", will be restarted" } else { "" };
                decision.kill(Kill {
                    message: format!("Container {} {why}{then}", container.name),
                    grace: own_grace(view.pod, container, reason),
                    reason,
                    restart,
                    after: Vec::new(),
                    container: running,
                });
            }
            true
        }
        (Some(ended), _) if ended.state == State::Exited => {
            let restarts = view.memory.was_killed_to_restart(ended)
                || restart::should_restart(container, spec, ended.exit_code);
            if restarts {
                start(view, Role::Main, container, Some(ended), decision);
            }
            restarts
        }
        (_, Some(unknown)) if unknown.state == State::Unknown => {
            decision.kill(Kill::of_unknown(view, unknown, "Container"));
            true
        }
        (last, _) => {
            start(view, Role::Main, container, last, decision);
            true
        }
    }
}

fn start(
    view: &View,
    role: Role,
    container: &Spec,
    last: Option<&Container>,
    decision: &mut Decision,
) {
    let name = &container.name;
    let failure = view.memory.failures.get(name);
    if view.memory.is_starting(name) {
        show_failure(view, name, failure, decision);
        return;
    }
    if let Some(failure) = failure.filter(|failure| failure.retry_at > view.now) {
        show_failure(view, name, Some(failure), decision);
        decision.wake_at(failure.retry_at);
        return;
    }
    let crash = match crash_verdict(view, container, last) {
        None => None,
        Some(Verdict::Go(next)) => Some(next),
        Some(Verdict::Wait { until, delay }) => {
            let waiting = crash_loop(view.pod, name, delay);
            decision.waiting.push((name.clone(), waiting));
            decision.wake_at(until);
            return;
        }
    };
    let restart_count = match last {
        Some(last) => last.restart_count + 1,
        // The runtime removed its containers; the API still has the restart count.
        None => remembered_restarts(view.pod, name),
    };
    show_failure(view, name, failure, decision);
    decision.actions.push(Action::Start {
        role,
        name: name.clone(),
        restart_count,
        crash,
    });
}

/// Shows why the last start failed, also while the next one is under way: it may take as long as a pull does.
fn show_failure(view: &View, name: &str, failure: Option<&StartFailure>, decision: &mut Decision) {
    let Some(failure) = failure else { return };
    let mut shown = &failure.waiting;
    if let Some((from, waiting)) = &failure.then {
        if *from <= view.now {
            shown = waiting;
        } else {
            decision.wake_at(*from);
        }
    }
    decision.waiting.push((name.to_owned(), shown.clone()));
}

/// The restart backoff of a container that ended; nothing if it starts without one.
fn crash_verdict(view: &View, container: &Spec, last: Option<&Container>) -> Option<Verdict> {
    let last = last.filter(|last| last.state == State::Exited)?;
    let hash = spec::content_hash(container);
    let crashes = view.memory.crashes.get(&container.name);
    let crashes = crashes.filter(|crashes| crashes.hash == hash);
    let finished = backoff_start(view, last, crashes)?;
    let longest = view.memory.longest_restart_delay();
    Some(restart::verdict(
        crashes, &hash, finished, view.now, longest,
    ))
}

/// The time from which the backoff counts: when the container ended. One that was killed in order to restart is
/// replaced at once if the backoff since the end of the one before it was over by then.
fn backoff_start(
    view: &View,
    last: &Container,
    crashes: Option<&CrashBackoff>,
) -> Option<Timestamp> {
    let ended_at = |container: &Container| container.finished_at.unwrap_or(container.created_at);
    let killed_at = ended_at(last);
    if !view.memory.was_killed_to_restart(last) {
        return Some(killed_at);
    }
    let mut older = view.observed.containers.iter();
    let older = older
        .find(|c| c.name == last.name && c.id != last.id && c.state == State::Exited)
        .map(ended_at);
    match (older, crashes) {
        (Some(older), Some(crashes)) if older + crashes.delay > killed_at => Some(killed_at),
        // The one before it was garbage-collected while this one waits.
        (None, Some(_)) => Some(killed_at),
        (older, _) => older,
    }
}

fn crash_loop(pod: &Pod, name: &str, delay: Duration) -> Waiting {
    Waiting {
        reason: "CrashLoopBackOff".to_owned(),
        message: format!(
            "back-off {} restarting failed container={name} pod={}",
            machinery::duration::text(Duration::from_secs(delay.as_secs())),
            spec::described(pod)
        ),
    }
}

fn remembered_restarts(pod: &Pod, name: &str) -> u32 {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        status.container_statuses.iter().flatten().chain(init)
    });
    let known = all
        .into_iter()
        .find(|status| status.name == name && status.container_id.is_some());
    known.map_or(0, |status| {
        u32::try_from(status.restart_count + 1).unwrap_or(0)
    })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
