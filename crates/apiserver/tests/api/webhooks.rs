//! Admission webhooks: what they receive, and what they may change and reject.

use std::sync::atomic::{AtomicUsize, Ordering};

use machinery::json::{Value, json};

use crate::{
    hook_server::{Hook, Reply, allowed, answer, install, patched, rule, webhook},
    support::{Raw, Server, admin},
};

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

pub(crate) async fn create(server: &Server, name: &str) -> Raw {
    admin(server, "POST", MAPS, map(name)).await
}

pub(crate) async fn is_stored(server: &Server, name: &str) -> bool {
    let path = format!("{MAPS}/{name}");
    admin(server, "GET", &path, Value::Null).await.code == 200
}

pub(crate) fn message(answer: &Raw) -> String {
    answer.json()["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_validating_webhook_sees_the_request_and_refuses_it_in_its_own_words() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let name = review["request"]["name"].as_str().unwrap_or_default();
        let response = match name {
            "bad" => json!({"allowed": false, "status": {"message": "no such names", "code": 418, "reason": "Teapot"}}),
            "silent" => json!({"allowed": false}),
            _ => json!({"allowed": true, "warnings": ["be careful"]}),
        };
        Reply::Json(answer(review, response))
    })
    .await;
    let hooks = vec![webhook("v.example.com", hook.by_url(), Value::Null)];
    install(&server, false, "validate", hooks).await;
    let refused = create(&server, "bad").await;
    assert_eq!(refused.code, 418, "{}", refused.body);
    let expected = "admission webhook \"v.example.com\" denied the request: no such names";
    assert_eq!(message(&refused), expected);
    assert_eq!(refused.json()["reason"], "Teapot");
    assert!(!is_stored(&server, "bad").await);
    let silent = create(&server, "silent").await;
    let expected = "admission webhook \"v.example.com\" denied the request without explanation";
    assert_eq!((silent.code, message(&silent).as_str()), (400, expected));
    let good = create(&server, "good").await;
    assert_eq!(good.code, 201, "{}", good.body);
    assert_eq!(good.headers["warning"], "299 - \"be careful\"");
    let request = hook
        .requests()
        .into_iter()
        .find(|one| one["name"] == "good")
        .unwrap();
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(
        request["kind"],
        json!({"group": "", "version": "v1", "kind": "ConfigMap"})
    );
    assert_eq!(
        request["resource"],
        json!({"group": "", "version": "v1", "resource": "configmaps"})
    );
    assert_eq!(request["requestKind"], request["kind"]);
    assert_eq!(request["namespace"], "default");
    assert_eq!(request["userInfo"]["username"], "kubernetes-admin");
    assert_eq!(request["object"]["data"]["a"], "b");
    assert_eq!(request["oldObject"], Value::Null);
    assert_eq!(request["dryRun"], false);
    assert_eq!(request["options"]["kind"], "CreateOptions");
    let path = hook.paths.lock()[0].clone();
    assert_eq!(path, "/hook?timeout=10s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_generated_between_mutating_and_validating_webhooks() {
    let server = Server::start().await;
    let mutating = Hook::start(|review| {
        let data = &review["request"]["object"]["data"];
        let reply = match data["name"].as_str() {
            Some(name) => patched(
                review,
                &json!([{"op": "add", "path": "/metadata/name", "value": name}]),
            ),
            None => allowed(review, json!({})),
        };
        Reply::Json(reply)
    })
    .await;
    let validating = Hook::start(|review| Reply::Json(allowed(review, json!({})))).await;
    for (mutates, hook) in [(true, &mutating), (false, &validating)] {
        let hooks = vec![webhook("v.example.com", hook.by_url(), Value::Null)];
        install(&server, mutates, "names", hooks).await;
    }
    for (data, expected) in [
        (json!({}), None),
        (json!({"name": "chosen"}), Some("chosen")),
    ] {
        let map = json!({"metadata": {"generateName": "web-"}, "data": data});
        let made = admin(&server, "POST", MAPS, map).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let name = made.json()["metadata"]["name"].clone();
        match expected {
            Some(expected) => assert_eq!(name, expected),
            None => assert!(name.as_str().unwrap().starts_with("web-"), "{name}"),
        }
        let last = |hook: &Hook| hook.requests().pop().unwrap();
        let before = last(&mutating);
        assert_eq!(before["name"], Value::Null);
        assert_eq!(before["object"]["metadata"]["name"], Value::Null);
        let after = last(&validating);
        assert_eq!(after["name"], name);
        assert_eq!(after["object"]["metadata"]["name"], name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_webhooks_change_objects_one_after_the_other() {
    let server = Server::start().await;
    let first = Hook::start(|review| {
        Reply::Json(patched(
            review,
            &json!([{"op": "add", "path": "/data/first", "value": "1"}]),
        ))
    })
    .await;
    let second = Hook::start(|review| {
        let seen = review["request"]["object"]["data"]["first"].clone();
        Reply::Json(patched(
            review,
            &json!([{"op": "add", "path": "/data/second", "value": format!("after {seen}")}]),
        ))
    })
    .await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let hooks = vec![
        webhook("a.example.com", first.by_url(), again),
        webhook("b.example.com", second.by_url(), Value::Null),
    ];
    install(&server, true, "mutate", hooks).await;
    let made = create(&server, "one").await;
    assert_eq!(made.code, 201, "{}", made.body);
    let data = &made.json()["data"];
    assert_eq!(
        *data,
        json!({"a": "b", "first": "1", "second": "after \"1\""})
    );
    let about = |hook: &Hook| {
        hook.requests()
            .iter()
            .filter(|one| one["name"] == "one")
            .count()
    };
    assert_eq!(
        about(&first),
        2,
        "the second changed what the first had seen"
    );
    assert_eq!(about(&second), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_that_makes_an_object_invalid_stores_nothing() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let operations = match review["request"]["name"].as_str().unwrap_or_default() {
            "invalid" => json!([{"op": "add", "path": "/data/not a key", "value": "x"}]),
            "unreadable" => json!([{"op": "replace", "path": "/data", "value": 7}]),
            "missing" => json!([{"op": "remove", "path": "/data/nothing"}]),
            "moved" => {
                json!([{"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}])
            }
            _ => json!("no operations"),
        };
        Reply::Json(patched(review, &operations))
    })
    .await;
    let hooks = vec![webhook("m.example.com", hook.by_url(), Value::Null)];
    install(&server, true, "breaks", hooks).await;
    for (name, code, words) in [
        ("invalid", 422, "a valid config key"),
        ("unreadable", 500, "Internal error occurred: "),
        ("missing", 500, "Internal error occurred: "),
        (
            "moved",
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "undecodable",
            500,
            "failed calling webhook \"m.example.com\": received undecodable patch in webhook response: ",
        ),
    ] {
        let refused = create(&server, name).await;
        assert_eq!(refused.code, code, "{name}: {}", refused.body);
        assert!(
            message(&refused).contains(words),
            "{name}: {}",
            refused.body
        );
        assert!(!is_stored(&server, name).await, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_cannot_choose_the_identity_of_a_new_object() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let operations = json!([
            {"op": "add", "path": "/metadata/uid", "value": "of-another-object"},
            {"op": "add", "path": "/metadata/creationTimestamp", "value": "2000-01-01T00:00:00Z"},
            {"op": "add", "path": "/metadata/resourceVersion", "value": "1"}]);
        Reply::Json(patched(review, &operations))
    })
    .await;
    let hooks = vec![webhook("m.example.com", hook.by_url(), Value::Null)];
    install(&server, true, "forges", hooks).await;
    let created = create(&server, "forged").await;
    assert_eq!(created.code, 201, "{}", created.body);
    let object = created.json();
    assert_eq!(object["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_ne!(
        object["metadata"]["creationTimestamp"],
        "2000-01-01T00:00:00Z"
    );
    assert_ne!(object["metadata"]["resourceVersion"], "1");
    let requests = hook.requests();
    let seen = requests.iter().find(|one| one["name"] == "forged").unwrap();
    assert!(seen["object"]["metadata"]["uid"].is_null(), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_called_by_its_name_and_connections_are_kept() {
    let server = Server::start().await;
    let hook = Hook::allowing(json!({})).await;
    // Endpoints may not be loopback addresses; an ExternalName may resolve to one.
    let service = json!({"metadata": {"name": "hook"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    let path = "/api/v1/namespaces/default/services";
    let made = admin(&server, "POST", path, service).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let client = json!({
        "service": {"namespace": "default", "name": "hook", "path": "/in", "port": hook.address.port()},
        "caBundle": hook.by_url()["caBundle"],
    });
    install(
        &server,
        false,
        "svc",
        vec![webhook("s.example.com", client, Value::Null)],
    )
    .await;
    for name in ["one", "two", "three"] {
        let made = create(&server, name).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    assert_eq!(hook.connections.load(Ordering::Relaxed), 1);
    assert!(
        hook.paths
            .lock()
            .iter()
            .all(|path| path == "/in?timeout=10s")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_and_conditions_say_what_a_webhook_is_asked_about() {
    let server = Server::start().await;
    let hook = Hook::allowing(json!({})).await;
    let narrow = json!({
        "objectSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        "matchConditions": [
            {"name": "not-mine", "expression": "object.metadata.name != 'mine'"},
            {"name": "fails", "expression": "object.metadata.name != 'fails' || object.data.nothing == 'x'"},
            {"name": "may", "expression": "authorizer.group('').resource('pods').namespace('default').check('create').allowed()"},
        ],
    });
    install(
        &server,
        false,
        "narrow",
        vec![webhook("c.example.com", hook.by_url(), narrow)],
    )
    .await;
    assert_eq!(create(&server, "seen").await.code, 201);
    assert_eq!(create(&server, "mine").await.code, 201);
    let mut skipped = map("skipped");
    skipped["metadata"]["labels"] = json!({"skip": "yes"});
    assert_eq!(admin(&server, "POST", MAPS, skipped).await.code, 201);
    let elsewhere = "/api/v1/namespaces/kube-public/configmaps";
    assert_eq!(
        admin(&server, "POST", elsewhere, map("elsewhere"))
            .await
            .code,
        201
    );
    let failed = create(&server, "fails").await;
    assert_eq!(failed.code, 403, "{}", failed.body);
    assert!(
        message(&failed).contains("resulted in error: no such key: nothing"),
        "{}",
        failed.body
    );
    let names: Vec<Value> = hook
        .requests()
        .iter()
        .map(|one| one["name"].clone())
        .collect();
    assert_eq!(names, ["seen"]);
    let broken = json!({"metadata": {"name": "broken"}, "webhooks": [webhook("x.example.com", hook.by_url(),
        json!({"matchConditions": [{"name": "a", "expression": "object.("}]}))]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let refused = admin(&server, "POST", path, broken).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(
        message(&refused).contains("webhooks[0].matchConditions[0].expression"),
        "{}",
        refused.body
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_converted_for_a_webhook_and_back() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        Reply::Json(patched(
            review,
            &json!([{"op": "replace", "path": "/spec/maxReplicas", "value": 7}]),
        ))
    })
    .await;
    let rules = |policy: &str| {
        json!({"rules": [rule(&["CREATE"], "autoscaling", "v1", &["horizontalpodautoscalers"])],
            "matchPolicy": policy})
    };
    let hooks = vec![
        webhook("e.example.com", hook.by_url(), rules("Equivalent")),
        webhook(
            "x.example.com",
            json!({"url": "https://127.0.0.1:1/"}),
            rules("Exact"),
        ),
    ];
    install(&server, true, "versions", hooks).await;
    let scaler = json!({"metadata": {"name": "s"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let made = admin(&server, "POST", path, scaler).await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.json()["apiVersion"], "autoscaling/v2");
    assert_eq!(made.json()["spec"]["maxReplicas"], 7);
    let request = hook.requests().remove(0);
    assert_eq!(request["kind"]["version"], "v1");
    assert_eq!(request["requestKind"]["version"], "v2");
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v1");
}

/// A server with a webhook for parts of deployments and pods: it sets nine replicas in scales and
/// rejects deletions.
async fn server_with_hook_for_parts() -> (Server, Hook) {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let request = &review["request"];
        let reply = match (
            request["operation"].as_str(),
            request["subResource"].as_str(),
        ) {
            (Some("UPDATE"), Some("scale")) => patched(
                review,
                &json!([{"op": "replace", "path": "/spec/replicas", "value": 9}]),
            ),
            (Some("DELETE"), _) => answer(
                review,
                json!({"allowed": false, "status": {"message": "stay"}}),
            ),
            _ => allowed(review, json!({})),
        };
        Reply::Json(reply)
    })
    .await;
    // Options of connections have no labels for selectors.
    let rules = json!({"objectSelector": {}, "rules": [
        rule(&["UPDATE", "DELETE"], "apps", "v1", &["deployments", "deployments/scale"]),
        rule(&["CREATE"], "", "v1", &["pods/binding", "pods/eviction"]),
        rule(&["CONNECT"], "", "v1", &["pods/exec"]),
    ]});
    let hooks = vec![webhook("p.example.com", hook.by_url(), rules)];
    install(&server, true, "parts", hooks).await;
    (server, hook)
}

/// Operation, kind and subresource of a request to a webhook.
fn asked_about(request: &Value) -> String {
    assert_ne!(request["requestSubResource"], "", "absent if there is none");
    let subresource = request["requestSubResource"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (operation, kind) = (text(&request["operation"]), text(&request["kind"]["kind"]));
    format!("{operation} {kind} {subresource}")
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_deletes_and_scales_are_asked_about_as_what_they_are() {
    let (server, hook) = server_with_hook_for_parts().await;
    let containers = json!([{"name": "c", "image": "i"}]);
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(admin(&server, "POST", path, deployment).await.code, 201);
    let path = format!("{path}/d");
    let five = json!({"spec": {"replicas": 5}});
    let scaled = admin(&server, "PATCH", &format!("{path}/scale"), five).await;
    assert_eq!(scaled.code, 200, "{}", scaled.body);
    assert_eq!(scaled.json()["spec"]["replicas"], 9);
    let refused = admin(&server, "DELETE", &path, Value::Null).await;
    assert_eq!(refused.code, 400, "{}", refused.body);
    let requests = hook.requests();
    let asked: Vec<String> = requests.iter().map(asked_about).collect();
    assert_eq!(asked, ["UPDATE Scale scale", "DELETE Deployment "]);
    assert_eq!(requests[0]["oldObject"]["spec"]["replicas"], 1);
    assert_eq!(requests[0]["object"]["spec"]["replicas"], 5);
    assert_eq!(requests[1]["object"], Value::Null);
    assert_eq!(requests[1]["oldObject"]["metadata"]["name"], "d");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_deletecollection_are_asked_about_without_their_names() {
    let server = Server::start().await;
    let hook = Hook::start(|review| Reply::Json(answer(review, json!({"allowed": false})))).await;
    assert_eq!(create(&server, "one").await.code, 201);
    let rules = json!({"rules": [rule(&["DELETE"], "", "v1", &["configmaps"])]});
    let hooks = vec![webhook("d.example.com", hook.by_url(), rules)];
    install(&server, false, "deletes", hooks).await;
    let refused = admin(&server, "DELETE", MAPS, Value::Null).await;
    assert_eq!(refused.code, 400, "{}", refused.body);
    let asked = hook.requests().remove(0);
    assert_eq!(asked["oldObject"]["metadata"]["name"], "one");
    assert!(asked.get("name").is_none(), "{asked}");
    let alone = admin(&server, "DELETE", &format!("{MAPS}/one"), Value::Null).await;
    assert_eq!(alone.code, 400, "{}", alone.body);
    assert_eq!(hook.requests()[1]["name"], "one");
    assert!(is_stored(&server, "one").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_and_connections_are_asked_about_with_their_options() {
    let (server, hook) = server_with_hook_for_parts().await;
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    assert_eq!(admin(&server, "POST", pods, pod).await.code, 201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let bound = admin(&server, "POST", &format!("{pods}/p/binding"), binding).await;
    assert_eq!(bound.code, 201, "{}", bound.body);
    let exec = format!("{pods}/p/exec?command=ls&stdout=true");
    let exec = admin(&server, "POST", &exec, Value::Null).await;
    assert_ne!(exec.code, 200, "{}", exec.body);
    let requests = hook.requests();
    let asked: Vec<String> = requests.iter().map(asked_about).collect();
    assert_eq!(
        asked,
        ["CREATE Binding binding", "CONNECT PodExecOptions exec"]
    );
    assert_eq!(requests[1]["object"]["command"], json!(["ls"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_do_not_admit_webhook_configurations() {
    let server = Server::start().await;
    let hook = Hook::start(|review| Reply::Json(answer(review, json!({"allowed": false})))).await;
    let all = json!({"rules": [rule(&["*"], "admissionregistration.k8s.io", "*", &["*"])]});
    install(
        &server,
        false,
        "all",
        vec![webhook("a.example.com", hook.by_url(), all.clone())],
    )
    .await;
    install(
        &server,
        true,
        "more",
        vec![webhook("b.example.com", hook.by_url(), all)],
    )
    .await;
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/all";
    assert_eq!(admin(&server, "DELETE", path, Value::Null).await.code, 200);
    assert!(hook.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_older_review_is_sent_to_those_who_know_no_other_and_dry_runs_are_marked() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        Reply::Json(json!({"response": {"allowed": true}, "kind": review["kind"]}))
    })
    .await;
    let old = json!({"admissionReviewVersions": ["v1beta1", "v1"]});
    install(
        &server,
        false,
        "old",
        vec![webhook("o.example.com", hook.by_url(), old)],
    )
    .await;
    let made = admin(
        &server,
        "POST",
        &format!("{MAPS}?dryRun=All&fieldManager=me"),
        map("one"),
    )
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let review = hook.seen.lock()[0].clone();
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(review["request"]["dryRun"], true);
    assert_eq!(
        review["request"]["options"],
        json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1",
        "dryRun": ["All"], "fieldManager": "me"})
    );
    assert!(!is_stored(&server, "one").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_changed_and_cut_to_their_schema() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        Reply::Json(patched(
            review,
            &json!([
                {"op": "add", "path": "/data/known", "value": "yes"},
                {"op": "add", "path": "/data/unknown", "value": "yes"},
            ]),
        ))
    })
    .await;
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"data": {"type": "object", "properties": {"known": {"type": "string"}}}},
            }}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(admin(&server, "POST", path, definition).await.code, 201);
    let rules = json!({"rules": [rule(&["CREATE"], "example.com", "v1", &["things"])]});
    install(
        &server,
        true,
        "custom",
        vec![webhook("c.example.com", hook.by_url(), rules)],
    )
    .await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "data": {}});
    let things = "/apis/example.com/v1/namespaces/default/things";
    let made = crate::support::eventually(|| async {
        let made = admin(&server, "POST", things, thing.clone()).await;
        (made.code != 404).then_some(made)
    })
    .await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(made.json()["data"], json!({"known": "yes"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn reviews_and_token_requests_are_admitted_by_webhooks() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let name = review["request"]["resource"]["resource"].as_str();
        let message = format!("no {}", name.unwrap_or_default());
        let refusal = json!({"allowed": false, "status": {"message": message, "code": 403}});
        Reply::Json(answer(review, refusal))
    })
    .await;
    let rules = json!({"rules": [{"operations": ["CREATE"], "apiGroups": ["authorization.k8s.io", "authentication.k8s.io"],
        "apiVersions": ["v1"], "resources": ["*"]}]});
    let hooks = vec![webhook("v.example.com", hook.by_url(), rules)];
    install(&server, false, "questions", hooks).await;
    let may = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}});
    for (group, plural, spec) in [
        ("authorization", "selfsubjectaccessreviews", may.clone()),
        (
            "authorization",
            "selfsubjectrulesreviews",
            json!({"namespace": "default"}),
        ),
        ("authentication", "tokenreviews", json!({"token": "x"})),
        ("authentication", "selfsubjectreviews", Value::Null),
    ] {
        let path = format!("/apis/{group}.k8s.io/v1/{plural}");
        let refused = admin(&server, "POST", &path, json!({ "spec": spec })).await;
        assert_eq!(refused.code, 403, "{plural}: {}", refused.body);
        assert!(
            message(&refused).ends_with(&format!("no {plural}")),
            "{}",
            refused.body
        );
    }
    // Invalid reviews are rejected before admission.
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let invalid = admin(&server, "POST", path, json!({"spec": {}})).await;
    assert_eq!(invalid.code, 422, "{}", invalid.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_is_asked_about_as_what_it_came_as() {
    let server = Server::start().await;
    let hook = Hook::start(|review| {
        let asked = &review["request"];
        let (resource, part) = (&asked["resource"]["resource"], &asked["subResource"]);
        let message = format!("{resource} {part} {}", asked["kind"]["kind"]);
        Reply::Json(answer(
            review,
            json!({"allowed": false, "status": {"message": message}}),
        ))
    })
    .await;
    let rules = json!({"rules": [rule(&["CREATE"], "", "v1", &["bindings", "pods/binding"])]});
    let hooks = vec![webhook("v.example.com", hook.by_url(), rules)];
    install(&server, false, "bindings", hooks).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    for (path, words) in [
        ("bindings", "\"bindings\" null \"Binding\""),
        ("pods/p/binding", "\"pods\" \"binding\" \"Binding\""),
    ] {
        let path = format!("/api/v1/namespaces/default/{path}");
        let refused = admin(&server, "POST", &path, binding.clone()).await;
        assert!(
            message(&refused).ends_with(words),
            "{path}: {}",
            refused.body
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_asks_for_it_is_called_again() {
    let server = Server::start().await;
    let calls = AtomicUsize::new(0);
    let hook = Hook::start(move |review| match calls.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Reply::Busy,
        _ => Reply::Json(allowed(review, json!({}))),
    })
    .await;
    let hooks = vec![webhook("busy.example.com", hook.by_url(), Value::Null)];
    install(&server, false, "busy", hooks).await;
    let made = create(&server, "patient").await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(hook.requests().len(), 3);
}
