//! Tables of edge cases of upstream's pod affinity.

use serde_json::json;

use super::*;
use crate::{
    matching::Labels,
    samples::{self, filtered, rejected, scored},
};

fn term(app: &str) -> Value {
    json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}})
}

fn near(terms: Value) -> Value {
    json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

fn far(terms: Value) -> Value {
    json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

fn preferred(kind: &str, weight: i32, app: &str) -> Value {
    let terms = json!([{"weight": weight, "podAffinityTerm": term(app)}]);
    json!({kind: {"preferredDuringSchedulingIgnoredDuringExecution": terms}})
}

fn pod(name: &str, labels: &[(&str, &str)], affinity: Value) -> Arc<PodInfo> {
    let affinity = serde_json::from_value(affinity).unwrap();
    samples::pod_labelled(name, labels, |spec| spec.affinity = affinity)
}

fn plugin() -> Arc<dyn Plugin> {
    new(&Value::Null).unwrap()
}

/// Zones a, a, b; each placed pod with its node, app and affinity.
fn cluster(placed: &[(&str, &str, Value)]) -> Cluster {
    let mut cluster = Cluster::default();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        cluster.put_node(samples::labelled(name, &[("zone", zone), ("host", name)]));
    }
    cluster.put_node(samples::labelled("none", &[]));
    for (number, (node, app, affinity)) in placed.iter().enumerate() {
        let other = pod(&format!("p{number}"), &[("app", app)], affinity.clone());
        cluster.put_pod(node, other);
    }
    cluster
}

fn left(app: &str, affinity: Value, placed: &[(&str, &str, Value)]) -> Vec<Slot> {
    let new = pod("new", &[("app", app)], affinity);
    filtered(&*plugin(), &new, &mut cluster(placed))
}

#[test]
fn a_pod_goes_near_those_it_wants_and_far_from_those_it_does_not() {
    let db = [("b1", "db", Value::Null)];
    assert_eq!(left("web", near(json!([term("db")])), &db), [2]);
    assert_eq!(left("web", far(json!([term("db")])), &db), [0, 1, 3]);
    assert!(left("web", near(json!([term("db")])), &[]).is_empty());
}

#[test]
fn one_pod_must_match_all_terms() {
    let tiered = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "x"}}});
    let both = near(json!([term("db"), tiered]));
    let mut cluster = cluster(&[("a1", "db", Value::Null)]);
    cluster.put_pod("a2", pod("t", &[("tier", "x")], Value::Null));
    let new = pod("new", &[("app", "web")], both.clone());
    assert!(
        filtered(&*plugin(), &new, &mut cluster).is_empty(),
        "each matches one term only"
    );
    cluster.put_pod("b1", pod("u", &[("app", "db"), ("tier", "x")], Value::Null));
    assert_eq!(filtered(&*plugin(), &new, &mut cluster), [2]);
}

#[test]
fn the_first_of_a_group_that_wants_to_be_together_may_begin_anywhere_with_the_label() {
    let together = near(json!([term("web")]));
    assert_eq!(left("web", together.clone(), &[]), [0, 1, 2]);
    assert_eq!(
        left("web", together.clone(), &[("a1", "web", Value::Null)]),
        [0, 1]
    );
    assert!(
        left("other", together, &[]).is_empty(),
        "it is not one of the group"
    );
}

#[test]
fn anti_affinity_of_placed_pods_excludes_matching_pods() {
    let db = [("a1", "db", far(json!([term("web")])))];
    assert_eq!(left("web", Value::Null, &db), [2, 3]);
    assert_eq!(left("other", Value::Null, &db), [0, 1, 2, 3]);
    let new = pod("new", &[("app", "web")], Value::Null);
    let found = rejected(&*plugin(), &new, &mut cluster(&db));
    assert_eq!(
        (&*found[0].reasons[0], found[0].resolvable),
        (EXISTING_ANTI_AFFINITY_MISMATCH, true)
    );
}

