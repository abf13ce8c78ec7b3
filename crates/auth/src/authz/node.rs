//! The Node authorizer: a kubelet reads the secrets, config maps, claims, volumes and accounts of
//! pods bound to its node, and writes objects of its node. Everything else is by the role
//! `system:node`. Verbs and reasons are upstream's; the admission plugin NodeRestriction checks
//! what depends on the written object.
//!
//! The pods of each node are indexed ([`NodePods`]): a decision costs the same in a cluster of any
//! size.

use std::sync::LazyLock;

use async_trait::async_trait;
use kinds::tree;
use machinery::fields::Selector;

use super::{
    Attributes, Authorizer, Decision,
    node_pods::NodePods,
    pod_references::{claims, grants, volume_secrets},
    policy,
    rules::Rule,
};
use registry::Reader;
use request::User;

const PREFIX: &str = "system:node:";
const GROUP: &str = "system:nodes";
const CLAIMS: &str = "persistentvolumeclaims";

/// The node of a kubelet's user. Empty for a kubelet without a node name: it may do nothing.
pub fn node_name(user: &User) -> Option<&str> {
    let name = user.name.strip_prefix(PREFIX)?;
    user.is_in(GROUP).then_some(name)
}

/// The role's rules, for resources that are not restricted by node.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let rules = policy::cluster_role("system:node").map(|role| role.rules.clone());
    rules.unwrap_or_default()
});

/// The decision for a request.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Refuse(&'static str),
    /// Allowed for objects related to the node.
    IfRelated,
}

use Verdict::{IfRelated, Refuse};

/// Decides by the request alone, without reading objects.
fn authorize_node(node: &str, asked: &Attributes<'_>) -> Verdict {
    match (asked.group, asked.resource) {
        ("", "secrets" | "configmaps") => read_namespaced(asked),
        ("", CLAIMS) if asked.subresource == "status" => match asked.verb {
            "update" | "patch" => IfRelated,
            _ => Refuse("can only get/update/patch this type"),
        },
        ("", CLAIMS | "persistentvolumes")
        | ("resource.k8s.io", "resourceclaims")
        | ("storage.k8s.io", "volumeattachments") => get(asked),
        ("", "serviceaccounts") => service_account(asked),
        ("coordination.k8s.io", "leases") => lease(node, asked),
        ("storage.k8s.io", "csinodes") => csi_node(node, asked),
        ("resource.k8s.io", "resourceslices") => slice(node, asked),
        ("", "nodes") => own_node(node, asked),
        ("", "pods") => pod(node, asked),
        // Its feature gate is disabled.
        ("certificates.k8s.io", "podcertificaterequests") => Refuse(""),
        _ => by_role(asked),
    }
}

fn by_role(asked: &Attributes<'_>) -> Verdict {
    match RULES.iter().any(|rule| rule.allows(asked)) {
        true => Verdict::Allow,
        false => Refuse(""),
    }
}

fn get(asked: &Attributes<'_>) -> Verdict {
    match (asked.verb, asked.subresource) {
        ("get", "") => IfRelated,
        ("get", _) => Refuse("cannot get subresource"),
        _ => Refuse("can only get individual resources of this type"),
    }
}

fn read_namespaced(asked: &Attributes<'_>) -> Verdict {
    if !matches!(asked.verb, "get" | "list" | "watch") {
        return Refuse("can only read resources of this type");
    }
    if !asked.subresource.is_empty() {
        return Refuse("cannot read subresource");
    }
    if asked.namespace.is_empty() {
        return Refuse("can only read namespaced object of this type");
    }
    IfRelated
}

fn service_account(asked: &Attributes<'_>) -> Verdict {
    match (asked.verb, asked.subresource) {
        ("get", "") => read_namespaced(asked),
        ("create", "token") if !asked.name.is_empty() => IfRelated,
        ("create", "token") => Refuse("can only create tokens for individual service accounts"),
        ("create", _) if !asked.name.is_empty() => {
            Refuse("can only create token subresource of serviceaccount")
        }
        _ => Refuse("can only create tokens for individual service accounts"),
    }
}

fn is_keeping(verb: &str) -> bool {
    matches!(verb, "get" | "create" | "update" | "patch" | "delete")
}

/// Whether it is the kubelet's own object. A create has no name yet; NodeRestriction checks it.
fn is_own(node: &str, asked: &Attributes<'_>) -> bool {
    asked.verb == "create" || asked.name == node
}

