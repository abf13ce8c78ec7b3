//! The statuses of a pod's containers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Facts, time};
use crate::make::resources::Bounds;
use crate::pod::{
    observed::{Container, State},
    restart, spec,
};

/// The container id in the API's format.
fn id(facts: &Facts, seen: &Container) -> Option<String> {
    Some(format!("{}://{}", facts.runtime, seen.id))
}

pub(super) fn init(facts: &Facts) -> Vec<ContainerStatus> {
    let previous = facts
        .previous
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    spec::init_containers(facts.pod)
        .iter()
        .map(|container| {
            let mut status = container_status(facts, container, previous, true);
            let started = is_started(facts, container, &status);
            status.started = Some(started);
            status.ready = if spec::is_sidecar(container) {
                started && is_ready(facts, container, &status)
            } else {
                ended_well(&status)
            };
            status
        })
        .collect()
}

pub(super) fn main(facts: &Facts) -> Vec<ContainerStatus> {
    let previous = facts
        .previous
        .container_statuses
        .as_deref()
        .unwrap_or_default();
    let mut all: Vec<_> = spec::spec(facts.pod)
        .containers
        .iter()
        .map(|container| {
            let mut status = container_status(facts, container, previous, false);
            let started = is_started(facts, container, &status);
            status.started = Some(started);
            status.ready = started && is_ready(facts, container, &status);
            status
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

pub(super) fn ephemeral(facts: &Facts) -> Vec<ContainerStatus> {
    let previous = facts
        .previous
        .ephemeral_container_statuses
        .as_deref()
        .unwrap_or_default();
    let containers = spec::ephemeral_containers(facts.pod)
        .iter()
        .map(spec::as_container);
    let containers =
        containers.map(|container| container_status(facts, &container, previous, false));
    let mut all: Vec<_> = containers.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn ended_well(status: &ContainerStatus) -> bool {
    let ended = status
        .state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    ended.is_some_and(|ended| ended.exit_code == 0)
}

fn running_id<'a>(facts: &'a Facts, status: &ContainerStatus) -> Option<&'a Container> {
    status.state.as_ref()?.running.as_ref()?;
    facts.observed.latest(&status.name)
}

fn is_started(facts: &Facts, container: &Spec, status: &ContainerStatus) -> bool {
    running_id(facts, status).is_some_and(|running| {
        let probes = facts.memory.probes.get(&running.id);
        container.startup_probe.is_none() || probes.and_then(|p| p.startup) == Some(true)
    })
}

fn is_ready(facts: &Facts, container: &Spec, status: &ContainerStatus) -> bool {
    running_id(facts, status).is_some_and(|running| {
        let probes = facts.memory.probes.get(&running.id);
        container.readiness_probe.is_none() || probes.and_then(|p| p.readiness) == Some(true)
    })
}

/// The status before `started` and `ready` are set.
fn container_status(
    facts: &Facts,
    container: &Spec,
    previous: &[ContainerStatus],
    is_init: bool,
) -> ContainerStatus {
    let old = previous.iter().find(|status| status.name == container.name);
    let mut seen = facts
        .observed
        .containers
        .iter()
        .filter(|c| c.name == container.name);
    let default = default_reason(facts);
    let mut status = match seen.next() {
        Some(latest) => {
            let mut status = observed(facts, container, latest, default);
            if latest.state == State::Unknown && old.is_some_and(is_running) {
                // The container ran and the runtime lost it: shown as terminated.
                status.state = Some(lost("terminated"));
            }
            status.last_state = match seen.next() {
                Some(before) => observed(facts, container, before, default).state,
                None => old.and_then(|old| end_before(old, &status)),
            };
            status
        }
        None => unseen(facts, container, old, is_init),
    };
    status.volume_mounts = mounts(container);
    set_size(facts, container, &mut status);
    show_waiting(facts, container, old, &mut status);
    // The API always shows the field.
    status.last_state.get_or_insert_default();
    status
}

/// Sets `allocatedResources` and `resources`.
fn set_size(facts: &Facts, container: &Spec, status: &mut ContainerStatus) {
    let allocated = container.resources.as_ref();
    status.allocated_resources = allocated.and_then(|resources| resources.requests.clone());
    status.resources = allocated.cloned();
    let seen = facts.observed.latest(&container.name);
    let requested = seen.and_then(|seen| facts.memory.held(seen)?.memory_request);
    let bounds = seen.and_then(|seen| seen.bounds).map(|bounds| Bounds {
        memory_request: requested,
        ..bounds
    });
    let running = status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some());
    let wanted = Bounds::wanted(facts.pod, container, facts.memory.cfs);
    if let (Some(resources), Some(bounds), true) = (&mut status.resources, bounds, running)
        && !bounds.are(&wanted)
    {
        let milli = |milli: i64| Quantity(format!("{milli}m"));
        let set = |list: &mut Option<BTreeMap<String, Quantity>>, key: &str, value: Quantity| {
            if let Some(list) = list {
                list.insert(key.to_owned(), value);
            }
        };
        if bounds.cpu_shares != wanted.cpu_shares {
            set(&mut resources.requests, "cpu", milli(bounds.cpu_request()));
        }
        if bounds.cpu_quota != wanted.cpu_quota {
            set(
                &mut resources.limits,
                "cpu",
                milli(bounds.cpu_limit(facts.memory.cfs)),
            );
        }
        if bounds.requests_other_memory(&wanted) {
            let request = bounds.memory_request.unwrap_or_default();
            set(
                &mut resources.requests,
                "memory",
                Quantity(request.to_string()),
            );
        }
        if bounds.memory != wanted.memory {
            set(
                &mut resources.limits,
                "memory",
                Quantity(bounds.memory.to_string()),
            );
        }
    }
}

fn empty(container: &Spec) -> ContainerStatus {
    let image = container.image.clone().unwrap_or_default();
    ContainerStatus {
        name: container.name.clone(),
        image,
        ..Default::default()
    }
}

/// The last state of a container whose predecessor was removed from the runtime by a restart of all containers.
fn end_before(old: &ContainerStatus, status: &ContainerStatus) -> Option<ContainerState> {
    let is_replaced = old.restart_count < status.restart_count;
    let ended = old.state.clone().filter(|state| state.terminated.is_some());
    ended
        .filter(|_| is_replaced)
        .or_else(|| old.last_state.clone())
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let waiting = ContainerStateWaiting {
        reason: some(reason),
        message: some(message),
    };
    ContainerState {
        waiting: Some(waiting),
        ..Default::default()
    }
}

/// The status of a container that the runtime does not have.
fn unseen(
    facts: &Facts,
    container: &Spec,
    old: Option<&ContainerStatus>,
    is_init: bool,
) -> ContainerStatus {
    let old_state = old.and_then(|old| old.state.clone()).unwrap_or_default();
    if let (Some(old), Some(_)) = (old, &old_state.terminated) {
        return old.clone();
    }
    let mut status = empty(container);
    let initialized =
        || spec::init_containers(facts.pod).is_empty() || facts.observed.is_initialized(facts.pod);
    status.state = Some(match facts.terminal && !is_init && initialized() {
        // It never ran, and will not: an error, since the pod did not end by itself.
        true => lost("terminated"),
        false => waiting(default_reason(facts), ""),
    });
    let Some(old) = old else { return status };
    status.restart_count = old.restart_count;
    status.last_state = old.last_state.clone();
    let finished_init =
        is_init && !spec::is_sidecar(container) && facts.observed.has_main_container(facts.pod);
    if finished_init {
        let done = ContainerStateTerminated {
            reason: Some("Completed".into()),
            message: Some("Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally".into()),
            ..Default::default()
        };
        status.state = Some(ContainerState {
            terminated: Some(done),
            ..Default::default()
        });
    } else if old_state.running.is_some() {
        // The container ran before and is gone: shown as terminated.
        if facts.terminal {
            status.state = Some(lost("terminated"));
        } else if status
            .last_state
            .as_ref()
            .is_none_or(|last| last.terminated.is_none())
        {
            status.last_state = Some(lost("deleted.  The container used to be Running"));
            status.restart_count += i32::from(facts.pod.metadata.deletion_timestamp.is_none());
        }
    }
    status
}

fn lost(how: &str) -> ContainerState {
    let ended = ContainerStateTerminated {
        reason: Some("ContainerStatusUnknown".into()),
        message: Some(format!(
            "The container could not be located when the pod was {how}"
        )),
        exit_code: 137,
        ..Default::default()
    };
    ContainerState {
        terminated: Some(ended),
        ..Default::default()
    }
}

fn is_running(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    state.is_some_and(|state| state.running.is_some())
}

/// The waiting reason if no better one is known.
fn default_reason(facts: &Facts) -> &'static str {
    if spec::init_containers(facts.pod).is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    }
}

