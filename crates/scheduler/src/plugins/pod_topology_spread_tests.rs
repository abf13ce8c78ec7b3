//! Tables of edge cases of upstream's topology spreading.

use serde_json::json;

use super::*;
use crate::samples::{self, filtered, rejected, scored};

fn constraint(wish: &str, more: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": wish,
        "labelSelector": {"matchLabels": {"app": "web"}},
    });
    let fields = constraint.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    constraint
}

fn pod(name: &str, constraints: Value) -> Arc<PodInfo> {
    let spread = serde_json::from_value(constraints).unwrap();
    samples::pod_labelled(name, &[("app", "web")], |spec| {
        spec.topology_spread_constraints = Some(spread);
    })
}

fn hard(more: Value) -> Arc<PodInfo> {
    pod("new", json!([constraint("DoNotSchedule", more)]))
}

fn plugin() -> Arc<dyn Plugin> {
    new(&Value::Null).unwrap()
}

/// Zones a, a, b and a node without one; `web` pods on the named nodes.
fn cluster(placed: &[&str]) -> Cluster {
    let mut cluster = Cluster::default();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        cluster.put_node(samples::labelled(name, &[("zone", zone), (HOSTNAME, name)]));
    }
    cluster.put_node(samples::labelled("none", &[]));
    for (number, node) in placed.iter().enumerate() {
        let web = samples::pod_labelled(&format!("w{number}"), &[("app", "web")], |_| {});
        cluster.put_pod(node, web);
    }
    cluster
}

#[test]
fn the_crowded_zone_and_nodes_without_the_label_are_turned_away() {
    let found = rejected(&*plugin(), &hard(json!({})), &mut cluster(&["a1"]));
    let found: Vec<_> = found
        .iter()
        .map(|r| (r.slot, &*r.reasons[0], r.resolvable))
        .collect();
    assert_eq!(
        found,
        [(0, SKEWED, true), (1, SKEWED, true), (3, NO_LABEL, false)]
    );
}

#[test]
fn the_skew_counts_the_pod_itself_only_if_it_selects_itself() {
    let left =
        |more: Value, placed: &[&str]| filtered(&*plugin(), &hard(more), &mut cluster(placed));
    assert_eq!(left(json!({}), &[]), [0, 1, 2]);
    assert_eq!(left(json!({"maxSkew": 2}), &["a1"]), [0, 1, 2]);
    assert_eq!(left(json!({"maxSkew": 2}), &["a1", "a2"]), [2]);
    let others = json!({"labelSelector": {"matchLabels": {"app": "db"}}});
    assert_eq!(left(others, &["a1"]), [0, 1, 2], "nothing is counted");
    let everything = json!({"labelSelector": {}});
    assert_eq!(
        left(everything, &["a1", "a2"]),
        [0, 1, 2],
        "as upstream has it"
    );
}

#[test]
fn missing_domains_count_as_empty() {
    let left = |domains: i32, placed: &[&str]| {
        filtered(
            &*plugin(),
            &hard(json!({"minDomains": domains})),
            &mut cluster(placed),
        )
    };
    assert_eq!(left(2, &["a1", "b1"]), [0, 1, 2]);
    assert!(left(3, &["a1", "b1"]).is_empty());
}

#[test]
fn terminating_pods_and_other_namespaces_do_not_count() {
    let mut cluster = cluster(&[]);
    let mut gone = samples::api_pod("gone", &[("app", "web")]);
    gone.metadata.deletion_timestamp = Some(samples::time(1));
    cluster.put_pod("a1", Arc::new(PodInfo::new(&gone)));
    let mut foreign = samples::api_pod("foreign", &[("app", "web")]);
    foreign.metadata.namespace = Some("other".into());
    cluster.put_pod("a1", Arc::new(PodInfo::new(&foreign)));
    assert_eq!(
        filtered(&*plugin(), &hard(json!({})), &mut cluster),
        [0, 1, 2]
    );
}

#[test]
fn nodes_that_the_pod_cannot_be_on_are_counted_only_if_the_constraint_says_so() {
    let mut cluster = cluster(&["a1"]);
    let mut tainted = samples::labelled("b1", &[("zone", "b"), (HOSTNAME, "b1")]);
    tainted.taints = serde_json::from_value(json!([{"key": "k", "effect": "NoSchedule"}])).unwrap();
    cluster.put_node(tainted);
    let mut left = |more: Value| filtered(&*plugin(), &hard(more), &mut cluster);
    assert_eq!(left(json!({})), [2], "its taints are ignored by default");
    let honored = left(json!({"nodeTaintsPolicy": "Honor"}));
    assert_eq!(honored, [0, 1, 2], "zone a is the only domain");

    let spread = serde_json::from_value(json!([constraint("DoNotSchedule", json!({}))])).unwrap();
    let picky = |policy: &str| {
        let mut spread: Vec<TopologySpreadConstraint> = Clone::clone(&spread);
        spread[0].node_affinity_policy = Some(policy.into());
        samples::pod_labelled("new", &[("app", "web")], |spec| {
            spec.topology_spread_constraints = Some(spread);
            spec.node_selector = Some([("zone".into(), "a".into())].into());
        })
    };
    assert_eq!(
        filtered(&*plugin(), &picky("Honor"), &mut cluster),
        [0, 1, 2]
    );
    assert_eq!(filtered(&*plugin(), &picky("Ignore"), &mut cluster), [2]);
}

