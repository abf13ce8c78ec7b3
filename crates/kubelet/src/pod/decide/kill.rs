//! Which containers are killed, why, and with which grace period.

use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use super::{Action, Decision, View, size};
use crate::pod::{observed::Container, spec};

/// Why a container is killed; determines its grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Pod,
    Changed,
    Liveness,
    Startup,
    Unknown,
    RestartAll,
}

/// Why a running container must be killed, if it must.
pub(super) fn reason_to_kill(
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

/// A container to kill.
pub(super) struct Kill<'a> {
    pub container: &'a Container,
    pub reason: KillReason,
    pub message: String,
    pub grace: i64,
    pub restart: bool,
    /// Containers that end first, by name.
    pub after: Vec<String>,
}

impl<'a> Kill<'a> {
    /// Killed because its sandbox or its pod stops.
    pub(super) fn of_pod(view: &View, container: &'a Container) -> Self {
        Self {
            container,
            reason: KillReason::Pod,
            message: format!("Stopping container {}", container.name),
            grace: spec::grace_period(view.pod),
            restart: false,
            after: Vec::new(),
        }
    }

    /// The runtime does not know whether it runs: it is killed before a new one starts.
    pub(super) fn of_unknown(view: &View, container: &'a Container, what: &str) -> Self {
        Self {
            reason: KillReason::Unknown,
            message: format!("{what} is in \"unknown\" state, try killing it before restart"),
            ..Self::of_pod(view, container)
        }
    }
}

impl Decision {
    pub(super) fn kill(&mut self, kill: Kill) {
        self.actions.push(Action::Kill {
            id: kill.container.id.clone(),
            name: kill.container.name.clone(),
            reason: kill.reason,
            message: kill.message,
            grace: kill.grace,
            restart: kill.restart,
            after: kill.after,
        });
    }
}

/// The grace period of the failed probe or of the pod.
pub(super) fn own_grace(pod: &Pod, container: &Spec, reason: KillReason) -> i64 {
    let probe = match reason {
        KillReason::Liveness => container.liveness_probe.as_ref(),
        KillReason::Startup => container.startup_probe.as_ref(),
        _ => None,
    };
    probe
        .and_then(|probe| probe.termination_grace_period_seconds)
        .unwrap_or_else(|| spec::grace_period(pod))
}
