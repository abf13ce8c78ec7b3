//! The node's conditions, from the runtime's status and from eviction.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

use crate::pod::status::time;

/// The inputs of the conditions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Why the runtime or its network is not ready.
    pub runtime: Option<String>,
    /// Whether the machine is shutting down.
    pub shuts_down: bool,
    /// The pressure conditions that eviction reports.
    pub pressures: Vec<&'static str>,
}

/// Status, reason and message of the condition Ready.
fn ready(health: &Health) -> (&'static str, &'static str, String) {
    let problems = [
        health.runtime.as_deref(),
        health.shuts_down.then_some("node is shutting down"),
    ];
    let problems: Vec<&str> = problems.into_iter().flatten().collect();
    let why = match problems.as_slice() {
        [] => {
            let fine = "kubelet is posting ready status".to_owned();
            return ("True", "KubeletReady", fine);
        }
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    };
    ("False", "KubeletNotReady", why)
}

/// Computes all conditions, keeping the transition times of those that did not change.
pub(crate) fn conditions(
    health: &Health,
    old: &[NodeCondition],
    now: Timestamp,
) -> Vec<NodeCondition> {
    let was = |type_: &str| old.iter().find(|condition| condition.type_ == type_);
    let has = |type_: &str| health.pressures.contains(&type_);
    let (memory, disk, pids) = (
        has("MemoryPressure"),
        has("DiskPressure"),
        has("PIDPressure"),
    );
    let pressure = |on: bool, yes: [&'static str; 2], no: [&'static str; 2]| {
        let [reason, message] = if on { yes } else { no };
        (
            if on { "True" } else { "False" },
            reason,
            message.to_owned(),
        )
    };
    let ready = ready(health);
    let all = [
        (
            "MemoryPressure",
            pressure(
                memory,
                [
                    "KubeletHasInsufficientMemory",
                    "kubelet has insufficient memory available",
                ],
                [
                    "KubeletHasSufficientMemory",
                    "kubelet has sufficient memory available",
                ],
            ),
        ),
        (
            "DiskPressure",
            pressure(
                disk,
                ["KubeletHasDiskPressure", "kubelet has disk pressure"],
                ["KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
            ),
        ),
        (
            "PIDPressure",
            pressure(
                pids,
                [
                    "KubeletHasInsufficientPID",
                    "kubelet has insufficient PID available",
                ],
                [
                    "KubeletHasSufficientPID",
                    "kubelet has sufficient PID available",
                ],
            ),
        ),
        ("Ready", ready),
    ];
    all.into_iter()
        .map(|(type_, (status, reason, message))| {
            let same = was(type_).filter(|condition| condition.status == status);
            NodeCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_heartbeat_time: Some(time(now)),
                last_transition_time: same
                    .and_then(|condition| condition.last_transition_time.clone())
                    .or_else(|| Some(time(now))),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status<'a>(all: &'a [NodeCondition], type_: &str) -> &'a str {
        &all.iter()
            .find(|condition| condition.type_ == type_)
            .unwrap()
            .status
    }

    #[test]
    fn a_healthy_node_is_ready_and_unpressed() {
        let all = conditions(&Health::default(), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(status(&all, "Ready"), "True");
        for type_ in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
            assert_eq!(status(&all, type_), "False", "{type_}");
        }
    }

    #[test]
    fn a_condition_keeps_its_time_until_it_changes() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let short = Health {
            pressures: vec!["DiskPressure"],
            ..Health::default()
        };
        let first = conditions(&short, &[], at(1));
        assert_eq!(status(&first, "DiskPressure"), "True");
        let since = |all: &[NodeCondition]| {
            let disk = all.iter().find(|c| c.type_ == "DiskPressure");
            disk.unwrap().last_transition_time.clone().unwrap().0
        };
        let second = conditions(&short, &first, at(2));
        assert_eq!(since(&second), at(1));
        let third = conditions(&Health::default(), &second, at(3));
        assert_eq!(
            (status(&third, "DiskPressure"), since(&third)),
            ("False", at(3))
        );
    }

    #[test]
    fn the_runtimes_reason_is_the_nodes() {
        let down = Health {
            runtime: Some("container runtime is down".into()),
            ..Health::default()
        };
        let all = conditions(&down, &[], Timestamp::UNIX_EPOCH);
        let ready = all
            .iter()
            .find(|condition| condition.type_ == "Ready")
            .unwrap();
        assert_eq!(
            (ready.status.as_str(), ready.message.as_deref()),
            ("False", Some("container runtime is down"))
        );
    }
}
