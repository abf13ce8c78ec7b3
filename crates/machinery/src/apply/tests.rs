//! Tables of applies and updates, with the resulting managedFields.

use super::*;
use crate::json;
use std::sync::LazyLock;

fn object(value: Value) -> Object {
    match value {
        Value::Object(map) => map,
        other => panic!("no object: {other}"),
    }
}

static DEPLOYMENT: LazyLock<OneVersion<'static>> = LazyLock::new(|| OneVersion {
    api_version: "apps/v1",
    root: typed("apps/v1.Deployment").unwrap(),
});

fn writer(manager: &str) -> Writer<'_> {
    Writer {
        manager,
        api_version: "apps/v1",
        subresource: "",
        now: "2024-01-01T00:00:00Z",
        reset: &[&["status"]],
        versions: &*DEPLOYMENT,
    }
}

fn applied(live: Option<&Object>, config: Value, manager: &str) -> Result<Object, Status> {
    apply(live, &object(config), &writer(manager), false)
}

fn fields(object: &Object, manager: &str) -> Value {
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|e| e["manager"] == manager)
        .map_or(Value::Null, |e| e["fieldsV1"].clone())
}

fn config(replicas: i64, image: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"a": "1"}},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

#[test]
fn an_applier_owns_the_applied_fields() {
    let live = applied(None, config(1, "x"), "me").unwrap();
    assert_eq!(
        fields(&live, "me"),
        json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:replicas": {}, "f:template": {"f:spec":
            {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}}}}}}})
    );
    assert_eq!(live["spec"]["replicas"], 1);
}

#[test]
fn another_value_is_a_conflict_and_the_same_is_shared() {
    let live = applied(None, config(1, "x"), "me").unwrap();
    let status = applied(Some(&live), config(2, "x"), "you").unwrap_err();
    assert_eq!(
        (status.code, status.message.as_str()),
        (
            409,
            "Apply failed with 1 conflict: conflict with \"me\": .spec.replicas"
        )
    );
    let status = applied(Some(&live), config(2, "y"), "you").unwrap_err();
    assert_eq!(
        status.message,
        "Apply failed with 2 conflicts: conflicts with \"me\":\n- .spec.replicas\n- .spec.template.spec.containers[name=\"c\"].image"
    );
    let shared = applied(Some(&live), config(1, "x"), "you").unwrap();
    assert_eq!(fields(&shared, "me"), fields(&shared, "you"));
}

#[test]
fn forced_apply_takes_over_fields() {
    let live = applied(None, config(1, "x"), "me").unwrap();
    let config = object(json!({"spec": {"replicas": 5}}));
    let forced = apply(Some(&live), &config, &writer("you"), true).unwrap();
    assert_eq!(forced["spec"]["replicas"], 5);
    assert_eq!(
        fields(&forced, "you"),
        json!({"f:spec": {"f:replicas": {}}})
    );
    assert_eq!(fields(&forced, "me")["f:spec"].get("f:replicas"), None);
}

