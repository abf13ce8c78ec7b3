//! A kubelet reads only the secrets, config maps, claims, volumes and accounts of pods that are
//! bound to its node. Everything else that it may do is the role `system:node`.
//!
//! The pods of each node are at hand ([`NodePods`]): a question costs the same in a cluster of any
//! size.

use std::sync::LazyLock;

use async_trait::async_trait;
use kinds::tree;
use machinery::Value;

use super::{Attributes, Authorizer, Decision, node_pods::NodePods, policy, rules::Rule};
use crate::{Reader, User};

const PREFIX: &str = "system:node:";
const GROUP: &str = "system:nodes";
const CLAIMS: &str = "persistentvolumeclaims";

/// The node that a user is the kubelet of.
pub fn node_name(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(PREFIX)?;
    (!name.is_empty() && user.is_in(GROUP)).then_some(name)
}

/// An object in a pod's namespace that the pod needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Use<'a> {
    pub(crate) resource: &'static str,
    pub(crate) name: &'a str,
}

/// Everything that a pod's spec names.
pub(crate) fn uses(spec: &Value) -> Vec<Use<'_>> {
    let mut found = Vec::new();
    collect(spec, &mut found);
    found
        .into_iter()
        .map(|(resource, name)| Use { resource, name })
        .collect()
}

type Found<'a> = Vec<(&'static str, &'a str)>;

fn note<'a>(found: &mut Found<'a>, resource: &'static str, name: &'a Value) {
    if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
        found.push((resource, name));
    }
}

fn collect<'a>(spec: &'a Value, found: &mut Found<'a>) {
    note(found, "serviceaccounts", &spec["serviceAccountName"]);
    for secret in tree::list(&spec["imagePullSecrets"]) {
        note(found, "secrets", &secret["name"]);
    }
    for containers in ["containers", "initContainers", "ephemeralContainers"] {
        for container in tree::list(&spec[containers]) {
            for variable in tree::list(&container["env"]) {
                note(
                    found,
                    "secrets",
                    &variable["valueFrom"]["secretKeyRef"]["name"],
                );
                note(
                    found,
                    "configmaps",
                    &variable["valueFrom"]["configMapKeyRef"]["name"],
                );
            }
            for source in tree::list(&container["envFrom"]) {
                note(found, "secrets", &source["secretRef"]["name"]);
                note(found, "configmaps", &source["configMapRef"]["name"]);
            }
        }
    }
    for volume in tree::list(&spec["volumes"]) {
        note(found, "secrets", &volume["secret"]["secretName"]);
        note(found, "configmaps", &volume["configMap"]["name"]);
        note(
            found,
            "persistentvolumeclaims",
            &volume["persistentVolumeClaim"]["claimName"],
        );
        for source in tree::list(&volume["projected"]["sources"]) {
            note(found, "secrets", &source["secret"]["name"]);
            note(found, "configmaps", &source["configMap"]["name"]);
        }
        for driver in [
            "azureFile",
            "flexVolume",
            "cephfs",
            "rbd",
            "scaleIO",
            "iscsi",
            "storageos",
        ] {
            note(found, "secrets", &volume[driver]["secretName"]);
            note(found, "secrets", &volume[driver]["secretRef"]["name"]);
        }
        note(
            found,
            "secrets",
            &volume["csi"]["nodePublishSecretRef"]["name"],
        );
    }
}

/// Asks about one node.
pub struct Node {
    reader: Reader,
    pods: NodePods,
}

/// The role's rules, without those that only hold for what belongs to the node.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let rules = policy::cluster_role("system:node").map(|role| role.rules.clone());
    rules.unwrap_or_default()
});

impl Node {
    pub fn new(reader: Reader) -> Self {
        let pods = NodePods::new(reader.clone());
        Self { reader, pods }
    }

    /// Whether some pod on the node uses an object; `None` if the store does not answer.
    async fn uses(&self, node: &str, namespace: &str, resource: &str, name: &str) -> Option<bool> {
        if self.is_used(node, namespace, resource, name) {
            return Some(true);
        }
        self.pods.catch_up().await.ok()?;
        Some(self.is_used(node, namespace, resource, name))
    }

