//! Tables of feasible nodes for pods with claims.

use k8s_openapi::api::storage::v1::CSINode;
use serde_json::json;

use super::{
    find::{GONE, NO_MATCH, NO_NODE, NO_SPACE},
    *,
};
use crate::samples::{self, rejected};

fn plugin() -> VolumeBinding {
    VolumeBinding {
        timeout: Duration::from_secs(1),
        reserved: Mutex::default(),
    }
}

fn put_claim(cluster: &mut Cluster, name: &str, claim: Value) {
    let claim = Arc::new(serde_json::from_value(claim).unwrap());
    cluster.claims.put_claim("default", name, Some(&claim));
}

fn put_volume(cluster: &mut Cluster, name: &str, node: &str, size: &str) {
    let expression = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let volume = json!({
        "metadata": {"name": name},
        "spec": {"storageClassName": "local", "capacity": {"storage": size},
                 "accessModes": ["ReadWriteOnce"], "nodeAffinity": {"required": terms}},
        "status": {"phase": "Available"},
    });
    let volume = Arc::new(serde_json::from_value(volume).unwrap());
    cluster.claims.put_volume(name, Some(&volume));
}

fn put_class(cluster: &mut Cluster, name: &str, mode: &str, provisioner: &str, change: Value) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": mode});
    for (field, value) in change.as_object().into_iter().flatten() {
        class[field] = value.clone();
    }
    let class = Arc::new(serde_json::from_value(class).unwrap());
    cluster.claims.put_class(name, Some(&class));
}