#[test]
fn terms_speak_of_their_own_namespace_unless_they_name_or_select_others() {
    let mut elsewhere = samples::api_pod("db", &[("app", "db")]);
    elsewhere.metadata.namespace = Some("data".into());
    let elsewhere = Arc::new(PodInfo::new(&elsewhere));
    let mut cluster = cluster(&[]);
    cluster.put_pod("b1", elsewhere);
    let team: Labels = [("team".to_owned(), "x".to_owned())].into();
    cluster.put_namespace("data", Some(team));
    let mut with = |more: Value| {
        let mut term = term("db");
        term.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let new = pod("new", &[("app", "web")], near(json!([term])));
        filtered(&*plugin(), &new, &mut cluster)
    };
    assert!(with(json!({})).is_empty());
    assert_eq!(with(json!({"namespaces": ["data"]})), [2]);
    assert_eq!(
        with(json!({"namespaceSelector": {"matchLabels": {"team": "x"}}})),
        [2]
    );
    assert!(with(json!({"namespaceSelector": {"matchLabels": {"team": "y"}}})).is_empty());
    assert_eq!(
        with(json!({"namespaceSelector": {}})),
        [2],
        "all namespaces"
    );
}

#[test]
fn preferences_count_both_ways() {
    let score = |app: &str, affinity: Value, placed: &[(&str, &str, Value)]| {
        let new = pod("new", &[("app", app)], affinity);
        scored(&*plugin(), &new, &mut cluster(placed), &[0, 1, 2, 3])
    };
    let db = |affinity: Value| [("b1", "db", affinity)];
    // Preferences of the new pod.
    let own = preferred("podAffinity", 5, "db");
    assert_eq!(score("web", own, &db(Value::Null)).unwrap(), [0, 0, 100, 0]);
    let own = preferred("podAntiAffinity", 5, "db");
    assert_eq!(
        score("web", own, &db(Value::Null)).unwrap(),
        [100, 100, 0, 100]
    );
    // Preferences of the placed pod about the new one.
    let theirs = db(preferred("podAffinity", 5, "web"));
    assert_eq!(score("web", Value::Null, &theirs).unwrap(), [0, 0, 100, 0]);
    let theirs = db(preferred("podAntiAffinity", 5, "web"));
    assert_eq!(
        score("web", Value::Null, &theirs).unwrap(),
        [100, 100, 0, 100]
    );
    // Required affinity of the placed pod counts with hardPodAffinityWeight.
    let theirs = db(near(json!([term("web")])));
    assert_eq!(score("web", Value::Null, &theirs).unwrap(), [0, 0, 100, 0]);
    assert_eq!(score("other", Value::Null, &theirs), None);
}

#[test]
fn plugin_arguments_change_the_score() {
    let theirs = [("b1", "db", near(json!([term("web")])))];
    let new_pod = pod("new", &[("app", "web")], Value::Null);
    let score = |arguments: Value| {
        let plugin = new(&arguments).unwrap();
        scored(&*plugin, &new_pod, &mut cluster(&theirs), &[0, 2])
    };
    assert_eq!(score(json!({"hardPodAffinityWeight": 0})), None);
    assert_eq!(
        score(json!({"ignorePreferredTermsOfExistingPods": true})),
        None
    );
    assert!(new(&json!({"hardPodAffinityWeight": 101})).is_err());
}

#[test]
fn only_pods_that_matter_to_it_wake_a_pod() {
    let cluster = cluster(&[]);
    let plugin = plugin();
    let db = pod("db", &[("app", "db")], Value::Null);
    let web = pod("web", &[("app", "web")], Value::Null);
    let helped = |affinity: Value, event: Event<'_>| {
        let waiting = pod("new", &[("app", "web")], affinity);
        plugin.is_helped_by(&waiting, &event, &cluster)
    };
    assert!(helped(near(json!([term("db")])), Event::PodAdded(&db)));
    assert!(!helped(near(json!([term("db")])), Event::PodAdded(&web)));
    assert!(helped(
        far(json!([term("db")])),
        Event::PodDeleted(&db, None)
    ));
    assert!(!helped(
        far(json!([term("db")])),
        Event::PodDeleted(&web, None)
    ));
    let hostile = pod("h", &[("app", "h")], far(json!([term("web")])));
    assert!(helped(Value::Null, Event::PodDeleted(&hostile, None)));
}