#[test]
fn fields_no_longer_applied_are_removed_unless_another_manager_owns_them() {
    let live = applied(None, config(1, "x"), "me").unwrap();
    let without = json!({"metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}});
    let next = applied(Some(&live), without.clone(), "me").unwrap();
    assert_eq!(next["spec"].get("replicas"), None);
    assert_eq!(next["metadata"].get("labels"), None);
    let shared = applied(Some(&live), json!({"spec": {"replicas": 1}}), "you").unwrap();
    let next = applied(Some(&shared), without, "me").unwrap();
    assert_eq!(next["spec"]["replicas"], 1);
}

#[test]
fn list_elements_merge_by_key_and_go_with_their_owner() {
    let live = applied(None, config(1, "x"), "me").unwrap();
    let sidecar =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "s", "image": "y"}]}}}});
    let both = applied(Some(&live), sidecar, "you").unwrap();
    let names = |o: &Object| {
        let list = o["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        list.iter()
            .map(|c| c["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&both), ["c", "s"]);
    let gone = applied(
        Some(&both),
        json!({"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}}),
        "you",
    )
    .unwrap();
    assert_eq!(names(&gone), ["c"]);
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let live = applied(None, config(1, "x"), "me").unwrap();
    let mut later = writer("me");
    later.now = "2025-01-01T00:00:00Z";
    let again = apply(Some(&live), &object(config(1, "x")), &later, false).unwrap();
    assert_eq!(again, live);
}

#[test]
fn creates_and_updates_are_recorded_in_managed_fields() {
    let mut created = object(config(1, "x"));
    track(None, &mut created, &writer("kubectl-create"));
    assert_eq!(
        fields(&created, "kubectl-create"),
        json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:replicas": {}, "f:template": {"f:spec":
            {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}}}}}}})
    );
    let mut updated = created.clone();
    updated["spec"]["replicas"] = json!(3);
    track(Some(&created), &mut updated, &writer("kubectl-edit"));
    assert_eq!(
        fields(&updated, "kubectl-edit"),
        json!({"f:spec": {"f:replicas": {}}})
    );
    assert_eq!(
        fields(&updated, "kubectl-create")["f:spec"].get("f:replicas"),
        None
    );
    let status = applied(Some(&updated), config(1, "x"), "me").unwrap_err();
    assert_eq!(
        status.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn empty_fields_that_are_not_stored_have_no_manager() {
    let of = |resources: Value| {
        let containers = json!([{"name": "c", "resources": resources}]);
        object(json!({"spec": {"template": {"spec": {"containers": containers}}}}))
    };
    let mut created = of(json!({"limits": {}, "requests": {"cpu": "1"}}));
    track(None, &mut created, &writer("m"));
    let owned = fields(&created, "m").to_string();
    assert!(
        owned.contains(r#""f:resources":{".":{},"f:requests":{".":{},"f:cpu":{}}}"#),
        "{owned}"
    );
    let mut updated = of(json!({"limits": {}, "claims": [], "requests": {"cpu": "1"}}));
    updated.insert("metadata", created["metadata"].clone());
    track(Some(&created), &mut updated, &writer("n"));
    assert!(!updated["metadata"].to_string().contains("claims"));
}

#[test]
fn status_is_not_the_main_writers() {
    let mut created = object(json!({"spec": {"replicas": 1}, "status": {"replicas": 1}}));
    track(None, &mut created, &writer("m"));
    assert_eq!(fields(&created, "m"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn atomic_and_set_lists_are_owned_as_such() {
    let config = json!({"metadata": {"finalizers": ["a.io/x"]}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"spec": {"containers": [{"name": "c", "command": ["x"], "ports": [{"containerPort": 80}]}]}}}});
    let live = applied(None, config, "me").unwrap();
    let set = fields(&live, "me");
    assert_eq!(
        set["f:metadata"]["f:finalizers"],
        json!({"v:\"a.io/x\"": {}})
    );
    assert_eq!(set["f:spec"]["f:selector"], json!({}));
    let container = &set["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"];
    assert_eq!(container["f:command"], json!({}));
    assert_eq!(
        container["f:ports"],
        json!({"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}})
    );
}

#[test]
fn custom_resources_follow_their_own_schema() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "hosts": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic"}}}}});
    let config =
        object(json!({"metadata": {"name": "x"}, "spec": {"hosts": ["a"], "whole": {"k": "v"}}}));
    let versions = OneVersion {
        api_version: "apps/v1",
        root: Root::Custom(&schema),
    };
    let writer = Writer {
        versions: &versions,
        ..writer("me")
    };
    let live = apply(None, &config, &writer, false).unwrap();
    assert_eq!(
        fields(&live, "me"),
        json!({"f:spec": {"f:hosts": {"v:\"a\"": {}}, "f:whole": {}}})
    );
}

#[test]
fn kubectl_moves_to_the_server_side_without_conflict() {
    let last = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"labels": {"a": "1"}}, "spec": {"replicas": 1, "paused": true}});
    let last = last.to_string();
    let mut live = object(
        json!({"metadata": {"labels": {"a": "1"}, "annotations": {LAST_APPLIED: last}}, "spec": {"replicas": 1}}),
    );
    track(None, &mut live, &writer("kubectl-client-side-apply"));
    let config = json!({"spec": {"replicas": 2}});
    assert!(applied(Some(&live), config.clone(), "other").is_err());
    let moved = applied(Some(&live), config, "kubectl").unwrap();
    assert_eq!(moved["spec"]["replicas"], 2);
    // The annotation follows the applied configuration.
    assert_eq!(
        moved["metadata"]["annotations"][LAST_APPLIED],
        "{\"spec\":{\"replicas\":2}}\n"
    );
}

#[test]
fn a_field_changed_after_client_side_apply_is_a_conflict_for_kubectl() {
    let last = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 5}});
    let mut live = object(
        json!({"metadata": {"annotations": {LAST_APPLIED: last.to_string()}}, "spec": {"replicas": 1}}),
    );
    track(None, &mut live, &writer("someone"));
    assert!(applied(Some(&live), json!({"spec": {"replicas": 2}}), "kubectl").is_err());
}