fn observed(facts: &Facts, container: &Spec, seen: &Container, waits_for: &str) -> ContainerStatus {
    let mut status = empty(container);
    status.restart_count = i32::try_from(seen.restart_count).unwrap_or(i32::MAX);
    if !seen.image.is_empty() {
        status.image.clone_from(&seen.image);
    }
    status.image_id.clone_from(&seen.image_ref);
    status.container_id = id(facts, seen);
    status.state = Some(state(facts, seen, waits_for));
    status.user = seen.user.as_ref().map(|(uid, gid, groups)| ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: *uid,
            gid: *gid,
            supplemental_groups: Some(groups.clone()).filter(|groups| !groups.is_empty()),
        }),
    });
    status
}

fn state(facts: &Facts, seen: &Container, waits_for: &str) -> ContainerState {
    match seen.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: seen.started_at.map(time),
            }),
            ..Default::default()
        },
        State::Exited => {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let ended = ContainerStateTerminated {
                exit_code: seen.exit_code,
                reason: some(&seen.reason).or_else(|| {
                    Some(
                        if seen.exit_code == 0 {
                            "Completed"
                        } else {
                            "Error"
                        }
                        .to_owned(),
                    )
                }),
                message: some(&seen.message),
                // As upstream's, a container that could not be started has the earliest time.
                started_at: Some(time(seen.started_at.unwrap_or(Timestamp::UNIX_EPOCH))),
                finished_at: seen.finished_at.map(time),
                container_id: id(facts, seen),
                signal: None,
            };
            ContainerState {
                terminated: Some(ended),
                ..Default::default()
            }
        }
        State::Created | State::Unknown => waiting(waits_for, ""),
    }
}