fn lease(node: &str, asked: &Attributes<'_>) -> Verdict {
    if !is_keeping(asked.verb) {
        return Refuse("can only get, create, update, patch, or delete a node lease");
    }
    if asked.namespace != "kube-node-lease" {
        return Refuse("can only access leases in the \"kube-node-lease\" system namespace");
    }
    match is_own(node, asked) {
        true => Verdict::Allow,
        false => Refuse("can only access node lease with the same name as the requesting node"),
    }
}

fn csi_node(node: &str, asked: &Attributes<'_>) -> Verdict {
    if !is_keeping(asked.verb) {
        return Refuse("can only get, create, update, patch, or delete a CSINode");
    }
    if !asked.subresource.is_empty() {
        return Refuse("cannot authorize CSINode subresources");
    }
    match is_own(node, asked) {
        true => Verdict::Allow,
        false => Refuse("can only access CSINode with the same name as the requesting node"),
    }
}

/// Whether a field selector restricts the request to the node.
fn selects(node: &str, asked: &Attributes<'_>) -> bool {
    let selector = Selector::parse(asked.field_selector).unwrap_or_default();
    selector.exact("spec.nodeName") == Some(node)
}

fn slice(node: &str, asked: &Attributes<'_>) -> Verdict {
    if !asked.subresource.is_empty() {
        return Refuse("cannot authorize ResourceSlice subresources");
    }
    match asked.verb {
        "create" => Verdict::Allow,
        "get" | "update" | "patch" | "delete" => IfRelated,
        "watch" | "list" | "deletecollection" if selects(node, asked) => Verdict::Allow,
        "watch" | "list" | "deletecollection" => Refuse(
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        _ => Refuse(
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
        ),
    }
}

/// A kubelet creates, reads and updates its own Node. It may not delete it: a recreated Node would
/// lose its taints and labels.
fn own_node(node: &str, asked: &Attributes<'_>) -> Verdict {
    match (asked.subresource, asked.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Verdict::Allow,
        ("", "get" | "list" | "watch") if asked.name == node => Verdict::Allow,
        ("", "get" | "list" | "watch") => Refuse("only its own Node object"),
        _ => Refuse(""),
    }
}

fn pod(node: &str, asked: &Attributes<'_>) -> Verdict {
    match (asked.subresource, asked.verb) {
        ("", "get") => IfRelated,
        ("", "list" | "watch") if selects(node, asked) => Verdict::Allow,
        ("", "list" | "watch") if !asked.name.is_empty() => IfRelated,
        ("", "list" | "watch") => {
            Refuse("can only list/watch pods with spec.nodeName field selector")
        }
        ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
            Verdict::Allow
        }
        _ => Refuse(""),
    }
}

/// The full reason, if it names the node.
fn reason(node: &str, asked: &Attributes<'_>, why: &str) -> String {
    if (asked.group, asked.resource) != ("", "nodes") || why.is_empty() {
        return why.to_owned();
    }
    match asked.name {
        "" => format!("node '{node}' cannot read all nodes, {why}"),
        other => format!("node '{node}' cannot read '{other}', {why}"),
    }
}

/// The Node authorizer.
pub struct Node {
    reader: Reader,
    pods: NodePods,
}

impl Node {
    pub fn new(reader: Reader) -> Self {
        let pods = NodePods::new(reader.clone());
        Self { reader, pods }
    }

    /// Whether an object is related to the node; false if it cannot be read.
    async fn is_related(&self, node: &str, asked: &Attributes<'_>) -> bool {
        let (namespace, name) = (asked.namespace, asked.name);
        if name.is_empty() {
            return false;
        }
        let related = match (asked.group, asked.resource) {
            ("", "pods") => self.runs(node, namespace, name).await,
            ("", "secrets") => match self.uses(node, namespace, "secrets", name).await {
                Some(false) => self.uses_secret_of_volume(node, namespace, name).await,
                known => known,
            },
            ("", "persistentvolumes") => self.uses_volume(node, name).await,
            ("storage.k8s.io", resource @ "volumeattachments")
            | ("resource.k8s.io", resource @ "resourceslices") => {
                self.names_node(node, asked.group, resource, name).await
            }
            (_, resource) => self.uses(node, namespace, resource, name).await,
        };
        related.unwrap_or(false)
    }