#[test]
fn the_time_of_an_entry_is_that_of_the_last_write_that_set_something() {
    let mut live = object(json!({"metadata": {}, "spec": {"replicas": 1, "paused": true}}));
    let at = |now: &'static str| Writer {
        now,
        ..writer("one")
    };
    track(None, &mut live, &at("2024-01-01T00:00:00Z"));
    let time = |object: &Object| object["metadata"]["managedFields"][0]["time"].clone();
    // Removing a field does not update the time.
    let mut less = live.clone();
    less["spec"].as_object_mut().unwrap().shift_remove("paused");
    track(Some(&live), &mut less, &at("2024-01-01T00:00:01Z"));
    assert_eq!(time(&less), "2024-01-01T00:00:00Z");
    let mut more = less.clone();
    more["spec"]["replicas"] = json!(2);
    track(Some(&less), &mut more, &at("2024-01-01T00:00:02Z"));
    assert_eq!(time(&more), "2024-01-01T00:00:02Z");
    // An apply that changes no value has no time.
    let both = applied(Some(&more), json!({"spec": {"replicas": 2}}), "two").unwrap();
    assert_eq!(both["metadata"]["managedFields"][0]["time"], Value::Null);
}

#[test]
fn fields_reset_for_a_subresource_do_not_change_managers() {
    let mut live = object(json!({"metadata": {}, "spec": {"replicas": 1}}));
    track(None, &mut live, &writer("one"));
    let status = Writer {
        subresource: "status",
        reset: &[&["spec"]],
        ..writer("two")
    };
    let mut seen = live.clone();
    seen.insert("status".to_owned(), json!({"replicas": 1}));
    seen["spec"]["replicas"] = json!(9);
    track(Some(&live), &mut seen, &status);
    let managers = seen["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(
        managers[0]["fieldsV1"],
        json!({"f:spec": {"f:replicas": {}}})
    );
    assert_eq!(
        managers[1]["fieldsV1"],
        json!({"f:status": {".": {}, "f:replicas": {}}})
    );
    // A write of the object does not change the owners of the status.
    let config = json!({"spec": {"paused": true}, "status": {"replicas": 3}});
    let both = applied(Some(&seen), config, "three").unwrap();
    let managers = both["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(managers[0]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
    assert_eq!(managers.len(), 3);
}

#[test]
fn an_empty_managed_fields_list_resets_it_and_an_invalid_one_does_not() {
    let mut live = object(json!({"metadata": {}, "spec": {"replicas": 1}}));
    track(None, &mut live, &writer("one"));
    for (sent, kept) in [
        (json!([]), 0),
        (json!([{}]), 0),
        (json!([{"manager": "x", "operation": "Else"}]), 1),
    ] {
        let mut next = live.clone();
        next["metadata"]["managedFields"] = sent;
        track(Some(&live), &mut next, &writer("two"));
        let managers = next["metadata"]["managedFields"].as_array();
        assert_eq!(managers.map_or(0, Vec::len), kept);
    }
}

#[test]
fn many_updaters_become_one() {
    let mut live = object(json!({"metadata": {}, "spec": {"replicas": 0}}));
    track(None, &mut live, &writer("first"));
    for i in 0..15 {
        let mut next = live.clone();
        next["metadata"]["labels"][format!("l{i}")] = json!("x");
        let name = format!("m{i}");
        let now = format!("2024-01-01T00:00:{i:02}Z");
        let writer = Writer {
            now: &now,
            ..writer(&name)
        };
        track(Some(&live), &mut next, &writer);
        live = next;
    }
    let managers = live["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.len() <= 11, "{}", managers.len());
    assert!(managers.iter().any(|m| m["manager"] == "ancient-changes"));
}

/// A custom resource with lists of every type.
fn custom() -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic",
            "additionalProperties": {"type": "string"}},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true},
        "any": {"x-kubernetes-preserve-unknown-fields": true}}}}})
}

