//! Subresources that write parts of objects, and expiry of Events.

use std::{sync::Arc, time::Duration};

use apiserver::{Limits, User};
use machinery::{Value, json::json};
use stdx::Clock as _;

use crate::support::{Raw, Server, admin, eventually, send};

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn patch(server: &Server, path: &str, patch: Value) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let media = "application/strategic-merge-patch+json";
    let headers = [("content-type", media)];
    send(server, user, "PATCH", path, &headers, patch.to_string()).await
}

async fn pod(server: &Server) -> Value {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}});
    let made = admin(server, "POST", PODS, pod).await;
    assert_eq!(made.code, 201, "{}", made.body);
    made.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn ephemeral_containers_are_added_on_their_own_path_and_stay() {
    let server = Server::start().await;
    pod(&server).await;
    let path = format!("{PODS}/p/ephemeralcontainers");
    let debugger =
        |image: &str| json!({"spec": {"ephemeralContainers": [{"name": "e", "image": image}]}});
    let added = patch(&server, &path, debugger("i")).await;
    assert_eq!(added.code, 200, "{}", added.body);
    let added = added.json();
    assert_eq!(added["metadata"]["generation"], 2);
    let one = &added["spec"]["ephemeralContainers"][0];
    assert_eq!(
        one["terminationMessagePolicy"], "File",
        "defaults are filled in"
    );
    assert_eq!(patch(&server, &path, debugger("j")).await.code, 422);
    let mut without = added.clone();
    without["spec"]["ephemeralContainers"] = json!([]);
    let removed = admin(&server, "PUT", &path, without).await;
    assert_eq!(removed.code, 422, "{}", removed.body);
    // The subresource changes nothing else of the pod, and these fields cannot be changed
    // elsewhere.
    let other = json!({"spec": {"containers": [{"name": "c", "image": "j"}]}});
    let other = patch(&server, &path, other).await.json();
    assert_eq!(other["spec"]["containers"][0]["image"], "i");
    let read = admin(&server, "GET", &path, Value::Null).await.json();
    assert_eq!(read["spec"], added["spec"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_resized_on_its_own_path_only() {
    let server = Server::start().await;
    let before = pod(&server).await;
    let larger = json!({"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}});
    let elsewhere = patch(&server, &format!("{PODS}/p"), larger.clone()).await;
    assert_eq!(elsewhere.code, 422, "{}", elsewhere.body);
    let path = format!("{PODS}/p/resize");
    let resized = patch(&server, &path, larger.clone()).await;
    assert_eq!(resized.code, 200, "{}", resized.body);
    let resized = resized.json();
    let container = &resized["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"]["cpu"], "200m");
    assert_eq!(resized["metadata"]["generation"], 2);
    let again = patch(&server, &path, larger).await.json();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        resized["metadata"]["resourceVersion"]
    );
    let image = json!({"spec": {"containers": [{"name": "c", "image": "j"}]}});
    let image = patch(&server, &path, image).await.json();
    let kept = &image["spec"]["containers"][0]["image"];
    assert_eq!(kept, &before["spec"]["containers"][0]["image"]);
    // Its QoS class cannot change.
    let none = json!({"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": null}}}]}});
    assert_eq!(patch(&server, &path, none).await.code, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signing_request_is_approved_on_its_own_path_only() {
    let server = Server::start().await;
    let samples: Value = machinery::json::from_str(include_str!("samples.json")).unwrap();
    let mut request = samples["certificates.k8s.io/CertificateSigningRequest"].clone();
    request["metadata"] = json!({"name": "r"});
    let collection = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let made = admin(&server, "POST", collection, request).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let path = format!("{collection}/r");
    let with = |kind: &str| {
        let mut request = made.json();
        request["metadata"]["resourceVersion"] = Value::Null;
        request["status"]["conditions"] =
            json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
        request
    };
    // Other paths ignore the approval.
    admin(&server, "PUT", &path, with("Approved")).await;
    admin(&server, "PUT", &format!("{path}/status"), with("Approved")).await;
    let read = admin(&server, "GET", &path, Value::Null).await.json();
    assert_eq!(read["status"]["conditions"], Value::Null);
    let approval = format!("{path}/approval");
    let approved = admin(&server, "PUT", &approval, with("Approved")).await;
    assert_eq!(approved.code, 200, "{}", approved.body);
    let condition = &approved.json()["status"]["conditions"][0];
    assert_eq!(condition["type"], "Approved");
    assert!(condition["lastUpdateTime"].is_string(), "{condition}");
    // A decision is final.
    let denied = admin(&server, "PUT", &approval, with("Denied")).await;
    assert_eq!(denied.code, 422, "{}", denied.body);
    let read = admin(&server, "GET", &approval, Value::Null).await.json();
    assert_eq!(read["status"]["conditions"][0]["type"], "Approved");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_goes_an_hour_after_it_was_last_written() {
    let clock = stdx::FakeClock::at(stdx::SystemClock.now());
    let server = Server::start_on(Limits::default(), Arc::new(clock.clone())).await;
    let events = "/api/v1/namespaces/default/events";
    for name in ["kept", "left"] {
        let event = json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}});
        let made = admin(&server, "POST", events, event).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    clock.advance(Duration::from_secs(3000));
    let kept = format!("{events}/kept");
    let again = admin(&server, "PATCH", &kept, json!({"count": 2})).await;
    assert_eq!(again.code, 200, "{}", again.body);
    clock.advance(Duration::from_secs(601));
    let (server, left) = (&server, &format!("{events}/left"));
    eventually(|| async {
        let code = admin(server, "GET", left, Value::Null).await.code;
        (code == 404).then_some(())
    })
    .await;
    assert_eq!(admin(server, "GET", &kept, Value::Null).await.code, 200);
    clock.advance(Duration::from_secs(3600));
    let kept = &kept;
    eventually(|| async {
        let code = admin(server, "GET", kept, Value::Null).await.code;
        (code == 404).then_some(())
    })
    .await;
}
