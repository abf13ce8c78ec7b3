//! A kubelet writes only what concerns its own node: its Node, its Lease, its CSINode, the status of
//! its pods, mirror pods, and tokens for its pods. Identity comes from the certificate, so a stolen
//! one harms one node.

use async_trait::async_trait;
use kinds::tree;
use machinery::{Object, Status};

use super::{Attributes, Operation, Plugin};
use crate::authz::node_name;

pub const NAME: &str = "NodeRestriction";

const MIRROR: &str = "kubernetes.io/config.mirror";
/// Labels of Kubernetes' own that a kubelet may say about itself.
const OWN_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
const OWN_LABEL_DOMAINS: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESERVED_DOMAIN: &str = "node-restriction.kubernetes.io";

pub struct NodeRestriction;

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Connect && node_name(attributes.user).is_some()
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        check(attributes, Some(object)).await
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        match attributes.operation {
            Operation::Delete => check(attributes, object).await,
            _ => Ok(()),
        }
    }
}

async fn check(attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
    let Some(node) = node_name(attributes.user) else {
        return Ok(());
    };
    let none = Object::new();
    let object = object.unwrap_or(&none);
    let checked = match (
        attributes.group,
        attributes.resource,
        attributes.subresource,
    ) {
        ("", "pods", "") => return pod(attributes, node, object).await,
        ("", "pods", "status") => pod_status(attributes, node, object),
        ("", "pods", "eviction") => return eviction(attributes, node).await,
        ("", "pods", other) => Err(format!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        )),
        ("", "nodes", _) => own_node(attributes, node, object),
        ("", "persistentvolumeclaims", subresource) if subresource != "status" => {
            Err("may only update PVC status".to_owned())
        }
        ("", "serviceaccounts", "token") => return token(attributes, node, object).await,
        ("coordination.k8s.io", "leases", _) => lease(attributes, node, object),
        ("storage.k8s.io", "csinodes", _) => own_name(attributes, node, object, "CSINode"),
        ("resource.k8s.io", "resourceslices", _) => slice(attributes, node, object),
        _ => Ok(()),
    };
    checked.map_err(|why| attributes.forbidden(&why))
}

async fn pod(attributes: &Attributes<'_>, node: &str, pod: &Object) -> Result<(), Status> {
    match attributes.operation {
        Operation::Create => {
            let uid = attributes.reader.get("", "nodes", "", node).await?;
            let uid = uid
                .map(|found| tree::text(&tree::get(&found.parse(), "metadata")["uid"]).to_owned());
            let Some(uid) = uid else {
                return Err(Status::not_found("", "nodes", node));
            };
            mirror_pod(node, &uid, pod).map_err(|why| attributes.forbidden(&why))
        }
        Operation::Delete => {
            let own = attributes.old.is_some_and(|old| on(old, node));
            let why =
                format!("node {node:?} can only delete pods with spec.nodeName set to itself");
            if own {
                Ok(())
            } else {
                Err(attributes.forbidden(&why))
            }
        }
        _ => {
            let why = format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror \
                 pods"
            );
            Err(attributes.forbidden(&why))
        }
    }
}

fn on(pod: &Object, node: &str) -> bool {
    tree::get(pod, "spec")["nodeName"] == node
}