/// Applies a spec to the live one as a manager.
fn applied_custom(live: Option<&Object>, spec: Value, manager: &str) -> Object {
    let schema = custom();
    let versions = OneVersion {
        api_version: "apps/v1",
        root: Root::Custom(&schema),
    };
    let writer = Writer {
        versions: &versions,
        reset: &[],
        ..writer(manager)
    };
    let config = object(json!({"metadata": {"name": "x"}, "spec": spec}));
    apply(live, &config, &writer, true).unwrap()
}

#[test]
fn elements_of_the_live_list_alone_stay_before_the_next_that_both_have() {
    for (live, config, merged) in [
        ("abc", "cb", "acb"),
        ("abc", "b", "abc"),
        ("abc", "cd", "abcd"),
        ("abc", "da", "dabc"),
        ("abcd", "db", "acdb"),
        ("ab", "cd", "abcd"),
        ("abcde", "eca", "bdeca"),
    ] {
        let list = |text: &str| text.chars().map(|c| json!(c.to_string())).collect();
        let set = |text: &str| json!({"set": Value::Array(list(text))});
        let first = applied_custom(None, set(live), "one");
        let both = applied_custom(Some(&first), set(config), "two");
        assert_eq!(both["spec"], set(merged), "{live} and {config}");
    }
}

#[test]
fn applying_null_to_a_map_or_list_removes_nothing() {
    let spec = json!({"set": ["a"], "map": {"k": "v"}, "any": {"x": 1}, "whole": {"a": "b"}});
    let first = applied_custom(None, spec.clone(), "one");
    let nulls = json!({"set": null, "map": null, "any": null});
    let both = applied_custom(Some(&first), nulls, "two");
    assert_eq!(both["spec"], spec);
    assert_eq!(
        fields(&both, "two"),
        json!({"f:spec": {"f:any": {}, "f:map": {}, "f:set": {}}})
    );
    // The field stays owned; its former content has no owner.
    let less = applied_custom(Some(&both), json!({}), "one");
    assert_eq!(less["spec"], json!({"set": null, "map": null, "any": null}));
}

#[test]
fn metadata_of_an_embedded_object_has_the_fields_of_all_metadata() {
    let pod = json!({"pod": {"metadata": {"labels": {"a": "1"}}, "spec": {"labels": {"a": "1"}}}});
    let first = applied_custom(None, pod, "one");
    assert_eq!(
        fields(&first, "one")["f:spec"]["f:pod"],
        json!({"f:metadata": {"f:labels": {"f:a": {}}},
            "f:spec": {".": {}, "f:labels": {".": {}, "f:a": {}}}})
    );
}

#[test]
fn a_set_of_parts_becomes_one_of_the_whole_when_the_topology_says_so() {
    let mut live = applied_custom(None, json!({"whole": {"a": "b"}}), "one");
    live["metadata"]["managedFields"][0]["fieldsV1"] =
        json!({"f:spec": {"f:whole": {".": {}, "f:a": {}}}});
    let next = applied_custom(Some(&live), json!({"map": {"k": "v"}}), "two");
    assert_eq!(fields(&next, "one"), json!({"f:spec": {"f:whole": {}}}));
}

/// Replicas are `spec.replicas` in apps/v1 and `spec.count` in old/v1.
struct Renamed(Value);