fn unbound(class: &str, size: &str) -> Value {
    json!({"metadata": {"name": "data", "namespace": "default", "uid": "c"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": size}}}})
}

/// Two nodes with their host names as labels.
fn two_nodes() -> Cluster {
    let mut cluster = Cluster::default();
    for name in ["n1", "n2"] {
        let labels = [("kubernetes.io/hostname", name)];
        cluster.put_node(samples::labelled(name, &labels));
    }
    cluster
}

/// Why each node was rejected.
fn reasons(plugin: &VolumeBinding, cluster: &mut Cluster) -> Vec<(Slot, String)> {
    let pod = samples::pod_with_claim("a", "data");
    let rejected = rejected(plugin, &pod, cluster);
    let reason = |rejection: crate::framework::candidates::Rejection| {
        (rejection.slot, rejection.reasons.join(", "))
    };
    rejected.into_iter().map(reason).collect()
}

fn why(claim: Value, class: Option<&str>) -> String {
    let mut cluster = samples::cluster(&[("n1", "1", "1Gi")]);
    if !claim.is_null() {
        put_claim(&mut cluster, "data", claim);
    }
    if let Some(mode) = class {
        put_class(
            &mut cluster,
            "fast",
            mode,
            reconcile::storage::NO_PROVISIONER,
            json!({}),
        );
    }
    let pod = samples::pod_with_claim("a", "data");
    match plugin().pre_filter(&pod, &cluster) {
        PreFilter::Reject(why, false) => why.into_owned(),
        _ => {
            let mut reasons = reasons(&plugin(), &mut cluster).into_iter();
            reasons.next().map(|(_, reason)| reason).unwrap_or_default()
        }
    }
}

#[test]
fn a_pod_waits_for_its_claims_with_upstreams_message() {
    let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
    for (claim, class, message) in [
        (
            Value::Null,
            None,
            "persistentvolumeclaim \"data\" not found",
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            None,
            "persistentvolumeclaim \"data\" is being deleted",
        ),
        (
            json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Lost"}}),
            None,
            "persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"pv\"",
        ),
        (
            json!({"spec": {}}),
            None,
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            json!({"spec": {"storageClassName": "fast"}}),
            Some("Immediate"),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            json!({"spec": {"storageClassName": "fast"}}),
            Some("WaitForFirstConsumer"),
            NO_MATCH,
        ),
        (
            json!({"metadata": {"annotations": bound}, "spec": {"volumeName": "pv"}}),
            None,
            GONE,
        ),
    ] {
        assert_eq!(why(claim.clone(), class), message, "{claim}");
    }
}

#[test]
fn a_bound_volume_draws_its_pod_to_the_nodes_that_reach_it() {
    let mut cluster = two_nodes();
    let expression = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let volume = json!({"spec": {"nodeAffinity": {"required": terms}}});
    samples::bound_claim(&mut cluster, "data", "pv", volume);
    assert_eq!(reasons(&plugin(), &mut cluster), [(0, NO_NODE.to_owned())]);
}

#[test]
fn a_volume_is_chosen_on_the_node_and_taken_from_others() {
    let (mut cluster, plugin) = (two_nodes(), plugin());
    let none = reconcile::storage::NO_PROVISIONER;
    put_class(
        &mut cluster,
        "local",
        "WaitForFirstConsumer",
        none,
        json!({}),
    );
    put_claim(&mut cluster, "data", unbound("local", "1Gi"));
    put_volume(&mut cluster, "large", "n2", "5Gi");
    put_volume(&mut cluster, "small", "n2", "2Gi");
    assert_eq!(reasons(&plugin, &mut cluster), [(0, NO_MATCH.to_owned())]);
    let pod = samples::pod_with_claim("a", "data");
    plugin.reserve(&pod, &cluster, 1).unwrap();
    let found = plugin.reserved.lock().pods[&pod.uid].clone();
    assert_eq!(found.bindings[0].1, "small");
    // Another claim gets the other volume, and then there is none.
    let mut other = unbound("local", "1Gi");
    other["metadata"]["name"] = json!("other");
    put_claim(&mut cluster, "other", other);
    let second = samples::pod_with_claim("b", "other");
    plugin.reserve(&second, &cluster, 1).unwrap();
    let found = plugin.reserved.lock().pods[&second.uid].clone();
    assert_eq!(found.bindings[0].1, "large");
    let mut third = unbound("local", "1Gi");
    third["metadata"]["name"] = json!("third");
    put_claim(&mut cluster, "third", third);
    let third = samples::pod_with_claim("c", "third");
    assert_eq!(
        plugin.reserve(&third, &cluster, 1),
        Err(NO_MATCH.to_owned())
    );
    // A pod with the first claim must use the same volume.
    let same = samples::pod_with_claim("d", "data");
    plugin.reserve(&same, &cluster, 1).unwrap();
    let found = plugin.reserved.lock().pods[&same.uid].clone();
    assert_eq!(found.bindings[0].1, "small");
    plugin.unreserve(&pod, 1);
    assert!(
        plugin.reserve(&third, &cluster, 1).is_err(),
        "it is still used"
    );
    plugin.unreserve(&same, 1);
    plugin.reserve(&third, &cluster, 1).unwrap();
}

#[test]
fn a_volume_is_provisioned_for_one_node_where_the_class_allows_it() {
    let (mut cluster, plugin) = (two_nodes(), plugin());
    let term = json!({"key": "kubernetes.io/hostname", "values": ["n2"]});
    let allowed = json!({"allowedTopologies": [{"matchLabelExpressions": [term]}]});
    put_class(
        &mut cluster,
        "local",
        "WaitForFirstConsumer",
        "x.io",
        allowed,
    );
    put_claim(&mut cluster, "data", unbound("local", "1Gi"));
    assert_eq!(reasons(&plugin, &mut cluster), [(0, NO_MATCH.to_owned())]);
    put_class(
        &mut cluster,
        "local",
        "WaitForFirstConsumer",
        "x.io",
        json!({}),
    );
    assert_eq!(reasons(&plugin, &mut cluster), []);
    let pod = samples::pod_with_claim("b", "data");
    plugin.reserve(&pod, &cluster, 0).unwrap();
    assert_eq!(reasons(&plugin, &mut cluster), [(1, NO_MATCH.to_owned())]);
    plugin.unreserve(&pod, 0);
    assert_eq!(reasons(&plugin, &mut cluster), []);
    let mut chosen = unbound("local", "1Gi");
    chosen["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n2"});
    put_claim(&mut cluster, "data", chosen);
    assert_eq!(reasons(&plugin, &mut cluster), [(0, NO_MATCH.to_owned())]);
}

#[test]
fn storage_capacity_reported_by_a_driver_is_respected() {
    let (mut cluster, plugin) = (two_nodes(), plugin());
    put_class(
        &mut cluster,
        "local",
        "WaitForFirstConsumer",
        "x.io",
        json!({}),
    );
    put_claim(&mut cluster, "data", unbound("local", "2Gi"));
    let driver = json!({"metadata": {"name": "x.io"}, "spec": {"storageCapacity": true}});
    let driver = Arc::new(serde_json::from_value(driver).unwrap());
    cluster.claims.put_driver("x.io", Some(&driver));
    let no_space = |slot| (slot, NO_SPACE.to_owned());
    assert_eq!(reasons(&plugin, &mut cluster), [no_space(0), no_space(1)]);
    for (node, capacity, largest) in [("n1", "10Gi", json!("1Gi")), ("n2", "10Gi", Value::Null)] {
        let topology = json!({"matchLabels": {"kubernetes.io/hostname": node}});
        let capacity = json!({"storageClassName": "local", "capacity": capacity,
            "maximumVolumeSize": largest, "nodeTopology": topology});
        let capacity = Arc::new(serde_json::from_value(capacity).unwrap());
        cluster
            .claims
            .put_capacity("default", node, Some(&capacity));
    }
    assert_eq!(reasons(&plugin, &mut cluster), [no_space(0)]);
}

#[test]
fn a_negative_timeout_is_refused() {
    let arguments = json!({"bindTimeoutSeconds": -1});
    assert!(new(&arguments).is_err_and(|why| why.contains("negative")));
    assert!(new(&json!({"bindTimeoutSeconds": 60})).is_ok());
}

#[test]
fn the_zone_of_a_volume_that_a_csi_driver_serves_is_that_of_the_driver() {
    let mut cluster = Cluster::default();
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        let labels = [("topology.ebs.csi.aws.com/zone", zone)];
        cluster.put_node(samples::labelled(name, &labels));
    }
    let expression =
        json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
    let volume = json!({"metadata": {"name": "v"}, "spec": {
        "awsElasticBlockStore": {"volumeID": "vol-1"}, "nodeAffinity": {"required": terms}}});
    samples::bound_claim(&mut cluster, "data", "v", volume);
    let plugin = plugin();
    let no_node = |slot| (slot, NO_NODE.to_owned());
    assert_eq!(reasons(&plugin, &mut cluster), [no_node(0), no_node(1)]);
    let csi_node = |plugins: &str| {
        let annotations = json!({"storage.alpha.kubernetes.io/migrated-plugins": plugins});
        let node = json!({"metadata": {"annotations": annotations}, "spec": {"drivers": []}});
        serde_json::from_value::<CSINode>(node).unwrap()
    };
    let (none, migrated) = (csi_node(""), csi_node("kubernetes.io/aws-ebs"));
    let node = Arc::new(migrated.clone());
    cluster.claims.put_csi_node("n1", Some(&node));
    cluster.claims.put_csi_node("n2", Some(&node));
    assert_eq!(reasons(&plugin, &mut cluster), [no_node(1)]);
    let pod = samples::pod_with_claim("a", "data");
    let helps = |old, new| {
        let event = Event::CsiNode {
            old: Some(old),
            new,
        };
        plugin.is_helped_by(&pod, &event, &cluster)
    };
    assert!(helps(&none, &migrated));
    assert!(!helps(&migrated, &migrated));
}
