//! The plugin with small clusters: what it waits for, reserves, releases and prefers.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::json;

use super::*;
use crate::{devices::slices::Slice, samples};

fn plugin() -> Arc<dyn Plugin> {
    new(&Value::Null).unwrap()
}

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str, claim: &str) -> Arc<PodInfo> {
    let claims = json!([{"name": "gpu", "resourceClaimName": claim}]);
    let claims = parsed(claims);
    samples::pod_with(name, |spec: &mut PodSpec| {
        spec.resource_claims = Some(claims)
    })
}

fn claim_with(name: &str, version: u64, status: &Value) -> Arc<ResourceClaim> {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": 1,
        "allocationMode": "ExactCount"}});
    let meta = json!({"name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "resourceVersion": version.to_string()});
    let spec = json!({"devices": {"requests": [request]}});
    Arc::new(parsed(
        json!({"metadata": meta, "spec": spec, "status": status}),
    ))
}

fn put(cluster: &mut Cluster, claim: &Arc<ResourceClaim>) {
    let name = claim.metadata.name.clone().unwrap();
    cluster.device_claims.put("default", &name, Some(claim));
}

/// Two nodes, each with one device.
fn cluster() -> Cluster {
    let mut cluster = samples::cluster(&[("n1", "1", "1Gi"), ("n2", "1", "1Gi")]);
    let class = parsed(json!({"metadata": {"name": "gpu"}, "spec": {}}));
    cluster.put_device_class("gpu", Some(&Arc::new(class)));
    for node in ["n1", "n2"] {
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "d", "nodeName": node, "pool": pool,
            "devices": [{"name": "gpu-0"}]});
        let slice = parsed(json!({"metadata": {"name": node}, "spec": spec}));
        cluster.slices.put(node, Some(Slice::new(&slice)));
    }
    cluster
}

fn rejected(plugin: &dyn Plugin, pod: &PodInfo, cluster: &Cluster) -> Vec<String> {
    let state = match plugin.pre_filter(pod, cluster) {
        PreFilter::Continue(state) => state,
        PreFilter::Reject(why, _) => return vec![why.into_owned()],
        _ => return vec!["skipped".into()],
    };
    let mut candidates = Candidates::new(vec![0, 1]);
    plugin.filter(pod, cluster, state.as_any(), &mut candidates);
    assert_eq!(candidates.take_error(), None);
    let rejected = candidates.rejected().iter();
    let name = |slot: Slot| cluster.names[slot].clone();
    rejected
        .map(|one| format!("{}: {}", name(one.slot), one.reasons[0]))
        .collect()
}

#[test]
fn a_pod_waits_for_its_claim_and_stays_where_it_is_allocated() {
    let (plugin, mut cluster, pod) = (plugin(), cluster(), pod("a", "one"));
    let missing = "resourceclaim.resource.k8s.io \"one\" not found";
    assert_eq!(plugin.pre_enqueue(&pod, &cluster).unwrap_err(), missing);
    put(&mut cluster, &claim_with("one", 1, &json!({})));
    assert_eq!(plugin.pre_enqueue(&pod, &cluster), Ok(()));
    assert!(rejected(&*plugin, &pod, &cluster).is_empty());
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n2"]});
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    let allocation = json!({"nodeSelector": selector});
    put(
        &mut cluster,
        &claim_with("one", 2, &json!({"allocation": allocation})),
    );
    let found = rejected(&*plugin, &pod, &cluster);
    assert_eq!(found, ["n1: resourceclaim not available on the node"]);
    let mut consumers: Vec<Value> = (0..256)
        .map(|i| json!({"resource": "pods", "name": "x", "uid": format!("x{i}")}))
        .collect();
    let status = json!({"allocation": {}, "reservedFor": consumers});
    put(&mut cluster, &claim_with("one", 3, &status));
    assert_eq!(rejected(&*plugin, &pod, &cluster), ["resourceclaim in use"]);
    consumers[0]["uid"] = json!(&*pod.uid);
    let status = json!({"allocation": {}, "reservedFor": consumers});
    put(&mut cluster, &claim_with("one", 4, &status));
    assert!(rejected(&*plugin, &pod, &cluster).is_empty());
}

