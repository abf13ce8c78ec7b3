//! Approves a kubelet's own requests: its client certificate if the requester is authorized, and
//! its serving certificate for its name and the address that it connects from ([`super::serving`]).
//! Other requests need manual approval.

use std::{collections::BTreeSet, sync::Arc};

use client::{Api, Informer};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
        core::v1::{ConfigMap, Node, Pod, Service},
        discovery::v1::EndpointSlice,
        networking::v1::{IPAddress, ServiceCIDR},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::PostParams;
use pki::csr::{Request, RequestedCertificate};
use reconcile::{Action, Controller, Error, Key, placement};

use super::{
    ACCOUNT, KUBELET_CLIENT, KUBELET_SERVING, NODE_PREFIX, has, is_issued, is_kubelet_client,
    is_kubelet_serving, node_proxy, serving, usages,
};
use crate::{
    members,
    shared::{ADDRESS, APPROVAL, CIDR, SERVICE, Shared, WAITING, address_key},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "certificatesigningrequest-approving";

/// The age at which a node's request by another user needs manual approval: agents make a
/// new one then. A token that was deleted must not leave requests behind that wait until the node of
/// that name fails.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(15);

/// The ConfigMap in kube-system with the names and addresses in the certificates of several servers: an entry for each,
/// separated by spaces. The entry of a stopped server stays: clients trust its name when it is back.
pub const SERVERS: &str = "mainstay-servers";

struct Approver {
    shared: Arc<Shared>,
    requests: Informer<CertificateSigningRequest>,
    nodes: Informer<Node>,
    services: Informer<Service>,
    service_cidrs: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
    pods: Informer<Pod>,
    slices: Informer<EndpointSlice>,
    servers: Informer<ConfigMap>,
    client: kube::Client,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Approver {
        shared: shared.clone(),
        requests: shared.informer(),
        nodes: shared.informer(),
        services: shared.informer(),
        service_cidrs: shared.informer(),
        addresses: shared.informer(),
        pods: shared.informer(),
        slices: shared.informer(),
        servers: Informer::builder(shared.reader())
            .namespace("kube-system")
            .fields(format!("metadata.name={SERVERS}"))
            .start(&shared.context),
        client: shared.client(ACCOUNT),
    });
    let requests = controller.requests.clone();
    shared
        .controller(&controller)
        .watches(&controller.requests)
        .reads(&controller.services)
        .reads(&controller.service_cidrs)
        .reads(&controller.addresses)
        .reads(&controller.pods)
        .reads(&controller.slices)
        .reads(&controller.servers)
        // A request may have waited for a node that is deleted or not ready now.
        .watches_with(&controller.nodes, move |_| {
            let waiting = requests.entries_by_index(APPROVAL, WAITING).into_iter();
            waiting.map(|csr| Key::new("", csr.name())).collect()
        })
        .start();
}

/// What to do with a request.
#[derive(Debug, PartialEq)]
enum Choice {
    /// Nothing: it is decided already, or not for this controller.
    Leave,
    /// Approve it if the requester may create one of these.
    Ask(Vec<(&'static str, &'static str)>),
    /// Approve it if it contains only the node's own name and addresses.
    Serving,
    /// Approve it.
    Approve(&'static str),
}

const SELF: (&str, &str) = (
    "selfnodeclient",
    "Auto approving self kubelet client certificate after SubjectAccessReview.",
);
const SERVING: &str = "Auto approving kubelet serving certificate for the node's name and the address it was requested from.";
const PROXY: &str = "Auto approving the certificate that the node reads services with.";
const OTHER: (&str, &str) = (
    "nodeclient",
    "Auto approving kubelet client certificate after SubjectAccessReview.",
);

fn decide(csr: &CertificateSigningRequest, request: &RequestedCertificate) -> Choice {
    if is_issued(csr) || has(csr, "Approved") || has(csr, "Denied") || has(csr, "Failed") {
        return Choice::Leave;
    }
    let author = csr.spec.username.as_deref().unwrap_or_default();
    let own = author == request.common_name;
    match csr.spec.signer_name.as_str() {
        KUBELET_CLIENT if is_kubelet_client(request, &usages(csr)).is_ok() => {
            Choice::Ask(if own { vec![SELF, OTHER] } else { vec![OTHER] })
        }
        node_proxy::SIGNER => {
            let groups = csr.spec.groups.as_deref().unwrap_or_default();
            if node_proxy::is_own(author, groups, request, &usages(csr)) {
                Choice::Approve(PROXY)
            } else {
                Choice::Leave
            }
        }
        KUBELET_SERVING if own && is_kubelet_serving(request, &usages(csr)).is_ok() => {
            let mut groups = csr.spec.groups.iter().flatten();
            match groups.any(|group| group == "system:nodes") {
                true => Choice::Serving,
                false => Choice::Leave,
            }
        }
        _ => Choice::Leave,
    }
}

/// The names and addresses in the certificates of all servers.
fn names_of_servers(map: &ConfigMap) -> impl Iterator<Item = String> {
    let entries = map.data.iter().flatten();
    let names = entries.flat_map(|(_, names)| names.split_whitespace());
    names.map(str::to_ascii_lowercase)
}

fn is_recent(csr: &CertificateSigningRequest, now: Timestamp) -> bool {
    let created = csr.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| now.duration_since(created.0) < MAX_AGE)
}

