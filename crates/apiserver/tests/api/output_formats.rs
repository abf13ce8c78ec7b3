//! Other representations of objects: Tables, metadata, YAML; and errors.

use crate::support::{Server, admin, send};
use apiserver::User;
use machinery::json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn get(server: &Server, path: &str, accept: &str) -> crate::support::Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    send(server, user, "GET", path, &[("accept", accept)], "").await
}

async fn with_one() -> Server {
    let server = Server::start().await;
    let body =
        json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"k": "v", "l": "w"}});
    assert_eq!(admin(&server, "POST", MAPS, body).await.code, 201);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_has_columns_and_cells() {
    let server = with_one().await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = get(&server, &format!("{MAPS}/a"), accept).await.json();
    assert_eq!(table["kind"], "Table");
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns, ["Name", "Data", "Age"]);
    assert_eq!(table["rows"][0]["cells"][0], "a");
    assert_eq!(table["rows"][0]["cells"][1], 2);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let list = get(
        &server,
        &format!("{MAPS}?includeObject=None&labelSelector=x"),
        accept,
    )
    .await
    .json();
    assert_eq!(list["rows"].as_array().unwrap().len(), 1);
    assert_eq!(list["rows"][0].get("object"), Some(&Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_alone_is_cut_from_the_stored_bytes() {
    let server = with_one().await;
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    let partial = get(&server, &format!("{MAPS}/a"), accept).await.json();
    assert_eq!(partial["kind"], "PartialObjectMetadata");
    assert_eq!(partial["metadata"]["labels"], json!({"x": "y"}));
    assert!(partial.get("data").is_none());
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = get(&server, &format!("{MAPS}?labelSelector=x"), accept)
        .await
        .json();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
}

#[tokio::test(flavor = "multi_thread")]
async fn yaml_goes_in_and_out() {
    let server = Server::start().await;
    let user = User::new("kubernetes-admin", ["system:masters"]);
    let yaml = "kind: ConfigMap\napiVersion: v1\nmetadata:\n  name: plain\ndata:\n  a: \"1\"\n";
    let headers = [
        ("content-type", "application/yaml"),
        ("accept", "application/yaml"),
    ];
    let created = send(&server, user, "POST", MAPS, &headers, yaml).await;
    assert_eq!(created.code, 201, "{}", created.body);
    assert_eq!(created.headers["content-type"], "application/yaml");
    assert!(created.body.contains("kind: ConfigMap"), "{}", created.body);
    let read = admin(&server, "GET", &format!("{MAPS}/plain"), Value::Null)
        .await
        .json();
    assert_eq!(read["data"], json!({"a": "1"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_status_objects() {
    let server = with_one().await;
    let user = || User::new("kubernetes-admin", ["system:masters"]);
    let cases = [
        (
            "GET",
            "/api/v1/namespaces/default/nothings",
            "",
            404,
            "NotFound",
        ),
        ("GET", "/apis/apps/v9/things", "", 404, "NotFound"),
        ("POST", "/api/v1/configmaps", "{}", 405, "MethodNotAllowed"),
        ("POST", MAPS, "{", 400, "BadRequest"),
        (
            "POST",
            MAPS,
            r#"{"kind":"Secret","apiVersion":"v1"}"#,
            400,
            "BadRequest",
        ),
        (
            "POST",
            MAPS,
            r#"{"metadata":{"name":"a"}}"#,
            409,
            "AlreadyExists",
        ),
        ("POST", MAPS, r#"{"metadata":{"name":"A"}}"#, 422, "Invalid"),
        (
            "POST",
            MAPS,
            r#"{"metadata":{"name":"z","namespace":"other"}}"#,
            400,
            "BadRequest",
        ),
    ];
    for (method, path, body, code, reason) in cases {
        let answer = send(
            &server,
            user(),
            method,
            path,
            &[("content-type", "application/json")],
            body,
        )
        .await;
        let status = answer.json();
        assert_eq!(
            (answer.code, status["reason"].as_str().unwrap()),
            (code, reason),
            "{path} {}",
            answer.body
        );
        assert_eq!(
            (status["kind"].as_str(), status["status"].as_str()),
            (Some("Status"), Some("Failure"))
        );
    }
    let unknown = send(
        &server,
        user(),
        "POST",
        MAPS,
        &[("content-type", "text/plain")],
        "x",
    )
    .await;
    assert_eq!(unknown.code, 415);
    let unknown = get(&server, MAPS, "image/png").await;
    assert_eq!(unknown.code, 406);
}
