//! Tables for proposals and their limits.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior},
    core::v1::Pod,
};
use serde_json::json;

use super::{
    Labels, UNKNOWN_METRIC,
    behavior::{Bounds, History},
    calculator::{
        Proposal, Sample, Samples, Tolerances, Workload, by_average_value, by_utilization,
        by_value, by_value_per_pod, total,
    },
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

/// A pod with one container that requests a whole CPU, started long ago.
fn pod(name: &str, phase: &str, ready: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {
            "phase": phase,
            "startTime": "1970-01-02T00:00:00Z",
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "1970-01-02T00:00:01Z"}],
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn samples(values: &[(&str, i64)]) -> Samples {
    let sample = |value| Sample {
        timestamp: at(0),
        window: Duration::from_secs(60),
        value,
    };
    values
        .iter()
        .map(|(pod, value)| ((*pod).to_owned(), sample(*value)))
        .collect()
}

fn workload(pods: &[Arc<Pod>]) -> Workload<'_> {
    let count = i32::try_from(pods.len()).unwrap();
    Workload {
        spec_replicas: count,
        status_replicas: count,
        pods,
        tolerances: Tolerances::default(),
        now: at(0),
    }
}

fn running(count: usize) -> Vec<Arc<Pod>> {
    let names = (0..count).map(|index| format!("p{index}"));
    names.map(|name| pod(&name, "Running", "True")).collect()
}

fn cpu(pods: &[Arc<Pod>], used: &[(&str, i64)], target: i32) -> Result<Proposal, String> {
    by_utilization(&workload(pods), samples(used), "cpu", None, target)
}

#[test]
fn computations_are_counted_by_what_they_propose_or_by_who_is_to_blame() {
    let proposes = |replicas| {
        let proposal = Proposal {
            replicas,
            ..cpu(&running(1), &[("p0", 500)], 50).unwrap()
        };
        Ok((proposal, String::new()))
    };
    let failed = |reason| Err((reason, String::new()));
    for (outcome, action, error) in [
        (proposes(4), "scale_up", "none"),
        (proposes(2), "scale_down", "none"),
        (proposes(3), "none", "none"),
        (failed("FailedGetResourceMetric"), "none", "internal"),
        (failed(UNKNOWN_METRIC), "none", "spec"),
    ] {
        assert_eq!(Labels::of_metric(&outcome, 3), Labels { action, error });
    }
}

#[test]
fn requests_windows_and_times_may_have_any_size() {
    let large = |name: &str| {
        let mut pod = serde_json::to_value(&*pod(name, "Running", "True")).unwrap();
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "9e15"}}});
        pod["spec"]["containers"] = json!([container, container]);
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let pods = [large("a"), large("b")];
    assert_eq!(cpu(&pods, &[("a", 1)], i32::MAX).unwrap().replicas, 1);
    let mut late = serde_json::to_value(&*pods[0]).unwrap();
    late["status"]["startTime"] = json!(Timestamp::MAX.to_string());
    let late = [Arc::new(serde_json::from_value(late).unwrap())];
    let mut samples = samples(&[("a", 1)]);
    for sample in samples.values_mut() {
        sample.window = Duration::MAX;
    }
    let refused = by_utilization(&workload(&late), samples, "cpu", None, 50).unwrap_err();
    assert!(refused.contains("unready"), "{refused}");
}

#[test]
fn usage_over_the_target_grows_and_usage_under_it_shrinks() {
    let pods = running(3);
    let grown = cpu(&pods, &[("p0", 300), ("p1", 500), ("p2", 700)], 30).unwrap();
    assert_eq!((grown.replicas, grown.utilization), (5, Some(50)));
    assert_eq!(grown.usage, 500);
    let shrunk = cpu(&pods, &[("p0", 100), ("p1", 100), ("p2", 100)], 30).unwrap();
    assert_eq!(shrunk.replicas, 1);
}

#[test]
fn a_ratio_within_the_tolerance_changes_nothing() {
    let pods = running(3);
    let used = [("p0", 1010), ("p1", 1030), ("p2", 1020)];
    assert_eq!(cpu(&pods, &used, 100).unwrap().replicas, 3);
    let tight = Workload {
        tolerances: Tolerances {
            scale_down: 0.1,
            scale_up: 0.01,
        },
        ..workload(&pods)
    };
    let proposal = by_utilization(&tight, samples(&used), "cpu", None, 100).unwrap();
    assert_eq!(proposal.replicas, 4);
}

