//! Definitions: name conflicts, API approval, and the names of their objects in messages.

use std::time::Duration;

use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually, send};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GADGETS: &str = "/apis/example.com/v1/namespaces/default/gadgets";

fn definition(plural: &str, group: &str, names: Value, version: Value) -> Value {
    let mut all = json!({"plural": plural});
    all.as_object_mut()
        .unwrap()
        .extend(names.as_object().unwrap().clone());
    let mut one = json!({"name": "v1", "served": true, "storage": true, "schema": {
        "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    one.as_object_mut()
        .unwrap()
        .extend(version.as_object().unwrap().clone());
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": all, "versions": [one]}})
}

/// Waits until the response at a path satisfies `fits`.
async fn until(server: &Server, path: &str, fits: impl Fn(&Raw) -> bool) -> Raw {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let answer = admin(server, "GET", path, Value::Null).await;
        if fits(&answer) {
            return answer;
        }
        let late = tokio::time::Instant::now() >= deadline;
        assert!(!late, "{path}: {}", answer.body);
        tokio::task::yield_now().await;
    }
}

/// A condition of a definition as its status, reason and message.
fn condition(definition: &Value, kind: &str) -> Option<[String; 3]> {
    let all = definition["status"]["conditions"].as_array()?;
    let one = all.iter().find(|one| one["type"] == kind)?;
    Some(["status", "reason", "message"].map(|key| one[key].as_str().unwrap_or("").to_owned()))
}

async fn make(server: &Server, definition: Value) -> String {
    let made = admin(server, "POST", DEFINITIONS, definition).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let name = made.json()["metadata"]["name"].clone();
    format!("{DEFINITIONS}/{}", name.as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_with_conflicting_names_is_accepted_when_the_other_is_deleted() {
    let server = Server::start().await;
    let names = json!({"kind": "Gadget", "shortNames": ["gg"]});
    let first = make(
        &server,
        definition("gadgets", "example.com", names, json!({})),
    )
    .await;
    until(&server, GADGETS, |answer| answer.code == 200).await;
    let names = json!({"kind": "Gizmo", "shortNames": ["gg"]});
    let second = make(
        &server,
        definition("gizmos", "example.com", names, json!({})),
    )
    .await;
    let said = |answer: &Raw| condition(&answer.json(), "NamesAccepted");
    let refused = until(&server, &second, |answer| said(answer).is_some()).await;
    let expected = ["False", "ShortNamesConflict", "\"gg\" is already in use"];
    assert_eq!(said(&refused).unwrap(), expected);
    let not_yet = condition(&refused.json(), "Established").unwrap();
    assert_eq!(not_yet[..2], ["False", "NotAccepted"]);
    let gizmos = "/apis/example.com/v1/gizmos";
    assert_eq!(admin(&server, "GET", gizmos, Value::Null).await.code, 404);

    admin(&server, "DELETE", &first, Value::Null).await;
    until(&server, gizmos, |answer| answer.code == 200).await;
    let fits = |answer: &Raw| said(answer).is_some_and(|said| said[0] == "True");
    let accepted = until(&server, &second, fits).await.json();
    assert_eq!(accepted["status"]["acceptedNames"]["shortNames"][0], "gg");
}

/// Whether any document of discovery or OpenAPI names a resource of `example.com`.
async fn is_discovered(server: &Server, plural: &str) -> bool {
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (path, accept) in [
        ("/apis", aggregated),
        ("/apis/example.com/v1", "application/json"),
        ("/openapi/v3/apis/example.com/v1", "application/json"),
    ] {
        let user = apiserver::User::new("kubernetes-admin", ["system:masters"]);
        let answer = send(server, user, "GET", path, &[("accept", accept)], "").await;
        if answer.body.contains(plural) {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_names_no_resource_before_its_definition_is_established() {
    let server = Server::start().await;
    let taken = json!({"kind": "Owner", "shortNames": ["taken"]});
    make(
        &server,
        definition("owners", "example.com", taken, json!({})),
    )
    .await;
    until(&server, "/apis/example.com/v1/owners", |a| a.code == 200).await;
    for n in 0..10 {
        let plural = format!("gadgets{n}");
        let kind = format!("Gadget{n}");
        // Every second one waits for a short name.
        let names = match n % 2 {
            0 => json!({"kind": kind}),
            _ => json!({"kind": kind, "shortNames": ["taken"]}),
        };
        let path = make(
            &server,
            definition(&plural, "example.com", names, json!({})),
        )
        .await;
        let is_established = |answer: &Raw| {
            condition(&answer.json(), "Established").is_some_and(|found| found[0] == "True")
        };
        let mut is_decided = false;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            assert!(tokio::time::Instant::now() < deadline, "{plural}");
            let is_discovered = is_discovered(&server, &plural).await;
            let answer = admin(&server, "GET", &path, Value::Null).await;
            assert!(!is_discovered || is_established(&answer), "{}", answer.body);
            if is_discovered || n % 2 == 1 && is_decided {
                break;
            }
            is_decided = condition(&answer.json(), "NamesAccepted").is_some();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_names_gets_them_when_the_other_lets_go_of_them() {
    let server = Server::start().await;
    let names = json!({"kind": "Gadget", "shortNames": ["gg"]});
    let first = make(
        &server,
        definition("gadgets", "example.com", names, json!({})),
    )
    .await;
    until(&server, GADGETS, |answer| answer.code == 200).await;
    let names = json!({"kind": "Gizmo", "shortNames": ["gg"]});
    make(
        &server,
        definition("gizmos", "example.com", names, json!({})),
    )
    .await;
    let body = r#"{"spec":{"names":{"shortNames":["other"]}}}"#;
    let patched = patch(&server, &first, body).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    until(&server, "/apis/example.com/v1/gizmos", |a| a.code == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_stay_with_their_owner_when_the_server_starts_again() {
    let server = Server::start().await;
    let names = || json!({"kind": "Gadget", "shortNames": ["gg"]});
    let one = |plural: &str| definition(plural, "example.com", names(), json!({}));
    let owner = make(&server, one("gadgets")).await;
    until(&server, GADGETS, |answer| answer.code == 200).await;
    // It is first in every list.
    let other = make(&server, one("another")).await;
    let said = |answer: &Raw| condition(&answer.json(), "NamesAccepted");
    until(&server, &other, |answer| said(answer).is_some()).await;
    let server = server.restart().await;
    until(&server, GADGETS, |answer| answer.code == 200).await;
    // Definitions are processed in the order of their changes: when this one is served, the others
    // were processed.
    let last = json!({"kind": "Last"});
    make(&server, definition("last", "example.com", last, json!({}))).await;
    until(&server, "/apis/example.com/v1/last", |a| a.code == 200).await;
    for (path, expected) in [(&owner, "True"), (&other, "False")] {
        let answer = admin(&server, "GET", path, Value::Null).await;
        assert_eq!(said(&answer).unwrap()[0], expected, "{path}");
    }
    let path = "/apis/example.com/v1/another";
    assert_eq!(admin(&server, "GET", path, Value::Null).await.code, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_that_come_together_are_all_established_and_names_are_given_once() {
    let server = Server::start().await;
    // Two of each pair want the same kind.
    let one = |n: usize| {
        let names = json!({"kind": format!("Kind{}", n / 2)});
        definition(&format!("things{n}"), "example.com", names, json!({}))
    };
    let made = (0..40).map(|n| make(&server, one(n)));
    let paths: Vec<String> = futures::future::join_all(made).await;
    let said =
        |answer: &Raw| condition(&answer.json(), "NamesAccepted").map(|said| said[0] == "True");
    for pair in paths.chunks(2) {
        let mut accepted = 0;
        for path in pair {
            let answer = until(&server, path, |answer| said(answer).is_some()).await;
            accepted += usize::from(said(&answer) == Some(true));
        }
        assert_eq!(accepted, 1, "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_of_a_definition_in_a_group_of_kubernetes_is_a_condition() {
    let server = Server::start().await;
    let mut definition = definition("things", "a.k8s.io", json!({"kind": "Thing"}), json!({}));
    definition["metadata"]["annotations"] =
        json!({"api-approved.kubernetes.io": "unapproved, a trial"});
    let path = make(&server, definition).await;
    let kind = "KubernetesAPIApprovalPolicyConformant";
    let said = |answer: &Raw| condition(&answer.json(), kind);
    let reported = until(&server, &path, |answer| said(answer).is_some()).await;
    let expected = [
        "False",
        "UnapprovedAnnotation",
        "not approved: \"unapproved, a trial\"",
    ];
    assert_eq!(said(&reported).unwrap(), expected);
    let body = r#"{"metadata":{"annotations":{"api-approved.kubernetes.io":"https://a.b/c"}}}"#;
    patch(&server, &path, body).await;
    until(&server, &path, |answer| {
        said(answer).is_some_and(|said| said[0] == "True" && said[1] == "ApprovedAnnotation")
    })
    .await;
}

async fn patch(server: &Server, path: &str, body: &str) -> Raw {
    let media = [("content-type", "application/merge-patch+json")];
    let user = apiserver::User::new("kubernetes-admin", ["system:masters"]);
    send(server, user, "PATCH", path, &media, body).await
}

async fn gadgets(version: Value) -> Server {
    let server = Server::start().await;
    let names = json!({"kind": "Gadget"});
    let definition = definition("gadgets", "example.com", names, version);
    make(&server, definition).await;
    until(&server, GADGETS, |answer| answer.code == 200).await;
    server
}

fn gadget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_cannot_make_another_kind_of_a_custom_object() {
    let server = gadgets(json!({"subresources": {"status": {}}})).await;
    admin(&server, "POST", GADGETS, gadget("a", json!({}))).await;
    let one = format!("{GADGETS}/a");
    for (body, code, message) in [
        (
            r#"{"kind":"X"}"#,
            422,
            "X.example.com \"a\" is invalid: kind: Invalid value: \"X\": must be Gadget",
        ),
        (
            r#"{"apiVersion":"example.com/v9"}"#,
            422,
            "Gadget.example.com \"a\" is invalid: apiVersion: Invalid value: \"example.com/v9\": must be example.com/v1",
        ),
        (
            r#"{"apiVersion":null}"#,
            500,
            "Internal error occurred: Object 'apiVersion' is missing in 'object has no apiVersion field'",
        ),
        (
            r#"{"kind":"X","metadata":{"name":"b"}}"#,
            400,
            "the name of the object (b) does not match the name on the URL (a)",
        ),
    ] {
        let refused = patch(&server, &one, body).await;
        assert_eq!(refused.code, code, "{body}: {}", refused.body);
        assert_eq!(refused.json()["message"], message);
    }
    let refused = patch(&server, &one, r#"{"kind":""}"#).await.json();
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("Object 'Kind' is missing in"), "{message}");
    // The status subresource ignores everything but the status.
    let body = r#"{"kind":"X","status":{"a":1}}"#;
    let patched = patch(&server, &format!("{one}/status"), body).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert_eq!(patched.json()["kind"], "Gadget");
    assert_eq!(patched.json()["status"]["a"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_follow_any_path_and_lists_say_that_nothing_follows() {
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    let scale = json!({"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"});
    let server = gadgets(
        json!({"subresources": {"scale": scale}, "additionalPrinterColumns": [
        column("Slice", ".spec.l[1:].n"), column("Filter", ".spec.l[?(@.v>1)].n"),
        column("Deep", "..deep"), column("Union", ".spec['n','m']"),
        column("Object", ".spec.o"), column("Wrong", ".spec.n[0]")]}),
    )
    .await;
    let spec = json!({"l": [{"n": "a", "v": 1}, {"n": "b", "v": 2}], "x": {"deep": true},
        "o": {"z": 1, "a": "<"}, "n": 3});
    admin(&server, "POST", GADGETS, gadget("a", spec)).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let get = async |path: &str| {
        let user = apiserver::User::new("kubernetes-admin", ["system:masters"]);
        send(&server, user, "GET", path, &[("accept", table)], "")
            .await
            .json()
    };
    let cells = get(GADGETS).await["rows"][0]["cells"].clone();
    let expected = json!([
        "a",
        "b",
        "b",
        "true",
        "3",
        "{\"a\":\"\\u003c\",\"z\":1}",
        null
    ]);
    assert_eq!(cells, expected);
    let scale = get(&format!("{GADGETS}/a/scale")).await;
    assert_eq!(scale["columnDefinitions"][3]["type"], "date");
    assert_eq!(scale["rows"][0]["cells"][1], 3);
    let list = admin(&server, "GET", GADGETS, Value::Null).await.json();
    assert_eq!(list["metadata"]["continue"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_writes_nothing_that_the_schema_does_not_have() {
    let scale = json!({"specReplicasPath": ".spec.none", "statusReplicasPath": ".status.n"});
    let spec = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let server = gadgets(json!({"subresources": {"scale": scale},
        "schema": {"openAPIV3Schema": schema}}))
    .await;
    admin(&server, "POST", GADGETS, gadget("a", json!({"n": 1}))).await;
    let path = format!("{GADGETS}/a/scale");
    let patched = patch(&server, &path, r#"{"spec":{"replicas":5}}"#).await;
    assert_eq!(patched.code, 200, "{}", patched.body);
    assert_eq!(patched.json()["spec"], json!({}));
    let read = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(read.code, 500, "{}", read.body);
    let one = admin(&server, "GET", &format!("{GADGETS}/a"), Value::Null).await;
    assert_eq!(one.json()["spec"], json!({"n": 1}));
}

/// Figures of the attack that found this: 215 KB for each of a thousand definitions, and 0.9 s for
/// each `/openapi/v2`.
#[tokio::test(flavor = "multi_thread")]
async fn many_definitions_are_described_by_one_document() {
    let count = match std::env::var_os("MAINSTAY_SOAK") {
        Some(_) => 1000,
        None => 20,
    };
    let server = Server::start().await;
    let mut fields = json!({});
    for n in 0..60 {
        let about = "What this field is for, in a line of ordinary length.";
        fields[format!("field{n}").as_str()] =
            json!({"type": "string", "maxLength": 63, "description": about});
    }
    let schema =
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    let version = json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema}});
    let resident = crate::slow_readers::resident;
    let make_one = async |n: usize| {
        let names = json!({"plural": format!("things{n}"), "kind": format!("Thing{n}")});
        let plural = format!("things{n}");
        make(
            &server,
            definition(&plural, "example.com", names, version.clone()),
        )
        .await
    };
    make_one(0).await;
    let before = resident();
    let begun = std::time::Instant::now();
    let mut last = String::new();
    for n in 1..=count {
        last = make_one(n).await;
    }
    let made = begun.elapsed();
    let established = |answer: &Raw| condition(&answer.json(), "Established").is_some();
    until(&server, &last, established).await;
    // A definition is listed right after its condition is written.
    let all_listed = |answer: &Raw| {
        let length = |listed: Value| listed["resources"].as_array().map(Vec::len);
        answer.code == 200 && length(answer.json()) == Some(count + 1)
    };
    until(&server, "/apis/example.com/v1", all_listed).await;
    eprintln!("made in {made:?}, established in {:?}", begun.elapsed());
    // Includes the revisions of the last minutes; how much memory is returned depends on the
    // allocator.
    let each = resident().saturating_sub(before) / count;
    eprintln!("{count} definitions: {each} bytes each");
    let begun = std::time::Instant::now();
    let first = admin(&server, "GET", "/openapi/v2", Value::Null).await;
    let took = begun.elapsed();
    let again = admin(&server, "GET", "/openapi/v2", Value::Null).await;
    eprintln!(
        "/openapi/v2: {} bytes, {took:?}, again {:?}",
        first.body.len(),
        begun.elapsed() - took
    );
    assert!(first.body == again.body);
    assert!(
        first
            .body
            .contains(&format!("com.example.v1.Thing{count}\""))
    );
}

/// Claims in the status of a definition that its names are accepted.
async fn forge_status(server: &Server, path: &str) {
    eventually(|| async {
        let mut forged = admin(server, "GET", path, Value::Null).await.json();
        forged["status"]["acceptedNames"] = forged["spec"]["names"].clone();
        for condition in forged["status"]["conditions"].as_array_mut().unwrap() {
            condition["status"] = "True".into();
        }
        let written = admin(server, "PUT", &format!("{path}/status"), forged).await;
        (written.code == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_definition_gets_the_objects_of_a_built_in_kind() {
    let server = Server::start().await;
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = json!({"metadata": {"name": "keep"}, "spec": {"podSelector": {}}});
    assert_eq!(admin(&server, "POST", policies, policy).await.code, 201);
    let names = json!({"kind": "NetworkPolicy", "singular": "networkpolicy"});
    let version = json!({"name": "v9"});
    let mut same = definition("networkpolicies", "networking.k8s.io", names, version);
    same["metadata"]["annotations"] =
        json!({"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"});
    let path = make(&server, same).await;
    let established = |answer: &Raw| condition(&answer.json(), "Established");
    until(&server, &path, |answer| established(answer).is_some()).await;
    forge_status(&server, &path).await;
    let is_refused =
        |answer: &Raw| established(answer).is_some_and(|said| said[1] == "NotAccepted");
    until(&server, &path, is_refused).await;
    let other = "/apis/networking.k8s.io/v9/namespaces/default/networkpolicies";
    assert_eq!(admin(&server, "GET", other, Value::Null).await.code, 404);
    // The status is forged once more just before the deletion, when nothing corrects it.
    forge_status(&server, &path).await;
    admin(&server, "DELETE", &path, Value::Null).await;
    until(&server, &path, |answer| answer.code == 404).await;
    let kept = admin(&server, "GET", &format!("{policies}/keep"), Value::Null).await;
    assert_eq!(kept.code, 200, "{}", kept.body);
}