impl Versions for Renamed {
    fn root(&self, api_version: &str) -> Option<Root<'_>> {
        match api_version {
            "apps/v1" => Some(DEPLOYMENT.root),
            "old/v1" => Some(Root::Custom(&self.0)),
            _ => None,
        }
    }

    fn convert(&self, object: Object, api_version: &str) -> Object {
        let mut value = Value::Object(object);
        let (from, to) = match api_version {
            "old/v1" => ("replicas", "count"),
            _ => ("count", "replicas"),
        };
        if let Some(spec) = value["spec"].as_object_mut()
            && let Some(number) = spec.shift_remove(from)
        {
            spec.insert(to, number);
        }
        value["apiVersion"] = json!(api_version);
        match value {
            Value::Object(object) => object,
            _ => Object::new(),
        }
    }
}

#[test]
fn managers_of_another_version_are_judged_in_theirs() {
    let renamed = Renamed(
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "count": {"type": "integer"}, "paused": {"type": "boolean"}}}}}),
    );
    let in_version = |manager: &'static str, api_version: &'static str| Writer {
        api_version,
        versions: &renamed,
        ..writer(manager)
    };
    let old = object(json!({"apiVersion": "old/v1", "spec": {"count": 1, "paused": true}}));
    let made = apply(None, &old, &in_version("one", "old/v1"), false).unwrap();
    assert_eq!(
        fields(&made, "one"),
        json!({"f:spec": {"f:count": {}, "f:paused": {}}})
    );
    let live = renamed.convert(made, "apps/v1");
    let new = object(json!({"apiVersion": "apps/v1", "spec": {"replicas": 2}}));
    let refused = apply(Some(&live), &new, &in_version("two", "apps/v1"), false).unwrap_err();
    assert_eq!(
        refused.message,
        "Apply failed with 1 conflict: conflict with \"one\": .spec.count"
    );
    let forced = apply(Some(&live), &new, &in_version("two", "apps/v1"), true).unwrap();
    assert_eq!(fields(&forced, "one"), json!({"f:spec": {"f:paused": {}}}));
    // A field applied in the old version is removed if the new configuration omits it.
    let next = apply(Some(&live), &new, &in_version("one", "apps/v1"), false).unwrap();
    assert_eq!(next["spec"], json!({"replicas": 2}));
    // A manager of a version that no longer exists is dropped.
    let mut gone = live.clone();
    gone["metadata"]["managedFields"][0]["apiVersion"] = json!("gone/v1");
    let after = apply(Some(&gone), &new, &in_version("two", "apps/v1"), false).unwrap();
    assert_eq!(fields(&after, "one"), Value::Null);
}

#[test]
fn conflicts_name_managers_by_subresource_first() {
    let mut live = object(json!({"metadata": {}, "spec": {"replicas": 1, "paused": true}}));
    track(None, &mut live, &writer("m"));
    let mut scaled = live.clone();
    scaled["spec"]["replicas"] = json!(2);
    let scale = Writer {
        subresource: "scale",
        ..writer("m")
    };
    track(Some(&live), &mut scaled, &scale);
    let wanted = json!({"spec": {"replicas": 3, "paused": false}});
    assert_eq!(
        applied(Some(&scaled), wanted, "you").unwrap_err().message,
        "Apply failed with 2 conflicts: conflicts with \"m\" with subresource \"scale\" using apps/v1:\n- .spec.replicas\nconflicts with \"m\" using apps/v1:\n- .spec.paused"
    );
}

