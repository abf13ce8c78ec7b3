//! Totals of pods, as tables.

use super::*;
use crate::json::json;

/// A container with this cpu request and limit.
fn cpu(amount: &str) -> Value {
    json!({"name": "c", "resources": {"requests": {"cpu": amount}, "limits": {"cpu": amount}}})
}

fn sidecar(amount: &str) -> Value {
    let mut container = cpu(amount);
    container["restartPolicy"] = "Always".into();
    container
}

fn shown(list: &ResourceList<'_>) -> Vec<String> {
    let entries = list.iter();
    entries
        .map(|(name, amount)| format!("{name}={amount}"))
        .collect()
}

#[test]
fn a_pod_needs_the_most_of_its_phases() {
    let cases = [
        (json!([]), "1"),
        (json!([cpu("2")]), "2"),
        (json!([cpu("100m")]), "1"),
        (json!([sidecar("300m")]), "1300m"),
        (json!([sidecar("300m"), sidecar("200m")]), "1500m"),
        (json!([sidecar("300m"), cpu("2")]), "2300m"),
        (json!([cpu("2"), sidecar("300m")]), "2"),
        (json!([sidecar("300m"), cpu("2"), sidecar("3")]), "4300m"),
    ];
    for (init_containers, total) in cases {
        let spec =
            json!({"containers": [cpu("500m"), cpu("500m")], "initContainers": init_containers});
        for field in [Field::Requests, Field::Limits] {
            let pod = PodResources::from_json(field, &spec, None);
            assert_eq!(shown(&pod.total()), [format!("cpu={total}")], "{spec}");
        }
    }
}

#[test]
fn pod_level_resources_replace_those_of_containers_and_overhead_adds() {
    let container = json!({"resources": {
        "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1"},
        "limits": {"cpu": "2", "ephemeral-storage": "0"}}});
    let both = json!({"cpu": "100m", "memory": "1Mi", "ephemeral-storage": "5"});
    let pod_level = json!({
        "requests": {"cpu": "4", "hugepages-2Mi": "2Mi", "ephemeral-storage": "9"},
        "limits": {"memory": "2Gi"}});
    let spec = json!({"containers": [container], "overhead": both, "resources": pod_level});

    let requests = PodResources::from_json(Field::Requests, &spec, None);
    let containers = ["cpu=1", "ephemeral-storage=1", "memory=1Gi"];
    assert_eq!(shown(&requests.containers_total()), containers);
    // Local storage is no pod-level resource.
    let without = [
        "cpu=4",
        "ephemeral-storage=1",
        "hugepages-2Mi=2Mi",
        "memory=1Gi",
    ];
    assert_eq!(shown(&requests.total_without_overhead()), without);
    let with = [
        "cpu=4100m",
        "ephemeral-storage=6",
        "hugepages-2Mi=2Mi",
        "memory=1025Mi",
    ];
    assert_eq!(shown(&requests.total()), with);

    // A limit of zero is none.
    let limits = PodResources::from_json(Field::Limits, &spec, None);
    let with = ["cpu=2100m", "ephemeral-storage=0", "memory=2049Mi"];
    assert_eq!(shown(&limits.total()), with);
    assert_eq!(
        shown(
            &PodResources::from_json(
                Field::Limits,
                &json!({"containers": [{}], "overhead": both}),
                None
            )
            .total()
        ),
        [""; 0]
    );
}