impl Approver {
    /// Whether the requester may create this subresource of CertificateSigningRequests.
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

    /// Whether another, ready machine has the node name of the request. Otherwise a bootstrap token
    /// would suffice to impersonate a node and read its pods' Secrets.
    fn is_taken(&self, request: &RequestedCertificate) -> bool {
        let name = request.common_name.strip_prefix(NODE_PREFIX);
        let node = name.and_then(|name| self.nodes.get("", name));
        node.is_some_and(|node| placement::is_ready(&node))
    }

    /// Fails with the reason why a serving certificate needs manual approval.
    fn check_serving(
        &self,
        csr: &CertificateSigningRequest,
        request: &RequestedCertificate,
    ) -> Result<(), String> {
        let config = &self.shared.config;
        let authority = config.authority.as_ref().ok_or("no signer is configured")?;
        let names = authority.0.names();
        let mut server_names = names.of_apiserver();
        for map in self.servers.list() {
            server_names.extend(names_of_servers(&map));
        }
        let cluster = serving::Cluster {
            nodes: self.nodes(request),
            services: self.services(request),
            service_cidrs: self.service_cidrs.list(),
            pods: self.pods(request),
            slices: self.slices.by_index(SERVICE, "default/kubernetes"),
            pod_cidr: config.cluster_cidr.clone(),
            server_names,
            domain: names.cluster_domain,
        };
        let node = request.common_name.strip_prefix(NODE_PREFIX);
        cluster.check(csr, request, node.unwrap_or_default())
    }

    /// The nodes with a name or an address of a request, and those whose pods can have such an address. Others are not
    /// decoded.
    fn nodes(&self, request: &RequestedCertificate) -> Vec<Arc<Node>> {
        let names = request.dns_names.iter();
        let mut nodes: Vec<_> = names.filter_map(|name| self.nodes.get("", name)).collect();
        let cidrs = self.nodes.index_keys(CIDR);
        for address in &request.addresses {
            nodes.extend(self.nodes.by_index(ADDRESS, &address_key(*address)));
            let cidrs = cidrs.iter().filter(|cidr| serving::holds(cidr, *address));
            nodes.extend(cidrs.flat_map(|cidr| self.nodes.by_index(CIDR, cidr)));
        }
        nodes
    }

    /// The Services with a name or an address of a request. Others are not decoded.
    fn services(&self, request: &RequestedCertificate) -> Vec<Arc<Service>> {
        let mut names = BTreeSet::new();
        for name in &request.dns_names {
            let name = name.to_ascii_lowercase();
            names.extend(name.split_once('.').map(|(first, _)| first.to_owned()));
            names.insert(name);
        }
        let named = self.services.entries().into_iter();
        let named = named.filter(|service| names.contains(service.name()));
        let named = named.map(|service| self.services.read_entry(&service));
        let addresses = request.addresses.iter().filter_map(|address| {
            let held = self
                .addresses
                .get("", &address.to_canonical().to_string())?;
            let holder = held.spec.parent_ref.clone();
            let namespace = holder.namespace.unwrap_or_default();
            self.services.get(&namespace, &holder.name)
        });
        named.chain(addresses).collect()
    }