fn mirror_pod(node: &str, node_uid: &str, pod: &Object) -> Result<(), String> {
    let metadata = tree::get(pod, "metadata");
    if !tree::is_set(&metadata["annotations"][MIRROR]) {
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
    let [owner] = tree::list(&metadata["ownerReferences"]) else {
        return only("a single owner reference");
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
    if owner["uid"] != node_uid {
        let got = tree::text(&owner["uid"]);
        return Err(format!(
            "node {node} UID mismatch: expected {got} got {node_uid}"
        ));
    }
    match references(tree::get(pod, "spec")) {
        Some(what) => Err(format!(
            "node {node:?} can not create pods that reference {what}"
        )),
        None => Ok(()),
    }
}

/// Whatever a pod uses of the API's objects.
fn references(spec: &machinery::Value) -> Option<&'static str> {
    if !tree::text(&spec["serviceAccountName"]).is_empty() {
        return Some("serviceaccounts");
    }
    if !tree::list(&spec["resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    let uses = crate::authz::uses(spec);
    for (kind, what) in [
        ("secrets", "secrets"),
        ("configmaps", "configmaps"),
        ("persistentvolumeclaims", "persistentvolumeclaims"),
    ] {
        if uses.iter().any(|used| used.resource == kind) {
            return Some(what);
        }
    }
    let projected = |source: &machinery::Value| tree::is_set(&source["serviceAccountToken"]);
    let mut volumes = tree::list(&spec["volumes"]).iter();
    volumes
        .any(|volume| {
            tree::list(&volume["projected"]["sources"])
                .iter()
                .any(projected)
        })
        .then_some("serviceaccounts")
}

fn pod_status(attributes: &Attributes<'_>, node: &str, pod: &Object) -> Result<(), String> {
    let Some(old) = attributes.old else {
        return Ok(());
    };
    if !on(old, node) {
        return Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |pod: &Object| tree::get(pod, "metadata")["labels"].clone();
    if !tree::same(&labels(old), &labels(pod)) {
        return Err(format!(
            "node {node:?} cannot update labels through pod status"
        ));
    }
    let claims = |pod: &Object| tree::get(pod, "status")["resourceClaimStatuses"].clone();
    if !tree::same(&claims(old), &claims(pod)) {
        return Err(format!(
            "node {node:?} cannot update resource claim statues"
        ));
    }
    Ok(())
}

async fn eviction(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let (namespace, name) = (attributes.namespace, attributes.name);
    let found = attributes.reader.get("", "pods", namespace, name).await?;
    let pod = found.ok_or_else(|| Status::not_found("", "pods", name))?;
    if pod.field("spec.nodeName") == Some(node) {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(attributes.forbidden(&why))
}

fn own_node(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    own_name(attributes, node, object, "node")?;
    if attributes.operation == Operation::Delete {
        return Ok(());
    }
    let none = Object::new();
    let old = attributes.old.unwrap_or(&none);
    let labels = |object: &Object| tree::get(object, "metadata")["labels"].clone();
    let forbidden = forbidden_labels(&labels(object), &labels(old));
    if attributes.operation == Operation::Create {
        if !forbidden.is_empty() {
            let labels = forbidden.join(", ");
            return Err(format!(
                "node {node:?} is not allowed to set the following labels: {labels}"
            ));
        }
        return Ok(());
    }
    let changed = |what: &str, field: &str| {
        let of = |object: &Object| tree::get(object, what)[field].clone();
        !tree::same(&of(object), &of(old))
    };
    if changed("spec", "taints") {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    if changed("metadata", "ownerReferences") {
        return Err(format!(
            "node {node:?} is not allowed to modify ownerReferences"
        ));
    }
    if !forbidden.is_empty() {
        return Err(format!(
            "is not allowed to modify labels: {}",
            forbidden.join(", ")
        ));
    }
    Ok(())
}

fn forbidden_labels(new: &machinery::Value, old: &machinery::Value) -> Vec<String> {
    let below = |domain: &str, root: &str| {
        domain == root
            || domain
                .strip_suffix(root)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    let forbidden = |label: &str| {
        let domain = label.split_once('/').map_or("", |(domain, _)| domain);
        let kubernetes = below(domain, "kubernetes.io") || below(domain, "k8s.io");
        let own = OWN_LABELS.contains(&label)
            || OWN_LABEL_DOMAINS
                .iter()
                .any(|allowed| below(domain, allowed));
        below(domain, RESERVED_DOMAIN) || (kubernetes && !own)
    };
    let changed = tree::entries(new).filter(|(key, value)| old.get(*key) != Some(value));
    let removed = tree::entries(old).filter(|(key, _)| new.get(*key).is_none());
    let labels = changed.chain(removed).map(|(key, _)| key.to_string());
    let mut labels: Vec<String> = labels.filter(|label| forbidden(label)).collect();
    labels.sort();
    labels
}

fn own_name(
    attributes: &Attributes<'_>,
    node: &str,
    object: &Object,
    what: &str,
) -> Result<(), String> {
    let name = match attributes.name {
        "" => tree::name(object),
        name => name,
    };
    if name == node {
        return Ok(());
    }
    Err(format!(
        "node {node:?} is not allowed to modify {what} {name:?}"
    ))
}

fn lease(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    if attributes.namespace != "kube-node-lease" {
        return Err(
            "can only access leases in the \"kube-node-lease\" system namespace".to_owned(),
        );
    }
    own_name(attributes, node, object, "lease")
}

fn slice(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    let owner = |slice: &Object| tree::get(slice, "spec")["nodeName"] == node;
    let own = match attributes.operation {
        Operation::Create => owner(object),
        _ => attributes.old.is_none_or(owner),
    };
    if own {
        Ok(())
    } else {
        Err("can only modify ResourceSlices of its own node".to_owned())
    }
}

async fn token(attributes: &Attributes<'_>, node: &str, asked: &Object) -> Result<(), Status> {
    let refuse = |why: &str| Err(attributes.forbidden(why));
    let bound = &tree::get(asked, "spec")["boundObjectRef"];
    let (name, uid) = (tree::text(&bound["name"]), tree::text(&bound["uid"]));
    if bound["kind"] != "Pod" || bound["apiVersion"] != "v1" || name.is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let found = attributes
        .reader
        .get("", "pods", attributes.namespace, name)
        .await?;
    let pod = found
        .ok_or_else(|| Status::not_found("", "pods", name))?
        .parse();
    if tree::get(&pod, "metadata")["uid"] != uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        );
        return refuse(&why);
    }
    if !on(&pod, node) {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use machinery::json::{Value, json};

    use super::*;
    use crate::{
        User,
        testing::{Case, object},
    };

    async fn asked(case: &Case, object: Value) -> Result<(), Status> {
        let mut object = crate::testing::object(object);
        if !NodeRestriction.handles(&case.attributes()) {
            return Ok(());
        }
        match case.operation {
            Operation::Delete => NodeRestriction.validate(&case.attributes(), None).await,
            _ => {
                NodeRestriction
                    .mutate(&case.attributes(), &mut object)
                    .await
            }
        }
    }

    fn case(operation: Operation, resource: &'static str, namespace: &str, name: &str) -> Case {
        let mut case = Case::new(operation, "", resource).named(namespace, name);
        case.user = User::new("system:node:a", ["system:nodes"]);
        case
    }

    #[tokio::test]
    async fn a_kubelet_changes_its_own_node_but_not_its_taints_or_reserved_labels() {
        let old = json!({"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {}});
        let mut own = case(Operation::Update, "nodes", "", "a");
        own.old = Some(object(old.clone()));
        asked(&own, old.clone()).await.unwrap();
        for (labels, allowed) in [
            (json!({"x": "2", "kubernetes.io/os": "linux"}), true),
            (
                json!({"x": "1", "node-role.kubernetes.io/control-plane": ""}),
                false,
            ),
            (
                json!({"x": "1", "tier.node-restriction.kubernetes.io/db": ""}),
                false,
            ),
            (json!({"x": "1", "node.kubernetes.io/mine": ""}), true),
        ] {
            let new = json!({"metadata": {"name": "a", "labels": labels}, "spec": {}});
            assert_eq!(asked(&own, new).await.is_ok(), allowed, "{labels}");
        }
        let tainted = json!({"metadata": {"name": "a", "labels": {"x": "1"}},
                             "spec": {"taints": [{"key": "k"}]}});
        asked(&own, tainted).await.unwrap_err();
        let mut other = case(Operation::Update, "nodes", "", "b");
        other.old = Some(object(old.clone()));
        asked(&other, old.clone()).await.unwrap_err();
        other.user = User::new("eve", [""; 0]);
        asked(&other, old).await.unwrap();
    }

    #[tokio::test]
    async fn a_kubelet_reports_and_deletes_only_pods_that_run_on_it() {
        for (node, own) in [("a", true), ("b", false)] {
            let pod = json!({"spec": {"nodeName": node}});
            let mut status = case(Operation::Update, "pods", "default", "web");
            status.subresource = "status";
            status.old = Some(object(pod.clone()));
            assert_eq!(asked(&status, pod.clone()).await.is_ok(), own);
            let mut delete = case(Operation::Delete, "pods", "default", "web");
            delete.old = Some(object(pod.clone()));
            assert_eq!(asked(&delete, json!({})).await.is_ok(), own);
            delete.operation = Operation::Update;
            asked(&delete, pod).await.unwrap_err();
        }
    }

    #[tokio::test]
    async fn only_mirror_pods_without_references_may_be_created() {
        let case = case(Operation::Create, "pods", "default", "web");
        case.world
            .put("", "nodes", json!({"metadata": {"name": "a", "uid": "u"}}))
            .await;
        let pod = |spec: Value, owner: &str| {
            json!({
                "metadata": {
                    "annotations": {MIRROR: "x"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a",
                                         "uid": owner, "controller": true}],
                },
                "spec": spec,
            })
        };
        asked(&case, pod(json!({"nodeName": "a"}), "u"))
            .await
            .unwrap();
        asked(&case, pod(json!({"nodeName": "b"}), "u"))
            .await
            .unwrap_err();
        asked(&case, pod(json!({"nodeName": "a"}), "other"))
            .await
            .unwrap_err();
        asked(&case, json!({"spec": {"nodeName": "a"}}))
            .await
            .unwrap_err();
        let secret = json!({"nodeName": "a", "volumes": [{"secret": {"secretName": "s"}}]});
        asked(&case, pod(secret, "u")).await.unwrap_err();
    }

    #[tokio::test]
    async fn tokens_are_given_for_pods_on_the_node_only() {
        let mut case = case(Operation::Create, "serviceaccounts", "default", "default");
        case.subresource = "token";
        for (name, node) in [("mine", "a"), ("theirs", "b")] {
            let metadata = json!({"name": name, "namespace": "default", "uid": name});
            let pod = json!({"metadata": metadata, "spec": {"nodeName": node}});
            case.world.put("", "pods", pod).await;
        }
        let bound = |name: &str, uid: &str| {
            json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name,
                                               "uid": uid}}})
        };
        asked(&case, bound("mine", "mine")).await.unwrap();
        asked(&case, bound("mine", "old")).await.unwrap_err();
        asked(&case, bound("theirs", "theirs")).await.unwrap_err();
        asked(&case, bound("gone", "gone")).await.unwrap_err();
        asked(&case, json!({"spec": {}})).await.unwrap_err();
    }

    #[tokio::test]
    async fn leases_are_its_own_and_in_their_place() {
        for (namespace, name, allowed) in [
            ("kube-node-lease", "a", true),
            ("kube-node-lease", "b", false),
            ("default", "a", false),
        ] {
            let mut case = Case::new(Operation::Update, "coordination.k8s.io", "leases")
                .named(namespace, name);
            case.user = User::new("system:node:a", ["system:nodes"]);
            assert_eq!(asked(&case, json!({})).await.is_ok(), allowed);
        }
    }
}