    /// Whether a pod is bound to the node.
    async fn runs(&self, node: &str, namespace: &str, name: &str) -> Option<bool> {
        let found = self.reader.get("", "pods", namespace, name).await.ok()?;
        Some(found.is_some_and(|pod| pod.field("spec.nodeName") == Some(node)))
    }

    /// Whether a pod on the node uses an object; `None` if the store fails.
    async fn uses(&self, node: &str, namespace: &str, resource: &str, name: &str) -> Option<bool> {
        if self.is_used(node, namespace, resource, name) {
            return Some(true);
        }
        self.pods.catch_up().await.ok()?;
        Some(self.is_used(node, namespace, resource, name))
    }

    fn is_used(&self, node: &str, namespace: &str, resource: &str, name: &str) -> bool {
        let here = self.pods.pods_on_node(node, namespace);
        here.iter().any(|pod| {
            // Most pods do not even contain the name: no need to parse them. Only claims of a pod's
            // own volumes have names that are put together.
            let own = name.starts_with(pod.header.name());
            let likely = contains(&pod.bytes(), name) || (own && resource == CLAIMS);
            likely && grants(&pod.parse(), resource, name)
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
        self.uses(node, namespace, CLAIMS, claim).await
    }

    /// Whether a secret belongs to a volume bound to the claim of a pod on the node.
    async fn uses_secret_of_volume(&self, node: &str, namespace: &str, name: &str) -> Option<bool> {
        for pod in self.pods.of_node(node) {
            let home = pod.header.namespace();
            for claim in claims(&pod.parse()) {
                let Some(found) = self.reader.get("", CLAIMS, home, &claim).await.ok()? else {
                    continue;
                };
                let claimed = found.parse();
                let volume = tree::text(&tree::get(&claimed, "spec")["volumeName"]);
                let found = self.reader.get("", "persistentvolumes", "", volume).await;
                let Some(volume) = found.ok()? else {
                    continue;
                };
                let volume = volume.parse();
                let reference = &tree::get(&volume, "spec")["claimRef"];
                if reference["namespace"] == home
                    && reference["name"] == claim.as_str()
                    && volume_secrets(&volume).contains(&(namespace, name))
                    && grants(&pod.parse(), CLAIMS, &claim)
                {
                    return Some(true);
                }
            }
        }
        Some(false)
    }

    async fn names_node(&self, node: &str, group: &str, plural: &str, name: &str) -> Option<bool> {
        let found = self.reader.get(group, plural, "", name).await.ok()??;
        Some(tree::get(&found.parse(), "spec")["nodeName"] == node)
    }
}

fn contains(bytes: &[u8], name: &str) -> bool {
    bytes
        .windows(name.len())
        .any(|window| window == name.as_bytes())
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
        if node.is_empty() {
            let who = &attributes.user.name;
            return Decision::NoOpinion(format!("unknown node for user {who:?}"));
        }
        let verdict = match attributes.is_resource {
            true => authorize_node(node, attributes),
            false => by_role(attributes),
        };
        match verdict {
            Verdict::Allow => Decision::Allow,
            Refuse(why) => Decision::NoOpinion(reason(node, attributes, why)),
            IfRelated if attributes.name.is_empty() => {
                Decision::NoOpinion("No Object name found".to_owned())
            }
            IfRelated if self.is_related(node, attributes).await => Decision::Allow,
            IfRelated => Decision::NoOpinion(format!(
                "no relationship found between node '{node}' and this object"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::{Value, json};

    use super::*;
    use crate::authz::MIRROR;
    use registry_testing::World;

    fn pod(name: &str, node: &str, uses: &str) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "team"},
            "spec": {
                "nodeName": node,
                "serviceAccountName": format!("{uses}-account"),
                "containers": [{"envFrom": [{"secretRef": {"name": format!("{uses}-env")}}]}],
                "resourceClaims": [
                    {"name": "direct", "resourceClaimName": format!("{uses}-device")},
                    {"name": "template", "resourceClaimTemplateName": "t"}],
                "volumes": [
                    {"name": "s", "secret": {"secretName": format!("{uses}-secret")}},
                    {"name": "c", "configMap": {"name": format!("{uses}-map")}},
                    {"name": "d", "ephemeral": {}},
                    {"name": "p", "persistentVolumeClaim": {"claimName": format!("{uses}-claim")}},
                ],
            },
            "status": {
                "resourceClaimStatuses": [{"name": "template", "resourceClaimName": format!("{uses}-made")}],
                "extendedResourceClaimStatus": {"resourceClaimName": format!("{uses}-extended")},
            },
        })
    }

    async fn world() -> World {
        let world = World::new();
        world.put("", "pods", pod("web", "a", "mine")).await;
        world.put("", "pods", pod("db", "b", "theirs")).await;
        let mut mirror = pod("mirror", "a", "mirrored");
        mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
        world.put("", "pods", mirror).await;
        for (uses, node) in [("mine", "a"), ("theirs", "b")] {
            let name = |what: &str| json!({"name": format!("{uses}-{what}"), "namespace": "team"});
            let volume = format!("{uses}-volume");
            let claim = json!({"metadata": name("claim"), "spec": {"volumeName": volume}});
            world.put("", "persistentvolumeclaims", claim).await;
            let csi = json!({"nodePublishSecretRef": {"name": format!("{uses}-disk"), "namespace": "store"},
                             "controllerPublishSecretRef": {"name": format!("{uses}-admin"), "namespace": "store"}});
            let volume = json!({"metadata": {"name": volume},
                                "spec": {"claimRef": name("claim"), "csi": csi}});
            world.put("", "persistentvolumes", volume).await;
            for (group, plural) in [
                ("storage.k8s.io", "volumeattachments"),
                ("resource.k8s.io", "resourceslices"),
            ] {
                let object = json!({"metadata": {"name": format!("{uses}-{plural}")}, "spec": {"nodeName": node}});
                world.put(group, plural, object).await;
            }
        }
        world
    }

    /// Asks as the kubelet of node `a`: verb, group:resource/subresource, namespace, name, selector.
    async fn may(world: &World, request: &str) -> bool {
        ask(world, "system:node:a", request).await == Decision::Allow
    }

    async fn ask(world: &World, user: &str, request: &str) -> Decision {
        let user = User::new(user, ["system:nodes"]);
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
        Node::new(world.reader.clone()).authorize(&attributes).await
    }

    const VERBS: [&str; 8] = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ];