    fn is_used(&self, node: &str, namespace: &str, resource: &str, name: &str) -> bool {
        let here = self.pods.of(node, namespace);
        here.iter().any(|pod| {
            // Most pods do not even contain the name: no need to parse them. Only claims of a pod's
            // own volumes have names that are put together.
            let own = name.starts_with(&*pod.header.name);
            let likely = contains(pod.bytes(), name) || (own && resource == CLAIMS);
            likely && uses_it(&pod.parse(), &pod.header.name, resource, name)
        })
    }

    async fn uses_volume(&self, node: &str, name: &str) -> Option<bool> {
        let volume = self
            .reader
            .get("", "persistentvolumes", "", name)
            .await
            .ok()??
            .parse();
        let claim = &tree::get(&volume, "spec")["claimRef"];
        let (namespace, claim) = (tree::text(&claim["namespace"]), tree::text(&claim["name"]));
        if claim.is_empty() {
            return Some(false);
        }
        self.uses(node, namespace, "persistentvolumeclaims", claim)
            .await
    }

    async fn attachment(&self, node: &str, name: &str) -> Option<bool> {
        let found = self
            .reader
            .get("storage.k8s.io", "volumeattachments", "", name)
            .await
            .ok()??;
        Some(tree::get(&found.parse(), "spec")["nodeName"] == node)
    }

    async fn decide(&self, node: &str, attributes: &Attributes<'_>) -> Decision {
        let no = |why: String| Decision::NoOpinion(why);
        let reads = matches!(attributes.verb, "get" | "list" | "watch");
        let (namespace, name) = (attributes.namespace, attributes.name);
        let related = match (
            attributes.group,
            attributes.resource,
            attributes.subresource,
        ) {
            ("", resource @ ("secrets" | "configmaps"), "") => {
                if !reads {
                    return no(format!("can only read {resource}"));
                }
                self.named(node, namespace, resource, name).await
            }
            ("", "persistentvolumeclaims", subresource) => {
                let status = matches!(attributes.verb, "update" | "patch");
                let allowed = match subresource {
                    "" => attributes.verb == "get",
                    "status" => status || attributes.verb == "get",
                    _ => false,
                };
                if !allowed {
                    return no("can only read claims and update their status".to_owned());
                }
                self.named(node, namespace, "persistentvolumeclaims", name)
                    .await
            }
            ("", "persistentvolumes", "") => {
                if attributes.verb != "get" {
                    return no("can only get individual resources of this type".to_owned());
                }
                self.uses_volume(node, name).await
            }
            ("", "serviceaccounts", "token") => {
                if attributes.verb != "create" {
                    return no("can only create tokens for individual service accounts".to_owned());
                }
                self.named(node, namespace, "serviceaccounts", name).await
            }
            ("storage.k8s.io", "volumeattachments", "") => {
                if attributes.verb != "get" {
                    return no("can only get individual resources of this type".to_owned());
                }
                self.attachment(node, name).await
            }
            ("coordination.k8s.io", "leases", "") => return lease(node, attributes),
            ("storage.k8s.io", "csinodes", "") => return csi_node(node, attributes),
            ("", "nodes", _) => return own_node(node, attributes),
            ("", "pods", "") if reads => return pods(node, attributes),
            _ => return by_role(attributes),
        };
        match related {
            Some(true) => Decision::Allow,
            Some(false) => no(format!(
                "no relationship found between node '{node}' and this object"
            )),
            None => no("the object or its users cannot be read".to_owned()),
        }
    }

    async fn named(&self, node: &str, namespace: &str, resource: &str, name: &str) -> Option<bool> {
        if namespace.is_empty() || name.is_empty() {
            return Some(false);
        }
        self.uses(node, namespace, resource, name).await
    }
}

fn contains(bytes: &[u8], name: &str) -> bool {
    bytes
        .windows(name.len())
        .any(|window| window == name.as_bytes())
}

