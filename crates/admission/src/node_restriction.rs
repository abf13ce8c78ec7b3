//! Restricts a kubelet to its own node: its Node, its Lease, its CSINode, the status of its pods
//! and of their claims, mirror pods, and requests for tokens of its pods and for its own
//! certificates. The identity comes from the certificate, so a stolen one harms one node.

mod mirror_pod;
mod token;

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use kinds::tree;
use machinery::{Object, Status, Value};

use super::{Attributes, Operation, Plugin, signers::Authorizers};
use crate::authz::node_name;

pub(crate) const NAME: &str = "NodeRestriction";

/// Labels in Kubernetes' domains that a kubelet may set on its own Node.
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

/// The signers of a kubelet's certificates.
const NODE_SIGNERS: [&str; 2] = [
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

pub(crate) struct NodeRestriction {
    pub(super) authorizers: Authorizers,
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation != Operation::Connect && node_name(attributes.user).is_some()
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        self.check(attributes, object).await
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Object>,
    ) -> Result<(), Status> {
        match attributes.operation {
            // Deletes are not mutated.
            Operation::Delete => self.check(attributes, &Object::new()).await,
            _ => Ok(()),
        }
    }
}

impl NodeRestriction {
    async fn check(&self, attributes: &Attributes<'_>, object: &Object) -> Result<(), Status> {
        let Some(node) = node_name(attributes.user) else {
            return Ok(());
        };
        let create = attributes.operation == Operation::Create;
        let checked = match (
            attributes.group,
            attributes.resource,
            attributes.subresource,
        ) {
            _ if node.is_empty() => Err(format!(
                "could not determine node from user {:?}",
                attributes.user.name
            )),
            ("", "pods", "") if create => {
                return mirror_pod::admit(attributes, node, object).await;
            }
            ("", "pods", "") => delete_pod(attributes, node),
            ("", "pods", "status") => pod_status(attributes, node, object),
            ("", "pods", "eviction") => return eviction(attributes, node).await,
            ("", "pods", other) => Err(format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            )),
            ("", "nodes", _) => own_node(attributes, node, object),
            ("", "persistentvolumeclaims", "status") => claim_status(attributes, node, object),
            ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
            ("", "serviceaccounts", "token") if create => {
                return token::admit(attributes, &self.authorizers, node, object).await;
            }
            ("coordination.k8s.io", "leases", _) => lease(attributes, node, object),
            ("storage.k8s.io", "csinodes", _) => csi_node(attributes, node, object),
            ("resource.k8s.io", "resourceslices", _) => slice(attributes, node, object),
            ("certificates.k8s.io", "podcertificaterequests", _) => {
                Err("PodCertificateRequest feature gate is disabled".to_owned())
            }
            ("certificates.k8s.io", "certificatesigningrequests", "") if create => {
                signing_request(node, object)
            }
            _ => Ok(()),
        };
        checked.map_err(|why| attributes.forbidden(&why))
    }
}

/// Whether a pod is bound to the node.
fn on(pod: &Object, node: &str) -> bool {
    tree::get(pod, "spec")["nodeName"] == node
}

fn delete_pod(attributes: &Attributes<'_>, node: &str) -> Result<(), String> {
    if attributes.operation != Operation::Delete {
        return Err(format!(
            "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
        ));
    }
    match attributes.old.is_some_and(|old| on(old, node)) {
        true => Ok(()),
        false => Err(format!(
            "node {node:?} can only delete pods with spec.nodeName set to itself"
        )),
    }
}

