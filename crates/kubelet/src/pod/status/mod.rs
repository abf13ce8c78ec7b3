//! Computes the pod's status from the observed state and the previous status.

mod conditions;
mod containers;
mod phase;
mod resources;

pub use conditions::is_owned;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, HostIP, Pod, PodIP, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    decide::restart_all_source,
    memory::{Memory, Waiting},
    observed::Observed,
    spec,
};

/// The maximum length of all termination messages of a pod, as upstream.
const MESSAGES: usize = 12 * 1024;

/// The inputs of the status.
pub struct Facts<'a> {
    /// The pod with its allocated resources.
    pub pod: &'a Pod,
    /// The status in the API, with conditions of other writers.
    pub in_api: &'a PodStatus,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    /// Why containers wait, from the decision.
    pub waiting: &'a [(String, Waiting)],
    /// The previous status.
    pub previous: &'a PodStatus,
    /// No container runs and none will; required for a terminal phase.
    pub ended: bool,
    /// The pod was stopped: nothing of it starts again, whatever its restart policy.
    pub terminal: bool,
    /// The node failed the pod.
    pub failed: Option<&'a Failure>,
    /// The state of a resize that is not in effect.
    pub resize: Option<&'a Resize>,
    pub host_ips: &'a [String],
    /// The runtime's name.
    pub runtime: &'a str,
    pub now: Timestamp,
}

/// The state of a resize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resize {
    /// The node lacks resources: `Deferred` for now, `Infeasible` for ever.
    Pending {
        reason: &'static str,
        message: String,
    },
    /// The resize is in progress; `error` is set if the last attempt failed.
    InProgress { error: Option<String> },
}

/// Why the node failed a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub reason: String,
    pub message: String,
    /// The pod was rejected at admission: no container has a status.
    pub rejected: bool,
}

/// A timestamp in the API's resolution of seconds.
pub fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// Computes the status.
pub fn compute(facts: &Facts) -> PodStatus {
    let previous = facts.previous;
    if is_terminal(facts.in_api.phase.as_deref()) && facts.observed.containers.is_empty() {
        // The pod ended before this worker started, and the runtime has none of its containers.
        return facts.in_api.clone();
    }
    let mut status = PodStatus {
        start_time: previous
            .start_time
            .clone()
            .or_else(|| Some(time(facts.now))),
        qos_class: previous
            .qos_class
            .clone()
            .or_else(|| Some(spec::qos_class(facts.pod).as_str().to_owned())),
        nominated_node_name: previous.nominated_node_name.clone(),
        resource_claim_statuses: facts.in_api.resource_claim_statuses.clone(),
        observed_generation: facts.pod.metadata.generation,
        ..Default::default()
    };
    if let Some(failure) = facts.failed.filter(|failure| failure.rejected) {
        status.phase = Some("Failed".into());
        status.reason = Some(failure.reason.clone());
        status.message = Some(failure.message.clone());
        status.conditions = Some(conditions::of_others(facts)).filter(|list| !list.is_empty());
        return status;
    }
    let some = |list: Vec<ContainerStatus>| Some(list).filter(|list| !list.is_empty());
    status.init_container_statuses = some(containers::init(facts));
    status.container_statuses = Some(containers::main(facts));
    status.ephemeral_container_statuses = some(containers::ephemeral(facts));
    limit_messages(facts.pod, &mut status);
    resources::set(facts, &mut status);
    set_addresses(facts, &mut status);
    set_phase(facts, &mut status);
    status.conditions = Some(conditions::all(facts, &status));
    status
}

/// The termination messages of all containers share a limit.
fn limit_messages(pod: &Pod, status: &mut PodStatus) {
    let spec = spec::spec(pod);
    let ephemeral = spec.ephemeral_containers.iter().flatten().count();
    let init = spec.init_containers.iter().flatten().count();
    let limit = MESSAGES / (spec.containers.len() + init + ephemeral).max(1);
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten().flatten() {
        for state in [&mut container.state, &mut container.last_state] {
            let ended = state.as_mut().and_then(|state| state.terminated.as_mut());
            if let Some(message) = ended.and_then(|ended| ended.message.as_mut()) {
                message.truncate(message.floor_char_boundary(limit));
            }
        }
    }
}

fn set_addresses(facts: &Facts, status: &mut PodStatus) {
    let (previous, host) = (facts.previous, facts.host_ips);
    let ips: Vec<String> = if spec::is_host_network(facts.pod) {
        host.to_vec()
    } else if facts.observed.ips().is_empty() {
        // Without a sandbox the status keeps the last addresses.
        previous
            .pod_ips
            .iter()
            .flatten()
            .map(|ip| ip.ip.clone())
            .collect()
    } else {
        facts.observed.ips().to_vec()
    };
    status.pod_ip = ips.first().cloned();
    status.pod_ips =
        Some(ips.into_iter().map(|ip| PodIP { ip }).collect()).filter(|l: &Vec<_>| !l.is_empty());
    status.host_ip = host.first().cloned();
    let host = host.iter().map(|ip| HostIP { ip: ip.clone() });
    status.host_ips = Some(host.collect()).filter(|list: &Vec<_>| !list.is_empty());
}

/// Whether a pod in this phase has ended for good.
pub fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn set_phase(facts: &Facts, status: &mut PodStatus) {
    let all: Vec<&ContainerStatus> = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten())
        .collect();
    let initialized = facts.observed.is_initialized(facts.pod);
    // Killed in order to restart, or being started: its exit code does not decide.
    let memory = facts.memory;
    let restarts_all = restart_all_source(facts.pod, facts.observed).is_some();
    let restarts = |name: &str| {
        restarts_all
            || memory.replaced.contains_key(name)
            || memory.reset.contains_key(name)
            || memory.is_starting(name)
    };
    let mut phase = phase::phase(facts.pod, &all, facts.terminal, initialized, &restarts);
    // A pod that was stopped before it ran has failed.
    if facts.terminal && !is_terminal(Some(phase)) && !spec::is_static(facts.pod) {
        phase = "Failed";
    }
    let in_api = facts.in_api.phase.as_deref();
    // A terminal phase never changes.
    for before in [in_api, facts.previous.phase.as_deref()]
        .into_iter()
        .flatten()
    {
        if is_terminal(Some(before)) {
            phase = before;
        }
    }
    if facts.previous.phase.as_deref() == Some(phase) {
        status.reason = facts.previous.reason.clone();
        status.message = facts.previous.message.clone();
    }
    // The killed containers may be removed before everything of the pod has ended.
    if let Some(failure) = facts.failed
        && (facts.ended || matches!(phase, "Failed" | "Succeeded"))
        && !is_terminal(in_api)
    {
        phase = "Failed";
        status.reason = Some(failure.reason.clone());
        status.message = Some(failure.message.clone());
    }
    status.phase = Some(phase.to_owned());
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
