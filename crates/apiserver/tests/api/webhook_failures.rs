//! Webhooks that cannot be reached, fail, hang, or are not who they claim to be.

use machinery::json::{Value, json};

use crate::{
    hook_server::{Hook, Reply, allowed, install, webhook},
    support::{Server, admin},
    webhooks::{MAPS, create, is_stored, message},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_webhook_follows_its_failure_policy() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let uid = review["request"]["uid"].clone();
        match review["request"]["name"].as_str().unwrap_or_default() {
            "garbage" => Reply::Raw(200, b"garbage".to_vec()),
            "empty" => Reply::Raw(200, Vec::new()),
            "large" => Reply::Raw(200, vec![b' '; 20 << 20]),
            "broken" => Reply::Raw(500, b"{}".to_vec()),
            "stranger" => Reply::Json(
                json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
                "response": {"uid": "other", "allowed": true}}),
            ),
            "nameless" => Reply::Json(json!({"response": {"uid": uid, "allowed": true}})),
            "absent" => {
                Reply::Json(json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}))
            }
            "late" => Reply::Never,
            "slow" => Reply::Slow,
            _ => Reply::Json(allowed(review, json!({}))),
        }
    })
    .await;
    let short = json!({"timeoutSeconds": 1});
    install(
        &server,
        false,
        "strict",
        vec![webhook("f.example.com", hook.by_url(), short)],
    )
    .await;
    for (name, words) in [
        (
            "garbage",
            "failed to call webhook: couldn't get version/kind; json parse error: ",
        ),
        (
            "empty",
            "failed to call webhook: 0-length response with status code: 200 and content type: application/json",
        ),
        (
            "large",
            "failed to call webhook: unexpected error when reading response body. ",
        ),
        (
            "broken",
            "failed to call webhook: an error on the server (\"unknown\") has prevented the request from succeeding",
        ),
        (
            "stranger",
            "received invalid webhook response: expected response.uid=\"",
        ),
        (
            "nameless",
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
        ),
        (
            "absent",
            "received invalid webhook response: webhook response was absent",
        ),
        ("late", "\": context deadline exceeded"),
        (
            "slow",
            "failed to call webhook: unexpected error when reading response body. Please retry. Original error: context deadline exceeded",
        ),
    ] {
        let refused = create(&server, name).await;
        assert_eq!(refused.code, 500, "{name}: {}", refused.body);
        let said = message(&refused);
        let start = "Internal error occurred: failed calling webhook \"f.example.com\": ";
        assert!(
            said.starts_with(start) && said.contains(words),
            "{name}: {said}"
        );
        assert!(!is_stored(&server, name).await, "{name}");
    }
    assert_eq!(create(&server, "good").await.code, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_passed_over_where_the_policy_says_so() {
    let server = Server::start().await;
    let hook = Hook::start(|_| Reply::Raw(200, b"garbage".to_vec())).await;
    let open = json!({"failurePolicy": "Ignore"});
    install(
        &server,
        false,
        "open",
        vec![webhook("o.example.com", hook.by_url(), open.clone())],
    )
    .await;
    install(
        &server,
        true,
        "gone",
        vec![webhook(
            "g.example.com",
            json!({"url": "https://127.0.0.1:1/"}),
            open,
        )],
    )
    .await;
    let made = create(&server, "one").await;
    assert_eq!(made.code, 201, "{}", made.body);
    let metrics = admin(&server, "GET", "/metrics", Value::Null).await.body;
    for line in [
        r#"apiserver_admission_webhook_fail_open_count{name="o.example.com",type="validating"} 1"#,
        r#"apiserver_admission_webhook_fail_open_count{name="g.example.com",type="admit"} 1"#,
        r#"apiserver_admission_webhook_request_total{name="o.example.com",operation="CREATE",code="503",rejected="false",type="validating"} 1"#,
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_authority_of_the_configuration_is_believed() {
    let server = Server::start().await;
    let hook = Hook::allowing(json!({})).await;
    let other = Hook::allowing(json!({})).await;
    let mut client = hook.by_url();
    client["caBundle"] = other.by_url()["caBundle"].clone();
    install(
        &server,
        false,
        "stranger",
        vec![webhook("t.example.com", client, Value::Null)],
    )
    .await;
    let refused = create(&server, "one").await;
    assert_eq!(refused.code, 500, "{}", refused.body);
    let said = message(&refused);
    let end = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(said.ends_with(end), "{said}");
    let url = format!("Post \"https://{}/hook?timeout=10s\": ", hook.address);
    assert!(said.contains(&url), "{said}");
    assert!(!is_stored(&server, "one").await);
    assert!(hook.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_endpoints_cannot_be_asked() {
    let server = Server::start().await;
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443}]}});
    let path = "/api/v1/namespaces/default/services";
    assert_eq!(admin(&server, "POST", path, service).await.code, 201);
    let client = json!({"service": {"namespace": "default", "name": "hook", "path": "/in"}});
    let missing = json!({"service": {"namespace": "default", "name": "nothing"}});
    install(
        &server,
        false,
        "alone",
        vec![webhook("e.example.com", client, Value::Null)],
    )
    .await;
    let refused = create(&server, "one").await;
    let expected = "Internal error occurred: failed calling webhook \"e.example.com\": failed to call webhook: Post \"https://hook.default.svc:443/in?timeout=10s\": no endpoints available for service \"hook\"";
    assert_eq!(message(&refused), expected);
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/alone";
    assert_eq!(admin(&server, "DELETE", path, Value::Null).await.code, 200);
    install(
        &server,
        true,
        "absent",
        vec![webhook("n.example.com", missing, Value::Null)],
    )
    .await;
    let refused = create(&server, "one").await;
    assert!(
        message(&refused).ends_with("service \"nothing\" not found"),
        "{}",
        refused.body
    );
    assert!(!is_stored(&server, "one").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_hangs_delays_only_what_it_is_asked_about() {
    let server = Server::start().await;
    let hook = Hook::start(|_| Reply::Never).await;
    let hooks = vec![webhook("h.example.com", hook.by_url(), Value::Null)];
    install(&server, false, "hangs", hooks).await;
    let names: Vec<String> = (0..50).map(|number| format!("waits-{number}")).collect();
    let waiting = futures::future::join_all(names.iter().map(|name| create(&server, name)));
    let others = async {
        while hook.seen.lock().len() < names.len() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        for number in 0..20 {
            let secret = json!({"metadata": {"name": format!("other-{number}")}});
            let path = "/api/v1/namespaces/default/secrets";
            let made = admin(&server, "POST", path, secret).await;
            assert_eq!(made.code, 201, "{}", made.body);
            assert_eq!(admin(&server, "GET", MAPS, Value::Null).await.code, 200);
        }
    };
    tokio::select! {
        _ = waiting => panic!("the webhook never answers, and its time is not up"),
        () = others => {}
    }
    assert!(!is_stored(&server, "waits-0").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_of_a_webhook_is_not_followed() {
    let server = Server::start().await;
    let hook = Hook::start(|_| Reply::Redirect("/elsewhere")).await;
    let strict = webhook("r.example.com", hook.by_url(), Value::Null);
    install(&server, false, "redirects", vec![strict]).await;
    let refused = create(&server, "one").await;
    assert_eq!(refused.code, 500, "{}", refused.body);
    assert!(!is_stored(&server, "one").await);
    let paths = hook.paths.lock().clone();
    let astray = paths.iter().any(|path| path.starts_with("/elsewhere"));
    assert!(!paths.is_empty() && !astray, "{paths:?}");
}