#[test]
fn a_claim_of_a_template_that_was_not_made_yet_keeps_the_pod_out_of_the_queue() {
    let claims = parsed(json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]));
    let pod = samples::pod_with("a", |spec| spec.resource_claims = Some(claims));
    let why = plugin().pre_enqueue(&pod, &Cluster::default()).unwrap_err();
    assert_eq!(why, "pod \"default/a\": ResourceClaim not created yet");
    let none = samples::pod("b", "0", "0");
    assert!(matches!(
        plugin().pre_filter(&none, &Cluster::default()),
        PreFilter::Skip
    ));
}

#[test]
fn a_device_is_taken_from_reserve_until_the_watch_shows_the_allocation() {
    let plugin = DynamicResources {
        filter_timeout: Duration::ZERO,
        binding_timeout: Duration::from_secs(600),
        selectors: Arc::default(),
        pending: Arc::default(),
        deadline: Mutex::default(),
    };
    let mut cluster = cluster();
    let (one, two) = (pod("a", "one"), pod("b", "two"));
    for name in ["one", "two"] {
        put(&mut cluster, &claim_with(name, 1, &json!({})));
    }
    let slot = cluster.slot("n1").unwrap();
    plugin.reserve(&one, &cluster, slot).unwrap();
    assert_eq!(
        rejected(&plugin, &two, &cluster),
        ["n1: cannot allocate all claims"]
    );
    // Another pod with the same claim waits for the allocation.
    let same = pod("c", "one");
    let why = "resource claim default/one is in the process of being allocated";
    assert_eq!(rejected(&plugin, &same, &cluster), [why]);
    plugin.unreserve(&one, slot);
    assert!(rejected(&plugin, &two, &cluster).is_empty());

    plugin.reserve(&one, &cluster, slot).unwrap();
    let allocation = plugin.pending.lock().of_pod(&one.uid).unwrap().claims[0]
        .1
        .clone();
    let claim = claim_with("one", 7, &json!({"allocation": allocation}));
    plugin.pending.lock().written(&claim, 7);
    plugin.post_bind(&one, "n1");
    assert_eq!(
        rejected(&plugin, &two, &cluster),
        ["n1: cannot allocate all claims"]
    );
    put(&mut cluster, &claim);
    assert_eq!(
        rejected(&plugin, &two, &cluster),
        ["n1: cannot allocate all claims"]
    );
    assert!(
        rejected(&plugin, &same, &cluster).len() == 1,
        "it can only be on n1"
    );
    // Deallocated: nothing is left of it.
    put(&mut cluster, &claim_with("one", 8, &json!({})));
    assert!(rejected(&plugin, &two, &cluster).is_empty());
}

#[test]
fn a_claim_that_prevents_all_nodes_is_released() {
    use crate::{
        cycle::{Outcome, Scheduling},
        framework::profile::Profile,
    };
    let (mut scheduling, profile) = (Scheduling::new(1), Profile::default_scheduler());
    scheduling.cluster = cluster();
    let pod = pod("a", "one");
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["gone"]});
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    let allocation = json!({"allocation": {"nodeSelector": selector}});
    put(&mut scheduling.cluster, &claim_with("one", 1, &allocation));
    let Outcome::Failed(failure) = scheduling.schedule(&profile, &pod) else {
        panic!("it fits nowhere");
    };
    let found = scheduling.post_filter(&profile, &pod, &failure);
    assert!(
        matches!(found.release, Some(Release::Deallocate(_))),
        "{found:?}"
    );
    assert_eq!(found.messages[0], "deallocation of ResourceClaim completed");
    // Another pod uses it: it stays.
    let consumer = json!([{"resource": "pods", "name": "other", "uid": "other"}]);
    let mut used = allocation;
    used["reservedFor"] = consumer;
    put(&mut scheduling.cluster, &claim_with("one", 2, &used));
    let found = scheduling.post_filter(&profile, &pod, &failure);
    assert!(found.release.is_none());
    assert_eq!(found.messages[0], "still not schedulable");
}