#[test]
fn during_a_resize_the_largest_amount_counts() {
    let status = |actuated: Value, reason: &str| {
        let status =
            json!({"name": "c", "resources": actuated, "allocatedResources": {"cpu": "3"}});
        json!({
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
            "containerStatuses": [status], "initContainerStatuses": [status],
        })
    };
    let both = |amount: &str| json!({"requests": {"cpu": amount}, "limits": {"cpu": amount}});
    // Spec, actuated, reason, requests, limits. Three CPUs are allocated.
    let cases = [
        ("1", both("2"), "Deferred", "3", "2"),
        ("4", both("2"), "Deferred", "4", "4"),
        ("4", both("2"), "Infeasible", "3", "2"),
        ("1", both("5"), "Infeasible", "5", "5"),
        // Without resources in its status, a container has those of its spec.
        ("1", Value::Null, "Deferred", "1", "1"),
    ];
    for (spec, actuated, reason, requests, limits) in cases {
        for (field, total) in [(Field::Requests, requests), (Field::Limits, limits)] {
            let status = status(actuated.clone(), reason);
            let total = [format!("cpu={total}")];
            let pod = json!({"containers": [cpu(spec)]});
            let pod = PodResources::from_json(field, &pod, Some(&status));
            assert_eq!(shown(&pod.total()), total, "{spec} {status}");
            let pod = json!({"containers": [], "initContainers": [sidecar(spec)]});
            let pod = PodResources::from_json(field, &pod, Some(&status));
            assert_eq!(shown(&pod.total()), total, "sidecar {spec} {status}");
            let pod = json!({"containers": [], "initContainers": [cpu(spec)]});
            let pod = PodResources::from_json(field, &pod, Some(&status));
            let unchanged = [format!("cpu={spec}")];
            assert_eq!(shown(&pod.total()), unchanged, "init {spec} {status}");
        }
    }
}

#[test]
fn a_resize_of_the_pod_as_a_whole_counts_only_where_the_spec_has_an_amount() {
    let spec = json!({"containers": [cpu("1")], "resources": {"requests": {"cpu": "2"}}});
    let mut pod = PodResources::from_json(Field::Requests, &spec, None);
    pod.pod_level.actuated = Some(list([("cpu", "1500m"), ("memory", "1Gi")]));
    pod.pod_level.allocated = list([("cpu", "3")]);
    assert_eq!(shown(&pod.total()), ["cpu=3"]);
    pod.is_resize_infeasible = true;
    pod.pod_level.allocated.clear();
    assert_eq!(shown(&pod.total()), ["cpu=1500m"]);
}

#[test]
fn defaults_are_the_amounts_of_containers_that_have_none() {
    let spec =
        json!({"containers": [cpu("0"), {}], "initContainers": [{"restartPolicy": "Always"}]});
    let mut pod = PodResources::from_json(Field::Requests, &spec, None);
    pod.defaults = list([("cpu", "100m"), ("memory", "1Mi")]);
    assert_eq!(shown(&pod.total()), ["cpu=200m", "memory=3Mi"]);
}

#[test]
fn a_limit_holds_for_the_pod_if_every_container_has_one() {
    let free = json!({"name": "free"});
    let cases = [
        (json!({"containers": [cpu("1")]}), true),
        (json!({"containers": [cpu("1"), free]}), false),
        (json!({"containers": [cpu("1"), cpu("0")]}), false),
        (
            json!({"containers": [cpu("1")], "initContainers": [free]}),
            false,
        ),
        (
            json!({"containers": [cpu("1")], "initContainers": [sidecar("1"), free]}),
            true,
        ),
        (
            json!({"containers": [cpu("1")], "initContainers": [free, sidecar("1")]}),
            false,
        ),
        (
            json!({"containers": [free], "resources": {"limits": {"cpu": "1"}}}),
            true,
        ),
        (
            json!({"containers": [free], "resources": {"limits": {"cpu": "0"}}}),
            false,
        ),
    ];
    for (spec, all) in cases {
        let pod = PodResources::from_json(Field::Limits, &spec, None);
        assert_eq!(pod.all_have("cpu"), all, "{spec}");
    }
}

#[test]
fn invalid_quantities_are_ignored_and_enormous_ones_saturate() {
    let spec = json!({"containers": [cpu("x"), cpu("1")]});
    let pod = PodResources::from_json(Field::Requests, &spec, None);
    assert_eq!(shown(&pod.total()), ["cpu=1"]);
    let enormous = i64::MAX.to_string();
    let spec = json!({"containers": [cpu(&enormous), cpu(&enormous)]});
    let total = PodResources::from_json(Field::Requests, &spec, None).total();
    assert_eq!(total["cpu"].value(), i64::MAX);
}
