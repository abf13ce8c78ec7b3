//! Pods that a kubelet may create: mirrors of its static pods, bound to its node, owned by it, and
//! without references to API objects (which would let the node read those objects).

use kinds::tree;
use machinery::{Object, Status, Value};

use super::on;
use crate::{
    Attributes,
    authz::{MIRROR, uses},
};

pub(super) async fn admit(
    attributes: &Attributes<'_>,
    node: &str,
    pod: &Object,
) -> Result<(), Status> {
    let refuse = |why: String| attributes.forbidden(&why);
    check_owner(node, pod).map_err(refuse)?;
    let found = attributes.reader.get("", "nodes", "", node).await?;
    let Some(found) = found else {
        return Err(Status::not_found("", "node", node));
    };
    let found = found.parse();
    let uid = tree::text(&tree::get(&found, "metadata")["uid"]);
    let owner = &tree::get(pod, "metadata")["ownerReferences"][0]["uid"];
    if owner != uid {
        let owner = tree::text(owner);
        return Err(refuse(format!(
            "node {node} UID mismatch: expected {owner} got {uid}"
        )));
    }
    match reference(tree::get(pod, "spec")) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(refuse(format!(
            "node {node:?} can not create pods that reference {what}"
        ))),
        Err(why) => Err(refuse(format!(
            "error checking mirror pod for API references: {why}"
        ))),
    }
}

fn check_owner(node: &str, pod: &Object) -> Result<(), String> {
    let metadata = tree::get(pod, "metadata");
    if metadata["annotations"].get(MIRROR).is_none() {
        return Err(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    let only = |what: &str| {
        Err(format!(
            "node {node:?} can only create pods with {what} set to itself"
        ))
    };
    if !on(pod, node) {
        return only("spec.nodeName");
    }
    let owner = match tree::list(&metadata["ownerReferences"]) {
        [] => return only("an owner reference"),
        [owner] => owner,
        _ => return only("a single owner reference"),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return only("an owner reference");
    }
    if !tree::truth(&owner["controller"]) {
        return only("a controller owner reference");
    }
    if tree::truth(&owner["blockOwnerDeletion"]) {
        return Err(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    Ok(())
}

/// Volume sources that reference no API object.
const PLAIN: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];
const REFERRING: &[(&str, &str)] = &[
    ("configMap", "configmaps (via configmap volumes)"),
    ("secret", "secrets (via secret volumes)"),
    ("csi", "csidrivers (via CSI volumes)"),
    ("glusterfs", "endpoints (via glusterFS volumes)"),
    ("persistentVolumeClaim", "persistentvolumeclaims"),
    (
        "ephemeral",
        "persistentvolumeclaims (via ephemeral volumes)",
    ),
    ("azureFile", "secrets (via azureFile volumes)"),
];
const PROJECTED: &[(&str, &str)] = &[
    ("configMap", "configmaps (via projected volumes)"),
    ("secret", "secrets (via projected volumes)"),
    (
        "serviceAccountToken",
        "serviceaccounts (via projected volumes)",
    ),
    ("clusterTrustBundle", "clustertrustbundles"),
    ("podCertificate", "podcertificates"),
];

/// The first kind of object that a pod references. Unknown volume sources count as references.
fn reference(spec: &Value) -> Result<Option<&'static str>, String> {
    if !tree::text(&spec["serviceAccountName"]).is_empty() {
        return Ok(Some("serviceaccounts"));
    }
    let uses = uses(spec);
    for kind in ["secrets", "configmaps"] {
        if uses.iter().any(|used| used.resource == kind) {
            return Ok(Some(kind));
        }
    }
    if !tree::list(&spec["resourceClaims"]).is_empty() {
        return Ok(Some("resourceclaims"));
    }
    for volume in tree::list(&spec["volumes"]) {
        if let Some(what) = of_volume(volume)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

fn of_volume(volume: &Value) -> Result<Option<&'static str>, String> {
    let has = |source: &str| tree::is_set(&volume[source]);
    if PLAIN.iter().any(|source| has(source)) {
        return Ok(None);
    }
    if let Some((_, what)) = REFERRING.iter().find(|(source, _)| has(source)) {
        return Ok(Some(what));
    }
    let name = tree::text(&volume["name"]);
    if !has("projected") {
        return Err(format!("unknown volume type for volume  {name:?}"));
    }
    for source in tree::list(&volume["projected"]["sources"]) {
        let mut known = PROJECTED.iter();
        if let Some((_, what)) = known.find(|(field, _)| tree::is_set(&source[*field])) {
            return Ok(Some(what));
        }
        if !tree::is_set(&source["downwardAPI"]) {
            return Err(format!("unknown source for projected volume {name:?}"));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_mirror_pod_may_not_refer_to_api_objects() {
        for (spec, expected) in [
            (json!({}), Some(None)),
            (
                json!({"volumes": [{"emptyDir": {}}, {"hostPath": {"path": "/"}}]}),
                Some(None),
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"downwardAPI": {}}]}}]}),
                Some(None),
            ),
            (
                json!({"serviceAccountName": "x"}),
                Some(Some("serviceaccounts")),
            ),
            (
                json!({"imagePullSecrets": [{"name": "x"}]}),
                Some(Some("secrets")),
            ),
            (
                json!({"volumes": [{"cinder": {"secretRef": {"name": "x"}}}]}),
                Some(Some("secrets")),
            ),
            (
                json!({"containers": [{"envFrom": [{"configMapRef": {"name": "x"}}]}]}),
                Some(Some("configmaps")),
            ),
            (
                json!({"resourceClaims": [{"name": "x"}]}),
                Some(Some("resourceclaims")),
            ),
            (
                json!({"volumes": [{"configMap": {}}]}),
                Some(Some("configmaps (via configmap volumes)")),
            ),
            (
                json!({"volumes": [{"csi": {"driver": "d"}}]}),
                Some(Some("csidrivers (via CSI volumes)")),
            ),
            (
                json!({"volumes": [{"persistentVolumeClaim": {"claimName": "c"}}]}),
                Some(Some("persistentvolumeclaims")),
            ),
            (
                json!({"volumes": [{"ephemeral": {}}]}),
                Some(Some("persistentvolumeclaims (via ephemeral volumes)")),
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
                Some(Some("serviceaccounts (via projected volumes)")),
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"clusterTrustBundle": {}}]}}]}),
                Some(Some("clustertrustbundles")),
            ),
            (json!({"volumes": [{"projected": {"sources": [{}]}}]}), None),
            (json!({"volumes": [{"somethingNew": {}}]}), None),
        ] {
            assert_eq!(reference(&spec).ok(), expected, "{spec}");
        }
    }
}
