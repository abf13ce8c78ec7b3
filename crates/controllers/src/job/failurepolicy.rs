//! Evaluates a Job's podFailurePolicy for a failed pod. Pure.

use k8s_openapi::api::{
    batch::v1::{
        PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
        PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
    },
    core::v1::{ContainerStatus, Pod},
};

/// The effect of one failed pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It counts towards the backoff limit: no rule matched, or a rule with the action Count.
    Count,
    /// It does not count.
    Ignore,
    /// Its index is not retried.
    FailIndex,
    /// The Job fails, with this message.
    FailJob(String),
}

impl Verdict {
    /// Whether the failure counts towards the backoff limits.
    pub(super) fn counts(&self) -> bool {
        *self != Self::Ignore
    }
}

/// The first matching rule decides. Without a policy every failure counts.
pub(super) fn matching_action(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    let rules = policy.iter().flat_map(|policy| policy.rules.iter());
    let matched = rules
        .enumerate()
        .find_map(|(at, rule)| apply(rule, at, pod));
    matched.unwrap_or(Verdict::Count)
}

/// The action of the first matching rule, as in the policy.
pub(super) fn matching_rule<'a>(policy: &'a PodFailurePolicy, pod: &Pod) -> Option<&'a str> {
    let mut rules = policy.rules.iter().enumerate();
    let rule = rules.find(|(at, rule)| apply(rule, *at, pod).is_some());
    rule.map(|(_, rule)| rule.action.as_str())
}

fn apply(rule: &PodFailurePolicyRule, at: usize, pod: &Pod) -> Option<Verdict> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let action = &rule.action;
    let message = if let Some(requirement) = &rule.on_exit_codes {
        let (container, code) = failed_container(pod, requirement)?;
        format!(
            "Container {container} for pod {namespace}/{name} failed with exit code {code} matching {action} rule at index {at}"
        )
    } else {
        let condition = matching_condition(pod, rule.on_pod_conditions.as_ref()?)?;
        format!(
            "Pod {namespace}/{name} has condition {condition} matching {action} rule at index {at}"
        )
    };
    match action.as_str() {
        "Ignore" => Some(Verdict::Ignore),
        "FailIndex" => Some(Verdict::FailIndex),
        "Count" => Some(Verdict::Count),
        "FailJob" => Some(Verdict::FailJob(message)),
        // An unknown action of a later version: continue with the next rule.
        _ => None,
    }
}

/// The first container with a matching exit code; main containers before init containers.
fn failed_container<'a>(
    pod: &'a Pod,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let status = pod.status.as_ref()?;
    let ordinary = status.container_statuses.iter().flatten();
    let mut all = ordinary.chain(status.init_container_statuses.iter().flatten());
    all.find_map(|container| matching_code(container, requirement))
}

fn matching_code<'a>(
    container: &'a ContainerStatus,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let wanted = requirement.container_name.as_ref();
    if wanted.is_some_and(|wanted| *wanted != container.name) {
        return None;
    }
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let listed = requirement.values.contains(&code);
    let matches = match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    // Exit code 0 is no failure, even if NotIn matches it.
    (code != 0 && matches).then_some((&container.name, code))
}

