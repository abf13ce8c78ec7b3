//! MutatingAdmissionPolicy, seen from the mutated objects.

use machinery::json::{Value, json};

use crate::support::{Raw, Server, admin, eventually};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn policy(name: &str, mutations: Value, change: Value) -> Value {
    let mut spec = json!({
        "matchConstraints": {"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""],
            "apiVersions": ["v1"], "resources": ["configmaps"]}]},
        "reinvocationPolicy": "Never",
        "mutations": mutations,
    });
    if let (Value::Object(spec), Value::Object(change)) = (&mut spec, change) {
        spec.extend(change);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

async fn create(server: &Server, path: &str, object: Value) {
    let made = admin(server, "POST", path, object).await;
    assert_eq!(made.code, 201, "{path} {}", made.body);
    let warned = made.headers.get("warning");
    assert!(warned.is_none(), "{warned:?}");
}

async fn bind(server: &Server, policy: Value, change: Value) {
    let mut spec = json!({"policyName": policy["metadata"]["name"]});
    if let (Value::Object(spec), Value::Object(change)) = (&mut spec, change) {
        spec.extend(change);
    }
    let binding = json!({"metadata": policy["metadata"], "spec": spec});
    create(
        server,
        &format!("{GROUP}/mutatingadmissionpolicies"),
        policy,
    )
    .await;
    create(
        server,
        &format!("{GROUP}/mutatingadmissionpolicybindings"),
        binding,
    )
    .await;
}

async fn try_map(server: &Server, name: &str) -> Raw {
    let path = format!("{MAPS}?dryRun=All");
    let map = json!({"metadata": {"name": name, "labels": {"a/b": "x"}}, "data": {"k": "v"}});
    admin(server, "POST", &path, map).await
}

/// The response to a ConfigMap once it looks as expected.
async fn answered(server: &Server, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually(|| async {
        let tried = try_map(server, "m").await.json();
        wanted(&tried).then_some(tried)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_and_patches_change_objects_one_after_the_other() {
    let server = Server::start().await;
    create(
        &server,
        MAPS,
        json!({"metadata": {"name": "params"}, "data": {"team": "blue"}}),
    )
    .await;
    let mutations = json!([
        apply("Object{metadata: Object.metadata{labels: {'team': params.data.team}}}"),
        patch(
            "[JSONPatch{op: 'test', path: '/metadata/labels/team', value: 'blue'}, \
              JSONPatch{op: 'remove', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b')}, \
              JSONPatch{op: 'add', path: '/data/count', value: string(variables.count)}]"
        ),
        patch(
            "[JSONPatch{op: 'test', path: '/data/k', value: 'other'}, JSONPatch{op: 'remove', path: '/data'}]"
        ),
    ]);
    let change = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "variables": [{"name": "count", "expression": "size(object.metadata.labels)"}],
        "matchConditions": [{"name": "not-params", "expression": "object.metadata.name != 'params'"}]});
    let reference = json!({"paramRef": {"name": "params", "parameterNotFoundAction": "Deny"}});
    bind(&server, policy("labels", mutations, change), reference).await;
    let object = answered(&server, |tried| tried["data"]["count"].is_string()).await;
    assert_eq!(object["metadata"]["labels"], json!({"team": "blue"}));
    // The second mutation sees the result of the first.
    assert_eq!(object["data"], json!({"k": "v", "count": "2"}));
    // Updates are mutated as well, and fields that a policy sets have no manager.
    let map = json!({"metadata": {"name": "kept", "labels": {"a/b": "x"}}, "data": {"k": "v"}});
    create(&server, MAPS, map).await;
    let path = format!("{MAPS}/kept");
    let updated = admin(
        &server,
        "PATCH",
        &path,
        json!({"data": {"more": "1"}, "metadata": {"labels": {"a/b": "y"}}}),
    )
    .await;
    let updated = updated.json();
    assert_eq!(updated["metadata"]["labels"], json!({"team": "blue"}));
    let managed = updated["metadata"]["managedFields"].to_string();
    assert!(!managed.contains("f:team"), "{managed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_completed_after_a_mutation_as_if_they_had_come_so() {
    let server = Server::start().await;
    let mutation = apply(
        "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'side', image: 'example.com/side', \
         restartPolicy: 'Always'}]}}",
    );
    let pods = json!({"matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""],
        "apiVersions": ["v1"], "resources": ["pods"]}]},
        "matchConditions": [{"name": "once", "expression":
            "!object.spec.?initContainers.orValue([]).exists(c, c.name == 'side')"}]});
    bind(&server, policy("side", json!([mutation]), pods), json!({})).await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "example.com/web"}]}});
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    let container = eventually(|| async {
        let made = admin(&server, "POST", path, pod.clone()).await.json();
        let container = made["spec"]["initContainers"][0].clone();
        container.is_object().then_some(container)
    })
    .await;
    assert_eq!(container["name"], "side");
    assert_eq!(container["restartPolicy"], "Always");
    // Defaults, and fields that later plugins add.
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["terminationMessagePath"], "/dev/termination-log");
    assert!(container["volumeMounts"].is_array(), "{container}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_runs_again_when_others_changed_the_object_after_it() {
    let server = Server::start().await;
    let set = |key: &str, when: &str| {
        json!([apply(&format!(
            "{when} ? Object{{metadata: Object.metadata{{annotations: {{'{key}': 'yes'}}}}}} : Object{{}}"
        ))])
    };
    let seen = "object.metadata.?annotations[?'late'].hasValue()";
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    bind(
        &server,
        policy("a-again", set("again", seen), again),
        json!({}),
    )
    .await;
    bind(
        &server,
        policy("b-never", set("never", seen), json!({})),
        json!({}),
    )
    .await;
    bind(
        &server,
        policy("c-late", set("late", "true"), json!({})),
        json!({}),
    )
    .await;
    let object = answered(&server, |tried| {
        tried["metadata"]["annotations"]["again"].is_string()
    })
    .await;
    assert_eq!(
        object["metadata"]["annotations"],
        json!({"again": "yes", "late": "yes"})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_changed_refuses_the_request_unless_it_is_ignored() {
    let server = Server::start().await;
    let policies = format!("{GROUP}/mutatingadmissionpolicies");
    let wrong = apply("Object{spec: Object.spec{replicas: 1}}");
    bind(
        &server,
        policy("wrong", json!([wrong]), json!({})),
        json!({}),
    )
    .await;
    let status = answered(&server, |tried| tried["kind"] == "Status").await;
    let why = "policy 'wrong' with binding 'wrong' denied request: error applying patch: failed to convert patch object to typed object: .spec: field not declared in schema";
    assert_eq!(status["message"], why);
    assert_eq!(status["reason"], "Invalid");
    assert_eq!(status["code"], 403);
    assert_eq!(status["details"]["causes"], json!([{"message": why}]));
    let ignore = json!({"spec": {"failurePolicy": "Ignore"}});
    admin(&server, "PATCH", &format!("{policies}/wrong"), ignore).await;
    answered(&server, |tried| tried["kind"] == "ConfigMap").await;
    // A patch whose result is not a ConfigMap is an internal error, whatever the failure policy.
    let broken = json!({"spec": {"mutations": [patch("[JSONPatch{op: 'add', path: '/nonsense', value: 1}]")]}});
    admin(&server, "PATCH", &format!("{policies}/wrong"), broken).await;
    let status = answered(&server, |tried| tried["kind"] == "Status").await;
    assert_eq!(status["code"], 500, "{status}");
    // A policy that does not compile is rejected.
    let mutations = json!([apply("Object{"), patch("[1]")]);
    let refused = admin(
        &server,
        "POST",
        &policies,
        policy("broken", mutations, json!({})),
    )
    .await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let causes = refused.json()["details"]["causes"].clone();
    assert_eq!(
        causes[0]["field"],
        "spec.mutations[0].applyConfiguration.expression"
    );
    assert_eq!(
        causes[1]["message"],
        "Invalid value: \"[1]\": must evaluate to list(JSONPatch) but got list(int)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_changed_by_their_schema() {
    let server = Server::start().await;
    let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "integer"}, "colour": {"type": "string", "default": "blue"},
                "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {
                        "name": {"type": "string"}, "count": {"type": "integer", "default": 1}}}}}}}}}}]}});
    create(
        &server,
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        definition,
    )
    .await;
    let things = "/apis/example.com/v1/namespaces/default/things";
    eventually(|| async {
        (admin(&server, "GET", things, Value::Null).await.code == 200).then_some(())
    })
    .await;
    let mutation = apply(
        "Object{spec: Object.spec{size: object.spec.size * 2, parts: [Object.spec.parts{name: 'b'}]}}",
    );
    let about = json!({"matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": ["example.com"],
        "apiVersions": ["v1"], "resources": ["things"]}]}});
    bind(
        &server,
        policy("things", json!([mutation]), about),
        json!({}),
    )
    .await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"},
        "spec": {"size": 4, "parts": [{"name": "a", "count": 3}]}});
    let spec = eventually(|| async {
        let made = admin(
            &server,
            "POST",
            &format!("{things}?dryRun=All"),
            thing.clone(),
        )
        .await
        .json();
        (made["spec"]["size"] == 8).then(|| made["spec"].clone())
    })
    .await;
    assert_eq!(
        spec,
        json!({"size": 8, "colour": "blue", "parts": [{"name": "a", "count": 3}, {"name": "b", "count": 1}]})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutating_policy_cannot_change_kind_name_or_namespace() {
    let server = Server::start().await;
    // Each ends a request whatever the failure policy.
    for (value, why) in [
        (
            "PodTemplate",
            "failed to convert object: converting (v1.PodTemplate) to (core.ConfigMap): unknown conversion",
        ),
        (
            "Other",
            "no kind \"Other\" is registered for version \"v1\"",
        ),
    ] {
        let kind = patch(&format!(
            "[JSONPatch{{op: 'replace', path: '/kind', value: '{value}'}}, JSONPatch{{op: 'remove', path: '/data'}}]"
        ));
        let name = value.to_lowercase();
        let change = json!({"failurePolicy": "Ignore", "matchConditions": [{"name": "one", "expression": format!("object.metadata.name == '{name}'")}]});
        bind(&server, policy(&name, json!([kind]), change), json!({})).await;
        let refused = eventually(|| async {
            let tried = try_map(&server, &name).await.json();
            (tried["kind"] == "Status").then_some(tried)
        })
        .await;
        assert_eq!(refused["code"], 500, "{refused}");
        assert_eq!(
            refused["message"],
            format!("Internal error occurred: {why}")
        );
    }
    let moves =
        patch("[JSONPatch{op: 'replace', path: '/metadata/namespace', value: 'kube-system'}]");
    bind(
        &server,
        policy("moves", json!([moves]), json!({})),
        json!({}),
    )
    .await;
    let refused = answered(&server, |answer| answer["kind"] == "Status").await;
    assert_eq!(
        (&refused["code"], &refused["reason"]),
        (&json!(400), &json!("BadRequest"))
    );
}

/// The match constraints of a policy for creates of a subresource.
fn of_subresource(name: &str) -> Value {
    json!({"matchConstraints": {"resourceRules": [{"operations": ["CREATE"], "apiGroups": [""],
        "apiVersions": ["v1"], "resources": [name]}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_issued_as_policies_changed_its_request() {
    let server = Server::start().await;
    let capped = patch("[JSONPatch{op: 'add', path: '/spec/expirationSeconds', value: 600}]");
    let rules = of_subresource("serviceaccounts/token");
    bind(
        &server,
        policy("capped", json!([capped]), rules.clone()),
        Value::Null,
    )
    .await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let long = json!({"spec": {"audiences": ["vault"], "expirationSeconds": 7200}});
    let issued = eventually(|| async {
        let issued = admin(&server, "POST", path, long.clone()).await.json();
        (issued["spec"]["expirationSeconds"] == 600).then_some(issued)
    })
    .await;
    assert_eq!(issued["spec"]["audiences"], json!(["vault"]));
    // A policy sees the default audiences of a request without any.
    let expression = "object.spec.audiences.all(one, one == 'vault')";
    let mut strict = json!({"metadata": {"name": "strict"}, "spec": rules});
    strict["spec"]["validations"] = json!([{"expression": expression}]);
    create(
        &server,
        &format!("{GROUP}/validatingadmissionpolicies"),
        strict,
    )
    .await;
    let bound = json!({"policyName": "strict", "validationActions": ["Deny"]});
    create(
        &server,
        &format!("{GROUP}/validatingadmissionpolicybindings"),
        json!({"metadata": {"name": "strict"}, "spec": bound}),
    )
    .await;
    let refused = eventually(|| async {
        let answer = admin(&server, "POST", path, json!({"spec": {}})).await;
        (answer.code != 201).then_some(answer)
    })
    .await;
    let why = format!("failed expression: {expression}");
    assert!(refused.body.contains(&why), "{}", refused.body);
    assert_eq!(admin(&server, "POST", path, long).await.code, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_evicted_with_the_options_that_policies_set() {
    let server = Server::start().await;
    let patient =
        patch("[JSONPatch{op: 'add', path: '/deleteOptions', value: {'gracePeriodSeconds': 7}}]");
    let rules = of_subresource("pods/eviction");
    bind(
        &server,
        policy("patient", json!([patient]), rules),
        Value::Null,
    )
    .await;
    let pods = "/api/v1/namespaces/default/pods";
    let evicted = eventually(|| async {
        let name = format!("pod-{}", rand::random::<u64>());
        let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        let made = admin(&server, "POST", pods, pod).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let eviction = json!({"metadata": {"name": name}});
        let path = format!("{pods}/{name}/eviction");
        let evicted = admin(&server, "POST", &path, eviction).await;
        assert_eq!(evicted.code, 201, "{}", evicted.body);
        let pod = admin(&server, "GET", &format!("{pods}/{name}"), Value::Null).await;
        let pod = pod.json();
        (pod["metadata"]["deletionGracePeriodSeconds"] == 7).then_some(pod)
    })
    .await;
    assert!(!evicted["metadata"]["deletionTimestamp"].is_null());
}
