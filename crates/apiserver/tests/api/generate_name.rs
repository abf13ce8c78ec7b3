//! Names that the server makes of `generateName`.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use apiserver::NameSuffixes;
use machinery::json::{Value, json};

use crate::support::{Server, admin};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Name suffixes in this order, the last of them for ever.
struct Given(Mutex<VecDeque<&'static str>>);

impl NameSuffixes for Given {
    fn next(&self) -> String {
        let mut left = self.0.lock().unwrap();
        let next = match left.len() {
            1 => left.front().copied(),
            _ => left.pop_front(),
        };
        next.unwrap_or_default().to_owned()
    }
}

async fn server(suffixes: impl IntoIterator<Item = &'static str>) -> Server {
    let suffixes = Arc::new(Given(Mutex::new(suffixes.into_iter().collect())));
    Server::configured(|config, _| config.name_suffixes = suffixes).await
}

fn prefixed() -> Value {
    json!({"metadata": {"generateName": "web-"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_taken_is_made_again() {
    let suffixes = [
        "aaaaa", "aaaaa", "aaaaa", "aaaaa", "aaaaa", "aaaaa", "aaaaa",
    ];
    let server = server(suffixes.into_iter().chain(["aaaaa", "bbbbb", "ccccc"])).await;
    let first = admin(&server, "POST", MAPS, prefixed()).await;
    assert_eq!(
        first.json()["metadata"]["name"],
        "web-aaaaa",
        "{}",
        first.body
    );
    // Seven more taken names, and a free one.
    let second = admin(&server, "POST", MAPS, prefixed()).await;
    assert_eq!(second.code, 201, "{}", second.body);
    assert_eq!(second.json()["metadata"]["name"], "web-bbbbb");
    let dry = admin(&server, "POST", &format!("{MAPS}?dryRun=All"), prefixed()).await;
    assert_eq!(dry.json()["metadata"]["name"], "web-ccccc");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_eight_name_collisions_generate_name_returns_a_retryable_conflict() {
    let server = server(["aaaaa"]).await;
    let first = admin(&server, "POST", MAPS, prefixed()).await;
    assert_eq!(first.code, 201, "{}", first.body);
    for query in ["", "?dryRun=All"] {
        let refused = admin(&server, "POST", &format!("{MAPS}{query}"), prefixed()).await;
        assert_eq!(refused.code, 409, "{}", refused.body);
        assert_eq!(refused.headers["retry-after"], "1");
        let status = refused.json();
        assert_eq!(status["reason"], "AlreadyExists");
        assert_eq!(
            status["message"],
            "configmaps \"web-aaaaa\" already exists, the server was not able to generate a unique name for the object"
        );
        let details = json!({"name": "web-aaaaa", "kind": "configmaps", "retryAfterSeconds": 1});
        assert_eq!(status["details"], details);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_beside_a_name_changes_only_the_words() {
    let server = server(["aaaaa"]).await;
    let both = json!({"metadata": {"name": "own", "generateName": "web-",
        "finalizers": ["example.com/stay"]}});
    let made = admin(&server, "POST", MAPS, both.clone()).await;
    assert_eq!(made.json()["metadata"]["name"], "own", "{}", made.body);
    let taken = "configmaps \"own\" already exists, the server was not able to generate a unique name for the object";
    let refused = admin(&server, "POST", MAPS, both.clone()).await;
    assert_eq!(refused.json()["message"], taken);
    admin(&server, "DELETE", &format!("{MAPS}/own"), Value::Null).await;
    let refused = admin(&server, "POST", MAPS, both).await;
    let leaving = format!("object is being deleted: {taken}");
    assert_eq!(refused.json()["message"], leaving);
    let named = json!({"metadata": {"name": "own"}});
    let refused = admin(&server, "POST", MAPS, named).await;
    let leaving = "object is being deleted: configmaps \"own\" already exists";
    assert_eq!(refused.json()["message"], leaving);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_mutating_admission_refuses_is_named_by_its_prefix() {
    let server = server(["aaaaa"]).await;
    for (metadata, name) in [
        (json!({"generateName": "web-"}), "web-"),
        (json!({"name": "web"}), "web"),
    ] {
        let pod = json!({"metadata": metadata, "spec": {"serviceAccountName": "none",
            "containers": [{"name": "a", "image": "b"}]}});
        let pods = "/api/v1/namespaces/default/pods";
        let refused = admin(&server, "POST", pods, pod).await;
        assert_eq!(refused.code, 403, "{}", refused.body);
        let message = refused.json()["message"].to_string();
        let expected =
            format!("\"pods \\\"{name}\\\" is forbidden: error looking up service account");
        assert!(message.starts_with(&expected), "{message}");
    }
}
