//! Many writers of one object: who names no revision has no conflict, and nothing that was acknowledged is lost.

use crate::support::{Server, admin, send};
use apiserver::User;
use machinery::json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinSet;

const NAMESPACE: &str = "/api/v1/namespaces/default";
const WRITERS: usize = 24;
const WRITES: usize = 4;

/// What every writer says its every write is answered with.
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
