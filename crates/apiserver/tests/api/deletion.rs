//! Deletion: finalizers, grace, preconditions, propagation, namespaces, collections.

use crate::support::{Server, admin};
use machinery::json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make(server: &Server, metadata: Value) -> Value {
    let created = admin(server, "POST", MAPS, json!({"metadata": metadata})).await;
    assert_eq!(created.code, 201, "{}", created.body);
    created.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_object_is_gone_and_its_status_says_what_it_was() {
    let server = Server::start().await;
    let made = make(&server, json!({"name": "a"})).await;
    let gone = admin(&server, "DELETE", &format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(gone.code, 200);
    let status = gone.json();
    assert_eq!(status["status"], "Success");
    assert_eq!(
        status["details"],
        json!({"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]})
    );
    assert_eq!(
        admin(&server, "DELETE", &format!("{MAPS}/a"), Value::Null)
            .await
            .code,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_hold_an_object_until_the_last_is_removed() {
    let server = Server::start().await;
    make(
        &server,
        json!({"name": "a", "finalizers": ["example.com/x"]}),
    )
    .await;
    let marked = admin(&server, "DELETE", &format!("{MAPS}/a"), Value::Null)
        .await
        .json();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    let again = admin(&server, "DELETE", &format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(again.code, 200);
    let more = admin(
        &server,
        "PATCH",
        &format!("{MAPS}/a"),
        json!({"metadata": {"finalizers": ["example.com/x", "example.com/y"]}}),
    )
    .await;
    assert_eq!(more.code, 422, "{}", more.body);
    let last = admin(
        &server,
        "PATCH",
        &format!("{MAPS}/a"),
        json!({"metadata": {"finalizers": []}}),
    )
    .await;
    assert_eq!(last.code, 200, "{}", last.body);
    assert_eq!(
        admin(&server, "GET", &format!("{MAPS}/a"), Value::Null)
            .await
            .code,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn propagation_policies_become_finalizers() {
    let server = Server::start().await;
    for (name, policy, finalizer) in [
        ("a", "Orphan", "orphan"),
        ("b", "Foreground", "foregroundDeletion"),
    ] {
        make(&server, json!({"name": name})).await;
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy});
        let marked = admin(&server, "DELETE", &format!("{MAPS}/{name}"), options)
            .await
            .json();
        assert_eq!(marked["metadata"]["finalizers"], json!([finalizer]));
    }
    make(&server, json!({"name": "c"})).await;
    let options = json!({"propagationPolicy": "Background"});
    assert_eq!(
        admin(&server, "DELETE", &format!("{MAPS}/c"), options)
            .await
            .json()["status"],
        "Success"
    );
    // Nothing is added or removed: the order stays.
    let both = json!({"name": "d", "finalizers": ["foregroundDeletion", "e.com/x"]});
    make(&server, both).await;
    let options = json!({"propagationPolicy": "Foreground"});
    let marked = admin(&server, "DELETE", &format!("{MAPS}/d"), options).await;
    assert_eq!(
        marked.json()["metadata"]["finalizers"],
        json!(["foregroundDeletion", "e.com/x"])
    );
    let bad = json!({"propagationPolicy": "Sideways"});
    assert_eq!(
        admin(&server, "DELETE", &format!("{MAPS}/a"), bad)
            .await
            .code,
        422
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn preconditions_protect_a_successor() {
    let server = Server::start().await;
    make(&server, json!({"name": "a"})).await;
    for precondition in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let options = json!({"preconditions": precondition});
        let refused = admin(&server, "DELETE", &format!("{MAPS}/a"), options).await;
        assert_eq!(refused.code, 409, "{}", refused.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_deleted_by_selector() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        make(&server, json!({"name": name, "labels": {"del": "1"}})).await;
    }
    make(&server, json!({"name": "c"})).await;
    let answer = admin(
        &server,
        "DELETE",
        &format!("{MAPS}?labelSelector=del"),
        Value::Null,
    )
    .await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert_eq!(answer.json()["items"].as_array().unwrap().len(), 2);
    assert_eq!(
        admin(&server, "GET", &format!("{MAPS}/a"), Value::Null)
            .await
            .code,
        404
    );
    assert_eq!(
        admin(&server, "GET", &format!("{MAPS}/c"), Value::Null)
            .await
            .code,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_stays_until_it_is_finalized() {
    let server = Server::start().await;
    let made = admin(
        &server,
        "POST",
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n", "finalizers": ["example.com/x"]}}),
    )
    .await;
    assert_eq!(
        made.json()["spec"]["finalizers"],
        json!(["kubernetes"]),
        "{}",
        made.body
    );
    let path = "/api/v1/namespaces/n";
    let marked = admin(&server, "DELETE", path, Value::Null).await.json();
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert!(marked["metadata"]["deletionGracePeriodSeconds"].is_null());
    let mut read = admin(&server, "GET", path, Value::Null).await.json();
    assert!(read["metadata"]["deletionTimestamp"].is_string());
    read["spec"]["finalizers"] = json!([]);
    let finalized = admin(&server, "PUT", &format!("{path}/finalize"), read).await;
    assert_eq!(finalized.code, 200, "{}", finalized.body);
    assert_eq!(admin(&server, "GET", path, Value::Null).await.code, 200);
    let free = json!({"metadata": {"finalizers": []}});
    assert_eq!(admin(&server, "PATCH", path, free).await.code, 200);
    assert_eq!(admin(&server, "GET", path, Value::Null).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_pod_gets_its_grace_and_an_unscheduled_one_goes_at_once() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for name in ["a", "b"] {
        let made = admin(&server, "POST", pods, pod(name)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let gone = admin(&server, "DELETE", &format!("{pods}/a"), Value::Null).await;
    assert_eq!(gone.code, 200);
    // It was marked as terminating before its removal.
    let metadata = gone.json()["metadata"].clone();
    assert!(metadata["deletionTimestamp"].is_string(), "{metadata}");
    assert_eq!(
        (
            &metadata["deletionGracePeriodSeconds"],
            &metadata["generation"]
        ),
        (&json!(0), &json!(2))
    );
    assert_eq!(
        admin(&server, "GET", &format!("{pods}/a"), Value::Null)
            .await
            .code,
        404
    );
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "b"}, "target": {"kind": "Node", "name": "n1"}});
    let bound = admin(
        &server,
        "POST",
        &format!("{pods}/b/binding"),
        binding.clone(),
    )
    .await;
    assert_eq!(
        (bound.code, bound.json()["status"].as_str().unwrap()),
        (201, "Success"),
        "{}",
        bound.body
    );
    assert_eq!(
        admin(&server, "POST", &format!("{pods}/b/binding"), binding)
            .await
            .code,
        409
    );
    let dying = admin(&server, "DELETE", &format!("{pods}/b"), Value::Null)
        .await
        .json();
    assert_eq!(dying["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(dying["spec"]["nodeName"], "n1");
    let shorter = admin(
        &server,
        "DELETE",
        &format!("{pods}/b"),
        json!({"gracePeriodSeconds": 1}),
    )
    .await
    .json();
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 1);
    admin(
        &server,
        "DELETE",
        &format!("{pods}/b"),
        json!({"gracePeriodSeconds": 0}),
    )
    .await;
    assert_eq!(
        admin(&server, "GET", &format!("{pods}/b"), Value::Null)
            .await
            .code,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delete_without_grace_returns_200_also_if_the_kubelet_deleted_the_pod_first() {
    let server = std::sync::Arc::new(Server::start().await);
    let pods = "/api/v1/namespaces/default/pods";
    for round in 0..20 {
        let pod = json!({"metadata": {"name": format!("p{round}")},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(admin(&server, "POST", pods, pod).await.code, 201);
        let path = format!("{pods}/p{round}");
        let node = tokio::spawn({
            let (server, path) = (server.clone(), path.clone());
            async move {
                loop {
                    let pod = admin(&server, "GET", &path, Value::Null).await;
                    if pod.code == 404 {
                        return;
                    }
                    if pod.json()["metadata"]["deletionTimestamp"].is_string() {
                        let at_once = json!({"gracePeriodSeconds": 0});
                        admin(&server, "DELETE", &path, at_once).await;
                    }
                }
            }
        });
        let deleted = admin(&server, "DELETE", &path, json!({"gracePeriodSeconds": 0})).await;
        assert_eq!(deleted.code, 200, "{}", deleted.body);
        node.await.unwrap();
    }
}
