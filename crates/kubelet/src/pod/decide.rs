//! What should happen to a pod next: a pure function from what is wanted and what is seen to
//! actions, and the time when to look again.
//!
//! Nothing is started twice: work that is under way is in the view. A pod that is to stop first
//! loses its containers (sidecars last), then its sandbox, then its volumes.

mod init;
mod size;
mod stop;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use init::advance_init;
use stop::stop_pod;

use super::{
    memory::{Memory, Task, Volumes, Waiting},
    observed::{Container, Observed, SandboxNeed, State},
    restart::{self, CrashBackoff, Verdict},
    spec::{self, Role},
};

/// Containers get at least this long between the polite and the hard signal.
pub const MINIMUM_GRACE: i64 = 2;

/// What the worker knows.
pub struct View<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    pub now: Timestamp,
    /// The pod is to end: it is being deleted, is gone, or has failed for good.
    pub stop: Option<Stop>,
    /// The node has no room for a changed size: containers keep theirs.
    pub keep_size: bool,
}

/// How a pod is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Seconds its containers have to end by themselves.
    pub grace: i64,
}

/// Why a container is killed; decides about its grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Pod,
    Changed,
    Liveness,
    Startup,
    Unknown,
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
    },
    /// Running containers get what their specs say now: ids and names.
    Resize {
        containers: Vec<(String, String)>,
    },
    TearDown,
}

impl Action {
    /// Its place in the memory of running work.
    pub fn task(&self) -> Task {
        match self {
            Self::SetUpVolumes => Task::SetUpVolumes,
            Self::CreateSandbox { .. } => Task::CreateSandbox,
            Self::StopSandbox { id } => Task::StopSandbox(id.clone()),
            Self::Start { name, .. } => Task::Start(name.clone()),
            Self::Kill { id, .. } => Task::Kill(id.clone()),
            Self::Resize { .. } => Task::Resize,
            Self::TearDown => Task::TearDown,
        }
    }
}

/// The outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    pub actions: Vec<Action>,
    /// Look again then, even if nothing happens.
    pub wake: Option<Timestamp>,
    /// Containers that wait for a reason users should see.
    pub waiting: Vec<(String, Waiting)>,
    /// Everything of the pod has ended.
    pub stopped: bool,
}

