//! Authentication by OpenID Connect issuers and token webhooks, and authorization by webhooks, over real HTTPS.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use apiserver::{
    authn::TokenWebhook,
    authz::{self, AccessWebhook},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use machinery::json::{Value, from_str, json};

use crate::{
    hook_server::{Hook, Reply},
    security::regressions::{over_tls, without_credentials},
    support::{Server, eventually},
};

/// The user info that the server returns for a token, or the status code of the error.
async fn who(server: &Server, token: &str) -> Result<Value, u16> {
    let value = format!("Bearer {token}");
    let headers = [
        ("authorization", value.as_str()),
        ("content-type", "application/json"),
    ];
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = over_tls(
        server,
        without_credentials(server),
        "POST",
        path,
        &headers,
        "{}",
    )
    .await;
    let answer = answer.unwrap();
    match answer.code {
        201 => Ok(answer.json()["status"]["userInfo"].clone()),
        code => Err(code),
    }
}

/// Writes a kubeconfig for a webhook and returns its path.
fn kubeconfig(hook: &Hook, directory: &Path) -> PathBuf {
    let authority = STANDARD.encode(&hook.certificate);
    let text = format!(
        "clusters: [{{name: hook, cluster: {{server: 'https://{}/review', certificate-authority-data: {authority}}}}}]\ncontexts: [{{name: c, context: {{cluster: hook, user: me}}}}]\nusers: [{{name: me, user: {{token: shown}}}}]\ncurrent-context: c\n",
        hook.address
    );
    let path = directory.join("hook.kubeconfig");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_configured_issuer_name_users() {
    let made = rcgen::KeyPair::generate().unwrap();
    let keys = pki::jwt::Keys::from_pem(made.serialize_pem().as_bytes(), &[]).unwrap();
    // One document serves as the discovery document and as the key set.
    let document: Arc<OnceLock<Value>> = Arc::default();
    let served = document.clone();
    let issuer = Hook::start(move |_| match served.get() {
        Some(document) => Reply::Json(document.clone()),
        None => Reply::Raw(500, Vec::new()),
    })
    .await;
    let url = format!("https://{}", issuer.address);
    let mut both: Value = from_str(&keys.jwks().to_string()).unwrap();
    both["issuer"] = url.as_str().into();
    both["jwks_uri"] = format!("{url}/keys").into();
    document.set(both).unwrap();
    let authority = issuer.certificate.replace('\n', "\n      ");
    let config = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: {url}\n    audiences: [cluster]\n    certificateAuthority: |\n      {authority}\n  claimMappings:\n    username: {{claim: sub, prefix: 'oidc:'}}\n    groups: {{expression: 'dyn(claims.roles).map(r, \"oidc:\" + r)'}}\nanonymous:\n  enabled: true\n  conditions: [{{path: /livez}}]\n"
    );
    let server = Server::configured(|options, directory| {
        let path = directory.join("authentication.yaml");
        std::fs::write(&path, &config).unwrap();
        options.access.authentication_config = Some(path);
    })
    .await;
    let expires = jiff::Timestamp::now().as_second() + 600;
    let claims = |audience: &str| json!({"iss": url.as_str(), "aud": audience, "sub": "eve", "roles": ["dev"], "exp": expires});
    let good = keys.sign(&claims("cluster")).unwrap();
    let user = eventually(|| async { who(&server, &good).await.ok() }).await;
    assert_eq!(user["username"], "oidc:eve");
    let groups: Vec<_> = user["groups"].as_array().unwrap().iter().collect();
    assert!(groups.iter().any(|group| **group == "oidc:dev"), "{user}");
    let wrong = keys.sign(&claims("elsewhere")).unwrap();
    assert_eq!(who(&server, &wrong).await, Err(401));
    assert_eq!(who(&server, "no-token-at-all").await, Err(401));
    for (path, code) in [("/livez", 200), ("/version", 401)] {
        let answer = over_tls(&server, without_credentials(&server), "GET", path, &[], "").await;
        assert_eq!(answer.unwrap().code, code, "{path} without credentials");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_knows_tokens_and_its_answers_are_kept() {
    let hook = Hook::start(|review| {
        let status = match review["spec"]["token"].as_str() {
            Some("known") => {
                json!({"authenticated": true, "user": {"username": "eve", "groups": ["dev"]}})
            }
            _ => json!({"authenticated": false}),
        };
        Reply::Json(json!({"status": status}))
    })
    .await;
    let server = Server::configured(|options, directory| {
        options.access.token_webhook = Some(TokenWebhook {
            config_file: kubeconfig(&hook, directory),
            version: "v1".to_owned(),
            cache_ttl: Duration::from_secs(600),
        });
    })
    .await;
    for _ in 0..3 {
        assert_eq!(who(&server, "known").await.unwrap()["username"], "eve");
        assert_eq!(who(&server, "unknown").await, Err(401));
    }
    let seen = hook.seen.lock();
    assert_eq!(seen.len(), 2, "one call for each token");
    assert_eq!(seen[0]["kind"], "TokenReview");
    assert_eq!(seen[0]["apiVersion"], "authentication.k8s.io/v1");
}

/// A server that authenticates the token `secret` as user `eve`.
async fn server_with_eve(options: impl FnOnce(&mut authz::Options, &Path)) -> Server {
    Server::configured(|config, directory| {
        let tokens = directory.join("tokens.csv");
        std::fs::write(&tokens, "secret,eve,u1,dev\n").unwrap();
        config.token_auth_file = Some(tokens);
        options(&mut config.access.authorization, directory);
    })
    .await
}

async fn list(server: &Server, namespace: &str) -> (u16, String) {
    let headers = [("authorization", "Bearer secret")];
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let answer = over_tls(
        server,
        without_credentials(server),
        "GET",
        &path,
        &headers,
        "",
    )
    .await;
    let answer = answer.unwrap();
    (answer.code, answer.body)
}

fn by_namespace(review: &Value) -> Reply {
    let status = match review["spec"]["resourceAttributes"]["namespace"].as_str() {
        Some("default") => json!({"allowed": true}),
        Some("kube-system") => json!({"allowed": false, "denied": true, "reason": "not there"}),
        _ => json!({"allowed": false, "reason": "who knows"}),
    };
    Reply::Json(json!({"status": status}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_asked_after_rbac() {
    let hook = Hook::start(by_namespace).await;
    let server = server_with_eve(|options, directory| {
        options.webhook = Some(AccessWebhook {
            config_file: kubeconfig(&hook, directory),
            version: "v1beta1".to_owned(),
            authorized_ttl: Duration::from_secs(600),
            unauthorized_ttl: Duration::from_secs(600),
        });
    })
    .await;
    for _ in 0..2 {
        assert_eq!(list(&server, "default").await.0, 200);
        let (code, body) = list(&server, "kube-system").await;
        assert!(code == 403 && body.contains("not there"), "{body}");
        let (code, body) = list(&server, "kube-public").await;
        assert!(code == 403 && body.contains("who knows"), "{body}");
    }
    let seen = hook.seen.lock();
    let asked = |review: &&Value| review["spec"]["resourceAttributes"]["resource"] == "configmaps";
    let asked: Vec<_> = seen.iter().filter(asked).collect();
    assert_eq!(asked.len(), 3, "answers are kept");
    assert_eq!(asked[0]["apiVersion"], "authorization.k8s.io/v1beta1");
    assert_eq!(
        asked[0]["spec"]["group"][0], "dev",
        "the older version's name"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_webhook_has_conditions_and_a_policy_for_failures() {
    let hook = Hook::start(by_namespace).await;
    let server = server_with_eve(|options, directory| {
        let kubeconfig = kubeconfig(&hook, directory);
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- type: Webhook\n  name: first\n  webhook:\n    timeout: 3s\n    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: Deny\n    connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}\n    matchConditions:\n    - expression: has(request.resourceAttributes)\n    - expression: request.resourceAttributes.namespace != 'kube-node-lease'\n- {{type: Node, name: node}}\n- {{type: RBAC, name: rbac}}\n",
            kubeconfig.display()
        );
        let path = directory.join("authorization.yaml");
        std::fs::write(&path, text).unwrap();
        options.config = Some(path);
    })
    .await;
    assert_eq!(list(&server, "default").await.0, 200);
    assert_eq!(list(&server, "kube-system").await.0, 403);
    let before = hook.seen.lock().len();
    assert_eq!(list(&server, "kube-node-lease").await.0, 403);
    assert_eq!(hook.seen.lock().len(), before, "the conditions do not hold");
    drop(hook);
    // `/version` is no resource: the match conditions are false and RBAC decides.
    let headers = [("authorization", "Bearer secret")];
    let version = over_tls(
        &server,
        without_credentials(&server),
        "GET",
        "/version",
        &headers,
        "",
    )
    .await;
    assert_eq!(version.unwrap().code, 200);
    assert_eq!(
        who(&server, "secret").await,
        Err(403),
        "a condition that fails counts as the policy says"
    );
    let (code, _) = list(&server, "other").await;
    assert_eq!(code, 403, "without an answer the policy is to deny");
}