fn uses_it(pod: &machinery::Object, pod_name: &str, resource: &str, name: &str) -> bool {
    let spec = tree::get(pod, "spec");
    let generic = |volume: &Value| {
        // A volume of the pod's own has a claim named after both.
        let own = tree::text(&volume["name"]);
        tree::is_set(&volume["ephemeral"]) && name == format!("{pod_name}-{own}")
    };
    uses(spec).contains(&Use {
        resource: known(resource),
        name,
    }) || (resource == "persistentvolumeclaims" && tree::list(&spec["volumes"]).iter().any(generic))
}

/// The names that [`uses`] speaks in.
fn known(resource: &str) -> &'static str {
    [
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "serviceaccounts",
    ]
    .into_iter()
    .find(|name| *name == resource)
    .unwrap_or("")
}

fn by_role(attributes: &Attributes<'_>) -> Decision {
    if RULES.iter().any(|rule| rule.allows(attributes)) {
        Decision::Allow
    } else {
        Decision::NoOpinion(String::new())
    }
}

fn lease(node: &str, attributes: &Attributes<'_>) -> Decision {
    let verb = matches!(
        attributes.verb,
        "get" | "create" | "update" | "patch" | "delete"
    );
    let name =
        attributes.name == node || (attributes.name.is_empty() && attributes.verb == "create");
    if verb && name && attributes.namespace == "kube-node-lease" {
        return Decision::Allow;
    }
    Decision::NoOpinion("can only access its own lease".to_owned())
}

fn csi_node(node: &str, attributes: &Attributes<'_>) -> Decision {
    let verb = matches!(
        attributes.verb,
        "get" | "create" | "update" | "patch" | "delete"
    );
    let name =
        attributes.name == node || (attributes.name.is_empty() && attributes.verb == "create");
    if verb && name {
        return Decision::Allow;
    }
    Decision::NoOpinion(
        "can only access CSINode with the same name as the requesting node".to_owned(),
    )
}

/// A kubelet registers and reads its own node; others' nodes are none of its business.
fn own_node(node: &str, attributes: &Attributes<'_>) -> Decision {
    let unnamed = attributes.name.is_empty();
    let allowed = match attributes.verb {
        "create" => attributes.subresource.is_empty(),
        "get" | "list" | "watch" | "update" | "patch" | "delete" => {
            !unnamed && attributes.name == node
        }
        _ => false,
    };
    let known = matches!(attributes.subresource, "" | "status");
    if allowed && known {
        return Decision::Allow;
    }
    Decision::NoOpinion(format!("node '{node}' cannot access other nodes"))
}

/// Lists and watches of pods must be for the node's own.
fn pods(node: &str, attributes: &Attributes<'_>) -> Decision {
    if attributes.verb == "get" {
        return by_role(attributes);
    }
    let terms = attributes
        .field_selector
        .split(',')
        .filter_map(|term| term.split_once('='));
    let selected = terms.into_iter().find(|(key, _)| *key == "spec.nodeName");
    let selected = selected.map(|(_, value)| value.trim_start_matches('='));
    let named = !attributes.name.is_empty() && !attributes.namespace.is_empty();
    if selected == Some(node) || named {
        return by_role(attributes);
    }
    Decision::NoOpinion("can only list/watch pods with spec.nodeName field selector".to_owned())
}

