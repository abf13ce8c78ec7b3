//! References of a pod to objects in its namespace: secrets, config maps, claims, its service
//! account.

use kinds::tree;
use machinery::{Object, Value};

/// The annotation of a mirror pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// An object that a pod uses.
#[derive(Debug, PartialEq, Eq)]
pub struct Use<'a> {
    pub resource: &'static str,
    pub name: &'a str,
}

/// Every object that a pod's spec references.
pub fn uses(spec: &Value) -> Vec<Use<'_>> {
    let mut found = Vec::new();
    collect(spec, &mut found);
    found
        .into_iter()
        .map(|(resource, name)| Use { resource, name })
        .collect()
}

type ReferenceList<'a> = Vec<(&'static str, &'a str)>;

fn push_reference<'a>(found: &mut ReferenceList<'a>, resource: &'static str, name: &'a Value) {
    if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
        found.push((resource, name));
    }
}

fn collect<'a>(spec: &'a Value, found: &mut ReferenceList<'a>) {
    push_reference(found, "serviceaccounts", &spec["serviceAccountName"]);
    for secret in tree::list(&spec["imagePullSecrets"]) {
        push_reference(found, "secrets", &secret["name"]);
    }
    for containers in ["containers", "initContainers", "ephemeralContainers"] {
        for container in tree::list(&spec[containers]) {
            for variable in tree::list(&container["env"]) {
                push_reference(
                    found,
                    "secrets",
                    &variable["valueFrom"]["secretKeyRef"]["name"],
                );
                push_reference(
                    found,
                    "configmaps",
                    &variable["valueFrom"]["configMapKeyRef"]["name"],
                );
            }
            for source in tree::list(&container["envFrom"]) {
                push_reference(found, "secrets", &source["secretRef"]["name"]);
                push_reference(found, "configmaps", &source["configMapRef"]["name"]);
            }
        }
    }
    for volume in tree::list(&spec["volumes"]) {
        push_reference(found, "secrets", &volume["secret"]["secretName"]);
        push_reference(found, "configmaps", &volume["configMap"]["name"]);
        push_reference(
            found,
            "persistentvolumeclaims",
            &volume["persistentVolumeClaim"]["claimName"],
        );
        for source in tree::list(&volume["projected"]["sources"]) {
            push_reference(found, "secrets", &source["secret"]["name"]);
            push_reference(found, "configmaps", &source["configMap"]["name"]);
        }
        for driver in [
            "azureFile",
            "flexVolume",
            "cephfs",
            "cinder",
            "rbd",
            "scaleIO",
            "iscsi",
            "storageos",
        ] {
            push_reference(found, "secrets", &volume[driver]["secretName"]);
            push_reference(found, "secrets", &volume[driver]["secretRef"]["name"]);
        }
        push_reference(
            found,
            "secrets",
            &volume["csi"]["nodePublishSecretRef"]["name"],
        );
    }
}

/// Whether a pod lets its node read an object: one that its spec references, the claim of its
/// ephemeral volume, or its device claim. A mirror pod grants nothing, since its node created it.
pub(super) fn grants(pod: &Object, resource: &str, name: &str) -> bool {
    let metadata = tree::get(pod, "metadata");
    if metadata["annotations"].get(MIRROR).is_some() {
        return false;
    }
    let spec = tree::get(pod, "spec");
    match resource {
        "resourceclaims" => device_claims(pod).any(|claim| claim == name),
        "persistentvolumeclaims" => claims(pod).any(|claim| claim == name),
        _ => uses(spec)
            .iter()
            .any(|used| used.resource == resource && used.name == name),
    }
}

/// The claims of a pod's volumes.
pub(super) fn claims(pod: &Object) -> impl Iterator<Item = String> {
    let own = tree::name(pod);
    let volumes = tree::list(&tree::get(pod, "spec")["volumes"]).iter();
    volumes.filter_map(move |volume| {
        let claim = tree::text(&volume["persistentVolumeClaim"]["claimName"]);
        if !claim.is_empty() {
            return Some(claim.to_owned());
        }
        tree::is_set(&volume["ephemeral"]).then(|| format!("{own}-{}", tree::text(&volume["name"])))
    })
}

/// The device claims of a pod: named ones, those created from templates, and the one for extended
/// resources.
fn device_claims(pod: &Object) -> impl Iterator<Item = &str> {
    let status = tree::get(pod, "status");
    let made = tree::list(&status["resourceClaimStatuses"]);
    let claims = tree::list(&tree::get(pod, "spec")["resourceClaims"]).iter();
    let claims = claims.map(move |claim| match tree::text(&claim["resourceClaimName"]) {
        "" => {
            let of_template = made.iter().find(|made| made["name"] == claim["name"]);
            of_template.map_or("", |made| tree::text(&made["resourceClaimName"]))
        }
        named => named,
    });
    let extended = tree::text(&status["extendedResourceClaimStatus"]["resourceClaimName"]);
    claims.chain([extended]).filter(|name| !name.is_empty())
}

/// The secrets of a volume that kubelets read, as (namespace, name).
pub(super) fn volume_secrets(volume: &Object) -> Vec<(&str, &str)> {
    let spec = tree::get(volume, "spec");
    // In older volumes without a secret namespace, it is the claim's.
    let claim = tree::text(&spec["claimRef"]["namespace"]);
    let or_claim = |(namespace, name)| match namespace {
        "" => (claim, name),
        _ => (namespace, name),
    };
    let secret = |source: &str, field: &str| {
        let secret = &spec[source][field];
        (
            tree::text(&secret["namespace"]),
            tree::text(&secret["name"]),
        )
    };
    let azure = &spec["azureFile"];
    let azure = (
        tree::text(&azure["secretNamespace"]),
        tree::text(&azure["secretName"]),
    );
    let mut secrets = vec![or_claim(azure)];
    for source in ["cephfs", "flexVolume", "rbd", "scaleIO", "iscsi"] {
        secrets.push(or_claim(secret(source, "secretRef")));
    }
    for source in ["cinder", "storageos"] {
        secrets.push(secret(source, "secretRef"));
    }
    for field in [
        "nodePublishSecretRef",
        "nodeStageSecretRef",
        "nodeExpandSecretRef",
    ] {
        secrets.push(secret("csi", field));
    }
    secrets.retain(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    secrets
}
