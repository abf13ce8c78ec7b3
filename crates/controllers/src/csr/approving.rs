//! Approves what a kubelet asks for itself: its client certificate when it may have one, and its
//! serving certificate when every name and address in it is the Node's own. Everything else waits
//! for a person.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use client::Informer;
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{Api, api::PostParams};
use pki::csr::{Request, Wish};
use reconcile::{Action, Controller, Error, Key, Queue};

use super::{
    ACCOUNT, KUBELET_CLIENT, KUBELET_SERVING, NODE_PREFIX, has, is_issued, is_kubelet_client,
    is_kubelet_serving, usages,
};
use crate::shared::Shared;

/// As in the table of controllers.
pub const NAME: &str = "certificatesigningrequest-approving";

struct Approver {
    shared: Arc<Shared>,
    requests: Informer<CertificateSigningRequest>,
    nodes: Informer<Node>,
    client: kube::Client,
}

/// Starts it.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Approver {
        shared: shared.clone(),
        requests: shared.informer(),
        nodes: shared.informer(),
        client: shared.client(ACCOUNT),
    });
    let shared = shared.clone();
    shared.context.clone().spawn(NAME, async move {
        controller.requests.synced().await;
        controller.nodes.synced().await;
        let queue = Queue::default();
        let context = &shared.context;
        reconcile::follow(context, &controller.requests, &queue, |event| {
            vec![Key::of(&**event.object())]
        });
        // A node that says its addresses later than it asks is not kept waiting.
        let requests = controller.requests.clone();
        reconcile::follow(context, &controller.nodes, &queue, move |event| {
            let node = event.object().metadata.name.clone().unwrap_or_default();
            let user = format!("{NODE_PREFIX}{node}");
            let waiting = requests
                .list()
                .into_iter()
                .filter(|csr| csr.spec.username.as_deref() == Some(&user) && !has(csr, "Approved"));
            waiting.map(|csr| Key::of(&*csr)).collect()
        });
        reconcile::run(context, controller, queue, 1);
        std::future::pending::<()>().await;
    });
}