#[test]
fn the_node_with_the_earlier_alternative_is_preferred() {
    let (plugin, mut cluster) = (plugin(), cluster());
    let pool = json!({"name": "n2", "generation": 1, "resourceSliceCount": 1});
    let device = json!({"name": "big", "attributes": {"big": {"bool": true}}});
    let spec = json!({"driver": "d", "nodeName": "n2", "pool": pool, "devices": [device]});
    let slice = parsed(json!({"metadata": {"name": "n2"}, "spec": spec}));
    cluster.slices.put("n2", Some(Slice::new(&slice)));
    let text = "has(device.attributes['d'].big) && device.attributes['d'].big";
    let list = json!([
        {"name": "big", "deviceClassName": "gpu", "count": 1,
         "selectors": [{"cel": {"expression": text}}]},
        {"name": "any", "deviceClassName": "gpu", "count": 1}]);
    let mut claim = (*claim_with("one", 1, &json!({}))).clone();
    let devices = json!({"requests": [{"name": "r", "firstAvailable": list}]});
    claim.spec.devices = parsed(devices);
    put(&mut cluster, &Arc::new(claim));
    let pod = pod("a", "one");
    let state = plugin.pre_score(&pod, &cluster, &[0, 1]).unwrap();
    let mut scores = [0, 0];
    plugin.score(&pod, &cluster, &*state, &[0, 1], &mut scores);
    assert_eq!(scores, [7, 8]);
    plugin.normalize(&*state, &mut scores);
    assert_eq!(scores, [87, 100]);
}

#[test]
fn an_error_of_a_selector_gives_up_the_attempt() {
    let (plugin, mut cluster) = (plugin(), cluster());
    let class = json!({"metadata": {"name": "gpu"}, "spec": {
        "selectors": [{"cel": {"expression": "device.attributes['d'].none == 1"}}]}});
    cluster.put_device_class("gpu", Some(&Arc::new(parsed(class))));
    put(&mut cluster, &claim_with("one", 1, &json!({})));
    let pod = pod("a", "one");
    let PreFilter::Continue(state) = plugin.pre_filter(&pod, &cluster) else {
        panic!("it has a claim");
    };
    let mut candidates = Candidates::new(vec![0, 1]);
    plugin.filter(&pod, &cluster, state.as_any(), &mut candidates);
    let why = candidates.take_error().unwrap();
    let start = "running \"DynamicResources\" filter plugin: class gpu: selector #0: CEL runtime";
    assert!(why.starts_with(start), "{why}");
}

#[test]
fn changes_of_claims_help_the_pods_that_they_concern() {
    let mut cluster = cluster();
    let (free, allocated) = (json!({}), json!({"allocation": {}}));
    for name in ["one", "two"] {
        put(&mut cluster, &claim_with(name, 1, &free));
    }
    let (plugin, pod) = (plugin(), pod("a", "one"));
    let helps = |name: &str, old: Option<&Value>, new: &Value| {
        let old = old.map(|status| claim_with(name, 1, status));
        let new = claim_with(name, 2, new);
        let event = Event::DeviceClaim {
            old: old.as_deref(),
            new: &new,
        };
        plugin.is_helped_by(&pod, &event, &cluster)
    };
    assert!(helps("one", None, &free));
    assert!(!helps("one", Some(&free), &free));
    assert!(helps("one", Some(&free), &allocated));
    assert!(!helps("two", None, &free));
    assert!(!helps("two", Some(&free), &allocated));
    assert!(helps("two", Some(&allocated), &free), "a device is free");
}

