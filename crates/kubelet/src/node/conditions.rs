//! The node's conditions, from the runtime and the machine. Thresholds have a margin, so that a node
//! at the edge does not flap.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

use crate::pod::status::time;

/// What conditions are made of.
#[derive(Debug, Clone, Default)]
pub struct Health {
    /// Why the runtime or its network is not ready.
    pub runtime: Option<String>,
    pub memory_available: i64,
    pub disk_size: i64,
    pub disk_available: i64,
    pub pids_available: i64,
    pub pids_max: i64,
}

const MIB: i64 = 1024 * 1024;

/// Computes all conditions, keeping the times of those that did not change.
pub fn conditions(health: &Health, old: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let was = |type_: &str| old.iter().find(|condition| condition.type_ == type_);
    let pressed = |type_: &str| was(type_).is_some_and(|condition| condition.status == "True");
    let margin = |type_: &str, bound: i64| {
        if pressed(type_) {
            bound + bound / 5
        } else {
            bound
        }
    };
    let memory = health.memory_available < margin("MemoryPressure", 100 * MIB);
    let disk = health.disk_available < margin("DiskPressure", health.disk_size / 20);
    let pids = health.pids_available < margin("PIDPressure", health.pids_max / 10);
    let pressure = |on: bool, yes: [&'static str; 2], no: [&'static str; 2]| {
        let [reason, message] = if on { yes } else { no };
        (
            if on { "True" } else { "False" },
            reason,
            message.to_owned(),
        )
    };
    let ready = match &health.runtime {
        None => (
            "True",
            "KubeletReady",
            "kubelet is posting ready status".to_owned(),
        ),
        Some(why) => ("False", "KubeletNotReady", why.clone()),
    };
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

    fn health() -> Health {
        Health {
            runtime: None,
            memory_available: 1000 * MIB,
            disk_size: 1000 * MIB,
            disk_available: 500 * MIB,
            pids_available: 1000,
            pids_max: 2000,
        }
    }

    fn status<'a>(all: &'a [NodeCondition], type_: &str) -> &'a str {
        &all.iter()
            .find(|condition| condition.type_ == type_)
            .unwrap()
            .status
    }

    #[test]
    fn a_healthy_node_is_ready_and_unpressed() {
        let all = conditions(&health(), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(status(&all, "Ready"), "True");
        for type_ in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
            assert_eq!(status(&all, type_), "False", "{type_}");
        }
    }

    #[test]
    fn pressure_ends_only_with_a_margin() {
        let short = Health {
            memory_available: 99 * MIB,
            ..health()
        };
        let pressed = conditions(&short, &[], Timestamp::UNIX_EPOCH);
        assert_eq!(status(&pressed, "MemoryPressure"), "True");
        let better = Health {
            memory_available: 110 * MIB,
            ..health()
        };
        let still = conditions(&better, &pressed, Timestamp::UNIX_EPOCH);
        assert_eq!(status(&still, "MemoryPressure"), "True");
        let good = Health {
            memory_available: 121 * MIB,
            ..health()
        };
        let free = conditions(&good, &pressed, Timestamp::UNIX_EPOCH);
        assert_eq!(status(&free, "MemoryPressure"), "False");
    }

    #[test]
    fn the_runtimes_reason_is_the_nodes() {
        let down = Health {
            runtime: Some("container runtime is down".into()),
            ..health()
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
