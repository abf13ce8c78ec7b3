//! Which methods exist at which paths, the errors elsewhere, and the encoding of non-resource
//! responses.

use apiserver::User;
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, send};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const NONE: &str = "the server could not find the requested resource";
const OTHER: &str = "the server does not allow this method on the requested resource";
const PAGE: &str = "404 page not found\n";

async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    send(server, user, method, path, headers, "").await
}

/// The message of a Status, or else the whole body.
fn message_of(answer: &Raw) -> String {
    let status: Result<Value, _> = machinery::json::from_str(&answer.body);
    match status {
        Ok(status) if status["kind"] == "Status" => status["message"].as_str().unwrap().to_owned(),
        _ => answer.body.clone(),
    }
}

/// Methods, a path, and the code and message that they get.
type Route = (&'static str, &'static str, u16, &'static str);

async fn check_routes(server: &Server, routes: &[Route]) {
    for &(methods, path, code, message) in routes {
        for method in methods.split(' ') {
            let answer = ask(server, method, path, &[]).await;
            let about = format!("{method} {path}");
            assert_eq!(answer.code, code, "{about}: {}", answer.body);
            match method {
                "HEAD" => assert_eq!(answer.body, "", "{about}"),
                _ => assert_eq!(message_of(&answer), message, "{about}"),
            }
            let sniffed = answer.headers.get("x-content-type-options").is_none();
            assert_eq!(sniffed, message != PAGE, "{about}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_get_upstreams_404_and_405() {
    let server = Server::start().await;
    let routes = [
        // Paths without a router.
        ("GET POST HEAD", "/nope", 404, PAGE),
        ("GET PUT", "/apis/nope", 404, PAGE),
        ("GET FOO", "/apis/nope/v1", 404, PAGE),
        ("GET DELETE", "/apis/nope/v1/things", 404, PAGE),
        ("GET", "/healthz/", 404, PAGE),
        ("GET", "/livez/none", 404, PAGE),
        ("GET", "/version/more/", 404, NONE),
        // Paths with a router.
        ("GET POST OPTIONS", "/api/v2", 404, NONE),
        ("GET", "/apis/apps/v2", 404, NONE),
        ("GET PATCH TRACE", "/apis/apps/v2/things", 404, NONE),
        ("GET FOO", "/api/v1/nopes", 404, NONE),
        ("GET DELETE FOO", "/api/v1/pods/x", 404, NONE),
        ("GET POST", "/api/v1/bindings", 404, NONE),
        ("GET", "/api/v1/namespaces/default/nodes", 404, NONE),
        ("GET FOO", "/api/v1//pods", 404, NONE),
        ("GET", "/api/v1/namespaces/a%2Fb/configmaps", 404, NONE),
        (
            "GET PATCH",
            "/api/v1/namespaces/default/pods/x/log/y",
            404,
            NONE,
        ),
        ("POST DELETE HEAD", "/api", 405, OTHER),
        ("POST HEAD OPTIONS", "/api/v1", 405, OTHER),
        ("PUT HEAD", "/apis/apps/v1", 405, OTHER),
        ("POST", "/apis/apiregistration.k8s.io", 405, OTHER),
        ("POST HEAD", "/version", 405, OTHER),
        ("POST DELETE PATCH HEAD", "/api/v1/configmaps", 405, OTHER),
        ("PUT PATCH HEAD FOO", MAPS, 405, OTHER),
        ("GET", "/api/v1/namespaces/default/bindings", 405, OTHER),
        ("POST HEAD OPTIONS", "/api/v1/nodes/x", 405, OTHER),
        (
            "GET",
            "/api/v1/namespaces/default/pods/x/binding",
            405,
            OTHER,
        ),
        (
            "DELETE",
            "/api/v1/namespaces/default/pods/x/status",
            405,
            OTHER,
        ),
    ];
    check_routes(&server, &routes).await;
    let everywhere = ask(&server, "GET", "/api/v1/namespaces//configmaps", &[]).await;
    assert_eq!(everywhere.json()["kind"], "ConfigMapList");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_paths_are_checked() {
    let server = Server::start().await;
    let routes = [
        (
            "GET DELETE",
            "/api/v1/nodes/%2e%2e",
            400,
            "Name parameter invalid: \"..\": may not be '..'",
        ),
        (
            "GET",
            "/api/v1/nodes/a%25b",
            400,
            "Name parameter invalid: \"a%b\": may not contain '%'",
        ),
        ("GET", "/api/v1/nodes/a%zz", 400, "400 Bad Request"),
        // Not a path.
        ("GET", "nodes", 400, "400 Bad Request"),
        ("CONNECT", "nodes:80", 404, PAGE),
        (
            "GET",
            "/api/v1/nodes/a%00b",
            404,
            "nodes \"a\\x00b\" not found",
        ),
    ];
    check_routes(&server, &routes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_without_a_router_accept_every_method() {
    let server = Server::start().await;
    for (path, start) in [
        (
            "/",
            "{\n  \"paths\": [\n    \"/.well-known/openid-configuration\"",
        ),
        ("/healthz", "ok"),
        ("/livez/etcd", "ok"),
        (
            "/apis",
            "{\"kind\":\"APIGroupList\",\"apiVersion\":\"v1\",\"groups\":[{\"name\":\"api",
        ),
        ("/apis/apps", "{\"kind\":\"APIGroup\""),
        ("/%61pis/apps", "{\"kind\":\"APIGroup\""),
    ] {
        for method in ["GET", "POST", "FOO"] {
            let answer = ask(&server, method, path, &[]).await;
            assert_eq!(answer.code, 200, "{method} {path}");
            assert!(answer.body.starts_with(start), "{path}: {}", answer.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_written_as_they_are_wanted() {
    let server = Server::start().await;
    let three = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let only = format!("only the following media types are accepted: {three}");
    let router = |types: &str| format!("406: Not Acceptable\n\nAvailable representations: {types}");
    let discovery = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (path, accept, code, media, message) in [
        ("/apis", "foo/bar", 406, "application/json", &*only),
        (
            "/apis/apps",
            "application/json;v=v1",
            406,
            "application/json",
            &only,
        ),
        (
            "/api/v1",
            "APPLICATION/JSON",
            406,
            "application/json",
            &router(three),
        ),
        (
            "/version",
            "text/plain",
            406,
            "application/json",
            &router("application/json"),
        ),
        ("/apis", "application/yaml", 200, "application/yaml", ""),
        ("/api", "*", 406, "application/json", &router(three)),
        ("/apis", "*", 200, "application/json", ""),
        (
            "/apis",
            &format!("application/vnd.kubernetes.protobuf;{discovery}"),
            200,
            &format!("application/vnd.kubernetes.protobuf;{discovery}"),
            "",
        ),
    ] {
        let answer = ask(&server, "GET", path, &[("accept", accept)]).await;
        assert_eq!(answer.code, code, "{path} {accept}: {}", answer.body);
        assert_eq!(answer.headers["content-type"], media, "{path} {accept}");
        if !message.is_empty() {
            assert_eq!(message_of(&answer), message, "{path} {accept}");
            // A client that accepts nothing we serve gets JSON for people.
            let indented = answer.body.starts_with("{\n  \"kind\": \"Status\",\n");
            assert_eq!(indented, accept != "*", "{path} {accept}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verbose_health_lists_each_check() {
    let server = Server::start().await;
    let verbose = ask(
        &server,
        "GET",
        "/readyz?verbose&exclude=etcd&exclude=nope",
        &[],
    )
    .await;
    assert_eq!(verbose.code, 200, "{}", verbose.body);
    let lines: Vec<&str> = verbose.body.lines().collect();
    for line in [
        "[+]ping ok",
        "[+]etcd excluded: ok",
        "[+]etcd-readiness ok",
        "[+]informer-sync ok",
        "[+]poststarthook/rbac/bootstrap-roles ok",
        "[+]shutdown ok",
        "warn: some health checks cannot be excluded: no matches for \"nope\"",
        "readyz check passed",
    ] {
        assert!(lines.contains(&line), "{line} in {}", verbose.body);
    }
    assert_eq!(verbose.headers["x-content-type-options"], "nosniff");
    let single = ask(&server, "GET", "/livez/ping?verbose", &[]).await;
    assert_eq!(single.body, "ok");
    let figures = ask(&server, "GET", "/metrics/slis", &[]).await.body;
    for line in [
        "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 1",
    ] {
        assert!(figures.lines().any(|one| one == line), "{figures}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn statusz_and_flagz_are_text_or_objects() {
    let server = Server::start().await;
    let text = ask(&server, "GET", "/statusz", &[]).await;
    assert!(
        text.body.contains("kube-apiserver statusz"),
        "{}",
        text.body
    );
    let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
    let object = ask(&server, "GET", "/statusz", &[("accept", accept)]).await;
    let object: Value = machinery::json::from_str(&object.body).unwrap();
    assert_eq!(object["kind"], "Statusz");
    let paths = object["paths"].as_array().unwrap();
    assert!(paths.contains(&json!("/readyz")) && !paths.contains(&json!("/apis")));
    let refused = ask(&server, "GET", "/flagz", &[("accept", accept)]).await;
    assert_eq!(refused.code, 406, "{}", refused.body);
    let flags = ask(&server, "GET", "/flagz", &[]).await;
    assert!(
        flags.body.contains("kube-apiserver flagz"),
        "{}",
        flags.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_is_shown_as_a_table_and_applied() {
    let server = Server::start().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let object = json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let made = admin(&server, "POST", deployments, object).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let scale = format!("{deployments}/web/scale");
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let shown = ask(&server, "GET", &scale, &[("accept", table)])
        .await
        .json();
    assert_eq!(shown["kind"], "Table");
    let names = shown["columnDefinitions"].as_array().unwrap().iter();
    let names: Vec<_> = names
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["Name", "Desired", "Available", "Age"]);
    assert_eq!(shown["rows"][0]["cells"][1], 2);
    assert_eq!(shown["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let apply = async |query: &str, kind: &str, replicas: i64| {
        let config = json!({"apiVersion": "autoscaling/v1", "kind": kind,
            "metadata": {"name": "web"}, "spec": {"replicas": replicas}});
        let user = User::new("kubernetes-admin", ["system:masters"]);
        let headers = [("content-type", "application/apply-patch+yaml")];
        let path = format!("{scale}?fieldManager=me{query}");
        send(&server, user, "PATCH", &path, &headers, config.to_string()).await
    };
    let conflict = apply("", "Scale", 5).await;
    assert_eq!(conflict.code, 409, "{}", conflict.body);
    let message = message_of(&conflict);
    assert!(
        message.ends_with("using autoscaling/v1: .spec.replicas"),
        "{message}"
    );
    let wrong = apply("", "Deployment", 5).await;
    assert_eq!(
        (wrong.code, message_of(&wrong).as_str()),
        (400, "invalid object type: autoscaling/v1, Kind=Deployment")
    );
    let forced = apply("&force=true", "Scale", 5).await;
    assert_eq!(forced.code, 200, "{}", forced.body);
    assert_eq!(forced.json()["spec"]["replicas"], 5);
    let path = format!("{deployments}/web");
    let object = admin(&server, "GET", &path, Value::Null).await.json();
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let mine = entries
        .iter()
        .find(|entry| entry["manager"] == "me")
        .unwrap();
    assert_eq!(mine["subresource"], "scale");
    assert_eq!(mine["operation"], "Apply");
    assert_eq!(mine["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_for_a_pod_names_the_pod() {
    let server = Server::start().await;
    for (path, code, message) in [
        (
            "eviction",
            400,
            "name in URL does not match name in Eviction object",
        ),
        (
            "binding",
            400,
            "name in URL does not match name in Binding object",
        ),
    ] {
        let path = format!("/api/v1/namespaces/default/pods/p/{path}");
        let answer = admin(&server, "POST", &path, json!({})).await;
        assert_eq!((answer.code, message_of(&answer).as_str()), (code, message));
    }
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Pod"}});
    let path = "/api/v1/namespaces/default/pods/p/binding";
    let answer = admin(&server, "POST", path, binding).await;
    let message = "[target.kind: Unsupported value: \"Pod\": supported values: \"Node\", \"<empty>\", target.name: Required value]";
    assert_eq!((answer.code, message_of(&answer).as_str()), (500, message));
}