impl Decision {
    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Decides.
pub fn decide(view: &View) -> Decision {
    let mut decision = Decision::default();
    if view.stop.is_some() {
        stop_pod(view, &mut decision);
    } else {
        run_pod(view, &mut decision);
    }
    // Work that runs is not begun again, except a kill that got less time.
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
            if !volumes_ready(view, decision) {
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

/// Whether volumes are in place; if not, sets them up when it is time.
fn volumes_ready(view: &View, decision: &mut Decision) -> bool {
    match view.memory.volumes {
        Volumes::Ready => return true,
        Volumes::Failed { retry_at } if retry_at > view.now => decision.wake_at(retry_at),
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
        kill(
            view,
            container,
            KillReason::Pod,
            String::new(),
            None,
            decision,
        );
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
    if !decision.actions.is_empty() || !volumes_ready(view, decision) {
        return;
    }
    match &view.memory.sandbox_failure {
        Some(failure) if failure.retry_at > view.now => decision.wake_at(failure.retry_at),
        _ => decision.actions.push(Action::CreateSandbox { attempt }),
    }
}

/// A pod whose containers have all ended for good needs no new sandbox.
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

/// Containers of older sandboxes have no place in the new one.
fn kill_leftovers(view: &View, sandbox: &str, decision: &mut Decision) {
    for container in view.observed.alive().filter(|c| c.sandbox_id != sandbox) {
        kill(
            view,
            container,
            KillReason::Pod,
            String::new(),
            None,
            decision,
        );
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

fn reason_to_kill(
    view: &View,
    container: &Spec,
    seen: &Container,
) -> Option<(KillReason, &'static str)> {
    let probes = view
        .memory
        .probes
        .get(&seen.id)
        .copied()
        .unwrap_or_default();
    if !seen.hash.is_empty() && seen.hash != spec::content_hash(container) {
        return Some((KillReason::Changed, "definition changed"));
    }
    if probes.liveness == Some(false) {
        return Some((KillReason::Liveness, "failed liveness probe"));
    }
    if size::needs_restart(view, container, seen) {
        return Some((KillReason::Changed, "resize requires restart"));
    }
    (probes.startup == Some(false)).then_some((KillReason::Startup, "failed startup probe"))
}

fn run_main(view: &View, decision: &mut Decision) {
    let spec = spec::spec(view.pod);
    let mut alive = false;
    let mut held = false;
    for container in &spec.containers {
        if held && view.observed.active(&container.name).is_none() {
            // A container before this one has not ended its postStart hook.
            alive = true;
            continue;
        }
        alive |= keep_main(view, container, decision);
        let hooked = container
            .lifecycle
            .as_ref()
            .is_some_and(|l| l.post_start.is_some());
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

/// Keeps one of the pod's own containers as its policy says; false when it has ended for good.
fn keep_main(view: &View, container: &Spec, decision: &mut Decision) -> bool {
    let spec = spec::spec(view.pod);
    let latest = view.observed.latest(&container.name);
    let active = view.observed.active(&container.name);
    match (latest, active) {
        (_, Some(running)) if running.state == State::Running => {
            if let Some((reason, why)) = reason_to_kill(view, container, running) {
                let restarts =
                    reason == KillReason::Changed || restart::restarts_after_kill(container, spec);
                let then = if restarts { ", will be restarted" } else { "" };
                let message = format!("Container {} {why}{then}", container.name);
                kill(view, running, reason, message, None, decision);
            }
            true
        }
        (Some(ended), _) if ended.state == State::Exited => {
            let changed = !ended.hash.is_empty() && ended.hash != spec::content_hash(container);
            let restarts = changed && restart::restarts_after_kill(container, spec)
                || restart::should_restart(container, spec, ended.exit_code);
            if restarts {
                start(view, Role::Main, container, Some(ended), decision);
            }
            restarts
        }
        (_, Some(unknown)) if unknown.state == State::Unknown => {
            let message = "Container is in \"unknown\" state, try killing it before restart";
            kill(
                view,
                unknown,
                KillReason::Unknown,
                message.to_owned(),
                None,
                decision,
            );
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
    if view.memory.is_starting(name) {
        return;
    }
    if let Some(failure) = view.memory.failures.get(name)
        && failure.retry_at > view.now
    {
        let mut shown = &failure.waiting;
        if let Some((from, waiting)) = &failure.then {
            if *from <= view.now {
                shown = waiting;
            } else {
                decision.wake_at(*from);
            }
        }
        decision.waiting.push((name.clone(), shown.clone()));
        decision.wake_at(failure.retry_at);
        return;
    }
    let mut crash = None;
    if let Some(ended) = last.filter(|last| last.state == State::Exited) {
        let finished = ended.finished_at.unwrap_or(ended.created_at);
        let hash = spec::content_hash(container);
        match restart::verdict(view.memory.crashes.get(name), &hash, finished, view.now) {
            Verdict::Go(next) => crash = Some(next),
            Verdict::Wait { until, delay } => {
                let message = format!(
                    "back-off {} restarting failed container={name} pod={}",
                    go_duration(delay.as_secs()),
                    spec::described(view.pod)
                );
                let reason = "CrashLoopBackOff".to_owned();
                decision
                    .waiting
                    .push((name.clone(), Waiting { reason, message }));
                decision.wake_at(until);
                return;
            }
        }
    }
    let restart_count = match last {
        Some(last) => last.restart_count + 1,
        // The runtime's records are gone; the API still knows how often it has run.
        None => remembered_restarts(view.pod, name),
    };
    decision.actions.push(Action::Start {
        role,
        name: name.clone(),
        restart_count,
        crash,
    });
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

/// `40s`, `2m40s`: as Go prints durations.
fn go_duration(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, s) => format!("{s}s"),
        (m, s) => format!("{m}m{s}s"),
    }
}

fn kill(
    view: &View,
    container: &Container,
    reason: KillReason,
    message: String,
    pod_grace: Option<i64>,
    decision: &mut Decision,
) {
    let grace = pod_grace.unwrap_or_else(|| own_grace(view.pod, &container.name, reason));
    let message = if message.is_empty() {
        format!("Stopping container {}", container.name)
    } else {
        message
    };
    let (id, name) = (container.id.clone(), container.name.clone());
    decision.actions.push(Action::Kill {
        id,
        name,
        reason,
        message,
        grace,
    });
}

/// A probe may have a grace period of its own.
fn own_grace(pod: &Pod, name: &str, reason: KillReason) -> i64 {
    let of_pod = spec::grace_period(pod);
    let Some((_, container)) = spec::find(pod, name) else {
        return of_pod;
    };
    let probe = match reason {
        KillReason::Liveness => container.liveness_probe,
        KillReason::Startup => container.startup_probe,
        _ => None,
    };
    probe
        .and_then(|probe| probe.termination_grace_period_seconds)
        .unwrap_or(of_pod)
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