    /// What a kubelet may do: the verbs and the resource, where `{}` is replaced by `mine`
    /// (allowed) and `theirs` (denied). Every other verb is denied in both.
    const RELATED: &[(&str, &str)] = &[
        ("get list watch", "secrets team {}-secret"),
        ("get list watch", "secrets team {}-env"),
        ("get list watch", "secrets store {}-disk"),
        ("get list watch", "configmaps team {}-map"),
        ("get", "persistentvolumeclaims team {}-claim"),
        (
            "update patch",
            "persistentvolumeclaims/status team {}-claim",
        ),
        ("get", "persistentvolumes - {}-volume"),
        ("get", "resource.k8s.io:resourceclaims team {}-device"),
        ("get", "resource.k8s.io:resourceclaims team {}-made"),
        ("get", "resource.k8s.io:resourceclaims team {}-extended"),
        (
            "get",
            "storage.k8s.io:volumeattachments - {}-volumeattachments",
        ),
        ("get", "serviceaccounts team {}-account"),
        ("create", "serviceaccounts/token team {}-account"),
    ];

    #[tokio::test]
    async fn a_kubelet_reads_what_its_pods_use_and_nothing_of_others() {
        let world = world().await;
        for (allowed, what) in RELATED {
            for verb in VERBS {
                let mine = format!("{verb} {}", what.replace("{}", "mine"));
                let allowed = allowed.split(' ').any(|other| other == verb);
                assert_eq!(may(&world, &mine).await, allowed, "{mine}");
                let theirs = format!("{verb} {}", what.replace("{}", "theirs"));
                assert!(!may(&world, &theirs).await, "{theirs}");
                let mirrored = format!("{verb} {}", what.replace("{}", "mirrored"));
                assert!(!may(&world, &mirrored).await, "{mirrored}");
            }
        }
        assert!(
            may(&world, "get persistentvolumeclaims team web-d").await,
            "of its own volume"
        );
        world.delete("", "pods", "team", "web").await;
        assert!(
            !may(&world, "get secrets team mine-secret").await,
            "gone with its pod"
        );
    }

