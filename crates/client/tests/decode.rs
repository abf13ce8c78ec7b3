//! Every kind that components watch can be decoded from what the API server may store: Kubernetes'
//! own filled-in objects unchanged, with nulls and zero values anywhere, and with fields of later
//! versions. The objects are reference data beside the checkout; `lenient.rs` has examples that
//! need none.

#![allow(clippy::unwrap_used)]

use client::FromJson;
use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, autoscaling::v2 as autoscaling,
    batch::v1 as batch, certificates::v1 as certificates, coordination::v1 as coordination,
    core::v1 as core, discovery::v1 as discovery, networking::v1 as networking, node::v1 as node,
    policy::v1 as policy, rbac::v1 as rbac, resource::v1 as resource, scheduling::v1 as scheduling,
    storage::v1 as storage,
};
use kube::api::{DynamicObject, PartialObjectMeta};
use serde_json::{Map, Value, json};

fn read<K: FromJson>(value: &Value, what: &str) {
    let text = value.to_string();
    K::from_json(&text).unwrap_or_else(|error| panic!("{what}: {error}"));
    PartialObjectMeta::<DynamicObject>::from_json(&text)
        .unwrap_or_else(|error| panic!("metadata of {what}: {error}"));
}

/// Changes each node at `depth`; returns whether there was one.
fn change_at(value: &mut Value, depth: usize, change: &impl Fn(&mut Value)) -> bool {
    if depth == 0 {
        change(value);
        return true;
    }
    let mut deep = false;
    match value {
        Value::Object(map) => {
            for child in map.values_mut() {
                deep |= change_at(child, depth - 1, change);
            }
        }
        Value::Array(items) => {
            for item in items {
                deep |= change_at(item, depth - 1, change);
            }
        }
        _ => {}
    }
    deep
}

/// The zero value of the same type; for times null.
fn zero(value: &mut Value) {
    *value = match &*value {
        Value::Bool(_) => json!(false),
        Value::Number(_) => json!(0),
        Value::String(text) if is_time(text) => Value::Null,
        Value::String(_) => json!(""),
        Value::Array(_) => json!([]),
        Value::Object(_) => Value::Object(Map::new()),
        Value::Null => Value::Null,
    };
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.ends_with('Z') && text.as_bytes()[10] == b'T'
}

fn check<K: FromJson>(dir: &std::path::Path, name: &str) {
    let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
    let original: Value = serde_json::from_str(&text).unwrap();
    read::<K>(&original, name);
    for depth in 1.. {
        let mut nulls = original.clone();
        if !change_at(&mut nulls, depth, &|value| *value = Value::Null) {
            break;
        }
        read::<K>(&nulls, &format!("{name} with nulls at depth {depth}"));
        let mut zeros = original.clone();
        change_at(&mut zeros, depth, &zero);
        for constant in ["apiVersion", "kind"] {
            zeros[constant] = original[constant].clone();
        }
        read::<K>(&zeros, &format!("{name} with zeros at depth {depth}"));
    }
    let mut later = original.clone();
    for part in ["spec", "status"] {
        if let Some(part) = later.get_mut(part) {
            add_unknown(part);
        }
    }
    later["fieldOfALaterVersion"] = json!({"deep": null});
    read::<K>(&later, &format!("{name} with unknown fields"));
}

fn add_unknown(value: &mut Value) {
    if let Value::Object(map) = value {
        map.insert("fieldOfALaterVersion".into(), json!({"deep": [null, 1]}));
        for child in map.values_mut().filter_map(Value::as_array_mut) {
            child.iter_mut().for_each(add_unknown);
        }
    }
}

type Check = fn(&std::path::Path, &str);

