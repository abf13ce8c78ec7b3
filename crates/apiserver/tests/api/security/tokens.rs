//! Tokens in Secrets are valid as long as their Secret and their account exist.

use base64::{Engine, prelude::BASE64_STANDARD};
use machinery::json::{Value, json};

use crate::{
    security::regressions::{over_tls, without_credentials},
    support::{Server, admin, eventually},
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// A Secret with a token of the account `bot`, as the controller creates it.
async fn issue(server: &Server, name: &str) -> String {
    let account = admin(server, "GET", &format!("{ACCOUNTS}/bot"), Value::Null)
        .await
        .json();
    let claims = json!({
        "iss": "kubernetes/serviceaccount",
        "sub": "system:serviceaccount:default:bot",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": name,
        "kubernetes.io/serviceaccount/service-account.name": "bot",
        "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
    });
    let token = server.pki.service_account().sign(&claims).unwrap();
    let annotations = json!({"kubernetes.io/service-account.name": "bot"});
    let secret = json!({"metadata": {"name": name, "annotations": annotations},
        "type": "kubernetes.io/service-account-token", "data": {"token": BASE64_STANDARD.encode(&token)}});
    let made = admin(server, "POST", SECRETS, secret).await;
    assert_eq!(made.code, 201, "{}", made.body);
    token
}

async fn code(server: &Server, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let seen = over_tls(
        server,
        without_credentials(server),
        "GET",
        "/apis/apps/v1",
        &headers,
        "",
    )
    .await;
    seen.unwrap().code
}

async fn with_account() -> Server {
    let server = Server::start().await;
    let made = admin(
        &server,
        "POST",
        ACCOUNTS,
        json!({"metadata": {"name": "bot"}}),
    )
    .await;
    assert_eq!(made.code, 201);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_a_secret_goes_with_the_secret_and_the_account() {
    let server = with_account().await;
    let token = issue(&server, "one").await;
    assert_eq!(code(&server, &token).await, 200);
    let path = format!("{SECRETS}/one");
    // Its use is recorded, with the day.
    eventually(|| async {
        let secret = admin(&server, "GET", &path, Value::Null).await.json();
        let used = secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].clone();
        used.as_str().filter(|day| day.len() == 10).map(drop)
    })
    .await;
    // Labelled as invalid it is rejected, until the label is removed.
    let marked = |value: Value| json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": value}}});
    admin(&server, "PATCH", &path, marked("2026-01-01".into())).await;
    assert_eq!(code(&server, &token).await, 401);
    admin(&server, "PATCH", &path, marked(Value::Null)).await;
    assert_eq!(code(&server, &token).await, 200);
    // First another token in the Secret, then no Secret.
    let other = json!({"data": {"token": BASE64_STANDARD.encode("other")}});
    admin(&server, "PATCH", &path, other).await;
    assert_eq!(code(&server, &token).await, 401);
    let kept = issue(&server, "two").await;
    assert_eq!(code(&server, &kept).await, 200);
    admin(&server, "DELETE", &format!("{SECRETS}/two"), Value::Null).await;
    assert_eq!(code(&server, &kept).await, 401);
    // A new account of the same name has another uid.
    let last = issue(&server, "three").await;
    assert_eq!(code(&server, &last).await, 200);
    admin(&server, "DELETE", &format!("{ACCOUNTS}/bot"), Value::Null).await;
    assert_eq!(code(&server, &last).await, 401);
    admin(
        &server,
        "POST",
        ACCOUNTS,
        json!({"metadata": {"name": "bot"}}),
    )
    .await;
    assert_eq!(code(&server, &last).await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_deleted_secrets_and_of_other_audiences_are_rejected() {
    let server = with_account().await;
    let account = admin(&server, "GET", &format!("{ACCOUNTS}/bot"), Value::Null)
        .await
        .json();
    let claims = |secret: &str, sub: &str| {
        json!({
            "iss": "kubernetes/serviceaccount",
            "sub": sub,
            "kubernetes.io/serviceaccount/namespace": "default",
            "kubernetes.io/serviceaccount/secret.name": secret,
            "kubernetes.io/serviceaccount/service-account.name": "bot",
            "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
        })
    };
    let own = "system:serviceaccount:default:bot";
    issue(&server, "kept").await;
    for claims in [
        claims("missing", own),
        claims("", own),
        // Signed by us, but not the token in the Secret.
        claims("kept", "system:serviceaccount:kube-system:root"),
    ] {
        let token = server.pki.service_account().sign(&claims).unwrap();
        assert_eq!(code(&server, &token).await, 401, "{claims}");
    }
    let token = issue(&server, "audience").await;
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    for (audiences, expected) in [(json!([]), true), (json!(["vault"]), false)] {
        let review = json!({"spec": {"token": token, "audiences": audiences}});
        let answer = admin(&server, "POST", path, review).await.json();
        let found = answer["status"]["authenticated"] == true;
        assert_eq!(found, expected, "{answer}");
    }
}