    /// The pods with an address of a request.
    fn pods(&self, request: &RequestedCertificate) -> Vec<Arc<Pod>> {
        let has = |facts: &members::Facts| {
            let mut addresses = request.addresses.iter();
            addresses.any(|address| facts.has_address(*address))
        };
        let pods = self.pods.entries().into_iter();
        let pods = pods.filter(|pod| pod.summary().is_some_and(has));
        pods.map(|pod| self.pods.read_entry(&pod)).collect()
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
        match decide(&csr, &request) {
            Choice::Leave => {}
            Choice::Approve(message) => self.approve(&csr, message).await?,
            Choice::Serving => match self.check_serving(&csr, &request) {
                Ok(()) => self.approve(&csr, SERVING).await?,
                Err(why) => {
                    tracing::info!(csr = key.name, why, "manual approval needed");
                }
            },
            Choice::Ask(kinds) => {
                let author = csr.spec.username.as_deref().unwrap_or_default();
                let is_open = is_recent(&csr, self.shared.now()) && !self.is_taken(&request);
                if author != request.common_name && !is_open {
                    tracing::info!(
                        csr = key.name,
                        name = request.common_name,
                        "name of a Ready node or an old request, manual approval needed"
                    );
                    return Ok(Action::Done);
                }
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

    fn request(names: &[&str], addresses: &[&str]) -> RequestedCertificate {
        RequestedCertificate {
            common_name: "system:node:n1".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: names.iter().map(|&name| name.to_owned()).collect(),
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            ..RequestedCertificate::default()
        }
    }

    const CLIENT: [&str; 2] = ["digital signature", "client auth"];
    const SERVER: [&str; 2] = ["digital signature", "server auth"];

    #[test]
    fn a_client_certificate_is_approved_by_subject_access_review() {
        let own = csr(KUBELET_CLIENT, "system:node:n1", &CLIENT);
        let plain = request(&[], &[]);
        assert_eq!(decide(&own, &plain), Choice::Ask(vec![SELF, OTHER]));
        let token = csr(KUBELET_CLIENT, "system:bootstrap:abcdef", &CLIENT);
        assert_eq!(decide(&token, &plain), Choice::Ask(vec![OTHER]));
        let legacy = csr(super::super::LEGACY, "system:node:n1", &CLIENT);
        assert_eq!(decide(&legacy, &plain), Choice::Leave);
        let person = csr(super::super::CLIENT, "system:node:n1", &CLIENT);
        assert_eq!(decide(&person, &plain), Choice::Leave);
    }

    #[test]
    fn a_serving_certificate_is_approved_only_for_the_requesting_node() {
        let choose =
            |csr: &CertificateSigningRequest| decide(csr, &request(&["n1"], &["10.0.0.1"]));
        let own = csr(KUBELET_SERVING, "system:node:n1", &SERVER);
        assert_eq!(choose(&own), Choice::Serving);
        let other = csr(KUBELET_SERVING, "system:node:n2", &SERVER);
        assert_eq!(choose(&other), Choice::Leave);
        let mut outsider = own.clone();
        outsider.spec.groups = Some(vec!["dev".to_owned()]);
        assert_eq!(choose(&outsider), Choice::Leave);
        assert_eq!(decide(&own, &request(&[], &[])), Choice::Leave);
    }

    #[test]
    fn the_names_of_all_servers_are_read() {
        let map: ConfigMap = serde_json::from_value(serde_json::json!({
            "data": {"one_1": "One 192.0.2.1 fd00::1", "two_2": "two\n192.0.2.2"},
        }))
        .unwrap();
        let names: Vec<String> = names_of_servers(&map).collect();
        assert_eq!(names, ["one", "192.0.2.1", "fd00::1", "two", "192.0.2.2"]);
        assert_eq!(names_of_servers(&ConfigMap::default()).count(), 0);
    }

    #[test]
    fn a_request_is_recent_for_a_quarter_of_an_hour() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let aged = |seconds: i64| {
            let mut csr = csr(KUBELET_CLIENT, "system:bootstrap:abcdef", &CLIENT);
            let created = now.checked_sub(SignedDuration::from_secs(seconds)).unwrap();
            csr.metadata.creation_timestamp = Some(Time(created));
            csr
        };
        assert!(is_recent(&aged(0), now) && is_recent(&aged(899), now));
        // The clock of another server may be ahead.
        assert!(is_recent(&aged(-5), now));
        assert!(!is_recent(&aged(900), now));
        assert!(!is_recent(&csr(KUBELET_CLIENT, "x", &CLIENT), now));
    }

    #[test]
    fn approved_and_denied_requests_are_not_changed() {
        let mut denied = csr(KUBELET_CLIENT, "system:node:n1", &CLIENT);
        let condition = CertificateSigningRequestCondition {
            type_: "Denied".to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        };
        denied.status.get_or_insert_default().conditions = Some(vec![condition]);
        assert_eq!(decide(&denied, &request(&[], &[])), Choice::Leave);
    }
}
