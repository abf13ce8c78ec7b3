//! Writes: names, concurrency, patches, dry runs, unknown fields.

use crate::support::{Server, admin, send};
use apiserver::User;
use machinery::json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make(server: &Server, name: &str) -> Value {
    let body = json!({"metadata": {"name": name}, "data": {"k": "v"}});
    let created = admin(server, "POST", MAPS, body).await;
    assert_eq!(created.code, 201, "{}", created.body);
    created.json()
}

async fn patch(server: &Server, path: &str, media: &str, body: Value) -> crate::support::Raw {
    let user = User::new("kubernetes-admin", ["system:masters"]);
    send(
        server,
        user,
        "PATCH",
        path,
        &[("content-type", media)],
        body.to_string(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_name_is_unique() {
    let server = Server::start().await;
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let made = admin(
            &server,
            "POST",
            MAPS,
            json!({"metadata": {"generateName": "x-"}}),
        )
        .await;
        assert_eq!(made.code, 201, "{}", made.body);
        names.insert(made.json()["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_of_an_old_version_is_a_conflict() {
    let server = Server::start().await;
    let mut first = make(&server, "a").await;
    let mut second = first.clone();
    first["data"]["k"] = "one".into();
    second["data"]["k"] = "two".into();
    assert_eq!(
        admin(&server, "PUT", &format!("{MAPS}/a"), first)
            .await
            .code,
        200
    );
    let conflict = admin(&server, "PUT", &format!("{MAPS}/a"), second.clone()).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(
        conflict.json()["message"],
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    second["metadata"]["resourceVersion"] = Value::Null;
    assert_eq!(
        admin(&server, "PUT", &format!("{MAPS}/a"), second)
            .await
            .code,
        200,
        "unconditional"
    );
    let other = json!({"metadata": {"name": "b"}});
    assert_eq!(
        admin(&server, "PUT", &format!("{MAPS}/a"), other.clone())
            .await
            .code,
        400
    );
    assert_eq!(
        admin(&server, "PUT", &format!("{MAPS}/b"), other)
            .await
            .code,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_changes_nothing_keeps_the_revision() {
    let server = Server::start().await;
    let first = make(&server, "a").await;
    let again = admin(&server, "PUT", &format!("{MAPS}/a"), first.clone())
        .await
        .json();
    assert_eq!(again, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_change_parts() {
    let server = Server::start().await;
    make(&server, "a").await;
    let path = format!("{MAPS}/a");
    let merged = patch(
        &server,
        &path,
        "application/merge-patch+json",
        json!({"data": {"k": null, "l": "w"}}),
    )
    .await;
    assert_eq!(
        (merged.code, &merged.json()["data"]),
        (200, &json!({"l": "w"}))
    );
    let ops = json!([{"op": "test", "path": "/data/l", "value": "w"}, {"op": "add", "path": "/data/m", "value": "x"}]);
    let patched = patch(&server, &path, "application/json-patch+json", ops).await;
    assert_eq!(
        (patched.code, &patched.json()["data"]),
        (200, &json!({"l": "w", "m": "x"}))
    );
    let failing = json!([{"op": "test", "path": "/data/l", "value": "nope"}]);
    let refused = patch(&server, &path, "application/json-patch+json", failing).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let unknown = patch(&server, &path, "application/json", json!({})).await;
    assert_eq!(unknown.code, 415);
    let missing = patch(
        &server,
        &format!("{MAPS}/b"),
        "application/merge-patch+json",
        json!({}),
    )
    .await;
    assert_eq!(missing.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_at_the_same_time_all_count() {
    let server = Server::start().await;
    make(&server, "a").await;
    let path = format!("{MAPS}/a");
    let all = (0..8).map(|n| {
        let (server, path) = (&server, &path);
        async move {
            let body = json!({"data": {(format!("k{n}")): "v"}});
            patch(server, path, "application/merge-patch+json", body)
                .await
                .code
        }
    });
    assert!(
        futures::future::join_all(all)
            .await
            .iter()
            .all(|code| *code == 200)
    );
    let read = admin(&server, "GET", &path, Value::Null).await.json();
    assert_eq!(read["data"].as_object().unwrap().len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_answers_like_a_write_and_writes_nothing() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "a"}});
    let dry = admin(&server, "POST", &format!("{MAPS}?dryRun=All"), body).await;
    assert_eq!(dry.code, 201);
    assert!(dry.json()["metadata"].get("resourceVersion").is_none());
    assert_eq!(
        admin(&server, "GET", &format!("{MAPS}/a"), Value::Null)
            .await
            .code,
        404
    );
    let made = make(&server, "a").await;
    let dry = admin(
        &server,
        "PATCH",
        &format!("{MAPS}/a?dryRun=All"),
        json!({"data": {"k": "x"}}),
    )
    .await;
    assert_eq!(dry.json()["data"]["k"], "x");
    assert_eq!(
        admin(
            &server,
            "DELETE",
            &format!("{MAPS}/a?dryRun=All"),
            Value::Null
        )
        .await
        .code,
        200
    );
    assert_eq!(
        admin(&server, "GET", &format!("{MAPS}/a"), Value::Null)
            .await
            .json(),
        made
    );
    assert_eq!(
        admin(&server, "POST", &format!("{MAPS}?dryRun=Some"), json!({}))
            .await
            .code,
        422
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_duplicate_fields_are_met_as_the_client_wants() {
    let server = Server::start().await;
    let user = || User::new("kubernetes-admin", ["system:masters"]);
    let post = |name: &str, how: &str| {
        let body = format!(
            r#"{{"metadata":{{"name":"{name}"}},"dataa":{{}},"data":{{}},"data":{{"a":"b"}}}}"#
        );
        let uri = format!("{MAPS}?fieldValidation={how}");
        let (server, user) = (&server, user());
        async move {
            send(
                server,
                user,
                "POST",
                &uri,
                &[("content-type", "application/json")],
                body,
            )
            .await
        }
    };
    let warned = post("a", "Warn").await;
    assert_eq!(warned.code, 201, "{}", warned.body);
    let warnings: Vec<_> = warned
        .headers
        .get_all("warning")
        .iter()
        .map(|w| w.to_str().unwrap().to_owned())
        .collect();
    assert!(
        warnings.contains(&"299 - \"unknown field \\\"dataa\\\"\"".to_owned()),
        "{warnings:?}"
    );
    assert!(
        warnings.contains(&"299 - \"duplicate field \\\"data\\\"\"".to_owned()),
        "{warnings:?}"
    );
    let ignored = post("b", "Ignore").await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (201, None));
    let strict = post("c", "Strict").await;
    assert_eq!(strict.code, 400);
    assert!(
        strict.json()["message"]
            .as_str()
            .unwrap()
            .contains("strict decoding error"),
        "{}",
        strict.body
    );
    assert_eq!(post("d", "Perhaps").await.code, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused() {
    let server = Server::start().await;
    let big = "x".repeat(3 * 1024 * 1024);
    let answer = admin(
        &server,
        "POST",
        MAPS,
        json!({"metadata": {"name": "a"}, "data": {"k": big}}),
    )
    .await;
    assert_eq!(
        (answer.code, answer.json()["reason"].as_str().unwrap()),
        (413, "RequestEntityTooLarge")
    );
}
