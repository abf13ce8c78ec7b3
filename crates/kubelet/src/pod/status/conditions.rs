//! The pod conditions that the kubelet owns; those of other writers are kept.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};

use super::{Facts, Resize, time};
use crate::pod::{decide::restart_all_source, observed::SandboxNeed, restart, spec};

const OWNED: &[&str] = &[
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

struct Verdict {
    status: &'static str,
    reason: &'static str,
    message: String,
}

const TRUE: Verdict = Verdict {
    status: "True",
    reason: "",
    message: String::new(),
};

fn not(reason: &'static str, message: String) -> Verdict {
    Verdict {
        status: "False",
        reason,
        message,
    }
}

/// Whether the kubelet alone writes conditions of this type.
pub fn is_owned(type_: &str) -> bool {
    OWNED.contains(&type_)
}

/// The conditions of other writers.
pub(super) fn of_others(facts: &Facts) -> Vec<PodCondition> {
    let in_api = facts.in_api.conditions.iter().flatten();
    in_api.filter(|c| !is_owned(&c.type_)).cloned().collect()
}

pub(super) fn all(facts: &Facts, status: &PodStatus) -> Vec<PodCondition> {
    let mut conditions = of_others(facts);
    let containers_ready = containers_ready(facts, status);
    let ready = if containers_ready.status == "True" {
        gates_ready(facts, &conditions)
    } else {
        Verdict {
            message: containers_ready.message.clone(),
            ..containers_ready
        }
    };
    let verdicts = [
        ("PodReadyToStartContainers", ready_to_start(facts)),
        ("Initialized", initialized(facts, status)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", TRUE),
    ];
    conditions.extend(resize(facts));
    conditions.extend(restarting_all(facts, status));
    conditions.extend(
        verdicts
            .into_iter()
            .map(|(type_, verdict)| build(facts, type_, verdict)),
    );
    conditions
}

/// The transition time changes only with the status.
fn build(facts: &Facts, type_: &str, verdict: Verdict) -> PodCondition {
    let in_list = |list: &Option<Vec<PodCondition>>| {
        list.iter()
            .flatten()
            .find(|condition| condition.type_ == type_)
            .cloned()
    };
    let old = in_list(&facts.previous.conditions).or_else(|| in_list(&facts.in_api.conditions));
    let unchanged = old.filter(|old| old.status == verdict.status);
    let some = |text: String| (!text.is_empty()).then_some(text);
    PodCondition {
        type_: type_.to_owned(),
        status: verdict.status.to_owned(),
        reason: some(verdict.reason.to_owned()),
        message: some(verdict.message),
        last_transition_time: unchanged
            .and_then(|old| old.last_transition_time)
            .or_else(|| Some(time(facts.now))),
        last_probe_time: None,
        observed_generation: facts.pod.metadata.generation,
    }
}

fn resize(facts: &Facts) -> Option<PodCondition> {
    let (type_, reason, message) = match facts.resize? {
        Resize::Pending { reason, message } => ("PodResizePending", *reason, message.clone()),
        Resize::InProgress { error: None } => ("PodResizeInProgress", "", String::new()),
        Resize::InProgress { error: Some(error) } => {
            ("PodResizeInProgress", "Error", error.clone())
        }
    };
    Some(build(
        facts,
        type_,
        Verdict {
            status: "True",
            reason,
            message,
        },
    ))
}

/// Only for a pod with a RestartAllContainers rule.
fn restarting_all(facts: &Facts, status: &PodStatus) -> Option<PodCondition> {
    let mut containers = spec::containers(facts.pod);
    containers.find(|(_, container)| restart::could_restart_all(container))?;
    let verdict = match status.phase.as_deref() {
        Some("Succeeded") => not("PodCompleted", String::new()),
        Some("Failed") => not("PodFailed", String::new()),
        _ if restart_all_source(facts.pod, facts.observed).is_some() => Verdict {
            status: "True",
            reason: "RestartAllContainersStarted",
            message: "container exited with restart policy rule".into(),
        },
        _ => not("", String::new()),
    };
    Some(build(facts, "AllContainersRestarting", verdict))
}

fn statuses(status: &PodStatus) -> Vec<&ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
        .collect()
}

fn list(what: &str, names: &[&str]) -> Option<String> {
    (!names.is_empty()).then(|| format!("containers with {what} status: [{}]", names.join(" ")))
}

fn containers_ready(facts: &Facts, status: &PodStatus) -> Verdict {
    match status.phase.as_deref() {
        Some("Succeeded") => return not("PodCompleted", String::new()),
        Some("Failed") => return not("PodFailed", String::new()),
        _ => {}
    }
    let all = statuses(status);
    let sidecars = spec::init_containers(facts.pod)
        .iter()
        .filter(|c| spec::is_sidecar(c));
    let unready: Vec<&str> = sidecars
        .chain(&spec::spec(facts.pod).containers)
        .map(|container| container.name.as_str())
        .filter(|name| {
            !all.iter()
                .any(|status| status.name == *name && status.ready)
        })
        .collect();
    match list("unready", &unready) {
        Some(message) => not("ContainersNotReady", message),
        None => TRUE,
    }
}

fn gates_ready(facts: &Facts, conditions: &[PodCondition]) -> Verdict {
    let gates = spec::spec(facts.pod).readiness_gates.iter().flatten();
    let unmet: Vec<String> = gates
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match conditions.iter().find(|condition| condition.type_ == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if unmet.is_empty() {
        TRUE
    } else {
        not("ReadinessGatesNotReady", unmet.join(", "))
    }
}

fn initialized(facts: &Facts, status: &PodStatus) -> Verdict {
    if status.phase.as_deref() == Some("Succeeded") {
        return Verdict {
            reason: "PodCompleted",
            ..TRUE
        };
    }
    let all = statuses(status);
    let has_run = |name: &str| {
        all.iter().any(|status| {
            let state = status.state.as_ref();
            let last = status.last_state.as_ref();
            status.name == name
                && (state
                    .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
                    || last.is_some_and(|last| last.terminated.is_some()))
        })
    };
    if spec::spec(facts.pod)
        .containers
        .iter()
        .any(|container| has_run(&container.name))
    {
        return TRUE;
    }
    let incomplete: Vec<&str> = spec::init_containers(facts.pod)
        .iter()
        .filter(|container| {
            let status = all.iter().find(|status| status.name == container.name);
            !status.is_some_and(|status| {
                if spec::is_sidecar(container) {
                    status.started == Some(true)
                } else {
                    status.ready
                }
            })
        })
        .map(|container| container.name.as_str())
        .collect();
    match list("incomplete", &incomplete) {
        Some(message) => not("ContainersNotInitialized", message),
        None => TRUE,
    }
}

fn ready_to_start(facts: &Facts) -> Verdict {
    match facts.observed.sandbox_need(facts.pod) {
        SandboxNeed::Use(_) => TRUE,
        SandboxNeed::New { why, .. } => not("PodSandboxNotReady", why.to_owned()),
    }
}
