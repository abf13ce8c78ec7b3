//! Preemption for a critical pod: which pods must end so that its requests fit. Pods of a lower QoS
//! class end before those of a higher one, and as few as possible.

use k8s_openapi::api::core::v1::Pod;

use super::{Shortage, request};
use crate::pod::spec::{self, QosClass};

/// How much of a resource is missing.
#[derive(Debug, Clone, PartialEq)]
struct Missing<'a> {
    resource: &'a str,
    amount: i64,
}

/// The pods to end; fails if no set of pods frees enough.
pub(super) fn victims<'a>(
    pod: &Pod,
    others: &[&'a Pod],
    shortages: &[Shortage],
) -> Result<Vec<&'a Pod>, String> {
    let missing: Vec<Missing> = shortages
        .iter()
        .map(|short| Missing {
            resource: &short.resource,
            amount: short.requested - (short.capacity - short.used),
        })
        .collect();
    let of_class = |class: QosClass| -> Vec<&'a Pod> {
        let others = others.iter().copied();
        let lower = others.filter(|other| may_preempt(pod, other));
        lower
            .filter(|other| spec::qos_class(other) == class)
            .collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let lower = [best_effort.as_slice(), &burstable].concat();
    // First the pods of the highest class that must end even if all of the lower classes end; then
    // the next class.
    let first = nearest(guaranteed, without(&missing, &lower))?;
    let kept = without(&missing, &[best_effort.as_slice(), &first].concat());
    let second = nearest(burstable, kept)?;
    let kept = without(&missing, &[second.as_slice(), &first].concat());
    let third = nearest(best_effort, kept)?;
    Ok([third, second, first].concat())
}

/// A critical pod preempts pods that are not critical; otherwise the priorities decide.
fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    if spec::is_critical(pod) && !spec::is_critical(other) {
        return true;
    }
    let priority = |pod: &Pod| spec::spec(pod).priority;
    matches!((priority(pod), priority(other)), (Some(own), Some(others)) if own > others)
}

fn amount(pod: &Pod, resource: &str) -> i64 {
    match resource {
        "pods" => 1,
        _ => request(pod, resource),
    }
}

/// What is still missing when these pods are gone.
fn without<'a>(missing: &[Missing<'a>], gone: &[&Pod]) -> Vec<Missing<'a>> {
    let left = missing.iter().map(|missing| {
        let freed = super::sum(gone.iter().map(|pod| amount(pod, missing.resource)));
        let amount = missing.amount.saturating_sub(freed);
        Missing { amount, ..*missing }
    });
    left.filter(|missing| missing.amount > 0).collect()
}

/// Picks the pod nearest to what is missing until nothing is missing; of two equally near pods the
/// smaller one.
fn nearest<'a>(
    mut pods: Vec<&'a Pod>,
    mut missing: Vec<Missing<'_>>,
) -> Result<Vec<&'a Pod>, String> {
    let mut picked = Vec::new();
    while !missing.is_empty() {
        let size = |pod: &Pod| (request(pod, "memory"), request(pod, "cpu"));
        let best = pods.iter().enumerate().min_by(|(_, one), (_, other)| {
            let by_distance = distance(one, &missing).total_cmp(&distance(other, &missing));
            by_distance.then_with(|| size(one).cmp(&size(other)))
        });
        let Some((index, _)) = best else {
            return Err(format!(
                "no set of running pods found to reclaim resources: {}",
                listed(&missing)
            ));
        };
        let pod = pods.swap_remove(index);
        missing = without(&missing, &[pod]);
        picked.push(pod);
    }
    Ok(picked)
}

/// How far the pod's requests fall short of what is missing, between 0 and 1 per resource; every
/// resource weighs the same.
fn distance(pod: &Pod, missing: &[Missing<'_>]) -> f64 {
    let parts = missing.iter().map(|missing| {
        let left = missing
            .amount
            .saturating_sub(amount(pod, missing.resource))
            .max(0);
        (left as f64 / missing.amount as f64).powi(2)
    });
    parts.sum()
}

fn listed(missing: &[Missing<'_>]) -> String {
    let mut text = String::from("[");
    for Missing { resource, amount } in missing {
        text.push_str(&format!("(res: {resource}, q: {amount}), "));
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, priority: i32, requests: serde_json::Value, limited: bool) -> Pod {
        let resources = if limited {
            serde_json::json!({"requests": requests, "limits": requests})
        } else {
            serde_json::json!({ "requests": requests })
        };
        serde_json::from_value(
            serde_json::json!({"metadata": {"name": name, "uid": name}, "spec": {"priority": priority,
                "containers": [{"name": "a", "resources": resources}]}}),
        )
        .unwrap()
    }

    fn asking(name: &str, cpu: &str, memory: &str) -> Pod {
        pod(
            name,
            0,
            serde_json::json!({"cpu": cpu, "memory": memory}),
            false,
        )
    }

    fn picked(others: &[Pod], missing: &[(&str, i64)]) -> Result<Vec<String>, String> {
        let critical = pod("critical", 2_000_000_000, serde_json::json!({}), false);
        let shortages: Vec<Shortage> = missing
            .iter()
            .map(|(resource, amount)| Shortage {
                resource: (*resource).to_owned(),
                requested: *amount,
                used: 0,
                capacity: 0,
            })
            .collect();
        let others: Vec<&Pod> = others.iter().collect();
        let victims = victims(&critical, &others, &shortages)?;
        Ok(victims
            .into_iter()
            .map(|pod| spec::name(pod).to_owned())
            .collect())
    }

    #[test]
    fn the_fewest_and_nearest_pods_of_the_lowest_class_go() {
        let mib = 1 << 20;
        let none = pod("none", 0, serde_json::json!({}), false);
        let small = asking("small", "100m", "100Mi");
        let large = asking("large", "500m", "300Mi");
        let bound = pod(
            "bound",
            0,
            serde_json::json!({"cpu": "1", "memory": "1Gi"}),
            true,
        );
        let all = [none.clone(), small.clone(), large.clone(), bound.clone()];
        type Case<'a> = (&'a [(&'a str, i64)], &'a [&'a str]);
        let cases: &[Case<'_>] = &[
            (&[("memory", 80 * mib)], &["small"]),
            (&[("memory", 200 * mib)], &["large"]),
            (&[("memory", 350 * mib)], &["large", "small"]),
            (&[("cpu", 300), ("memory", 100 * mib)], &["large"]),
            // All pods of the lower classes would not be enough: one of a higher class ends instead.
            (&[("memory", 900 * mib)], &["bound"]),
            (&[("pods", 1)], &["none"]),
            (&[("pods", 4)], &["none", "small", "large", "bound"]),
        ];
        for (missing, expected) in cases {
            let mut names = picked(&all, missing).unwrap();
            names.sort();
            let mut expected = expected.to_vec();
            expected.sort_unstable();
            assert_eq!(names, expected, "{missing:?}");
        }
    }

    #[test]
    fn critical_pods_are_not_preempted_and_insufficient_resources_are_reported() {
        let critical = pod(
            "other",
            2_000_000_000,
            serde_json::json!({"cpu": "1"}),
            false,
        );
        assert_eq!(
            picked(&[critical, asking("a", "100m", "0")], &[("cpu", 150)]),
            Err(
                "no set of running pods found to reclaim resources: [(res: cpu, q: 50), ]"
                    .to_owned()
            )
        );
    }
}