/// A container that will restart is waiting, and its end becomes the last state.
fn show_waiting(
    facts: &Facts,
    container: &Spec,
    old: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
) {
    if facts.terminal || facts.pod.metadata.deletion_timestamp.is_some() {
        return;
    }
    let state = status.state.clone().unwrap_or_default();
    let by_policy = match &state.terminated {
        Some(ended) => restart::should_restart(container, spec::spec(facts.pod), ended.exit_code),
        None => state.running.is_none(),
    };
    let latest = facts.observed.latest(&container.name);
    let is_killed = state.terminated.is_some()
        && latest.is_some_and(|latest| facts.memory.was_killed_to_restart(latest));
    let reasons = &mut facts.waiting.iter();
    let shown = match reasons.find(|(name, _)| *name == container.name) {
        Some((_, why)) if by_policy || is_killed => waiting(&why.reason, &why.message),
        // It waits until it runs: the API does not let a container run again that has ended for good by its restart policy.
        None if !by_policy && is_killed => {
            let before = old.and_then(|old| old.state.clone());
            let before = before.filter(|before| before.waiting.is_some());
            before.unwrap_or_else(|| waiting(default_reason(facts), ""))
        }
        _ => return,
    };
    if state.terminated.is_some() {
        status.last_state = Some(state);
    }
    status.state = Some(shown);
}

fn mounts(container: &Spec) -> Option<Vec<VolumeMountStatus>> {
    let of = |mount: &k8s_openapi::api::core::v1::VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".to_owned()),
        volume_status: None,
    };
    container
        .volume_mounts
        .as_ref()
        .map(|mounts| mounts.iter().map(of).collect())
}
