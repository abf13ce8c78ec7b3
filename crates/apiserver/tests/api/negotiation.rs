//! Content negotiation: indentation, compression, 406, and warnings.

use apiserver::User;
use http::Request;
use http_body_util::{BodyExt, Full};
use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, over_socket, send};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    send(server, user, "GET", path, headers, "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn browsers_and_curl_get_indented_json() {
    let server = Server::start().await;
    let one = "/api/v1/namespaces/default";
    let plain = get(&server, one, &[]).await;
    assert!(!plain.body.contains("\n  "), "{}", plain.body);
    let pretty = machinery::json::to_string_pretty(&plain.json()).unwrap();
    let indented = get(&server, &format!("{one}?pretty=true"), &[]).await;
    assert_eq!(indented.json(), plain.json());
    assert_eq!(indented.body.lines().count(), pretty.lines().count());
    for agent in ["curl/8.5.0", "Wget/1.21", "Mozilla/5.0 (X11; Linux)"] {
        let shown = get(&server, one, &[("user-agent", agent)]).await;
        assert_eq!(shown.body, indented.body, "{agent}");
    }
    let asked = [("accept", "application/json;pretty=1")];
    assert_eq!(get(&server, one, &asked).await.body, indented.body);
    let off = get(
        &server,
        &format!("{one}?pretty=false"),
        &[("user-agent", "curl/8.5.0")],
    )
    .await;
    assert_eq!(off.body, plain.body);
    let list = get(&server, "/api/v1/namespaces?pretty=1", &[]).await;
    assert!(
        list.body.starts_with("{\n  \"kind\": \"NamespaceList\",\n"),
        "{}",
        list.body
    );
    let missing = get(&server, "/api/v1/namespaces/none?pretty=1", &[]).await;
    assert_eq!(missing.code, 404);
    assert!(
        missing.body.starts_with("{\n  \"kind\": \"Status\",\n"),
        "{}",
        missing.body
    );
    let discovered = get(&server, "/api/v1?pretty=1", &[]).await;
    assert!(
        discovered.body.starts_with("{\n  \""),
        "{}",
        discovered.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_or_read_is_refused() {
    let server = Server::start().await;
    let refused = get(&server, MAPS, &[("accept", "text/html")]).await;
    assert_eq!(
        (refused.code, refused.json()["reason"].as_str()),
        (406, Some("NotAcceptable"))
    );
    let served = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    assert_eq!(refused.json()["message"], served);
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    assert_eq!(get(&server, MAPS, &[("accept", browser)]).await.code, 200);
    let preferred = "application/json;q=0.5,application/yaml";
    let yaml = get(&server, MAPS, &[("accept", preferred)]).await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    let watch = format!("{MAPS}?watch=true&timeoutSeconds=1");
    let refused = get(&server, &watch, &[("accept", "application/yaml")]).await;
    assert_eq!(refused.code, 406);
    assert_eq!(refused.headers["content-type"], "application/yaml");
    assert!(
        refused.body.contains("application/json;stream=watch"),
        "{}",
        refused.body
    );
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let body = json!({"metadata": {"name": "x"}}).to_string();
    let media = [("content-type", "text/plain")];
    let refused = send(&server, user.clone(), "POST", MAPS, &media, body.clone()).await;
    let status = refused.json();
    assert_eq!(
        (refused.code, status["reason"].as_str()),
        (415, Some("UnsupportedMediaType"))
    );
    let path = format!("{MAPS}/kube-root-ca.crt");
    let refused = send(&server, user, "PATCH", &path, &media, body).await;
    assert_eq!(refused.code, 415, "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_come_back_as_warnings() {
    let server = Server::start().await;
    let map = json!({"metadata": {"name": "w", "labelz": {}}, "date": {"a": "b"}});
    let made = admin(&server, "POST", MAPS, map).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let warnings: Vec<&str> = made
        .headers
        .get_all("warning")
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect();
    assert_eq!(
        warnings,
        [
            "299 - \"unknown field \\\"metadata.labelz\\\"\"",
            "299 - \"unknown field \\\"date\\\"\"",
        ]
    );
}

/// Responses to the same machine are never compressed; the pipeline decides by the peer's address,
/// so this test uses loopback.
#[tokio::test(flavor = "multi_thread")]
async fn answers_on_the_same_machine_are_not_compressed() {
    let server = Server::start().await;
    let data = "x".repeat(200_000);
    let map = json!({"metadata": {"name": "large"}, "data": {"x": data}});
    assert_eq!(admin(&server, "POST", MAPS, map).await.code, 201);
    let request = Request::get(format!("{MAPS}/large"))
        .header("accept-encoding", "gzip")
        .body(Full::default())
        .unwrap();
    let answer = over_socket(&server, request).await;
    assert!(!answer.headers().contains_key("content-encoding"));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let object: Value = machinery::json::from_slice(&body).unwrap();
    assert_eq!(object["data"]["x"].as_str().unwrap().len(), 200_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn access_reviews_cannot_be_requested_as_table() {
    let server = Server::start().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
    ];
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let answer = send(&server, user, "POST", path, &headers, question.to_string()).await;
    assert_eq!(
        (answer.code, answer.json()["reason"].as_str()),
        (406, Some("NotAcceptable"))
    );
}

fn warnings(answer: &Raw) -> Vec<String> {
    let all = answer.headers.get_all("warning").iter();
    all.map(|value| value.to_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn old_kinds_owners_named_twice_and_pods_left_behind_are_warned_about() {
    let server = Server::start().await;
    let deprecated =
        r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#;
    let endpoints = "/api/v1/namespaces/default/endpoints";
    for (path, expected) in [
        (endpoints.to_owned(), vec![deprecated.to_owned()]),
        (format!("{endpoints}/none"), vec![deprecated.to_owned()]),
        (MAPS.to_owned(), vec![]),
        (
            "/api/v1/componentstatuses".to_owned(),
            vec![r#"299 - "v1 ComponentStatus is deprecated in v1.19+""#.to_owned()],
        ),
    ] {
        let answer = get(&server, &path, &[]).await;
        assert_eq!(warnings(&answer), expected, "{path}");
    }
    let stranger = User::new("eve", [""; 0]);
    let refused = send(&server, stranger, "GET", endpoints, &[], "").await;
    assert_eq!((refused.code, warnings(&refused).len()), (403, 0));

    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-1"});
    let twice = json!({"metadata": {"name": "twice", "ownerReferences": [owner, owner]}});
    let made = admin(&server, "POST", MAPS, twice).await;
    let reported = warnings(&made);
    assert!(
        reported[0].contains("contains duplicate entries; API server dedups"),
        "{reported:?}"
    );
    assert!(
        reported[0].ends_with("duplicate UID(s) observed: u-1\""),
        "{reported:?}"
    );
    assert_eq!(made.json()["metadata"]["ownerReferences"], json!([owner]));
    let patch = json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": owner}]);
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let media = [("content-type", "application/json-patch+json")];
    let path = format!("{MAPS}/twice");
    let patched = send(&server, user, "PATCH", &path, &media, patch.to_string()).await;
    assert!(warnings(&patched)[0].contains("after mutating admission happens"));

    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
    };
    for (name, query, warned, finalizers) in [
        ("silent", "", 1, json!(["orphan"])),
        ("told", "?propagationPolicy=Background", 0, Value::Null),
    ] {
        let made = admin(&server, "POST", jobs, job(name)).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let path = format!("{jobs}/{name}{query}");
        let deleted = admin(&server, "DELETE", &path, Value::Null).await;
        assert_eq!(warnings(&deleted).len(), warned, "{name}");
        assert_eq!(
            deleted.json()["metadata"]["finalizers"],
            finalizers,
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_another_account_of_the_same_name_is_refused() {
    let server = Server::start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let made = admin(
        &server,
        "POST",
        accounts,
        json!({"metadata": {"name": "robot"}}),
    )
    .await;
    let uid = made.json()["metadata"]["uid"].clone();
    let path = format!("{accounts}/robot/token");
    for (uid, code) in [(uid, 201), (json!("another"), 409)] {
        let ask = json!({"metadata": {"uid": uid}, "spec": {}});
        let answer = admin(&server, "POST", &path, ask).await;
        assert_eq!(answer.code, code, "{}", answer.body);
    }
}
