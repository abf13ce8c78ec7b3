//! Aggregated API servers: which requests are forwarded and with which user, availability, and how
//! they appear in discovery and OpenAPI.

use std::time::Duration;

use apiserver::User;
use futures::StreamExt;
use http_body_util::{BodyStream, Full};
use hyper_util::rt::TokioIo;
use machinery::json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    backend_server::{Backend, GROUP, Mode, SERVICES, condition, wait_for},
    support::{Server, admin, eventually, over_socket, send},
};

const THINGS: &str = "/apis/agg.example.com/v1/namespaces/default/things";

async fn with_backend(mode: Mode) -> (Server, Backend) {
    let server = Server::start().await;
    let backend = Backend::start(&server, mode).await;
    backend.install(&server).await;
    (server, backend)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_passed_on_with_their_user() {
    let (server, backend) = with_backend(Mode::Modern).await;
    let mut user = User::new("jane", ["dev", "system:masters"]);
    user.uid = "u-7".to_owned();
    user.extra
        .insert("acme.com/project".to_owned(), vec!["p".to_owned()]);
    // Identity headers of the caller are not trusted.
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer secret"),
        ("x-remote-user", "root"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-a", "b"),
        ("x-custom", "kept"),
    ];
    let path = format!("{THINGS}?dryRun=All&a=b%20c");
    let answer = send(&server, user, "POST", &path, &headers, "{\"a\":1}").await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let expected = json!({"method": "POST", "path": path, "body": "{\"a\":1}"});
    assert_eq!(answer.json(), expected);
    assert!(answer.headers.contains_key("audit-id"));
    let asked = backend.asked(THINGS).pop().unwrap();
    let all = |name: &str| {
        let values = asked.headers.get_all(name).iter();
        values
            .map(|value| value.to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(all("x-remote-user"), ["jane"]);
    assert_eq!(all("x-remote-uid"), ["u-7"]);
    assert_eq!(
        all("x-remote-group"),
        ["dev", "system:masters", "system:authenticated"]
    );
    assert_eq!(all("x-remote-extra-acme.com%2fproject"), ["p"]);
    assert_eq!(all("x-custom"), ["kept"]);
    assert_eq!(
        all("audit-id"),
        [answer.headers["audit-id"].to_str().unwrap()]
    );
    for name in ["authorization", "x-remote-extra-a"] {
        assert!(all(name).is_empty(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impersonated_user_is_the_user() {
    let (server, backend) = with_backend(Mode::Modern).await;
    let root = User::new("root", ["system:masters"]);
    let headers = [
        ("impersonate-user", "joe"),
        ("impersonate-group", "system:masters"),
    ];
    let answer = send(&server, root, "GET", THINGS, &headers, "").await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let asked = backend.asked(THINGS).pop().unwrap();
    assert_eq!(asked.headers["x-remote-user"], "joe");
    assert!(!asked.headers.contains_key("impersonate-user"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_may_not_do_is_not_passed_on() {
    let (server, backend) = with_backend(Mode::Modern).await;
    let no_groups: [&str; 0] = [];
    let answer = send(
        &server,
        User::new("jane", no_groups),
        "GET",
        THINGS,
        &[],
        "",
    )
    .await;
    assert_eq!(answer.code, 403, "{}", answer.body);
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    let expected = "things.agg.example.com is forbidden: User \"jane\" cannot list resource \"things\" in API group \"agg.example.com\" in the namespace \"default\"";
    assert_eq!(message, expected);
    // A path that the backend would resolve to another one is rejected.
    let path = format!("{THINGS}/x/%2e%2e/%2e%2e/%2e%2e/secrets");
    let answer = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(answer.code, 404, "{}", answer.body);
    assert!(backend.asked(THINGS).is_empty());
    // Routing and authorization use the same parsed path.
    let path = THINGS.replace("com/v1", "com%2Fv1");
    let answer = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(answer.json()["path"], path.as_str(), "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_and_large_lists_are_streamed() {
    let (server, _backend) = with_backend(Mode::Modern).await;
    let get = |path: String| {
        http::Request::get(path)
            .body(Full::new(bytes::Bytes::new()))
            .unwrap()
    };
    let watch = over_socket(&server, get(format!("{THINGS}?watch=true"))).await;
    assert_eq!(watch.status(), 200);
    let mut events = BodyStream::new(watch.into_body());
    for _ in 0..3 {
        let event = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
        let event = event.unwrap().unwrap().unwrap().into_data().unwrap();
        assert!(
            event.starts_with(b"{\"type\":\"ADDED\""),
            "each as it comes"
        );
    }
    let list = over_socket(&server, get(format!("{THINGS}/big"))).await;
    assert_eq!(list.status(), 200);
    let mut body = BodyStream::new(list.into_body());
    let mut size = 0;
    while let Some(frame) = body.next().await {
        size += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(size, 64 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_upgraded_in_both_ways() {
    let (server, backend) = with_backend(Mode::Modern).await;
    for protocol in ["SPDY/3.1", "websocket"] {
        let mut request = http::Request::get(format!("{THINGS}/x/exec?command=ls"))
            .header("connection", "Upgrade")
            .header("upgrade", protocol);
        if protocol == "websocket" {
            request = request
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .header("sec-websocket-version", "13");
        }
        let request = request.body(Full::new(bytes::Bytes::new())).unwrap();
        let mut response = over_socket(&server, request).await;
        assert_eq!(response.status(), 101, "{protocol}");
        let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
        let mut io = TokioIo::new(upgraded);
        io.write_all(b" world").await.unwrap();
        let mut said = [0; 11];
        io.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello world");
        let asked = backend.asked(THINGS).pop().unwrap();
        assert_eq!(asked.path, format!("{THINGS}/x/exec?command=ls"));
        assert_eq!(asked.headers["x-remote-user"], "kubernetes-admin");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_nor_passed_back() {
    let (server, _backend) = with_backend(Mode::Modern).await;
    let path = format!("{THINGS}/moved");
    let answer = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(answer.code, 502);
    assert!(answer.headers.get("location").is_none());
    let expected = "the backend attempted to redirect this request, which is not permitted";
    assert_eq!(answer.body, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_condition_says_what_is_missing() {
    let server = Server::start().await;
    let backend = Backend::start(&server, Mode::Broken).await;
    let made = admin(&server, "POST", SERVICES, backend.api_service("v1")).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let missing = wait_for(&server, "ServiceNotFound").await;
    let expected = "service/backend in \"default\" is not present";
    assert_eq!(missing["message"], expected);
    let refused = admin(&server, "GET", THINGS, Value::Null).await;
    assert_eq!(
        (refused.code, refused.body.as_str()),
        (503, "service unavailable\n")
    );
    let service = json!({"metadata": {"name": "backend"}, "spec": {"ports": [{"name": "https", "port": 444}]}});
    let services = "/api/v1/namespaces/default/services";
    admin(&server, "POST", services, service).await;
    wait_for(&server, "ServicePortError").await;
    let ports = json!({"spec": {"ports": [{"name": "https", "port": 443}]}});
    let path = format!("{services}/backend");
    admin(&server, "PATCH", &path, ports).await;
    wait_for(&server, "EndpointsNotFound").await;
    backend.make_slice(&server).await;
    let failed = wait_for(&server, "FailedDiscoveryCheck").await;
    let url = format!("https://{}/apis/{GROUP}/v1", backend.address);
    let expected = format!("failing or missing response from {url}: bad status from {url}: 500");
    assert_eq!(failed["message"], expected.as_str());
    backend.set(Mode::Modern);
    let passed = wait_for(&server, "Passed").await;
    assert_eq!(passed["message"], "all checks passed");
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/backend-1";
    let unready =
        json!({"endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": false}}]});
    let patched = admin(&server, "PATCH", slice, unready).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    let missing = wait_for(&server, "MissingEndpoints").await;
    let expected = "endpointslices for service/backend in \"default\" have no addresses with port name \"https\"";
    assert_eq!(missing["message"], expected);
    let text = admin(&server, "GET", "/metrics", Value::Null).await.body;
    for line in [
        r#"aggregator_unavailable_apiservice{name="v1.agg.example.com"} 1"#,
        r#"aggregator_unavailable_apiservice_total{name="v1.agg.example.com",reason="MissingEndpoints"} 1"#,
    ] {
        assert!(text.contains(&format!("\n{line}")), "{line}\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_not_believed() {
    let server = Server::start().await;
    let backend = Backend::start(&server, Mode::Modern).await;
    let other = Backend::start(&server, Mode::Modern).await;
    backend.make_service(&server).await;
    let service = other.api_service("v1");
    let made = admin(&server, "POST", SERVICES, service.clone()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let failed = wait_for(&server, "FailedDiscoveryCheck").await;
    let message = failed["message"].as_str().unwrap();
    assert!(
        message.contains("x509: certificate signed by unknown authority"),
        "{message}"
    );
    let path = format!("{SERVICES}/v1.{GROUP}");
    let insecure = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    let patched = admin(&server, "PATCH", &path, insecure).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    wait_for(&server, "Passed").await;
    assert_eq!(admin(&server, "GET", THINGS, Value::Null).await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_hangs_does_not_delay_other_requests() {
    let (server, backend) = with_backend(Mode::Modern).await;
    backend.set(Mode::Hangs);
    let mut waiting = Vec::new();
    for _ in 0..450 {
        let root = User::new("root", ["system:masters"]);
        waiting.push(send(&server, root, "GET", THINGS, &[], ""));
    }
    let mut all = futures::stream::FuturesUnordered::from_iter(waiting);
    // Requests above the limit are rejected at once, while the others wait.
    let mut refused = 0;
    while refused < 50 {
        let answer = tokio::time::timeout(Duration::from_secs(20), all.next()).await;
        assert_eq!(answer.unwrap().unwrap().code, 429);
        refused += 1;
    }
    let path = "/api/v1/namespaces/default/configmaps";
    for _ in 0..20 {
        assert_eq!(admin(&server, "GET", path, Value::Null).await.code, 200);
    }
    let groups = admin(&server, "GET", "/apis", Value::Null).await;
    assert!(groups.body.contains(GROUP));
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_shows_what_backends_serve() {
    for mode in [Mode::Modern, Mode::Old] {
        let (server, backend) = with_backend(mode).await;
        let aggregated = || async {
            let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            let root = User::new("root", ["system:masters"]);
            let found = send(&server, root, "GET", "/apis", &[("accept", accept)], "").await;
            found.json()["items"].as_array().unwrap().clone()
        };
        let version = |groups: &[Value]| {
            let group = groups.iter().find(|one| one["metadata"]["name"] == GROUP);
            group.unwrap()["versions"][0].clone()
        };
        // Usually at once; the condition does not wait long for slow documents.
        let current = eventually(|| async {
            let version = version(&aggregated().await);
            (version["freshness"] == "Current").then_some(version)
        })
        .await;
        assert_eq!(current["version"], "v1", "{mode:?}");
        assert_eq!(current["resources"][0]["resource"], "things", "{mode:?}");
        let groups = aggregated().await;
        let names: Vec<_> = groups
            .iter()
            .map(|group| group["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names[..2], ["apiregistration.k8s.io", "apps"]);
        let last = &names[names.len() - 2..];
        assert_eq!(last, [GROUP, "metrics.k8s.io"], "by its priority");
        let apps = groups.iter().find(|one| one["metadata"]["name"] == "apps");
        let apps = apps.unwrap()["versions"][0]["resources"]
            .as_array()
            .unwrap();
        assert!(!apps.is_empty(), "a backend does not speak for others");
        let legacy = admin(&server, "GET", "/apis", Value::Null).await.json();
        let mut legacy = legacy["groups"].as_array().unwrap().iter();
        let legacy = legacy.rfind(|group| group["name"] == GROUP).unwrap();
        let preferred = json!({"groupVersion": format!("{GROUP}/v1"), "version": "v1"});
        assert_eq!(legacy["preferredVersion"], preferred);
        let group = admin(&server, "GET", &format!("/apis/{GROUP}"), Value::Null).await;
        assert_eq!(group.json()["versions"], json!([preferred]));
        let resources = admin(&server, "GET", &format!("/apis/{GROUP}/v1"), Value::Null).await;
        assert_eq!(resources.json()["resources"][0]["name"], "things");
        // Known resources stay in discovery when the backend is gone, marked as stale.
        backend.serve_also("others");
        backend.set(Mode::Broken);
        backend.move_endpoint(&server, "broken").await;
        wait_for(&server, "FailedDiscoveryCheck").await;
        let stale = eventually(|| async {
            let version = version(&aggregated().await);
            (version["freshness"] == "Stale").then_some(version)
        })
        .await;
        assert_eq!(stale["resources"][0]["resource"], "things");
        backend.set(mode);
        wait_for(&server, "Passed").await;
        eventually(|| async {
            let version = version(&aggregated().await);
            let resources = version["resources"].as_array().unwrap().len();
            (version["freshness"] == "Current" && resources == 2).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v3_leads_to_the_backend() {
    let (server, backend) = with_backend(Mode::Modern).await;
    let place = format!("apis/{GROUP}/v1");
    let url = eventually(|| async {
        let index = admin(&server, "GET", "/openapi/v3", Value::Null).await;
        let found = index.json()["paths"][place.as_str()]["serverRelativeURL"].clone();
        assert!(!index.body.contains("stolen"));
        found.as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(url, format!("/openapi/v3/{place}?hash=1"));
    let document = admin(&server, "GET", &url, Value::Null).await;
    assert_eq!(document.json()["path"], url.as_str());
    let asked = backend.asked("/openapi/v3/apis").pop().unwrap();
    assert_eq!(asked.headers["x-remote-user"], "kubernetes-admin");
    let own = admin(&server, "GET", "/openapi/v3/apis/apps/v1", Value::Null).await;
    assert_eq!(own.json()["openapi"], "3.0.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_server_takes_precedence_over_this_one_and_gives_it_back() {
    let server = Server::start().await;
    let backend = Backend::start(&server, Mode::Old).await;
    backend.make_service(&server).await;
    let definition = json!({"metadata": {"name": format!("things.{GROUP}")}, "spec": {
        "group": GROUP, "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = admin(&server, "POST", path, definition).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let service = format!("{SERVICES}/v1.{GROUP}");
    eventually(|| async {
        let found = admin(&server, "GET", &service, Value::Null).await;
        (found.code == 200).then_some(())
    })
    .await;
    assert_eq!(condition(&server).await["reason"], "Local");
    let local = admin(&server, "GET", THINGS, Value::Null).await;
    assert_eq!(local.json()["kind"], "ThingList");
    // An object without the automanaged label.
    let mut remote = backend.api_service("v1");
    remote["metadata"]["labels"] = json!({"kube-aggregator.kubernetes.io/automanaged": null});
    let patched = admin(&server, "PATCH", &service, remote).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    wait_for(&server, "Passed").await;
    let answer = admin(&server, "GET", THINGS, Value::Null).await;
    assert_eq!(answer.json()["path"], THINGS);
    admin(&server, "DELETE", &service, Value::Null).await;
    eventually(|| async {
        let local = admin(&server, "GET", THINGS, Value::Null).await;
        (local.json()["kind"] == "ThingList").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_passes_requests_on_at_once() {
    let (server, _backend) = with_backend(Mode::Modern).await;
    let server = server.restart().await;
    let answer = admin(&server, "GET", THINGS, Value::Null).await;
    assert_eq!(answer.code, 200, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_has_what_backends_say_of_their_own_groups() {
    let (server, backend) = with_backend(Mode::Old).await;
    let path = format!("/apis/{GROUP}/v1/things");
    let whole = eventually(|| async {
        let whole = admin(&server, "GET", "/openapi/v2", Value::Null)
            .await
            .json();
        whole["paths"].get(path.as_str()).is_some().then_some(whole)
    })
    .await;
    assert!(whole["paths"].get("/apis/apps/v1/stolen").is_none());
    assert!(
        whole["paths"]
            .get("/apis/apps/v1/namespaces/{namespace}/deployments")
            .is_some()
    );
    let definitions = &whole["definitions"];
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_ne!(definitions[meta]["description"], "another one");
    assert_eq!(
        definitions[format!("{meta}_v2").as_str()]["description"],
        "another one"
    );
    let reference = &definitions["com.example.agg.v1.Thing"]["properties"]["metadata"]["$ref"];
    assert_eq!(*reference, format!("#/definitions/{meta}_v2").as_str());
    assert!(definitions.get("unused").is_none());
    // OpenAPI v3 is converted from v2, since the backend has no v3.
    let index = admin(&server, "GET", "/openapi/v3", Value::Null).await;
    let place = format!("apis/{GROUP}/v1");
    let url = index.json()["paths"][place.as_str()]["serverRelativeURL"].clone();
    let made = admin(&server, "GET", url.as_str().unwrap(), Value::Null).await;
    assert_eq!(made.code, 200, "{}", made.body);
    let schemas = &made.json()["components"]["schemas"];
    let reference = &schemas["com.example.agg.v1.Thing"]["properties"]["metadata"]["$ref"];
    assert_eq!(*reference, format!("#/components/schemas/{meta}").as_str());
    let service = format!("{SERVICES}/v1.{GROUP}");
    admin(&server, "DELETE", &service, Value::Null).await;
    eventually(|| async {
        let whole = admin(&server, "GET", "/openapi/v2", Value::Null)
            .await
            .json();
        whole["paths"].get(path.as_str()).is_none().then_some(())
    })
    .await;
    drop(backend);
}
