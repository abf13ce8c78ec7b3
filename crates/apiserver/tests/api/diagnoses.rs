//! `diagnostics.mainstay.dev`: a connected scheduler's diagnosis of a pod, for users who may read
//! it.

use std::sync::Arc;

use apiserver::{Diagnose, User};
use futures::future::BoxFuture;
use machinery::json::{Value, json};

use crate::support::{Server, admin, send};

const DIAGNOSES: &str = "/apis/diagnostics.mainstay.dev/v1";

/// Has a diagnosis for one pod.
struct Scheduler(String);

impl Diagnose for Scheduler {
    fn diagnose<'a>(&'a self, uid: &'a str) -> BoxFuture<'a, Option<Vec<u8>>> {
        let known = (uid == self.0).then(|| br#"{"message":"no room","attempts":2}"#.to_vec());
        Box::pin(async { known })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diagnosis_is_read_with_a_right_of_its_own_and_only_for_pods_that_wait() {
    let server = Server::start().await;
    let pod = |name: &str| {
        json!({"metadata": {"name": name},
            "spec": {"containers": [{"name": "a", "image": "b"}]}})
    };
    let pods = "/api/v1/namespaces/default/pods";
    let made = admin(&server, "POST", pods, pod("waits")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    admin(&server, "POST", pods, pod("placed")).await;
    let uid = made.json()["metadata"]["uid"].as_str().unwrap().to_owned();
    let path = format!("{DIAGNOSES}/namespaces/default/pods/waits");
    let before = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(before.code, 404, "no scheduler is connected");

    server
        .server
        .set_diagnoses(Arc::new(Scheduler(uid.clone())));
    let found = admin(&server, "GET", &path, Value::Null).await.json();
    let metadata = json!({"name": "waits", "namespace": "default", "uid": uid});
    assert_eq!(
        (&found["kind"], &found["metadata"]),
        (&"PodDiagnosis".into(), &metadata)
    );
    assert_eq!(
        (&found["message"], &found["attempts"]),
        (&"no room".into(), &2.into())
    );

    for (method, path, code) in [
        ("GET", "/namespaces/default/pods/placed", 404),
        ("GET", "/namespaces/default/pods/absent", 404),
        ("GET", "/namespaces/default/pods", 405),
        ("GET", "/namespaces/default/pods/waits/log", 404),
        ("GET", "/namespaces/default/services/waits", 404),
        ("DELETE", "/namespaces/default/pods/waits", 405),
    ] {
        let answer = admin(&server, method, &format!("{DIAGNOSES}{path}"), Value::Null).await;
        assert_eq!(answer.code, code, "{method} {path}: {}", answer.body);
        assert_eq!(answer.json()["kind"], "Status");
    }
    let stranger = User::new("somebody", ["system:authenticated"]);
    let refused = send(&server, stranger, "GET", &path, &[], "").await;
    assert_eq!(refused.code, 403);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    let wanted = "cannot get resource \"pods\" in API group \"diagnostics.mainstay.dev\"";
    assert!(message.contains(wanted), "{message}");
}
