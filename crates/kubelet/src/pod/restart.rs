//! Whether and when an ended container starts again.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, PodSpec};

/// The first delay after a crash, and the longest.
pub const INITIAL: Duration = Duration::from_secs(10);
pub const CAP: Duration = Duration::from_secs(300);

/// The action of a rule that restarts all containers.
const RESTART_ALL: &str = "RestartAllContainers";

/// Whether a container that ended with this code starts again.
pub fn should_restart(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    if let Some("Restart" | RESTART_ALL) =
        rule(container, exit_code).map(|rule| rule.action.as_str())
    {
        return true;
    }
    let policy = container
        .restart_policy
        .as_deref()
        .or(spec.restart_policy.as_deref());
    match policy.unwrap_or("Always") {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Whether a container that ended with this code restarts all containers of its pod.
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// Whether any rule of the container could restart all containers of its pod.
pub fn could_restart_all(container: &Container) -> bool {
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.any(|rule| rule.action == RESTART_ALL)
}

/// The first rule for this code. Rules need a restart policy of the container's own.
fn rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy.as_ref()?;
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })
}

/// Whether a container that is killed for a failed probe starts again: only the policy counts.
pub fn restarts_after_kill(container: &Container, spec: &PodSpec) -> bool {
    let policy = container
        .restart_policy
        .as_deref()
        .or(spec.restart_policy.as_deref());
    policy != Some("Never")
}

/// The restart backoff of one container. A changed container starts without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashBackoff {
    pub hash: String,
    pub delay: Duration,
    pub updated: Timestamp,
}

/// Whether a container may start now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Yes, with the new backoff.
    Go(CrashBackoff),
    /// Not before then; `delay` is shown in the message.
    Wait { until: Timestamp, delay: Duration },
}

/// Decides about a container that ended at `finished`.
pub fn verdict(
    memory: Option<&CrashBackoff>,
    hash: &str,
    finished: Timestamp,
    now: Timestamp,
    longest: Duration,
) -> Verdict {
    let memory = memory.filter(|memory| memory.hash == hash);
    // The backoff is reset after ten minutes without a restart.
    let memory = memory.filter(|memory| finished - Duration::from_secs(600) <= memory.updated);
    let go = |delay| {
        Verdict::Go(CrashBackoff {
            hash: hash.to_owned(),
            delay,
            updated: now,
        })
    };
    match memory {
        None => go(INITIAL.min(longest)),
        Some(memory) if finished + memory.delay > now => Verdict::Wait {
            until: finished + memory.delay,
            delay: memory.delay,
        },
        Some(memory) => go((memory.delay * 2).min(longest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The delays before each restart of a container that ends at once.
    fn waits(longest: Duration) -> Vec<u64> {
        let mut memory = None;
        let (mut now, mut waits) = (at(1000), Vec::new());
        for _ in 0..8 {
            let finished = now;
            let go = loop {
                match verdict(memory.as_ref(), "h", finished, now, longest) {
                    Verdict::Go(next) => break next,
                    Verdict::Wait { until, .. } => now = until,
                }
            };
            waits.push((now.as_second() - finished.as_second()) as u64);
            memory = Some(go);
            now += Duration::from_secs(1);
        }
        waits
    }

    #[test]
    fn the_first_restart_is_at_once_and_delays_double_to_the_longest() {
        assert_eq!(waits(CAP), [0, 10, 20, 40, 80, 160, 300, 300]);
        let short = Duration::from_secs(30);
        assert_eq!(waits(short), [0, 10, 20, 30, 30, 30, 30, 30]);
        assert_eq!(waits(Duration::from_secs(2))[..3], [0, 2, 2]);
    }

    #[test]
    fn a_container_that_ran_for_long_or_changed_starts_at_once() {
        let memory = CrashBackoff {
            hash: "h".into(),
            delay: CAP,
            updated: at(0),
        };
        assert!(matches!(
            verdict(Some(&memory), "h", at(100), at(100), CAP),
            Verdict::Wait { .. }
        ));
        assert!(matches!(
            verdict(Some(&memory), "h", at(601), at(601), CAP),
            Verdict::Go(_)
        ));
        assert!(matches!(
            verdict(Some(&memory), "other", at(100), at(100), CAP),
            Verdict::Go(_)
        ));
    }

    #[test]
    fn policies_and_rules_decide_about_restarts() {
        let spec = |policy: &str| PodSpec {
            restart_policy: Some(policy.into()),
            ..Default::default()
        };
        let plain = Container::default();
        let cases = [
            ("Always", 0, true),
            ("OnFailure", 0, false),
            ("OnFailure", 3, true),
            ("Never", 3, false),
        ];
        for (policy, code, expected) in cases {
            assert_eq!(
                should_restart(&plain, &spec(policy), code),
                expected,
                "{policy} {code}"
            );
        }
        let ruled: Container = serde_json::from_value(serde_json::json!({"name": "c",
            "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}))
        .unwrap();
        assert!(should_restart(&ruled, &spec("Always"), 42));
        assert!(!should_restart(&ruled, &spec("Always"), 1));
        assert!(!restarts_all(&ruled, 42));
        let all: Container = serde_json::from_value(serde_json::json!({"name": "c",
            "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
            {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}]}))
        .unwrap();
        assert!(!restarts_all(&all, 1) && restarts_all(&all, 2) && !restarts_all(&all, 0));
        assert!(should_restart(&all, &spec("Never"), 2));
    }
}
