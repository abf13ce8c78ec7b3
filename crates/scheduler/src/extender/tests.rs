//! Extenders that serve on a local port.

use std::sync::Mutex;

use super::*;
use crate::{
    cycle::{Failure, Outcome, Scheduling},
    framework::profile::Profile,
    samples,
};

#[path = "../../tests/fixture/http.rs"]
mod http_server;

use http_server::serve;

struct Known;

impl Objects for Known {
    fn pod<'a>(&'a self, pod: &'a PodInfo) -> BoxFuture<'a, Result<Value, String>> {
        let object = json!({"metadata": {"name": &*pod.name}});
        Box::pin(async move { Ok(object) })
    }

    fn node(&self, name: &str) -> Option<Value> {
        Some(json!({"metadata": {"name": name}}))
    }
}

fn settings(fields: Value) -> Settings {
    serde_json::from_value(fields).unwrap()
}

/// Three equal nodes.
fn scheduling(extenders: Vec<Settings>) -> Scheduling {
    let mut scheduling = Scheduling::new(1);
    scheduling.cluster =
        samples::cluster(&[("a", "4", "8Gi"), ("b", "4", "8Gi"), ("c", "4", "8Gi")]);
    let extenders = Extenders::new(&extenders, Arc::new(Known)).unwrap();
    scheduling.extenders = Arc::new(extenders);
    scheduling
}

/// Schedules on a thread that may block.
async fn decide(mut scheduling: Scheduling) -> Result<String, Failure> {
    let schedule = move || {
        let pod = samples::pod("p", "1", "1Gi");
        match scheduling.schedule(&Profile::default_scheduler(), &pod) {
            Outcome::Node { slot, .. } => Ok(scheduling.cluster.names[slot].to_string()),
            Outcome::Failed(failure) => Err(failure),
        }
    };
    tokio::task::spawn_blocking(schedule).await.unwrap()
}