#[test]
fn pods_that_start_count_as_idle_when_the_workload_grows() {
    let mut pods = running(3);
    pods[0] = pod("p0", "Pending", "False");
    let grown = cpu(&pods, &[("p1", 500), ("p2", 700)], 30).unwrap();
    assert_eq!(grown.replicas, 4);
    // One ready pod of three is busy, the others have not started: no change.
    let mut pods = running(3);
    pods[0] = pod("p0", "Running", "False");
    pods[1] = pod("p1", "Pending", "False");
    let grown = cpu(&pods, &[("p0", 1), ("p2", 900)], 30).unwrap();
    assert_eq!(grown.replicas, 3);
}

#[test]
fn pods_without_samples_count_as_full_when_scaling_down() {
    let pods = running(4);
    let used = [("p0", 100), ("p1", 100)];
    // The two without samples are assumed to use what they request.
    assert_eq!(cpu(&pods, &used, 100).unwrap().replicas, 3);
}

#[test]
fn deleted_and_failed_pods_do_not_count() {
    let mut pods = running(2);
    pods.push(pod("p2", "Failed", "False"));
    let used = [("p0", 600), ("p1", 600), ("p2", 60_000)];
    assert_eq!(cpu(&pods, &used, 30).unwrap().replicas, 4);
}

#[test]
fn missing_metrics_and_requests_are_reported() {
    assert_eq!(
        cpu(&[], &[("p0", 1)], 30).unwrap_err(),
        "no pods returned by selector while calculating replica count"
    );
    assert_eq!(
        cpu(&running(1), &[], 30).unwrap_err(),
        "did not receive metrics for targeted pods (pods might be unready)"
    );
    let missing = by_utilization(
        &workload(&running(1)),
        samples(&[("p0", 1)]),
        "memory",
        None,
        30,
    );
    assert_eq!(
        missing.unwrap_err(),
        "missing request for memory in container main of Pod p0"
    );
    let other = by_utilization(
        &workload(&running(1)),
        samples(&[("p0", 1)]),
        "cpu",
        Some("side"),
        30,
    );
    assert_eq!(other.unwrap_err(), "container side not found in Pod p0");
}

#[test]
fn pod_level_requests_take_precedence_and_the_overhead_counts() {
    let mut pod = Arc::unwrap_or_clone(pod("p0", "Running", "True"));
    let own = serde_json::json!({"containers": [], "overhead": {"cpu": "1"},
        "resources": {"requests": {"cpu": "3"}}});
    pod.spec = serde_json::from_value(own).unwrap();
    let pods = [Arc::new(pod)];
    let half = cpu(&pods, &[("p0", 2000)], 50).unwrap();
    assert_eq!((half.replicas, half.utilization), (1, Some(50)));
    let missing = by_utilization(&workload(&pods), samples(&[("p0", 1)]), "memory", None, 30);
    assert_eq!(
        missing.unwrap_err(),
        "missing pod-level request for memory in Pod p0"
    );
}

#[test]
fn plain_values_are_compared_by_their_average() {
    let pods = running(3);
    let used = samples(&[("p0", 20_000), ("p1", 10_000), ("p2", 30_000)]);
    let proposal = by_average_value(&workload(&pods), used, "", 15_000).unwrap();
    assert_eq!((proposal.replicas, proposal.usage), (4, 20_000));
}

#[test]
fn values_of_objects_scale_by_ready_pods_or_by_replica() {
    let mut pods = running(4);
    pods[3] = pod("p3", "Running", "False");
    assert_eq!(
        by_value(&workload(&pods), 40_000, 20_000).unwrap().replicas,
        6
    );
    let proposal = by_value_per_pod(&workload(&pods), 40_000, 5_000);
    assert_eq!((proposal.replicas, proposal.usage), (8, 10_000));
    let huge = by_value(&workload(&pods), i64::MAX, 1).unwrap();
    assert_eq!(huge.replicas, i32::MAX);
    assert_eq!(total([i64::MAX, 5]), i64::MAX);
}