#[test]
fn match_label_keys_restrict_the_counted_pods() {
    let spread = constraint("DoNotSchedule", json!({"matchLabelKeys": ["version"]}));
    let spread: Vec<TopologySpreadConstraint> = serde_json::from_value(json!([spread])).unwrap();
    let versioned = samples::pod_labelled("new", &[("app", "web"), ("version", "2")], |spec| {
        spec.topology_spread_constraints = Some(spread);
    });
    assert_eq!(
        filtered(&*plugin(), &versioned, &mut cluster(&["a1"])),
        [0, 1, 2]
    );
}

#[test]
fn all_constraints_hold_at_once_and_all_their_labels_are_needed() {
    let zone = constraint("DoNotSchedule", json!({}));
    let host = constraint("DoNotSchedule", json!({"topologyKey": HOSTNAME}));
    let both = pod("new", json!([zone, host]));
    let left = |placed: &[&str]| filtered(&*plugin(), &both, &mut cluster(placed));
    assert_eq!(left(&["a1"]), [2]);
    assert_eq!(left(&["a1", "b1"]), [1]);
    assert_eq!(left(&["a1", "a2", "b1", "b1"]), [0, 1]);
}

#[test]
fn schedule_anyway_constraints_lower_the_score_of_crowded_zones() {
    let wish = pod("new", json!([constraint("ScheduleAnyway", json!({}))]));
    let mut cluster = cluster(&["a1", "a1", "b1"]);
    assert_eq!(filtered(&*plugin(), &wish, &mut cluster).len(), 4);
    // Two domains: ln 4 = 1.39. a has 2 pods: 2.77 → 3; b has 1: 1.39 → 1.
    let scores = scored(&*plugin(), &wish, &mut cluster, &[0, 1, 2, 3]).unwrap();
    assert_eq!(
        scores,
        [33, 33, 100, 0],
        "the node without the label is last"
    );
}

#[test]
fn default_constraints_spread_the_pods_of_a_service() {
    let mut cluster = cluster(&["a1", "a1", "a2"]);
    let plain = samples::pod_labelled("new", &[("app", "web")], |_| {});
    assert_eq!(scored(&*plugin(), &plain, &mut cluster, &[0, 1, 2]), None);
    let selector: Labels = [("app".to_owned(), "web".to_owned())].into();
    cluster
        .workloads
        .put_service("default", "web", Some(selector));
    // By host name, three nodes: ln 5 = 1.61, and 2 for a skew of 3; the zone label is another one.
    let scores = scored(&*plugin(), &plain, &mut cluster, &[0, 1, 2]).unwrap();
    // 2 pods: 5.2 → 5; one: 3.6 → 4; none: 2.
    assert_eq!(scores, [40, 60, 100]);
    cluster.workloads.put_service("default", "web", None);
    assert_eq!(scored(&*plugin(), &plain, &mut cluster, &[0, 1, 2]), None);
}

#[test]
fn the_controllers_selector_counts_like_a_services() {
    let mut cluster = cluster(&["a1"]);
    let mut owned = samples::api_pod("new", &[("app", "web")]);
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
        "controller": true}]);
    owned.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let owned = PodInfo::new(&owned);
    assert_eq!(cluster.workloads.selector_for(&owned), None);
    let labels: Labels = [("app".to_owned(), "web".to_owned())].into();
    let selector = reconcile::Selector::labels(&labels);
    cluster
        .workloads
        .put_controller("ReplicaSet", "default", "web", Some(selector.clone()));
    assert_eq!(cluster.workloads.selector_for(&owned), Some(selector));
    let scores = scored(&*plugin(), &Arc::new(owned), &mut cluster, &[0, 2]).unwrap();
    assert!(scores[1] > scores[0], "{scores:?}");
}

#[test]
fn arguments_are_checked_as_upstream_checks_them() {
    let given =
        json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
    assert!(new(&json!({"defaultConstraints": given})).is_err());
    assert!(new(&json!({"defaultConstraints": given, "defaultingType": "List"})).is_ok());
    assert!(new(&json!({"defaultingType": "Other"})).is_err());
}

#[test]
fn only_pods_and_nodes_that_are_counted_wake_a_pod() {
    let (cluster, waiting) = (cluster(&[]), hard(json!({})));
    let plugin = plugin();
    let helped = |event: Event<'_>| plugin.is_helped_by(&waiting, &event, &cluster);
    let web = samples::pod_labelled("w", &[("app", "web")], |_| {});
    let other = samples::pod_labelled("o", &[("app", "db")], |_| {});
    assert!(helped(Event::PodDeleted(&web, None)) && helped(Event::PodAdded(&web)));
    assert!(!helped(Event::PodDeleted(&other, None)));
    let (zoned, bare) = (
        samples::labelled("n", &[("zone", "c")]),
        samples::labelled("n", &[]),
    );
    assert!(helped(Event::NodeAdded(&zoned)) && !helped(Event::NodeAdded(&bare)));
    assert!(helped(Event::NodeUpdated {
        old: &bare,
        new: &zoned
    }));
    assert!(!helped(Event::NodeUpdated {
        old: &bare,
        new: &bare
    }));
}
