//! Authentication and authorization: certificates over TLS, in-process identities, anonymous
//! callers.

use crate::support::{Server, admin, send};
use apiserver::User;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, api::PostParams};
use pki::Leaf;

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_its_user() {
    let server = Server::start().await;
    let admin = client::from_kubeconfig(server.kubeconfig(Leaf::Admin)).unwrap();
    let namespaces = Api::<Namespace>::all(admin)
        .list(&Default::default())
        .await
        .unwrap();
    assert!(namespaces.items.len() >= 4);
    let dns = client::from_kubeconfig(server.kubeconfig(Leaf::Dns)).unwrap();
    assert!(
        Api::<Namespace>::all(dns.clone())
            .list(&Default::default())
            .await
            .is_ok()
    );
    let maps: Api<ConfigMap> = Api::namespaced(dns, "default");
    let refused = maps
        .create(&PostParams::default(), &ConfigMap::default())
        .await
        .unwrap_err();
    let kube::Error::Api(status) = refused else {
        panic!("{refused}")
    };
    assert_eq!(status.code, 403);
    assert_eq!(
        status.message,
        "configmaps is forbidden: User \"system:mainstay:dns\" cannot create resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_requests_get_only_health_and_version() {
    let server = Server::start().await;
    let ask = |path: &'static str| send(&server, User::anonymous(), "GET", path, &[], "");
    assert_eq!(ask("/healthz").await.body, "ok");
    assert_eq!(ask("/livez?verbose").await.code, 200);
    assert_eq!(ask("/readyz").await.code, 200);
    assert_eq!(ask("/version").await.json()["minor"], "36");
    for path in ["/api", "/api/v1/namespaces", "/apis/apps/v1", "/metrics"] {
        let refused = ask(path).await;
        assert_eq!(
            (refused.code, refused.json()["reason"].as_str().unwrap()),
            (403, "Forbidden"),
            "{path}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonation_needs_permission() {
    let server = Server::start().await;
    let headers = [("impersonate-user", "system:kube-scheduler")];
    let admin = User::new("kubernetes-admin", ["system:masters"]);
    let allowed = send(&server, admin.clone(), "GET", "/api/v1/nodes", &headers, "").await;
    assert_eq!(allowed.code, 200);
    let narrowed = send(&server, admin, "DELETE", "/api/v1/nodes/x", &headers, "").await;
    assert_eq!(narrowed.code, 403, "{}", narrowed.body);
    let eve = send(
        &server,
        User::new("eve", [""; 0]),
        "GET",
        "/api/v1/nodes",
        &headers,
        "",
    )
    .await;
    assert_eq!(
        eve.json()["message"],
        "nodes is forbidden: User \"eve\" cannot impersonate-on:user-info:list resource \"nodes\" in API group \"\" at the cluster scope"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_review_without_attributes_is_invalid_and_names_no_kind_as_upstream() {
    let server = Server::start().await;
    for resource in ["selfsubjectaccessreviews", "subjectaccessreviews"] {
        let path = format!("/apis/authorization.k8s.io/v1/{resource}");
        let answer = admin(&server, "POST", &path, machinery::json::json!({})).await;
        assert_eq!(answer.code, 422, "{}", answer.body);
        let status = answer.json();
        let message = status["message"].as_str().unwrap();
        let expected = ".authorization.k8s.io \"\" is invalid: ";
        assert!(message.starts_with(expected), "{message}");
        let expected = "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified";
        assert!(message.contains(expected), "{message}");
        assert_eq!(status["details"]["group"], "authorization.k8s.io");
        assert_eq!(status["details"]["kind"], machinery::json::Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn access_reviews_return_the_authorizers_decision() {
    let server = Server::start().await;
    let ask = |user: User, kind: &'static str, spec: machinery::json::Value| {
        let server = &server;
        async move {
            let group = if kind.contains("Access") {
                "authorization"
            } else {
                "authentication"
            };
            let path = format!("/apis/{group}.k8s.io/v1/{}s", kind.to_lowercase());
            let body = machinery::json::json!({"kind": kind, "apiVersion": format!("{group}.k8s.io/v1"), "spec": spec});
            let headers = [("content-type", "application/json")];
            let answer = send(server, user, "POST", &path, &headers, body.to_string()).await;
            assert_eq!(answer.code, 201, "{}", answer.body);
            answer.json()["status"].clone()
        }
    };
    let admin = || User::new("kubernetes-admin", ["system:masters"]);
    let nodes = machinery::json::json!({"verb": "list", "resource": "nodes"});
    let own = ask(
        admin(),
        "SelfSubjectAccessReview",
        machinery::json::json!({"resourceAttributes": nodes}),
    )
    .await;
    assert_eq!(own["allowed"], true);
    let spec = machinery::json::json!({"user": "eve", "resourceAttributes": nodes});
    let other = ask(admin(), "SubjectAccessReview", spec).await;
    assert_eq!(other["allowed"], false);
    let me = ask(admin(), "SelfSubjectReview", machinery::json::Value::Null).await;
    assert_eq!(me["userInfo"]["username"], "kubernetes-admin");
    let token = ask(
        admin(),
        "TokenReview",
        machinery::json::json!({"token": "nonsense"}),
    )
    .await;
    assert!(token["authenticated"] != true, "{token}");
}