fn names_of(body: &Value) -> Vec<String> {
    let items = body["Nodes"]["items"].as_array().unwrap();
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn extenders_filter_one_after_the_other_with_nodes_or_with_names() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = seen.clone();
    let url = serve(move |path, body| {
        heard.lock().unwrap().push(path.to_owned());
        match path {
            "/prefix/whole" => {
                assert_eq!(body["Pod"]["metadata"]["name"], "p");
                assert!(body["NodeNames"].is_null());
                assert_eq!(names_of(body).len(), 3);
                let items = json!([{"metadata": {"name": "b"}}, {"metadata": {"name": "c"}}]);
                (
                    200,
                    json!({"Nodes": {"items": items}, "FailedNodes": {"a": "no"}}),
                )
            }
            _ => {
                assert!(body["Nodes"].is_null());
                assert_eq!(body["NodeNames"], json!(["b", "c"]));
                (200, json!({"NodeNames": ["c"], "Error": ""}))
            }
        }
    })
    .await;
    let whole = settings(json!({"urlPrefix": url, "filterVerb": "whole"}));
    let names =
        settings(json!({"urlPrefix": url, "filterVerb": "names", "nodeCacheCapable": true}));
    let chosen = decide(scheduling(vec![whole, names])).await;
    assert_eq!(chosen.unwrap(), "c");
    assert_eq!(*seen.lock().unwrap(), ["/prefix/whole", "/prefix/names"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_an_extender_turns_down_are_in_the_diagnosis() {
    let url = serve(|_, _| {
        let failed = json!({"a": "too old", "b": "too old"});
        let hopeless = json!({"c": "broken"});
        (
            200,
            json!({"Nodes": {"items": []}, "FailedNodes": failed, "FailedAndUnresolvableNodes": hopeless}),
        )
    })
    .await;
    let filter = settings(json!({"urlPrefix": url, "filterVerb": "f"}));
    let failure = decide(scheduling(vec![filter])).await.unwrap_err();
    assert_eq!(
        failure.message(),
        "0/3 nodes are available: 1 broken, 2 too old."
    );
    let resolvable = failure.rejected.iter().map(|one| one.resolvable);
    assert_eq!(resolvable.filter(|resolvable| *resolvable).count(), 2);
    assert!(failure.plugins.contains(NAME));
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_of_extenders_decide_between_equals_by_their_weight() {
    let url = serve(|path, _| match path {
        "/prefix/light" => (200, json!([{"Host": "a", "Score": 10}])),
        _ => (
            200,
            json!([{"Host": "b", "Score": 5}, {"Host": "elsewhere", "Score": 9}]),
        ),
    })
    .await;
    let one = settings(json!({"urlPrefix": url, "prioritizeVerb": "light", "weight": 1}));
    let two = settings(json!({"urlPrefix": url, "prioritizeVerb": "heavy", "weight": 3}));
    let chosen = decide(scheduling(vec![one, two])).await;
    assert_eq!(chosen.unwrap(), "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_that_fails_stops_the_attempt_unless_it_may_be_ignored() {
    let url = serve(|_, _| (200, json!({"Error": "out of order"}))).await;
    let broken = |ignorable: bool| {
        settings(json!({"urlPrefix": url, "filterVerb": "f", "ignorable": ignorable}))
    };
    let failure = decide(scheduling(vec![broken(false)])).await.unwrap_err();
    assert_eq!(failure.error.as_deref(), Some("out of order"));
    assert!(decide(scheduling(vec![broken(true)])).await.is_ok());
    // Nothing listens there.
    let gone = settings(json!({"urlPrefix": "http://127.0.0.1:1", "filterVerb": "f"}));
    let failure = decide(scheduling(vec![gone])).await.unwrap_err();
    assert!(failure.error.unwrap().contains("http://127.0.0.1:1"));
    // A response with a node that was not in the request is invalid.
    let url = serve(|_, _| {
        (
            200,
            json!({"Nodes": {"items": [{"metadata": {"name": "z"}}]}}),
        )
    })
    .await;
    let wild = settings(json!({"urlPrefix": url, "filterVerb": "f"}));
    let failure = decide(scheduling(vec![wild])).await.unwrap_err();
    assert!(failure.error.unwrap().contains("not found in the input"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_with_managed_resources_is_not_called_for_other_pods() {
    let managed = json!([{"name": "example.com/card"}]);
    let cards = settings(json!({"urlPrefix": "http://127.0.0.1:1", "filterVerb": "f",
        "bindVerb": "b", "managedResources": managed}));
    let scheduling = scheduling(vec![cards]);
    let extenders = scheduling.extenders.clone();
    assert!(decide(scheduling).await.is_ok());
    let mut pod = samples::api_pod("p", &[]);
    let spec = json!({"containers": [{"name": "c",
        "resources": {"requests": {"example.com/card": "1"}}}]});
    pod.spec = serde_json::from_value(spec).unwrap();
    let (wants, other) = (PodInfo::new(&pod), samples::pod("p", "1", "1Gi"));
    assert!(extenders.decide_about(&wants) && !extenders.decide_about(&other));
    assert!(extenders.bind(&other, "a").await.is_none());
    assert!(extenders.bind(&wants, "a").await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_binds_and_its_error_is_the_pods() {
    let url = serve(|path, body| match path {
        "/prefix/good" => {
            assert_eq!(
                *body,
                json!({"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"})
            );
            (200, json!({}))
        }
        _ => (200, json!({"Error": "taken"})),
    })
    .await;
    let pod = samples::pod("p", "1", "1Gi");
    for (verb, outcome) in [("good", Ok(())), ("bad", Err("taken".to_owned()))] {
        let binder = settings(json!({"urlPrefix": url, "bindVerb": verb}));
        let extenders = Extenders::new(&[binder], Arc::new(Known)).unwrap();
        assert_eq!(extenders.bind(&pod, "a").await, Some(outcome));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_decides_last_about_victims() {
    let url = serve(|path, body| match path {
        "/prefix/names" => {
            let offered = body["NodeNameToMetaVictims"].as_object().unwrap();
            assert_eq!(offered.len(), 2);
            assert_eq!(offered["a"]["Pods"], json!([{"UID": "uid-low-a"}]));
            (
                200,
                json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-low-b"}]}}}),
            )
        }
        "/prefix/wrong" => {
            let pods = &body["NodeNameToVictims"]["a"]["Pods"];
            assert_eq!(pods[0]["metadata"]["name"], "low-a");
            (
                200,
                json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "other"}]}}}),
            )
        }
        _ => (200, json!({})),
    })
    .await;
    let preempt = |verb: &str, cached: bool| {
        let fields = json!({"urlPrefix": url, "preemptVerb": verb, "nodeCacheCapable": cached});
        let mut scheduling = Scheduling::new(1);
        scheduling.cluster = samples::cluster(&[("a", "1", "1Gi"), ("b", "1", "1Gi")]);
        for node in ["a", "b"] {
            let low = samples::prioritised(&format!("low-{node}"), "1", 0);
            scheduling.cluster.put_pod(node, low);
        }
        let extenders = Extenders::new(&[settings(fields)], Arc::new(Known)).unwrap();
        scheduling.extenders = Arc::new(extenders);
        tokio::task::spawn_blocking(move || {
            let (profile, pod) = (
                Profile::default_scheduler(),
                samples::prioritised("high", "1", 10),
            );
            let Outcome::Failed(failure) = scheduling.schedule(&profile, &pod) else {
                panic!("it fits");
            };
            scheduling.post_filter(&profile, &pod, &failure)
        })
    };
    let found = preempt("names", true).await.unwrap();
    assert!(matches!(found.nominated, Some((1, _))));
    let wrong = preempt("wrong", false).await.unwrap();
    assert!(wrong.nominated.is_none(), "victims that are not there");
    let message = wrong.messages.join(", ");
    assert!(message.contains("not found on that node"), "{message}");
    let none = preempt("none", true).await.unwrap();
    assert!(none.nominated.is_none());
}