#[test]
fn replicas_change_hands_between_an_object_and_its_scale() {
    let entry = |manager: &str, operation: &str, version: &str, sub: &str, fields: Value| {
        let mut entry = json!({"manager": manager, "operation": operation, "apiVersion": version,
            "time": "2024-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields});
        if !sub.is_empty() {
            entry["subresource"] = json!(sub);
        }
        entry
    };
    let replicas = || json!({"f:spec": {"f:replicas": {}}});
    let both = || json!({"f:spec": {"f:paused": {}, "f:replicas": {}}});
    let path = |version: &str| {
        (version == "apps/v1").then(|| vec!["spec".to_owned(), "replicas".to_owned()])
    };
    let deployment = |managers: Value| object(json!({"metadata": {"managedFields": managers}}));
    let live = deployment(json!([
        entry("a", "Apply", "apps/v1", "", both()),
        entry("u", "Update", "apps/v1", "", both()),
        entry(
            "x",
            "Update",
            "apps/v1",
            "",
            json!({"f:spec": {"f:paused": {}}})
        ),
        entry("gone", "Update", "apps/v0", "", replicas()),
    ]));
    let version = scale::API_VERSION;
    assert_eq!(
        scale::shown(&live, &path),
        Some(json!([
            entry("a", "Apply", version, "", replicas()),
            entry("u", "Update", version, "", replicas()),
        ]))
    );
    let mut timeless = entry("s", "Apply", "apps/v1", "scale", replicas());
    timeless.as_object_mut().unwrap().shift_remove("time");
    // Another manager set the replicas; the applier still owns them, too.
    let taken = deployment(json!([
        entry("a", "Apply", version, "", replicas()),
        entry("s", "Apply", version, "scale", replicas()),
    ]));
    let mut after = live.clone();
    scale::take_over(&mut after, &taken, "apps/v1", &path);
    assert_eq!(
        after["metadata"]["managedFields"],
        json!([
            timeless,
            entry("a", "Apply", "apps/v1", "", both()),
            entry(
                "u",
                "Update",
                "apps/v1",
                "",
                json!({"f:spec": {"f:paused": {}}})
            ),
            entry(
                "x",
                "Update",
                "apps/v1",
                "",
                json!({"f:spec": {"f:paused": {}}})
            ),
        ])
    );
}

/// Any input for a deployment: known names, wrong positions, odd values.
fn tree() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let name = prop::sample::select(vec![
        "spec",
        "metadata",
        "labels",
        "template",
        "containers",
        "name",
        "image",
        "replicas",
        "ports",
        "containerPort",
        "finalizers",
        "selector",
        "a",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        (0..3i64).prop_map(Value::from),
        "[ab]".prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(6, 48, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..4).prop_map(|pairs| {
                Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            }),
        ]
    });
    tree.prop_filter("an object", Value::is_object)
}

proptest::proptest! {
    #[test]
    fn applying_is_effective_and_idempotent(
        live in tree(), config in tree()
    ) {
        let (mut live, config) = (object(live), object(config));
        for object in [&mut live] {
            if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                metadata.shift_remove("managedFields");
            }
        }
        track(None, &mut live, &writer("creator"));
        let once = apply(Some(&live), &config, &writer("me"), true).unwrap();
        let twice = apply(Some(&once), &config, &writer("me"), false).unwrap();
        proptest::prop_assert_eq!(twice, once);
    }

    #[test]
    fn tracking_never_panics(live in tree(), new in tree()) {
        let (live, mut new) = (object(live), object(new));
        track(Some(&live), &mut new, &writer("m"));
    }

    #[test]
    fn merging_strategically_never_panics(live in tree(), patch in tree()) {
        let schema = crate::schema::lookup("apps/v1.Deployment").unwrap();
        let _ = crate::patch::strategic::apply(schema, &object(live), &mut object(patch));
    }

    #[test]
    fn normalising_and_encoding_agree_for_anything_that_decodes(value in tree()) {
        let schema = crate::schema::lookup("apps/v1.Deployment").unwrap();
        let mut findings = crate::decode::Findings::default();
        if let Ok(object) = crate::normalise::object(schema, value, &mut findings) {
            let bytes = crate::encode::object(Some(schema), &object).bytes;
            let again: Value = crate::json::from_slice(&bytes).unwrap();
            proptest::prop_assert_eq!(again, Value::Object(object));
        }
    }
}

