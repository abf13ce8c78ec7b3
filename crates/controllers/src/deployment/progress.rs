//! The status of a Deployment: counts and the conditions Available, Progressing and ReplicaFailure.
//! Pure.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::scale::{self, available, replicas};

pub(super) const PROGRESSING: &str = "Progressing";
const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// The counts over all ReplicaSets, with the existing conditions and Available.
pub(super) fn counted(
    deployment: &Deployment,
    new: Option<&Arc<ReplicaSet>>,
    sets: &[Arc<ReplicaSet>],
    now: Timestamp,
) -> DeploymentStatus {
    let before = deployment.status.clone().unwrap_or_default();
    let actual = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
    let ready = |set: &ReplicaSet| {
        set.status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or(0)
    };
    let leaving = |set: &ReplicaSet| match &set.status {
        Some(status) if status.observed_generation.is_some() => status.terminating_replicas,
        _ => Some(0),
    };
    let positive = |count: i32| (count > 0).then_some(count);
    let sum = |count: fn(&ReplicaSet) -> i32| {
        sets.iter()
            .map(|set| count(set))
            .fold(0, i32::saturating_add)
    };
    let alive = sum(available);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: positive(sum(actual)),
        updated_replicas: positive(new.map_or(0, |set| actual(set))),
        ready_replicas: positive(sum(ready)),
        available_replicas: positive(alive),
        unavailable_replicas: positive(scale::total(sets).saturating_sub(alive)),
        terminating_replicas: sets
            .iter()
            .try_fold(0_i32, |sum, set| Some(sum.saturating_add(leaving(set)?))),
        collision_count: before.collision_count,
        conditions: before.conditions,
    };
    let enough = alive >= replicas(deployment).saturating_sub(scale::max_unavailable(deployment));
    let available = if enough {
        condition(
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
            now,
        )
    } else {
        condition(
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
            now,
        )
    };
    set(&mut status, available);
    status
}

pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

pub(super) fn find<'a>(
    status: Option<&'a DeploymentStatus>,
    kind: &str,
) -> Option<&'a DeploymentCondition> {
    status?
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == kind)
}

/// Sets a condition unless status and reason are the same; keeps the transition time if the status
/// is the same.
pub(super) fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(known) = find(Some(status), &condition.type_) {
        if known.status == condition.status && known.reason == condition.reason {
            return;
        }
        if known.status == condition.status {
            condition.last_transition_time = known.last_transition_time.clone();
        }
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

pub(super) fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
    status.conditions = status
        .conditions
        .take()
        .filter(|conditions| !conditions.is_empty());
}

/// The progress deadline; `None` if it is not set or the maximum, which means never.
pub(super) fn deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Whether all desired pods are new and available, and no old one is left.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = Some(replicas(deployment));
    let count = |count: Option<i32>| Some(count.unwrap_or(0));
    count(status.updated_replicas) == wanted
        && count(status.replicas) == wanted
        && count(status.available_replicas) == wanted
        && status.observed_generation >= deployment.metadata.generation
}

/// Records pausing and resuming, which restart the progress deadline, unless it was exceeded
/// before.
pub(super) fn note_pause(deployment: &Deployment, status: &mut DeploymentStatus, now: Timestamp) {
    let known =
        find(deployment.status.as_ref(), PROGRESSING).and_then(|known| known.reason.clone());
    if deadline(deployment).is_none() || known.as_deref() == Some(TIMED_OUT) {
        return;
    }
    let paused = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.paused)
        .unwrap_or(false);
    let is_reported = known.as_deref() == Some(PAUSED);
    if paused && !is_reported {
        set(
            status,
            condition(PROGRESSING, "Unknown", PAUSED, "Deployment is paused", now),
        );
    } else if !paused && is_reported {
        let resumed = condition(
            PROGRESSING,
            "Unknown",
            "DeploymentResumed",
            "Deployment is resumed",
            now,
        );
        set(status, resumed);
    }
}

/// Records that the newest ReplicaSet was created, or was found if no progress is recorded yet.
pub(super) fn note_newest(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    name: &str,
    made: bool,
    now: Timestamp,
) {
    if deadline(deployment).is_none() {
        return;
    }
    if made {
        let text = format!("Created new replica set \"{name}\"");
        set(
            status,
            condition(PROGRESSING, "True", "NewReplicaSetCreated", &text, now),
        );
    } else if find(Some(status), PROGRESSING).is_none() {
        let text = format!("Found new replica set \"{name}\"");
        set(
            status,
            condition(PROGRESSING, "True", "FoundNewReplicaSet", &text, now),
        );
    }
}

