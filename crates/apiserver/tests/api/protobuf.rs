//! Protobuf: bodies, responses, lists and watch frames.

use apiserver::User;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use machinery::json::json;
use machinery::{Object, Value, protobuf, schema};
use tower::Service as _;

use crate::support::{Server, admin};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn send(
    server: &Server,
    method: &str,
    path: &str,
    body: Vec<u8>,
) -> (u16, String, apiserver::Body) {
    let accept = format!("{PROTOBUF},application/json");
    ask(server, method, path, &accept, body).await
}

async fn ask(
    server: &Server,
    method: &str,
    path: &str,
    accept: &str,
    body: Vec<u8>,
) -> (u16, String, apiserver::Body) {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("accept", accept)
        .header("content-type", PROTOBUF);
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let response = server.server.connect(user).call(request).await.unwrap();
    let media = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    (response.status().as_u16(), media, response.into_body())
}

fn object(body: &[u8], name: &str) -> (String, Object) {
    let envelope = protobuf::decode(body).unwrap();
    let object = protobuf::decode_message(schema::lookup(name).unwrap(), &envelope).unwrap();
    (envelope.kind.to_owned(), object)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_go_in_and_out_as_protobuf() {
    let server = Server::start().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let body = protobuf::encode(
        schema::lookup("core/v1.ConfigMap").unwrap(),
        map.as_object().unwrap(),
    );
    let (code, media, answer) = send(&server, "POST", MAPS, body).await;
    assert_eq!((code, media.as_str()), (201, PROTOBUF));
    let (kind, made) = object(
        &answer.collect().await.unwrap().to_bytes(),
        "core/v1.ConfigMap",
    );
    assert_eq!(
        (kind.as_str(), &made["data"]["k"]),
        ("ConfigMap", &json!("v"))
    );
    let text = admin(&server, "GET", &format!("{MAPS}/a"), Value::Null)
        .await
        .json();
    assert_eq!(made["metadata"]["uid"], text["metadata"]["uid"]);
    assert_eq!(
        made["metadata"]["managedFields"],
        text["metadata"]["managedFields"]
    );
    let (_, media, list) = send(&server, "GET", MAPS, Vec::new()).await;
    assert_eq!(media, PROTOBUF);
    let (kind, list) = object(
        &list.collect().await.unwrap().to_bytes(),
        "core/v1.ConfigMapList",
    );
    assert_eq!(kind, "ConfigMapList");
    assert!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|item| item["metadata"]["name"] == "a")
    );
    let options = protobuf::encode(
        schema::lookup("meta/v1.DeleteOptions").unwrap(),
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
            .as_object()
            .unwrap(),
    );
    let (code, media, answer) = send(&server, "DELETE", &format!("{MAPS}/a"), options).await;
    assert_eq!((code, media.as_str()), (200, PROTOBUF));
    let bytes = answer.collect().await.unwrap().to_bytes();
    assert_eq!(object(&bytes, "meta/v1.Status").1["status"], "Success");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_discovery_come_in_the_form_that_is_asked_for() {
    let server = Server::start().await;
    let missing = format!("{MAPS}/none");
    let (code, media, answer) = send(&server, "GET", &missing, Vec::new()).await;
    assert_eq!((code, media.as_str()), (404, PROTOBUF));
    let bytes = answer.collect().await.unwrap().to_bytes();
    let (kind, status) = object(&bytes, "meta/v1.Status");
    assert_eq!(
        (kind.as_str(), &status["reason"]),
        ("Status", &json!("NotFound"))
    );
    assert_eq!(status["details"]["name"], "none");
    let (_, media, answer) = ask(&server, "GET", &missing, "application/yaml", Vec::new()).await;
    assert_eq!(media, "application/yaml");
    let bytes = answer.collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&bytes).contains("reason: NotFound"));
    for (path, name, field) in [
        ("/api", "APIVersions", "versions"),
        ("/apis", "APIGroupList", "groups"),
        ("/apis/apps", "APIGroup", "versions"),
        ("/apis/apps/v1", "APIResourceList", "resources"),
    ] {
        let (_, media, answer) = ask(&server, "GET", path, PROTOBUF, Vec::new()).await;
        assert_eq!(media, PROTOBUF, "{path}");
        let bytes = answer.collect().await.unwrap().to_bytes();
        let (kind, document) = object(&bytes, &format!("meta/v1.{name}"));
        assert_eq!(kind, name);
        let text = admin(&server, "GET", path, Value::Null).await.json();
        assert_eq!(document[field], text[field], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_alone_goes_out_as_protobuf_and_a_table_does_not() {
    let server = Server::start().await;
    admin(
        &server,
        "POST",
        MAPS,
        json!({"metadata": {"name": "a", "labels": {"l": "v"}}, "data": {"k": "v"}}),
    )
    .await;
    let one = format!("{MAPS}/a");
    let form =
        |kind: &str, version: &str| format!("{PROTOBUF};as={kind};g=meta.k8s.io;v={version}");
    let text = admin(&server, "GET", &one, Value::Null).await.json();
    for version in ["v1", "v1beta1"] {
        let accept = form("PartialObjectMetadata", version);
        let (code, media, answer) = ask(&server, "GET", &one, &accept, Vec::new()).await;
        assert_eq!((code, media.as_str()), (200, PROTOBUF));
        let bytes = answer.collect().await.unwrap().to_bytes();
        assert_eq!(
            protobuf::decode(&bytes).unwrap().api_version,
            format!("meta.k8s.io/{version}")
        );
        let (kind, partial) = object(&bytes, "meta/v1.PartialObjectMetadata");
        assert_eq!(kind, "PartialObjectMetadata");
        assert_eq!(partial["metadata"], text["metadata"]);
        assert!(!partial.contains_key("data"));
        let accept = format!("application/json;as=Table;g=meta.k8s.io;v={version}");
        let (_, _, answer) = ask(&server, "GET", &one, &accept, Vec::new()).await;
        let table: Value =
            machinery::json::from_slice(&answer.collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(table["apiVersion"], format!("meta.k8s.io/{version}"));
    }
    let list = form("PartialObjectMetadataList", "v1");
    let (code, media, answer) = ask(&server, "GET", MAPS, &list, Vec::new()).await;
    assert_eq!((code, media.as_str()), (200, PROTOBUF));
    let bytes = answer.collect().await.unwrap().to_bytes();
    let (kind, list) = object(&bytes, "meta/v1.PartialObjectMetadataList");
    assert_eq!(kind, "PartialObjectMetadataList");
    let items = list["items"].as_array().unwrap();
    assert!(
        items
            .iter()
            .any(|item| item["metadata"] == text["metadata"])
    );
    for (path, kind, message) in [
        (
            MAPS,
            "PartialObjectMetadata",
            "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)",
        ),
        (
            &one,
            "PartialObjectMetadataList",
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)",
        ),
        (
            &one,
            "Table",
            "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ),
    ] {
        let (code, media, answer) = ask(&server, "GET", path, &form(kind, "v1"), Vec::new()).await;
        assert_eq!((code, media.as_str()), (406, "application/json"), "{kind}");
        let status: Value =
            machinery::json::from_slice(&answer.collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(status["message"], message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_of_custom_resources_is_watched_as_protobuf() {
    let server = Server::start().await;
    let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(admin(&server, "POST", path, definition).await.code, 201);
    let widgets = "/apis/example.com/v1/widgets";
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {}});
    crate::support::eventually(|| async {
        (admin(&server, "POST", widgets, widget.clone()).await.code == 201).then_some(())
    })
    .await;
    let (code, ..) = ask(&server, "GET", widgets, PROTOBUF, Vec::new()).await;
    assert_eq!(code, 406, "a custom resource as a whole has no messages");
    let path = format!(
        "{widgets}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    );
    let accept = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let (_, media, mut body) = ask(&server, "GET", &path, &accept, Vec::new()).await;
    assert_eq!(media, "application/vnd.kubernetes.protobuf;stream=watch");
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("initial-events-end") {
        bytes.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    let mut rest = &bytes[..];
    for kind in ["ADDED", "BOOKMARK"] {
        let (length, after) = rest.split_at(4);
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let (event, after) = after.split_at(length);
        rest = after;
        assert_eq!(&event[2..2 + kind.len()], kind.as_bytes());
        let magic = event.windows(4).position(|part| part == protobuf::MAGIC);
        let (name, partial) = object(&event[magic.unwrap()..], "meta/v1.PartialObjectMetadata");
        assert_eq!(name, "PartialObjectMetadata");
        assert!(partial["metadata"]["resourceVersion"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_goes_in_and_out_as_protobuf() {
    let server = Server::start().await;
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let set = json!({"metadata": {"name": "web"}, "spec": {
        "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    assert_eq!(admin(&server, "POST", sets, set).await.code, 201);
    let path = format!("{sets}/web/scale");
    let (code, media, answer) = send(&server, "GET", &path, Vec::new()).await;
    assert_eq!((code, media.as_str()), (200, PROTOBUF));
    let bytes = answer.collect().await.unwrap().to_bytes();
    let (kind, mut scale) = object(&bytes, "autoscaling/v1.Scale");
    assert_eq!(
        (kind.as_str(), &scale["spec"]["replicas"]),
        ("Scale", &json!(1))
    );
    scale["spec"]["replicas"] = json!(4);
    let body = protobuf::encode(schema::lookup("autoscaling/v1.Scale").unwrap(), &scale);
    let (code, media, answer) = send(&server, "PUT", &path, body).await;
    assert_eq!((code, media.as_str()), (200, PROTOBUF));
    let bytes = answer.collect().await.unwrap().to_bytes();
    let (_, scale) = object(&bytes, "autoscaling/v1.Scale");
    assert_eq!(scale["spec"]["replicas"], 4);
    let web = admin(&server, "GET", &format!("{sets}/web"), Value::Null)
        .await
        .json();
    assert_eq!(web["spec"]["replicas"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_is_a_stream_of_frames() {
    let server = Server::start().await;
    let path = format!(
        "{MAPS}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name%3Da"
    );
    admin(&server, "POST", MAPS, json!({"metadata": {"name": "a"}})).await;
    let (_, media, mut body) = send(&server, "GET", &path, Vec::new()).await;
    assert_eq!(media, "application/vnd.kubernetes.protobuf;stream=watch");
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("initial-events-end") {
        bytes.extend_from_slice(&body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
    let event = &bytes[4..4 + length];
    assert!(event.starts_with(b"\x0a\x05ADDED"), "{event:?}");
    let at = event
        .windows(4)
        .position(|part| part == protobuf::MAGIC)
        .unwrap();
    assert_eq!(
        object(&event[at..], "core/v1.ConfigMap").1["metadata"]["name"],
        "a"
    );
    assert!(bytes[4 + length + 4..].starts_with(b"\x0a\x08BOOKMARK"));
}