#[test]
fn a_creator_owns_the_same_fields_as_by_comparison_with_an_empty_object() {
    let by_comparison = |root: Root<'_>, object: &Object, writer: &Writer<'_>| {
        let comparison = changes(root, None, &mut object.clone());
        let comparison = changeable_part(comparison, writer);
        let set = managed(comparison.modified.with(comparison.added));
        (!set.is_empty()).then(|| set.to_json().to_string())
    };
    let objects = [
        json!({}),
        json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "uid": "u", "labels": {"b": "1", "a": "2"},
                "finalizers": ["x/y", "a/b"], "annotations": {},
                "ownerReferences": [{"uid": "1", "name": "n"}, {"uid": "2", "name": "m"}]},
            "spec": {
                "containers": [
                    {"name": "z", "image": "i", "env": [{"name": "A", "value": "b"}, {"name": "B"}],
                        "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 53}],
                        "resources": {"limits": {"cpu": "1"}}, "args": ["a", "b"]},
                    {"name": "a", "securityContext": {}}],
                "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}]}}],
                "tolerations": [{"key": "k"}], "nodeSelector": {"a": "b"}, "securityContext": {}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
        json!({"spec": {"overhead": {}, "containers": [{"name": "a", "resources": {"limits": {}, "claims": []}}]}}),
        json!({"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}),
        json!({"metadata": {"finalizers": ["a", "a"]}, "spec": {"odd": {"x": [1], "y": {}}}}),
    ];
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "containers": {"type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}}}}}}}});
    let roots = [
        typed("core/v1.Pod").unwrap(),
        Root::Custom(&schema),
        Root::Unknown,
    ];
    for object in objects {
        let Value::Object(object) = object else {
            continue;
        };
        for root in roots {
            let status: &[&[&str]] = &[&["status"]];
            for reset in [&[][..], status] {
                let writer = Writer {
                    reset,
                    ..writer("m")
                };
                let ours = created::fields(root, &object, &writer);
                let ours = ours.map(|set| String::from_utf8(set).unwrap());
                assert_eq!(ours, by_comparison(root, &object, &writer), "{object:?}");
            }
        }
    }
}

#[test]
fn an_object_with_a_list_element_without_key_has_no_managed_fields() {
    let versions = OneVersion {
        api_version: "v1",
        root: typed("core/v1.ServiceAccount").unwrap(),
    };
    let writer = Writer {
        api_version: "v1",
        versions: &versions,
        ..writer("a")
    };
    let account = |secrets: Value| {
        object(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "d"},
            "secrets": secrets}),
        )
    };
    let owned = |account: &Object| account["metadata"].get("managedFields").is_some();
    let mut made = account(json!([{"namespace": "without a name"}]));
    track(None, &mut made, &writer);
    assert!(!owned(&made));
    let mut live = account(json!([{"name": "c"}]));
    track(None, &mut live, &writer);
    assert!(owned(&live));
    let mut changed = account(json!([{"name": "c"}, {}]));
    changed["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
    track(Some(&live), &mut changed, &writer);
    assert!(!owned(&changed));
}

#[test]
fn a_key_that_is_null_is_not_the_default() {
    let schema = crate::schema::lookup("core/v1.ServiceSpec").unwrap();
    let ports = topology::Node::root(Root::Typed(schema)).child("ports");
    let step = |port: Value| topology::key_step(ports, &["port", "protocol"], &port);
    let cases = [
        (json!({"port": 1}), Some(r#"k:{"port":1,"protocol":"TCP"}"#)),
        (
            json!({"port": 1, "protocol": null}),
            Some(r#"k:{"port":1,"protocol":null}"#),
        ),
    ];
    for (port, expected) in cases {
        assert_eq!(step(port).as_deref(), expected);
    }
}

#[test]
fn keys_that_are_no_scalars_are_shown_without_braces() {
    assert_eq!(set::readable(r#"k:{"uid":{}}"#), "[uid=]");
    assert_eq!(set::readable(r#"k:{"uid":"x"}"#), "[uid=\"x\"]");
}

#[test]
fn an_element_that_stays_keeps_its_key() {
    let mut live = applied(None, config(1, "x"), "me").unwrap();
    let mut others = live["metadata"]["managedFields"][0].clone();
    others["manager"] = json!("other");
    others["fieldsV1"] = json!({"f:spec": {"f:template": {"f:spec":
        {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}}}}}});
    let managers = live["metadata"]["managedFields"].as_array_mut().unwrap();
    managers.push(others);
    let nothing = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
    let left = applied(Some(&live), nothing, "me").unwrap();
    assert_eq!(
        left["spec"]["template"]["spec"]["containers"],
        json!([{"image": "x", "name": "c"}])
    );
}
