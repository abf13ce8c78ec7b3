//! Kinds and server-side apply together: managedFields as in other clusters.
#![allow(clippy::unwrap_used)]

use kinds::Context;
use machinery::decode::Findings;
use machinery::json::json;
use machinery::{Object, Value, apply, normalise, schema};

/// An object as after create: normalised, defaulted, prepared and tracked.
fn created(group: &str, version: &str, plural: &str, value: Value, manager: &str) -> Object {
    let kind = kinds::find(group, version, plural).unwrap();
    let schema = schema::lookup(kind.schema().unwrap()).unwrap();
    let normal = |value: Value| normalise::object(schema, value, &mut Findings::default()).unwrap();
    let mut object = normal(value);
    kind.default(&mut object);
    kind.prepare_create(
        &mut object,
        &Context {
            now: "2024-01-01T00:00:00Z",
            user: "u",
        },
    );
    let mut object = normal(Value::Object(object));
    let api_version = if group.is_empty() { "v1" } else { "apps/v1" };
    let root = apply::Root::Typed(schema);
    let writer = apply::Writer {
        manager,
        api_version,
        versions: &apply::OneVersion { api_version, root },
        subresource: "",
        now: "2024-01-01T00:00:00Z",
        reset: &[&["status"]],
    };
    apply::track(None, &mut object, &writer);
    object
}

#[test]
fn a_deployment_made_by_kubectl_has_the_fields_it_has_everywhere() {
    let deployment = created(
        "apps",
        "v1",
        "deployments",
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "nginx", "namespace": "default", "labels": {"app": "nginx"}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "nginx"}}, "template": {
                "metadata": {"labels": {"app": "nginx"}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx"}]}}}}),
        "kubectl-create",
    );
    let entry = &deployment["metadata"]["managedFields"][0];
    assert_eq!(entry["manager"], "kubectl-create");
    assert_eq!(entry["operation"], "Update");
    assert_eq!(
        entry["fieldsV1"],
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:progressDeadlineSeconds": {},
                "f:replicas": {},
                "f:revisionHistoryLimit": {},
                "f:selector": {},
                "f:strategy": {
                    "f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}},
                    "f:type": {}
                },
                "f:template": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {
                        "f:containers": {"k:{\"name\":\"nginx\"}": {
                            ".": {},
                            "f:image": {},
                            "f:imagePullPolicy": {},
                            "f:name": {},
                            "f:resources": {},
                            "f:terminationMessagePath": {},
                            "f:terminationMessagePolicy": {}
                        }},
                        "f:dnsPolicy": {},
                        "f:restartPolicy": {},
                        "f:schedulerName": {},
                        "f:securityContext": {},
                        "f:terminationGracePeriodSeconds": {}
                    }
                }
            }
        })
    );
}

#[test]
fn a_pod_of_a_replica_set_has_the_fields_it_has_everywhere() {
    let pod = created(
        "",
        "v1",
        "pods",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-x", "generateName": "web-", "namespace": "default",
                "labels": {"app": "web"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                    "name": "web", "uid": "u-1", "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}]}]}}),
        "kube-controller-manager",
    );
    assert_eq!(
        pod["metadata"]["managedFields"][0]["fieldsV1"],
        json!({
            "f:metadata": {
                "f:generateName": {},
                "f:labels": {".": {}, "f:app": {}},
                "f:ownerReferences": {".": {}, "k:{\"uid\":\"u-1\"}": {}}
            },
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {
                    ".": {},
                    "f:image": {},
                    "f:imagePullPolicy": {},
                    "f:name": {},
                    "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                        ".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    "f:resources": {},
                    "f:terminationMessagePath": {},
                    "f:terminationMessagePolicy": {}
                }},
                "f:dnsPolicy": {},
                "f:enableServiceLinks": {},
                "f:restartPolicy": {},
                "f:schedulerName": {},
                "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {}
            }
        })
    );
}