    /// Every allowed verb is listed; all others are denied.
    const WHOLE: &[(&str, &str)] = &[
        ("get list watch create update patch", "nodes - a"),
        ("create update patch", "nodes - b"),
        ("create update patch", "nodes"),
        ("update patch", "nodes/status - a"),
        ("", "nodes/proxy - a"),
        ("get create delete list watch", "pods team web"),
        ("create delete", "pods team db"),
        ("create delete", "pods team"),
        ("create delete list watch", "pods - - spec.nodeName=a"),
        (
            "create delete list watch",
            "pods team - status.phase=Running,spec.nodeName==a",
        ),
        ("create delete", "pods - - spec.nodeName=b"),
        ("create delete", "pods - - spec.nodeName!=a"),
        ("create delete", "pods - - x!=\\,spec.nodeName=a"),
        ("update patch", "pods/status team web"),
        ("create", "pods/eviction team web"),
        ("", "pods/exec team web"),
        ("", "pods/attach team web"),
        ("", "pods/portforward team web"),
        ("", "pods/proxy team web"),
        ("", "pods/log team web"),
        ("", "pods/binding team web"),
        ("", "pods/ephemeralcontainers team web"),
        ("", "pods/resize team web"),
        ("", "secrets team"),
        ("", "secrets"),
        ("", "secrets store mine-admin"),
        ("", "secrets other mine-secret"),
        ("", "secrets/status team mine-secret"),
        ("", "configmaps team"),
        ("", "persistentvolumeclaims team"),
        ("", "persistentvolumes/status - mine-volume"),
        ("", "resource.k8s.io:resourceclaims/status team mine-device"),
        (
            "",
            "storage.k8s.io:volumeattachments/status - mine-volumeattachments",
        ),
        ("", "serviceaccounts team"),
        ("", "serviceaccounts/token team theirs-account"),
        (
            "get create update patch delete",
            "coordination.k8s.io:leases kube-node-lease a",
        ),
        ("create", "coordination.k8s.io:leases kube-node-lease b"),
        ("", "coordination.k8s.io:leases default a"),
        (
            "get create update patch delete",
            "storage.k8s.io:csinodes - a",
        ),
        ("create", "storage.k8s.io:csinodes - b"),
        ("", "storage.k8s.io:csinodes/status - a"),
        (
            "get create update patch delete",
            "resource.k8s.io:resourceslices - mine-resourceslices",
        ),
        (
            "create",
            "resource.k8s.io:resourceslices - theirs-resourceslices",
        ),
        (
            "create list watch deletecollection",
            "resource.k8s.io:resourceslices - - spec.nodeName=a",
        ),
        (
            "create",
            "resource.k8s.io:resourceslices - - spec.nodeName=b",
        ),
        ("create", "resource.k8s.io:resourceslices"),
        ("get list watch", "services team x"),
        ("get", "endpoints team x"),
        ("create update patch", "events team x"),
        ("create update patch", "events.k8s.io:events team x"),
        ("get list watch", "storage.k8s.io:csidrivers - x"),
        ("get list watch", "node.k8s.io:runtimeclasses - x"),
        (
            "get list watch create",
            "certificates.k8s.io:certificatesigningrequests - x",
        ),
        (
            "",
            "certificates.k8s.io:certificatesigningrequests/approval - x",
        ),
        (
            "",
            "certificates.k8s.io:certificatesigningrequests/status - x",
        ),
        (
            "",
            "certificates.k8s.io:certificatesigningrequests/selfnodeclient - x",
        ),
        ("", "certificates.k8s.io:podcertificaterequests team x"),
        ("", "certificates.k8s.io:clustertrustbundles - x"),
        ("create", "authentication.k8s.io:tokenreviews"),
        ("create", "authorization.k8s.io:subjectaccessreviews"),
        (
            "create",
            "authorization.k8s.io:localsubjectaccessreviews team",
        ),
        ("", "apps:deployments team x"),
        ("", "namespaces - team"),
        ("", "bindings team x"),
        ("", "rbac.authorization.k8s.io:clusterroles - x"),
    ];

    #[tokio::test]
    async fn every_verb_of_a_kubelet_is_as_upstreams() {
        let world = world().await;
        for (allowed, what) in WHOLE {
            for verb in VERBS {
                let request = format!("{verb} {what}");
                let allowed = allowed.split(' ').any(|other| other == verb);
                assert_eq!(may(&world, &request).await, allowed, "{request}");
            }
        }
    }

    #[tokio::test]
    async fn a_kubelet_without_a_node_name_has_no_permissions() {
        let world = world().await;
        let refused = ask(&world, "system:node:", "list services").await;
        let why = "unknown node for user \"system:node:\"".to_owned();
        assert_eq!(refused, Decision::NoOpinion(why));
    }
}