pub(super) fn failed_to_create(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    text: &str,
    now: Timestamp,
) {
    if deadline(deployment).is_some() {
        remove(status, PROGRESSING);
        set(
            status,
            condition(PROGRESSING, "False", "ReplicaSetCreateError", text, now),
        );
    }
}

/// Sets the condition Progressing.
pub(super) fn progress_condition(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    new: Option<&Arc<ReplicaSet>>,
    sets: &[Arc<ReplicaSet>],
    now: Timestamp,
) {
    if deadline(deployment).is_none() {
        remove(status, PROGRESSING);
    }
    let known = find(deployment.status.as_ref(), PROGRESSING).cloned();
    let reason = known.as_ref().and_then(|known| known.reason.as_deref());
    let settled = status.replicas == status.updated_replicas && reason == Some(NEW_AVAILABLE);
    if deadline(deployment).is_some() && !settled {
        let who = match new {
            Some(set) => format!(
                "ReplicaSet \"{}\"",
                set.metadata.name.as_deref().unwrap_or_default()
            ),
            None => format!(
                "Deployment \"{}\"",
                deployment.metadata.name.as_deref().unwrap_or_default()
            ),
        };
        if is_complete(deployment, status) {
            let text = format!("{who} has successfully progressed.");
            set(
                status,
                condition(PROGRESSING, "True", NEW_AVAILABLE, &text, now),
            );
        } else if has_progressed(deployment, status) {
            let text = format!("{who} is progressing.");
            let mut moving = condition(PROGRESSING, "True", "ReplicaSetUpdated", &text, now);
            if let Some(known) = known.filter(|known| known.status == "True") {
                moving.last_transition_time = known.last_transition_time;
            }
            // Replace the condition even for the same reason, to update its time.
            remove(status, PROGRESSING);
            set(status, moving);
        } else if has_timed_out(deployment, status, now) {
            let text = format!("{who} has timed out progressing.");
            set(
                status,
                condition(PROGRESSING, "False", TIMED_OUT, &text, now),
            );
        }
    }
    note_failures(status, new, sets);
}

fn has_progressed(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let before = deployment.status.clone().unwrap_or_default();
    let old = |status: &DeploymentStatus| {
        status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0)
    };
    status.updated_replicas > before.updated_replicas
        || old(status) < old(&before)
        || status.ready_replicas > before.ready_replicas
        || status.available_replicas > before.available_replicas
}

fn has_timed_out(deployment: &Deployment, status: &DeploymentStatus, now: Timestamp) -> bool {
    let Some(known) = find(Some(status), PROGRESSING) else {
        return false;
    };
    match known.reason.as_deref() {
        Some(NEW_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => {
            let last = known.last_update_time.as_ref().map(|time| time.0);
            last.zip(deadline(deployment))
                .is_some_and(|(last, deadline)| last + deadline < now)
        }
    }
}

/// Copies ReplicaFailure from the ReplicaSets, the newest first.
fn note_failures(
    status: &mut DeploymentStatus,
    new: Option<&Arc<ReplicaSet>>,
    sets: &[Arc<ReplicaSet>],
) {
    let failure = |set: &Arc<ReplicaSet>| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        conditions
            .iter()
            .find(|condition| condition.type_ == "ReplicaFailure")
            .cloned()
    };
    match new.into_iter().chain(sets).find_map(failure) {
        Some(failure) => set(
            status,
            DeploymentCondition {
                type_: failure.type_,
                status: failure.status,
                reason: failure.reason,
                message: failure.message,
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time,
            },
        ),
        None => remove(status, "ReplicaFailure"),
    }
}

/// When to check the progress deadline again.
pub(super) fn next_look(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let known = find(Some(status), PROGRESSING)?;
    let last = known.last_update_time.as_ref()?.0;
    let deadline = deadline(deployment)?;
    if is_complete(deployment, status)
        || matches!(
            known.reason.as_deref(),
            Some(TIMED_OUT | NEW_AVAILABLE | PAUSED)
        )
    {
        return None;
    }
    let left = (last + deadline).duration_since(now);
    Some(Duration::try_from(left).unwrap_or_default() + Duration::from_secs(1))
}