fn bounds(current: i32, desired: i32) -> Bounds {
    Bounds {
        min: 1,
        max: 100,
        current,
        desired,
    }
}

fn rules(window: Option<i32>, select: &str, policies: &[(&str, i32, i32)]) -> HPAScalingRules {
    let policy = |(type_, value, period): &(&str, i32, i32)| HPAScalingPolicy {
        type_: (*type_).to_owned(),
        value: *value,
        period_seconds: *period,
    };
    HPAScalingRules {
        stabilization_window_seconds: window,
        select_policy: Some(select.to_owned()),
        policies: Some(policies.iter().map(policy).collect()),
        ..Default::default()
    }
}

#[test]
fn without_behavior_a_step_at_most_doubles_and_shrinking_waits_five_minutes() {
    let mut history = History::default();
    history.begin(10, at(0));
    let grown = history.decide(bounds(10, 50), None, at(0));
    assert_eq!(
        (grown.replicas, grown.limited, grown.limit.0),
        (20, true, "ScaleUpLimit")
    );
    let mut history = History::default();
    history.begin(10, at(0));
    let held = history.decide(bounds(10, 3), None, at(15));
    assert_eq!(
        (held.replicas, held.able_to_scale.0),
        (10, "ScaleDownStabilized")
    );
    let later = history.decide(bounds(10, 3), None, at(301));
    assert_eq!(
        (later.replicas, later.able_to_scale.0),
        (3, "ReadyForNewScale")
    );
    assert_eq!(later.limit.0, "DesiredWithinRange");
}

#[test]
fn min_and_max_replicas_hold() {
    let many = History::default().decide(
        Bounds {
            max: 12,
            ..bounds(10, 15)
        },
        None,
        at(0),
    );
    assert_eq!((many.replicas, many.limit.0), (12, "TooManyReplicas"));
    let few = History::default().decide(
        Bounds {
            min: 5,
            ..bounds(10, 2)
        },
        None,
        at(0),
    );
    assert_eq!((few.replicas, few.limit.0), (5, "TooFewReplicas"));
}

#[test]
fn rate_policies_count_replicas_changed_in_their_period() {
    let behavior = HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules(
            Some(0),
            "Max",
            &[("Pods", 4, 60), ("Percent", 10, 60)],
        )),
        scale_down: Some(rules(
            Some(0),
            "Min",
            &[("Pods", 1, 60), ("Percent", 50, 60)],
        )),
    };
    let behavior = Some(&behavior);
    let mut history = History::default();
    let first = history.decide(bounds(10, 50), behavior, at(0));
    assert_eq!((first.replicas, first.limit.0), (14, "ScaleUpLimit"));
    history.scaled(10, 14, behavior, at(0));
    assert_eq!(
        history.decide(bounds(14, 50), behavior, at(30)).replicas,
        14
    );
    assert_eq!(
        history.decide(bounds(14, 50), behavior, at(61)).replicas,
        18
    );
    let down = History::default().decide(bounds(10, 2), behavior, at(0));
    assert_eq!((down.replicas, down.limit.0), (9, "ScaleDownLimit"));
}

#[test]
fn a_disabled_direction_does_not_move() {
    let behavior = HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules(Some(0), "Max", &[("Pods", 4, 60)])),
        scale_down: Some(rules(Some(0), "Disabled", &[("Percent", 100, 15)])),
    };
    let held = History::default().decide(bounds(10, 2), Some(&behavior), at(0));
    assert_eq!((held.replicas, held.limit.0), (10, "ScaleDownLimit"));
}

#[test]
fn growing_waits_for_the_window_of_scale_up() {
    let behavior = HorizontalPodAutoscalerBehavior {
        scale_up: Some(rules(Some(120), "Max", &[("Percent", 900, 15)])),
        scale_down: Some(rules(None, "Max", &[("Percent", 100, 15)])),
    };
    let behavior = Some(&behavior);
    let mut history = History::default();
    history.begin(5, at(0));
    let held = history.decide(bounds(5, 8), behavior, at(60));
    assert_eq!(
        (held.replicas, held.able_to_scale.0),
        (5, "ScaleUpStabilized")
    );
    assert_eq!(history.decide(bounds(5, 9), behavior, at(130)).replicas, 8);
}
