//! Concurrent writers of one object: a write without resourceVersion gets no conflict, and no
//! acknowledged write is lost.

use crate::support::{Server, admin, send};
use apiserver::User;
use machinery::json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

const NAMESPACE: &str = "/api/v1/namespaces/default";
const WRITERS: usize = 24;
const WRITES: usize = 4;

/// Asserts that every write of every writer succeeds.
async fn all<F>(server: &Arc<Server>, write: impl Fn(Arc<Server>, String) -> F)
where
    F: Future<Output = u16> + Send + 'static,
{
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let writes: Vec<_> = (0..WRITES)
            .map(|round| write(server.clone(), format!("w{writer}.{round}")))
            .collect();
        writers.spawn(async move {
            let mut codes = Vec::new();
            for write in writes {
                codes.push(write.await);
            }
            codes
        });
    }
    for codes in writers.join_all().await {
        assert!(
            codes.iter().all(|code| matches!(code, 200 | 201)),
            "{codes:?}"
        );
    }
}

async fn data(server: &Server, map: &str) -> Value {
    let path = format!("{NAMESPACE}/configmaps/{map}");
    admin(server, "GET", &path, Value::Null).await.json()["data"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_and_applies_of_one_object_all_come_through() {
    let server = Arc::new(Server::start().await);
    let made = json!({"metadata": {"name": "shared"}});
    admin(&server, "POST", &format!("{NAMESPACE}/configmaps"), made).await;
    for (media, body) in [
        ("application/merge-patch+json", json!({"data": {}})),
        (
            "application/apply-patch+yaml",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {}}),
        ),
    ] {
        all(&server, |server, key| {
            let mut body = body.clone();
            let key = format!("{}.{key}", &media[12..17]);
            body["data"][&*key] = json!("v");
            async move {
                let user = User::new("kubernetes-admin", ["system:masters"]);
                let path = format!("{NAMESPACE}/configmaps/shared?fieldManager={key}");
                let headers = [("content-type", media)];
                let body = body.to_string();
                send(&server, user, "PATCH", &path, &headers, body)
                    .await
                    .code
            }
        })
        .await;
    }
    let data = data(&server, "shared").await;
    assert_eq!(data.as_object().unwrap().len(), 2 * WRITERS * WRITES);
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_that_share_a_quota_all_come_through() {
    let server = Arc::new(Server::start().await);
    let quota = json!({
        "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "1000"}},
        "status": {"hard": {"count/configmaps": "1000"}, "used": {"count/configmaps": "0"}},
    });
    let quotas = format!("{NAMESPACE}/resourcequotas");
    admin(&server, "POST", &quotas, quota.clone()).await;
    let status = admin(&server, "PUT", &format!("{quotas}/q/status"), quota).await;
    assert_eq!(status.code, 200, "{}", status.body);
    all(&server, |server, name| async move {
        let map = json!({"metadata": {"name": name}});
        admin(&server, "POST", &format!("{NAMESPACE}/configmaps"), map)
            .await
            .code
    })
    .await;
    let quota = admin(&server, "GET", &format!("{quotas}/q"), Value::Null).await;
    let used = &quota.json()["status"]["used"]["count/configmaps"];
    assert_eq!(*used, (WRITERS * WRITES).to_string());
}

/// A request of a leader whose Lease has this resourceVersion.
async fn fenced(server: &Server, version: &str, method: &str, path: &str, body: &str) -> Value {
    use http_body_util::BodyExt;
    use tower::Service as _;
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let fence = apiserver::Fence::lease("kube-system", "work-term", version).unwrap();
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(http_body_util::Full::new(bytes::Bytes::from(
            body.to_owned(),
        )))
        .unwrap();
    let mut service = server.server.connect(user).fenced_by(fence);
    let response = service.call(request).await.unwrap();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    machinery::json::from_slice::<machinery::Object>(&bytes)
        .unwrap()
        .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_term_is_over_commits_nothing() {
    let server = Server::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let term = json!({"metadata": {"name": "work-term"}, "spec": {"leaseTransitions": 1}});
    let made = admin(&server, "POST", leases, term).await.json();
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let maps = format!("{NAMESPACE}/configmaps");
    let one = format!("{maps}/one");
    let map = r#"{"metadata": {"name": "one"}}"#;
    let made = fenced(&server, version, "POST", &maps, map).await;
    assert_eq!(made["metadata"]["name"], "one", "{made}");

    let path = format!("{leases}/work-term");
    let next = json!({"spec": {"leaseTransitions": 2}});
    let next = admin(&server, "PATCH", &path, next).await.json();
    for (method, path, body) in [
        ("POST", &maps, r#"{"metadata": {"name": "two"}}"#),
        (
            "PUT",
            &one,
            r#"{"metadata": {"name": "one"}, "data": {"a": "b"}}"#,
        ),
        ("DELETE", &one, "{}"),
    ] {
        let refused = fenced(&server, version, method, path, body).await;
        assert_eq!(refused["reason"], "Forbidden", "{method}: {refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("this leader was replaced"), "{message}");
    }
    let left = admin(&server, "GET", &one, Value::Null).await.json();
    assert!(left["data"].is_null(), "{left}");
    let version = next["metadata"]["resourceVersion"].as_str().unwrap();
    let gone = fenced(&server, version, "DELETE", &one, "{}").await;
    assert_eq!(gone["status"], "Success", "{gone}");
}
