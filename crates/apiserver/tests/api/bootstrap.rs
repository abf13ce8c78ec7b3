//! The objects of a new cluster, and which of them are corrected.

use std::{sync::Arc, time::Duration};

use apiserver::Limits;
use machinery::json::{Value, json};
use stdx::{Clock, FakeClock};

use crate::support::{Server, admin, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn the_systems_priority_classes_cannot_be_deleted() {
    let server = Server::start().await;
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let critical = format!("{path}/system-node-critical");
    let refused = admin(&server, "DELETE", &critical, Value::Null).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.json()["message"],
        "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a system priority class and cannot be deleted"
    );
    let own = json!({"metadata": {"name": "own"}, "value": 1});
    assert_eq!(admin(&server, "POST", path, own).await.code, 201);
    let gone = admin(&server, "DELETE", &format!("{path}/own"), Value::Null).await;
    assert_eq!(gone.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_has_its_first_objects() {
    let server = Server::start().await;
    for path in [
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/kube-system",
        "/api/v1/namespaces/kube-public",
        "/api/v1/namespaces/kube-node-lease",
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
        "/apis/networking.k8s.io/v1/ipaddresses/10.43.0.1",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-cluster-critical",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    ] {
        let answer = admin(&server, "GET", path, Value::Null).await;
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
    }
    let holder = admin(
        &server,
        "GET",
        "/apis/networking.k8s.io/v1/ipaddresses/10.43.0.1",
        Value::Null,
    )
    .await;
    let parent = json!({"resource": "services", "namespace": "default", "name": "kubernetes"});
    assert_eq!(holder.json()["spec"]["parentRef"], parent);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_the_server_is_repaired() {
    let clock = FakeClock::at(stdx::SystemClock.now());
    let server = Server::start_on(Limits::default(), Arc::new(clock.clone())).await;
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let broken = admin(&server, "PATCH", slice, json!({"endpoints": []})).await;
    assert_eq!(broken.code, 200, "{}", broken.body);
    let service = "/api/v1/namespaces/default/services/kubernetes";
    assert_eq!(
        admin(&server, "DELETE", service, Value::Null).await.code,
        200
    );
    let trust = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let forged = json!({"data": {"client-ca-file": "forged", "own": "kept"}});
    let before = admin(&server, "GET", trust, Value::Null).await.json();
    assert_eq!(admin(&server, "PATCH", trust, forged).await.code, 200);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        clock.advance(Duration::from_secs(10));
        let slice = admin(&server, "GET", slice, Value::Null).await.json();
        let service = admin(&server, "GET", service, Value::Null).await;
        let trusts = admin(&server, "GET", trust, Value::Null).await.json();
        let trusted = trusts["data"]["client-ca-file"] == before["data"]["client-ca-file"];
        if slice["endpoints"][0]["addresses"][0] == "192.0.2.1" && service.code == 200 && trusted {
            assert_eq!(trusts["data"]["own"], "kept");
            assert_eq!(service.json()["spec"]["clusterIP"], "10.43.0.1");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{slice}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_are_served_here_have_their_apiservices() {
    let server = Server::start().await;
    let path = |name: &str| format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
    let find = async |name: &str| {
        let answer = admin(&server, "GET", &path(name), Value::Null).await;
        (answer.code == 200).then(|| answer.json())
    };
    let apps = eventually(async || find("v1.apps").await).await;
    let label = "kube-aggregator.kubernetes.io/automanaged";
    assert_eq!(apps["metadata"]["labels"], json!({label: "onstart"}));
    let spec = json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800,
        "versionPriority": 15});
    assert_eq!(apps["spec"], spec);
    let condition = &apps["status"]["conditions"][0];
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("Local"))
    );
    let fields = &apps["metadata"]["managedFields"];
    assert_eq!(fields.as_array().unwrap().len(), 1, "{fields}");
    assert_eq!(fields[0]["manager"], "kube-apiserver");
    assert!(fields[0]["fieldsV1"]["f:status"].is_null(), "{fields}");
    let definition = json!({"metadata": {"name": "things.a.example.com"}, "spec": {
        "group": "a.example.com", "scope": "Cluster",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}],
    }});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = admin(&server, "POST", definitions, definition).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let custom = eventually(async || find("v1.a.example.com").await).await;
    assert_eq!(custom["metadata"]["labels"], json!({label: "true"}));
    // APIServices of custom resources are recreated at once, built-in ones when a server starts.
    for name in ["v1.a.example.com", "v1.apps"] {
        assert_eq!(
            admin(&server, "DELETE", &path(name), Value::Null)
                .await
                .code,
            200
        );
    }
    eventually(async || find("v1.a.example.com").await).await;
    assert!(find("v1.apps").await.is_none());
    let definition = format!("{definitions}/things.a.example.com");
    assert_eq!(
        admin(&server, "DELETE", &definition, Value::Null)
            .await
            .code,
        200
    );
    eventually(async || find("v1.a.example.com").await.is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_a_lease_of_its_own_for_as_long_as_it_runs() {
    let server = Server::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let find = async |server: &Server| {
        let list = admin(server, "GET", leases, Value::Null).await.json();
        let found = list["items"].as_array().unwrap().first().cloned();
        found.filter(|lease| !lease["spec"].is_null())
    };
    let lease = eventually(async || find(&server).await).await;
    let name = lease["metadata"]["name"].as_str().unwrap();
    let labels = &lease["metadata"]["labels"];
    assert_eq!(labels["apiserver.kubernetes.io/identity"], "kube-apiserver");
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(
        annotations["kubernetes.io/peer-advertise-address"],
        "192.0.2.1:6443"
    );
    assert_eq!(
        annotations["mainstay.dev/version"],
        stdx::Version::own().to_string()
    );
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
    assert!(name.starts_with("apiserver-") && holder.starts_with(&format!("{name}_")));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3600);
    let server = server.restart().await;
    let next = eventually(async || find(&server).await).await;
    assert_eq!(next["metadata"]["name"], name);
    assert_ne!(next["metadata"]["uid"], lease["metadata"]["uid"]);
    assert_ne!(next["spec"]["holderIdentity"], holder);
}