fn matching_condition<'a>(
    pod: &'a Pod,
    patterns: &[PodFailurePolicyOnPodConditionsPattern],
) -> Option<&'a str> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let found = conditions.find(|condition| {
        patterns.iter().any(|pattern| {
            let status = pattern.status.as_deref().unwrap_or("True");
            pattern.type_ == condition.type_ && status == condition.status
        })
    });
    found.map(|condition| condition.type_.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod with these containers and init containers (name and exit code) and conditions.
    fn pod(containers: &[(&str, Option<i32>)], inits: &[(&str, Option<i32>)]) -> Value {
        let statuses = |list: &[(&str, Option<i32>)]| -> Vec<Value> {
            let state = |code: &Option<i32>| match code {
                Some(code) => json!({"terminated": {"exitCode": code}}),
                None => json!({"running": {}}),
            };
            let status = |(name, code): &(&str, Option<i32>)| {
                json!({"name": name, "state": state(code), "image": "", "imageID": "",
                       "ready": false, "restartCount": 0})
            };
            list.iter().map(status).collect()
        };
        json!({
            "metadata": {"namespace": "ns", "name": "p"},
            "status": {
                "phase": "Failed",
                "containerStatuses": statuses(containers),
                "initContainerStatuses": statuses(inits),
            },
        })
    }

    fn judged(rules: Value, pod: Value) -> Verdict {
        let policy = serde_json::from_value(json!({ "rules": rules })).unwrap();
        matching_action(Some(&policy), &serde_json::from_value(pod).unwrap())
    }

    fn codes(action: &str, operator: &str, values: &[i32], container: Option<&str>) -> Value {
        let mut rule = json!({
            "action": action,
            "onExitCodes": {"operator": operator, "values": values},
        });
        if let Some(container) = container {
            rule["onExitCodes"]["containerName"] = json!(container);
        }
        rule
    }

    fn fail_job(container: &str, code: i32, rule: usize) -> Verdict {
        Verdict::FailJob(format!(
            "Container {container} for pod ns/p failed with exit code {code} matching FailJob rule at index {rule}"
        ))
    }

    #[test]
    fn without_a_policy_or_a_matching_rule_a_failure_counts() {
        let failed: Pod = serde_json::from_value(pod(&[("a", Some(1))], &[])).unwrap();
        assert_eq!(matching_action(None, &failed), Verdict::Count);
        let rules = json!([codes("FailJob", "In", &[2], None)]);
        assert_eq!(judged(rules, pod(&[("a", Some(1))], &[])), Verdict::Count);
    }

    #[test]
    fn exit_codes_are_matched_by_operator_container_and_order_of_the_rules() {
        let one = || pod(&[("a", Some(0)), ("b", Some(5))], &[]);
        let table = [
            (
                json!([codes("FailJob", "In", &[5, 6], None)]),
                one(),
                fail_job("b", 5, 0),
            ),
            (
                json!([codes("FailJob", "NotIn", &[5], None)]),
                one(),
                Verdict::Count,
            ),
            (
                json!([codes("FailJob", "NotIn", &[7], None)]),
                one(),
                fail_job("b", 5, 0),
            ),
            (
                json!([codes("FailJob", "In", &[5], Some("a"))]),
                one(),
                Verdict::Count,
            ),
            (
                json!([codes("FailJob", "In", &[5], Some("b"))]),
                one(),
                fail_job("b", 5, 0),
            ),
            (
                json!([codes("Ignore", "In", &[5], None)]),
                one(),
                Verdict::Ignore,
            ),
            (
                json!([codes("FailIndex", "In", &[5], None)]),
                one(),
                Verdict::FailIndex,
            ),
            (
                json!([codes("Count", "In", &[5], None)]),
                one(),
                Verdict::Count,
            ),
            (
                json!([
                    codes("Count", "In", &[5], None),
                    codes("FailJob", "In", &[5], None)
                ]),
                one(),
                Verdict::Count,
            ),
            (
                json!([
                    codes("Ignore", "In", &[4], None),
                    codes("FailJob", "In", &[5], None)
                ]),
                one(),
                fail_job("b", 5, 1),
            ),
            // An init container, after the main ones.
            (
                json!([codes("FailJob", "In", &[3, 5], None)]),
                pod(&[("b", Some(5))], &[("i", Some(3))]),
                fail_job("b", 5, 0),
            ),
            (
                json!([codes("FailJob", "In", &[3], None)]),
                pod(&[("b", None)], &[("i", Some(3))]),
                fail_job("i", 3, 0),
            ),
            // A running container has no exit code.
            (
                json!([codes("FailJob", "NotIn", &[1], None)]),
                pod(&[("a", None)], &[]),
                Verdict::Count,
            ),
            // An unknown action is skipped.
            (
                json!([
                    codes("Later", "In", &[5], None),
                    codes("Ignore", "In", &[5], None)
                ]),
                one(),
                Verdict::Ignore,
            ),
        ];
        for (rules, pod, expected) in table {
            assert_eq!(judged(rules.clone(), pod), expected, "{rules}");
        }
    }

    #[test]
    fn conditions_are_matched_by_type_and_status() {
        let mut failed = pod(&[("a", Some(1))], &[]);
        failed["status"]["conditions"] = json!([
            {"type": "Ready", "status": "False"},
            {"type": "DisruptionTarget", "status": "True"},
        ]);
        let rule = |action: &str, status: &str| {
            json!([{
                "action": action,
                "onPodConditions": [{"type": "DisruptionTarget", "status": status}],
            }])
        };
        let judged = |rules| judged(rules, failed.clone());
        assert_eq!(judged(rule("Ignore", "True")), Verdict::Ignore);
        assert_eq!(judged(rule("Ignore", "False")), Verdict::Count);
        assert_eq!(judged(rule("FailIndex", "True")), Verdict::FailIndex);
        let text = "Pod ns/p has condition DisruptionTarget matching FailJob rule at index 0";
        let failed = Verdict::FailJob(text.to_owned());
        assert_eq!(judged(rule("FailJob", "True")), failed);
    }
}