#[test]
fn devices_that_fail_or_are_late_make_an_allocation_useless() {
    let timeout = Duration::from_secs(600);
    let claim = |time: &str, conditions: Value| {
        let result = json!({"request": "r", "driver": "d", "pool": "n1", "device": "gpu-0",
            "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]});
        let device = json!({"driver": "d", "pool": "n1", "device": "gpu-0",
            "conditions": conditions});
        let allocation = json!({"devices": {"results": [result]}, "allocationTimestamp": time});
        claim_with(
            "one",
            1,
            &json!({"allocation": allocation, "devices": [device]}),
        )
    };
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "R", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let (old, now) = ("2020-01-01T00:00:00Z", jiff::Timestamp::now().to_string());
    let ready = json!([condition("ready", "True")]);
    let failed = json!([condition("ready", "True"), condition("failed", "True")]);
    let waiting = json!([condition("ready", "False"), condition("failed", "False")]);
    for (time, conditions, met, useless) in [
        (old, &ready, Ok(true), false),
        (&*now, &waiting, Ok(false), false),
        (old, &waiting, Ok(false), true),
        (
            &*now,
            &failed,
            Err("device binding failed: claim=one, reason=R, message=\"m\"".to_owned()),
            true,
        ),
    ] {
        let claim = claim(time, conditions.clone());
        assert_eq!(conditions::are_met(&claim), met, "{conditions}");
        assert_eq!(
            conditions::has_failed(&claim, timeout),
            useless,
            "{conditions}"
        );
    }
}

#[test]
fn profiles_of_one_loop_share_what_is_reserved_and_a_new_loop_starts_without_it() {
    let (made, state) = (plugin(), LoopState::default());
    let in_loop = |state: &LoopState| made.for_loop(state).unwrap();
    let (one, other) = (in_loop(&state), in_loop(&state));
    let mut cluster = cluster();
    put(&mut cluster, &claim_with("one", 1, &json!({})));
    put(&mut cluster, &claim_with("two", 2, &json!({})));
    let (first, second) = (pod("a", "one"), pod("b", "two"));
    one.reserve(&first, &cluster, 0).unwrap();
    let taken = other.reserve(&second, &cluster, 0);
    assert_eq!(taken.unwrap_err(), "cannot allocate all claims");
    let restarted = in_loop(&LoopState::default());
    assert_eq!(restarted.reserve(&second, &cluster, 0), Ok(()));
}

#[test]
fn an_attempt_has_one_deadline() {
    let (mut cluster, pod) = (cluster(), pod("a", "one"));
    put(&mut cluster, &claim_with("one", 1, &json!({})));
    let plugin = new(&json!({"filterTimeout": "1ms"})).unwrap();
    plugin.pre_filter(&pod, &cluster);
    let end = std::time::Instant::now() + std::time::Duration::from_millis(1);
    while std::time::Instant::now() < end {
        std::hint::spin_loop();
    }
    let why = plugin.reserve(&pod, &cluster, 0).unwrap_err();
    assert_eq!(why, "node n1: timed out trying to allocate devices");
}

#[test]
fn a_claim_without_an_allocation_is_not_ready() {
    assert_eq!(
        conditions::are_met(&claim_with("one", 1, &json!({}))),
        Ok(false)
    );
    let allocated = claim_with("one", 2, &json!({"allocation": {}}));
    assert_eq!(conditions::are_met(&allocated), Ok(true));
}

#[test]
fn the_extended_claim_of_a_pod_is_in_its_namespace() {
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u",
        "controller": true}]);
    let annotations = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let meta = json!({"name": "c", "namespace": "theirs", "uid": "c", "ownerReferences": owner,
        "annotations": annotations});
    let claim = Arc::new(parsed(json!({"metadata": meta, "spec": {}})));
    let mut cluster = cluster();
    cluster.device_claims.put("theirs", "c", Some(&claim));
    assert!(cluster.device_claims.extended("theirs", "u").is_some());
    assert!(cluster.device_claims.extended("ours", "u").is_none());
}