const KINDS: &[(&str, Check)] = &[
    (
        "admissionregistration.k8s.io.v1.MutatingWebhookConfiguration",
        check::<admission::MutatingWebhookConfiguration>,
    ),
    (
        "admissionregistration.k8s.io.v1.ValidatingWebhookConfiguration",
        check::<admission::ValidatingWebhookConfiguration>,
    ),
    (
        "admissionregistration.k8s.io.v1.ValidatingAdmissionPolicy",
        check::<admission::ValidatingAdmissionPolicy>,
    ),
    (
        "admissionregistration.k8s.io.v1.ValidatingAdmissionPolicyBinding",
        check::<admission::ValidatingAdmissionPolicyBinding>,
    ),
    (
        "apps.v1.ControllerRevision",
        check::<apps::ControllerRevision>,
    ),
    ("apps.v1.DaemonSet", check::<apps::DaemonSet>),
    ("apps.v1.Deployment", check::<apps::Deployment>),
    ("apps.v1.ReplicaSet", check::<apps::ReplicaSet>),
    ("apps.v1.StatefulSet", check::<apps::StatefulSet>),
    ("batch.v1.CronJob", check::<batch::CronJob>),
    ("batch.v1.Job", check::<batch::Job>),
    (
        "certificates.k8s.io.v1.CertificateSigningRequest",
        check::<certificates::CertificateSigningRequest>,
    ),
    ("coordination.k8s.io.v1.Lease", check::<coordination::Lease>),
    ("core.v1.ConfigMap", check::<core::ConfigMap>),
    ("core.v1.Endpoints", check::<core::Endpoints>),
    ("core.v1.Event", check::<core::Event>),
    ("core.v1.LimitRange", check::<core::LimitRange>),
    ("core.v1.Namespace", check::<core::Namespace>),
    ("core.v1.Node", check::<core::Node>),
    ("core.v1.PersistentVolume", check::<core::PersistentVolume>),
    (
        "core.v1.PersistentVolumeClaim",
        check::<core::PersistentVolumeClaim>,
    ),
    ("core.v1.Pod", check::<core::Pod>),
    (
        "core.v1.ReplicationController",
        check::<core::ReplicationController>,
    ),
    ("core.v1.ResourceQuota", check::<core::ResourceQuota>),
    ("core.v1.Secret", check::<core::Secret>),
    ("core.v1.Service", check::<core::Service>),
    ("core.v1.ServiceAccount", check::<core::ServiceAccount>),
    (
        "discovery.k8s.io.v1.EndpointSlice",
        check::<discovery::EndpointSlice>,
    ),
    (
        "networking.k8s.io.v1.IPAddress",
        check::<networking::IPAddress>,
    ),
    ("networking.k8s.io.v1.Ingress", check::<networking::Ingress>),
    (
        "networking.k8s.io.v1.IngressClass",
        check::<networking::IngressClass>,
    ),
    (
        "networking.k8s.io.v1.NetworkPolicy",
        check::<networking::NetworkPolicy>,
    ),
    (
        "networking.k8s.io.v1.ServiceCIDR",
        check::<networking::ServiceCIDR>,
    ),
    ("node.k8s.io.v1.RuntimeClass", check::<node::RuntimeClass>),
    (
        "policy.v1.PodDisruptionBudget",
        check::<policy::PodDisruptionBudget>,
    ),
    (
        "rbac.authorization.k8s.io.v1.ClusterRole",
        check::<rbac::ClusterRole>,
    ),
    (
        "rbac.authorization.k8s.io.v1.ClusterRoleBinding",
        check::<rbac::ClusterRoleBinding>,
    ),
    ("rbac.authorization.k8s.io.v1.Role", check::<rbac::Role>),
    (
        "rbac.authorization.k8s.io.v1.RoleBinding",
        check::<rbac::RoleBinding>,
    ),
    (
        "resource.k8s.io.v1.DeviceClass",
        check::<resource::DeviceClass>,
    ),
    (
        "resource.k8s.io.v1.ResourceClaim",
        check::<resource::ResourceClaim>,
    ),
    (
        "resource.k8s.io.v1.ResourceClaimTemplate",
        check::<resource::ResourceClaimTemplate>,
    ),
    (
        "resource.k8s.io.v1.ResourceSlice",
        check::<resource::ResourceSlice>,
    ),
    (
        "scheduling.k8s.io.v1.PriorityClass",
        check::<scheduling::PriorityClass>,
    ),
    ("storage.k8s.io.v1.CSIDriver", check::<storage::CSIDriver>),
    ("storage.k8s.io.v1.CSINode", check::<storage::CSINode>),
    (
        "storage.k8s.io.v1.CSIStorageCapacity",
        check::<storage::CSIStorageCapacity>,
    ),
    (
        "storage.k8s.io.v1.StorageClass",
        check::<storage::StorageClass>,
    ),
    (
        "storage.k8s.io.v1.VolumeAttachment",
        check::<storage::VolumeAttachment>,
    ),
    (
        "storage.k8s.io.v1.VolumeAttributesClass",
        check::<storage::VolumeAttributesClass>,
    ),
    (
        "autoscaling.v2.HorizontalPodAutoscaler",
        check::<autoscaling::HorizontalPodAutoscaler>,
    ),
];

#[test]
fn every_kind_is_read_with_its_nulls_zeros_and_unknown_fields() {
    let Some(dir) = reference::find("fixtures") else {
        return;
    };
    for (name, check) in KINDS {
        check(&dir, name);
    }
    assert!(KINDS.len() > 40);
}
