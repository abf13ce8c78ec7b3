//! Protobuf: bodies, answers, lists and watch frames.

use apiserver::User;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use machinery::{Object, Value, protobuf, schema};
use serde_json::json;
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
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("accept", format!("{PROTOBUF},application/json"))
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
    let (code, ..) = send(&server, "DELETE", &format!("{MAPS}/a"), options).await;
    assert_eq!(code, 200);
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