/// What may be done with a request.
#[derive(Debug, PartialEq)]
enum Choice {
    /// Nothing: it is decided, or somebody else's to decide.
    Leave,
    /// Approve it if its author may create one of these.
    Ask(Vec<(&'static str, &'static str)>),
    /// Approve it.
    Approve(&'static str),
}

const SELF: (&str, &str) = (
    "selfnodeclient",
    "Auto approving self kubelet client certificate after SubjectAccessReview.",
);
const OTHER: (&str, &str) = (
    "nodeclient",
    "Auto approving kubelet client certificate after SubjectAccessReview.",
);

fn decide(csr: &CertificateSigningRequest, request: &Wish, node: Option<&Node>) -> Choice {
    if is_issued(csr) || has(csr, "Approved") || has(csr, "Denied") {
        return Choice::Leave;
    }
    let author = csr.spec.username.as_deref().unwrap_or_default();
    let own = author == request.common_name;
    match csr.spec.signer_name.as_str() {
        KUBELET_CLIENT if is_kubelet_client(request, &usages(csr)).is_ok() => {
            Choice::Ask(if own { vec![SELF, OTHER] } else { vec![OTHER] })
        }
        KUBELET_SERVING if own && is_kubelet_serving(request, &usages(csr)).is_ok() => {
            let mut groups = csr.spec.groups.iter().flatten();
            let is_node = groups.any(|group| group == "system:nodes");
            match node {
                Some(node) if is_node && are_its_own(request, node) => Choice::Approve(
                    "Auto approving kubelet serving certificate of the node's own names and addresses.",
                ),
                _ => Choice::Leave,
            }
        }
        _ => Choice::Leave,
    }
}

/// Whether a node has every name and address that the request lists.
fn are_its_own(request: &Wish, node: &Node) -> bool {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for known in addresses.into_iter().flatten() {
        match known.type_.as_str() {
            "Hostname" | "InternalDNS" | "ExternalDNS" => {
                names.insert(known.address.as_str());
            }
            "InternalIP" | "ExternalIP" => ips.extend(known.address.parse::<IpAddr>()),
            _ => {}
        }
    }
    request
        .dns_names
        .iter()
        .all(|name| names.contains(name.as_str()))
        && request
            .addresses
            .iter()
            .all(|address| ips.contains(address))
}

impl Approver {
    /// Whether the author of a request may create a CertificateSigningRequest of this kind.
    async fn may(&self, csr: &CertificateSigningRequest, kind: &str) -> Result<bool, Error> {
        let attributes = ResourceAttributes {
            group: Some("certificates.k8s.io".to_owned()),
            resource: Some("certificatesigningrequests".to_owned()),
            verb: Some("create".to_owned()),
            subresource: Some(kind.to_owned()),
            version: Some("*".to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: csr.spec.username.clone(),
                uid: csr.spec.uid.clone(),
                groups: csr.spec.groups.clone(),
                extra: csr.spec.extra.clone(),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    async fn approve(&self, csr: &CertificateSigningRequest, message: &str) -> Result<(), Error> {
        let mut csr = csr.clone();
        let now = Time(self.shared.now());
        let conditions = &mut csr.status.get_or_insert_default().conditions;
        conditions
            .get_or_insert_default()
            .push(CertificateSigningRequestCondition {
                type_: "Approved".to_owned(),
                status: "True".to_owned(),
                reason: Some("AutoApproved".to_owned()),
                message: Some(message.to_owned()),
                last_update_time: Some(now),
                ..CertificateSigningRequestCondition::default()
            });
        super::replace(&self.client, "approval", &csr).await
    }
}

impl Controller for Approver {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(csr) = self.requests.get("", &key.name) else {
            return Ok(Action::Done);
        };
        let Ok(request) = Request::parse(&csr.spec.request.0) else {
            return Ok(Action::Done);
        };
        let node = request.common_name.strip_prefix(NODE_PREFIX);
        let node = node.and_then(|name| self.nodes.get("", name));
        match decide(&csr, &request, node.as_deref()) {
            Choice::Leave => {}
            Choice::Approve(message) => self.approve(&csr, message).await?,
            Choice::Ask(kinds) => {
                for (kind, message) in kinds {
                    if self.may(&csr, kind).await? {
                        self.approve(&csr, message).await?;
                        return Ok(Action::Done);
                    }
                }
            }
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csr(signer: &str, author: &str, usages: &[&str]) -> CertificateSigningRequest {
        let json = serde_json::json!({
            "metadata": {"name": "c"},
            "spec": {"request": "", "signerName": signer, "username": author,
                     "groups": ["system:nodes"], "usages": usages},
        });
        serde_json::from_value(json).unwrap()
    }

    fn node() -> Node {
        let addresses = serde_json::json!([
            {"type": "Hostname", "address": "n1"},
            {"type": "InternalIP", "address": "10.0.0.1"},
        ]);
        let json =
            serde_json::json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}});
        serde_json::from_value(json).unwrap()
    }

    fn request(names: &[&str], addresses: &[&str]) -> Wish {
        Wish {
            common_name: "system:node:n1".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: names.iter().map(|&name| name.to_owned()).collect(),
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            ..Wish::default()
        }
    }

    const CLIENT: [&str; 2] = ["digital signature", "client auth"];
    const SERVER: [&str; 2] = ["digital signature", "server auth"];

    #[test]
    fn a_client_certificate_depends_on_what_its_author_may() {
        let own = csr(KUBELET_CLIENT, "system:node:n1", &CLIENT);
        let plain = request(&[], &[]);
        assert_eq!(decide(&own, &plain, None), Choice::Ask(vec![SELF, OTHER]));
        let token = csr(KUBELET_CLIENT, "system:bootstrap:abcdef", &CLIENT);
        assert_eq!(decide(&token, &plain, None), Choice::Ask(vec![OTHER]));
        let legacy = csr(super::super::LEGACY, "system:node:n1", &CLIENT);
        assert_eq!(decide(&legacy, &plain, None), Choice::Leave);
        let person = csr(super::super::CLIENT, "system:node:n1", &CLIENT);
        assert_eq!(decide(&person, &plain, None), Choice::Leave);
    }

    #[test]
    fn a_serving_certificate_names_the_node_and_nobody_else() {
        let own = csr(KUBELET_SERVING, "system:node:n1", &SERVER);
        let approved = |csr: &CertificateSigningRequest, names: &[&str], addresses: &[&str]| {
            let choice = decide(csr, &request(names, addresses), Some(&node()));
            matches!(choice, Choice::Approve(_))
        };
        assert!(approved(&own, &["n1"], &["10.0.0.1"]));
        assert!(approved(&own, &[], &["10.0.0.1"]));
        assert!(!approved(&own, &["n2"], &["10.0.0.1"]));
        assert!(!approved(&own, &["n1"], &["10.0.0.1", "10.0.0.2"]));
        assert!(!approved(&own, &["kubernetes.default"], &[]));
        let other = csr(KUBELET_SERVING, "system:node:n2", &SERVER);
        assert!(!approved(&other, &["n1"], &["10.0.0.1"]));
        let mut outsider = own.clone();
        outsider.spec.groups = Some(vec!["dev".to_owned()]);
        assert!(!approved(&outsider, &["n1"], &["10.0.0.1"]));
        let gone = decide(&own, &request(&["n1"], &[]), None);
        assert_eq!(gone, Choice::Leave);
    }

    #[test]
    fn what_is_decided_stays() {
        let mut denied = csr(KUBELET_CLIENT, "system:node:n1", &CLIENT);
        let condition = CertificateSigningRequestCondition {
            type_: "Denied".to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        };
        denied.status.get_or_insert_default().conditions = Some(vec![condition]);
        assert_eq!(decide(&denied, &request(&[], &[]), None), Choice::Leave);
    }
}