#[async_trait]
impl Authorizer for Node {
    fn name(&self) -> &'static str {
        "node"
    }

    fn start(&self, context: &lifecycle::Context) {
        context.spawn("node-pods", self.pods.clone().follow());
    }

    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let Some(node) = node_name(attributes.user) else {
            return Decision::NoOpinion(String::new());
        };
        if !attributes.is_resource {
            return by_role(attributes);
        }
        self.decide(node, attributes).await
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::World;

    async fn world() -> World {
        let world = World::new();
        let pod = |name: &str, node: &str, uses: &str| {
            json!({
                "metadata": {"name": name, "namespace": "team"},
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": format!("{uses}-account"),
                    "containers": [{"envFrom": [{"secretRef": {"name": format!("{uses}-env")}}]}],
                    "volumes": [
                        {"name": "s", "secret": {"secretName": format!("{uses}-secret")}},
                        {"name": "c", "configMap": {"name": format!("{uses}-map")}},
                        {"name": "d", "ephemeral": {}},
                        {"name": "p", "persistentVolumeClaim": {"claimName": format!("{uses}-claim")}},
                    ],
                },
            })
        };
        world.put("", "pods", pod("web", "a", "mine")).await;
        world.put("", "pods", pod("db", "b", "theirs")).await;
        for uses in ["mine", "theirs"] {
            let claim = json!({"namespace": "team", "name": format!("{uses}-claim")});
            let volume = json!({"metadata": {"name": format!("{uses}-volume")},
                                "spec": {"claimRef": claim}});
            world.put("", "persistentvolumes", volume).await;
        }
        world
    }

    /// Asks as the kubelet of node `a`: verb, group:resource/subresource, namespace, name, selector.
    async fn may(world: &World, request: &str) -> bool {
        let user = User::new("system:node:a", ["system:nodes"]);
        let mut words = request.split(' ');
        let mut next = || match words.next().unwrap_or_default() {
            "-" => "",
            word => word,
        };
        let (verb, target, namespace, name, field_selector) =
            (next(), next(), next(), next(), next());
        let (group, resource) = target.split_once(':').unwrap_or(("", target));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = Attributes {
            user: &user,
            verb,
            is_resource: true,
            group,
            version: "v1",
            resource,
            subresource,
            namespace,
            name,
            path: "",
            field_selector,
            label_selector: "",
        };
        let node = Node::new(world.reader.clone());
        node.authorize(&attributes).await == Decision::Allow
    }

    #[tokio::test]
    async fn a_kubelet_reads_what_its_pods_use_and_nothing_of_others() {
        let world = world().await;
        for what in [
            "secrets team {}-secret",
            "secrets team {}-env",
            "configmaps team {}-map",
            "persistentvolumeclaims team {}-claim",
            "persistentvolumes - {}-volume",
        ] {
            assert!(
                may(&world, &format!("get {}", what.replace("{}", "mine"))).await,
                "{what}"
            );
            assert!(
                !may(&world, &format!("get {}", what.replace("{}", "theirs"))).await,
                "{what}"
            );
        }
        assert!(
            may(&world, "get persistentvolumeclaims team web-d").await,
            "of its own volume"
        );
        assert!(may(&world, "create serviceaccounts/token team mine-account").await);
        assert!(!may(&world, "create serviceaccounts/token team theirs-account").await);
        for refused in [
            "list secrets team",
            "get secrets other mine-secret",
            "update secrets team mine-secret",
            "list secrets",
            "delete persistentvolumes - mine-volume",
        ] {
            assert!(!may(&world, refused).await, "{refused}");
        }
        world.delete("", "pods", "team", "web").await;
        assert!(
            !may(&world, "get secrets team mine-secret").await,
            "gone with its pod"
        );
    }

    #[tokio::test]
    async fn a_kubelet_keeps_its_own_node_and_lease_and_watches_its_own_pods() {
        let world = world().await;
        for allowed in [
            "create nodes",
            "get nodes - a",
            "patch nodes/status - a",
            "update coordination.k8s.io:leases kube-node-lease a",
            "watch pods - - spec.nodeName=a",
            "patch pods/status team web",
            "watch services",
            "create events team",
        ] {
            assert!(may(&world, allowed).await, "{allowed}");
        }
        for refused in [
            "get nodes - b",
            "patch nodes/status - b",
            "list nodes",
            "update coordination.k8s.io:leases kube-node-lease b",
            "update coordination.k8s.io:leases default a",
            "watch pods",
            "watch pods - - spec.nodeName=b",
            "create apps:deployments team",
        ] {
            assert!(!may(&world, refused).await, "{refused}");
        }
    }
}