fn pod_status(attributes: &Attributes<'_>, node: &str, pod: &Object) -> Result<(), String> {
    let Some(old) = attributes.old else {
        return Err("unexpected operation \"CREATE\"".to_owned());
    };
    if !on(old, node) {
        return Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let changed = |part: &str, field: &str| {
        let of = |pod: &Object| tree::get(pod, part)[field].clone();
        !tree::same(&of(old), &of(pod))
    };
    for (part, field, what) in [
        ("metadata", "labels", "labels through pod status"),
        ("status", "resourceClaimStatuses", "resource claim statues"),
        (
            "status",
            "extendedResourceClaimStatus",
            "extended resource claim status",
        ),
    ] {
        if changed(part, field) {
            return Err(format!("node {node:?} cannot update {what}"));
        }
    }
    Ok(())
}

async fn eviction(attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let (namespace, name) = (attributes.namespace, attributes.name);
    let found = attributes.reader.get("", "pods", namespace, name).await?;
    let pod = found.ok_or_else(|| Status::not_found("", "pod", name))?;
    if pod.field("spec.nodeName") == Some(node) {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(attributes.forbidden(&why))
}

/// A kubelet that resizes a volume may change only the resize fields of the claim's status.
fn claim_status(attributes: &Attributes<'_>, node: &str, claim: &Object) -> Result<(), String> {
    let Some(old) = attributes.old else {
        return Err("unexpected operation \"CREATE\"".to_owned());
    };
    let rest = |claim: &Object| {
        let mut rest = Value::Object(claim.clone());
        for (part, field) in [
            ("metadata", "resourceVersion"),
            ("metadata", "managedFields"),
            ("status", "capacity"),
            ("status", "conditions"),
            ("status", "allocatedResourceStatuses"),
            ("status", "allocatedResources"),
        ] {
            if let Some(part) = rest.get_mut(part).and_then(Value::as_object_mut) {
                part.shift_remove(field);
            }
        }
        rest
    };
    match tree::same(&rest(old), &rest(claim)) {
        true => Ok(()),
        false => Err(format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )),
    }
}

fn own_node(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    let name = attributes.name;
    if name != node {
        return Err(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let none = Object::new();
    let old = attributes.old.unwrap_or(&none);
    let field = |object: &Object, part: &str, field: &str| tree::get(object, part)[field].clone();
    let labels = |object: &Object| field(object, "metadata", "labels");
    let is_changed =
        |part: &str, name: &str| !tree::same(&field(object, part, name), &field(old, part, name));
    // Beyond upstream: other nodes route to these ranges.
    let is_written = attributes.operation != Operation::Delete;
    for name in ["podCIDR", "podCIDRs"] {
        if is_written && is_changed("spec", name) {
            return Err(format!("node {node:?} is not allowed to set its {name}"));
        }
    }
    let source = field(object, "spec", "configSource");
    match attributes.operation {
        Operation::Create => {
            if tree::is_set(&source) {
                return Err(format!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            match forbidden_labels(&labels(object), &Value::Null).join(", ") {
                none if none.is_empty() => Ok(()),
                labels => Err(format!(
                    "node {node:?} is not allowed to set the following labels: {labels}"
                )),
            }
        }
        Operation::Update => {
            if tree::is_set(&source) && !tree::same(&source, &field(old, "spec", "configSource")) {
                return Err(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil configSource"
                ));
            }
            for (part, name) in [("spec", "taints"), ("metadata", "ownerReferences")] {
                if is_changed(part, name) {
                    return Err(format!("node {node:?} is not allowed to modify {name}"));
                }
            }
            match forbidden_labels(&labels(object), &labels(old)).join(", ") {
                none if none.is_empty() => Ok(()),
                labels => Err(format!("is not allowed to modify labels: {labels}")),
            }
        }
        _ => Ok(()),
    }
}

fn forbidden_labels(new: &machinery::Value, old: &Value) -> Vec<String> {
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

/// The name of the written object.
fn written<'a>(attributes: &'a Attributes<'_>, object: &'a Object) -> &'a str {
    match attributes.operation {
        Operation::Create => tree::name(object),
        _ => attributes.name,
    }
}

fn lease(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    if attributes.namespace != "kube-node-lease" {
        return Err(
            "can only access leases in the \"kube-node-lease\" system namespace".to_owned(),
        );
    }
    match written(attributes, object) == node {
        true => Ok(()),
        false => {
            Err("can only access node lease with the same name as the requesting node".to_owned())
        }
    }
}

fn csi_node(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    match written(attributes, object) == node {
        true => Ok(()),
        false => {
            Err("can only access CSINode with the same name as the requesting node".to_owned())
        }
    }
}

/// The authorizer has checked updates; it sees neither new slices nor the single objects of a
/// deletecollection.
fn slice(attributes: &Attributes<'_>, node: &str, object: &Object) -> Result<(), String> {
    let (what, slice) = match (attributes.operation, attributes.old) {
        (Operation::Create, _) => ("create", object),
        (Operation::Delete, Some(old)) => ("delete", old),
        _ => return Ok(()),
    };
    match on(slice, node) {
        true => Ok(()),
        false => Err(format!(
            "can only {what} ResourceSlice with the same NodeName as the requesting node"
        )),
    }
}

/// A kubelet may request certificates only for its own node, from the kubelet signers.
fn signing_request(node: &str, object: &Object) -> Result<(), String> {
    let spec = tree::get(object, "spec");
    if !NODE_SIGNERS
        .iter()
        .any(|signer| spec["signerName"] == *signer)
    {
        return Ok(());
    }
    let pem = BASE64_STANDARD.decode(tree::text(&spec["request"]));
    let request = pki::csr::Request::parse(&pem.unwrap_or_default())
        .map_err(|why| format!("unable to parse csr: {why}"))?;
    if request.common_name.strip_prefix("system:node:") == Some(node) {
        return Ok(());
    }
    Err(format!(
        "can only create a node CSR with CN=system:node:{node}"
    ))
}

#[cfg(test)]
mod tests {
    use machinery::json::{Value, json};

    use super::*;
    use crate::{
        User,
        authz::MIRROR,
        testing::{Case, object},
    };

    async fn asked(case: &Case, object: Value) -> Result<(), Status> {
        let mut object = crate::testing::object(object);
        let plugin = NodeRestriction {
            authorizers: [].into(),
        };
        if !plugin.handles(&case.attributes()) {
            return Ok(());
        }
        match case.operation {
            Operation::Delete => plugin.validate(&case.attributes(), None).await,
            _ => plugin.mutate(&case.attributes(), &mut object).await,
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
    async fn a_kubelet_does_not_choose_the_pod_ranges_that_others_route_to_it() {
        let own = |spec: Value| json!({"metadata": {"name": "a"}, "spec": spec});
        let range = json!({"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24"]});
        let create = case(Operation::Create, "nodes", "", "a");
        asked(&create, own(json!({}))).await.unwrap();
        asked(&create, own(range.clone())).await.unwrap_err();
        let mut update = case(Operation::Update, "nodes", "", "a");
        for (old, new, allowed) in [
            (json!({}), json!({"providerID": "x"}), true),
            (json!({}), range.clone(), false),
            (range.clone(), range.clone(), true),
            (range.clone(), json!({}), false),
            (
                range,
                json!({"podCIDR": "10.42.1.0/24", "podCIDRs": ["10.42.1.0/24", "8.8.8.0/24"]}),
                false,
            ),
        ] {
            for subresource in ["", "status"] {
                update.subresource = subresource;
                update.old = Some(object(own(old.clone())));
                let answer = asked(&update, own(new.clone())).await;
                assert_eq!(answer.is_ok(), allowed, "{old} {new}");
            }
        }
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
            let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
            let vault =
                json!({"projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}}]}});
            let claimed = json!({"persistentVolumeClaim": {"claimName": "data"}});
            let spec = json!({"nodeName": node, "volumes": [token, vault, claimed]});
            case.world
                .put("", "pods", json!({"metadata": metadata, "spec": spec}))
                .await;
        }
        let bound = |name: &str, uid: &str| {
            json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name,
                                               "uid": uid}}})
        };
        let for_audiences = |audiences: &[&str]| {
            let mut asked = bound("mine", "mine");
            asked["spec"]["audiences"] = audiences.into();
            asked
        };
        asked(&case, for_audiences(&[])).await.unwrap();
        asked(&case, for_audiences(&["vault"])).await.unwrap();
        let refused = asked(&case, for_audiences(&["vault", "api"])).await;
        let why = refused.unwrap_err().message;
        assert!(
            why.ends_with("node may only request 0 or 1 audiences"),
            "{why}"
        );
        let why = asked(&case, for_audiences(&["api"])).await.unwrap_err();
        let why = why.message;
        assert!(
            why.ends_with(
                "error validating audience \"api\": persistentvolumeclaim \"data\" not found"
            ),
            "{why}"
        );
        // A CSI driver requests tokens of the pods that use its volumes.
        let claim = json!({"metadata": {"name": "data", "namespace": "default"}, "spec": {"volumeName": "v"}});
        case.world.put("", "persistentvolumeclaims", claim).await;
        let volume = json!({"metadata": {"name": "v"}, "spec": {"csi": {"driver": "d"}}});
        case.world.put("", "persistentvolumes", volume).await;
        let driver =
            json!({"metadata": {"name": "d"}, "spec": {"tokenRequests": [{"audience": "disk"}]}});
        case.world.put("storage.k8s.io", "csidrivers", driver).await;
        asked(&case, for_audiences(&["disk"])).await.unwrap();
        let why = asked(&case, for_audiences(&["api"])).await.unwrap_err();
        assert!(
            why.message.ends_with(
                "audience \"api\" not found in pod spec volume, system:node:a is not authorized to request tokens for this audience"
            ),
            "{why}"
        );
        asked(&case, bound("mine", "mine")).await.unwrap();
        asked(&case, bound("mine", "old")).await.unwrap_err();
        asked(&case, bound("theirs", "theirs")).await.unwrap_err();
        asked(&case, bound("gone", "gone")).await.unwrap_err();
        asked(&case, json!({"spec": {}})).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_kubelet_writes_only_its_own_lease_in_kube_node_lease() {
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
