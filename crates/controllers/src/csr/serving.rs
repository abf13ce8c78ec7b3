//! Whether a kubelet's serving certificate may be approved automatically. A node writes the
//! addresses in its own status, so that they prove nothing. What counts is the address that the
//! request came from, which the API server recorded on it ([`PEER`]), and that nothing else in the
//! cluster has that address or name.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::{
    api::{
        certificates::v1::CertificateSigningRequest,
        core::v1::{Node, Pod, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use pki::csr::RequestedCertificate;

/// Annotations that the API server's admission sets; clients cannot.
const PEER: &str = "mainstay.local/peer-address";
const IN_PROCESS: &str = "mainstay.local/in-process";

/// Everything in the cluster that a node must not impersonate.
pub(super) struct Cluster<N, S, C, P, E> {
    pub(super) nodes: Vec<N>,
    pub(super) services: Vec<S>,
    pub(super) service_cidrs: Vec<C>,
    pub(super) pods: Vec<P>,
    pub(super) slices: Vec<E>,
    /// The cluster's pod CIDR.
    pub(super) pod_cidr: String,
    /// Names and addresses in the certificates of the API servers, also of those that do not run now.
    pub(super) server_names: BTreeSet<String>,
    pub(super) domain: String,
}

/// Where a request came from.
struct Origin {
    address: IpAddr,
    in_process: bool,
}

fn origin(csr: &CertificateSigningRequest) -> Option<Origin> {
    let annotations = csr.metadata.annotations.as_ref()?;
    Some(Origin {
        address: annotations.get(PEER)?.parse().ok()?,
        in_process: annotations.contains_key(IN_PROCESS),
    })
}

impl<N, S, C, P, E> Cluster<N, S, C, P, E>
where
    N: AsRef<Node>,
    S: AsRef<Service>,
    C: AsRef<ServiceCIDR>,
    P: AsRef<Pod>,
    E: AsRef<EndpointSlice>,
{
    /// Fails with the reason why a serving certificate of `node` needs manual approval.
    pub(super) fn check(
        &self,
        csr: &CertificateSigningRequest,
        request: &RequestedCertificate,
        node: &str,
    ) -> Result<(), String> {
        let origin =
            origin(csr).ok_or("the API server does not know the address of the requester")?;
        for address in &request.addresses {
            if *address != origin.address {
                return Err(format!("{address} is not the address of the requester"));
            }
            self.check_address(*address, node, origin.in_process)?;
        }
        for name in &request.dns_names {
            if name != node {
                return Err(format!("{name:?} is not the node's name"));
            }
            self.check_name(name, origin.in_process)?;
        }
        Ok(())
    }

    fn check_address(&self, address: IpAddr, node: &str, in_process: bool) -> Result<(), String> {
        let no = |whose: &str| Err(format!("{address} is an address of {whose}"));
        if !in_process {
            if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
                return no("no machine");
            }
            if self.server_names.contains(&address.to_string()) || self.is_server(address) {
                return no("the API server");
            }
        }
        if self.is_service(address) {
            return no("a Service");
        }
        if let Some(other) = self.nodes.iter().map(AsRef::as_ref).find(|other| {
            other.metadata.name.as_deref() != Some(node)
                && node_addresses(other).any(|a| a == address)
        }) {
            let name = other.metadata.name.as_deref().unwrap_or_default();
            return no(&format!("node {name:?}"));
        }
        if self.is_pod(address) {
            return no("a pod");
        }
        Ok(())
    }

    fn check_name(&self, name: &str, in_process: bool) -> Result<(), String> {
        let no = |whose: &str| Err(format!("{name:?} is a name of {whose}"));
        let lower = name.to_ascii_lowercase();
        if !in_process && (lower == "localhost" || self.server_names.contains(&lower)) {
            return no("the API server");
        }
        let domain = self.domain.trim_matches('.');
        if lower.ends_with(".svc") || lower == domain || lower.ends_with(&format!(".{domain}")) {
            return no("the cluster's DNS");
        }
        let node = self.nodes.iter().map(AsRef::as_ref);
        let mut node = node.filter(|node| node.metadata.name.as_deref() == Some(name));
        let born = node
            .next()
            .and_then(|node| node.metadata.creation_timestamp.clone());
        let mut services = self.services.iter().map(AsRef::as_ref);
        match services.any(|service| is_called(service, &lower) && is_older(service, born.as_ref()))
        {
            true => no("a Service"),
            false => Ok(()),
        }
    }

    /// Whether an address is that of an API server of the cluster.
    fn is_server(&self, address: IpAddr) -> bool {
        let own = |slice: &&EndpointSlice| {
            let labels = slice.metadata.labels.as_ref();
            slice.metadata.namespace.as_deref() == Some("default")
                && labels
                    .and_then(|labels| labels.get("kubernetes.io/service-name"))
                    .is_some_and(|service| service == "kubernetes")
        };
        let slices = self.slices.iter().map(AsRef::as_ref).filter(own);
        let mut addresses = slices
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .flat_map(|endpoint| endpoint.addresses.iter());
        addresses.any(|known| is(known, address))
    }

    fn is_service(&self, address: IpAddr) -> bool {
        let cidrs = self.service_cidrs.iter().map(AsRef::as_ref);
        let mut cidrs = cidrs
            .filter_map(|cidr| cidr.spec.as_ref()?.cidrs.as_ref())
            .flatten();
        let specs = self
            .services
            .iter()
            .filter_map(|s| s.as_ref().spec.as_ref());
        let mut addresses = specs.flat_map(|spec| spec.cluster_ips.iter().flatten());
        cidrs.any(|cidr| holds(cidr, address)) || addresses.any(|known| is(known, address))
    }

    /// Whether an address is a pod's, or in a pod CIDR. Host network pods have their node's
    /// address.
    fn is_pod(&self, address: IpAddr) -> bool {
        let specs = self
            .nodes
            .iter()
            .filter_map(|node| node.as_ref().spec.as_ref());
        let mut cidrs =
            specs.flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
        let pods = self.pods.iter().map(AsRef::as_ref).filter(|pod| {
            let spec = pod.spec.as_ref();
            spec.is_none_or(|spec| spec.host_network != Some(true))
        });
        let mut addresses = pods
            .filter_map(|pod| pod.status.as_ref())
            .flat_map(|status| status.pod_ips.iter().flatten())
            .map(|ip| ip.ip.as_str());
        self.pod_cidr.split(',').any(|cidr| holds(cidr, address))
            || cidrs.any(|cidr| holds(cidr, address))
            || addresses.any(|known| is(known, address))
    }
}

/// The first address of each type and IP family. A node writes them itself: with all of them, one node could keep every
/// other from its certificate.
pub(crate) fn node_addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_ref());
    let addresses = addresses.into_iter().flatten();
    let parsed = addresses.filter_map(|known| {
        let address = known.address.parse::<IpAddr>().ok()?;
        let is_address = matches!(known.type_.as_str(), "InternalIP" | "ExternalIP");
        is_address.then_some((known.type_.as_str(), address))
    });
    let mut seen = BTreeSet::new();
    let first = parsed.filter(move |(kind, address)| seen.insert((*kind, address.is_ipv4())));
    first.map(|(_, address)| address)
}

fn is(text: &str, address: IpAddr) -> bool {
    text.parse::<IpAddr>().is_ok_and(|known| known == address)
}

/// Whether a CIDR such as `10.42.0.0/16` contains an address.
pub(super) fn holds(cidr: &str, address: IpAddr) -> bool {
    let Some((network, length)) = cidr.trim().split_once('/') else {
        return false;
    };
    let (Ok(network), Ok(length)) = (network.parse::<IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32_u32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let ((network, size), (address, other)) = (bits(network), bits(address));
    let rest = size.saturating_sub(length);
    size == other && network.checked_shr(rest) == address.checked_shr(rest)
}

/// Whether a Service has this DNS name. Names of more than two labels are in the cluster domain.
fn is_called(service: &Service, name: &str) -> bool {
    let metadata = &service.metadata;
    let own = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    name == own || name.split_once('.') == Some((own, namespace))
}

/// Only a Service older than the node counts: otherwise a user who may create Services could block the
/// node's certificate.
fn is_older(service: &Service, born: Option<&Time>) -> bool {
    match (service.metadata.creation_timestamp.as_ref(), born) {
        (Some(service), Some(node)) => service.0 <= node.0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn csr(peer: Option<&str>, in_process: bool) -> CertificateSigningRequest {
        let mut annotations = serde_json::Map::new();
        if let Some(peer) = peer {
            annotations.insert(PEER.into(), peer.into());
        }
        if in_process {
            annotations.insert(IN_PROCESS.into(), "true".into());
        }
        let json = json!({"metadata": {"annotations": annotations},
                          "spec": {"request": "", "signerName": ""}});
        serde_json::from_value(json).unwrap()
    }

    fn list<K: serde::de::DeserializeOwned>(objects: Value) -> Vec<Arc<K>> {
        serde_json::from_value::<Vec<K>>(objects)
            .unwrap()
            .into_iter()
            .map(Arc::new)
            .collect()
    }

    type View = Cluster<Arc<Node>, Arc<Service>, Arc<ServiceCIDR>, Arc<Pod>, Arc<EndpointSlice>>;

    fn cluster() -> View {
        let old = "2026-01-01T00:00:00Z";
        let new = "2026-02-01T00:00:00Z";
        let newer = "2026-03-01T00:00:00Z";
        let node = |name: &str, address: &str| {
            json!({"metadata": {"name": name, "creationTimestamp": new},
                   "spec": {"podCIDRs": [format!("10.99.{}.0/24", address.len())]},
                   "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
        };
        let service = |name: &str, namespace: &str, born: &str| {
            json!({"metadata": {"name": name, "namespace": namespace, "creationTimestamp": born},
                   "spec": {"clusterIPs": ["10.200.0.9"]}})
        };
        let pod = |address: &str, host: bool| {
            json!({"metadata": {"name": address}, "spec": {"containers": [], "hostNetwork": host},
                   "status": {"podIPs": [{"ip": address}]}})
        };
        Cluster {
            // A node can write any address into its status.
            nodes: list(json!([
                node("n1", "10.43.0.1"),
                node("n2", "192.0.2.2"),
                node("web", "192.0.2.3"),
                node("late", "192.0.2.4"),
                node("db.team", "192.0.2.5")
            ])),
            services: list(json!([
                service("web", "team", old),
                service("late", "team", newer),
                service("db", "team", old)
            ])),
            service_cidrs: list(
                json!([{"metadata": {}, "spec": {"cidrs": ["10.43.0.0/16", "fd00:43::/112"]}}]),
            ),
            pods: list(json!([pod("172.20.0.5", false), pod("192.0.2.1", true)])),
            slices: list(json!([{
                "metadata": {"name": "kubernetes", "namespace": "default",
                             "labels": {"kubernetes.io/service-name": "kubernetes"}},
                "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.100"]}]}])),
            pod_cidr: "10.42.0.0/16".to_owned(),
            server_names: [
                "kubernetes",
                "api.example.com",
                "192.0.2.101",
                "s1",
                "fd00::1",
            ]
            .map(str::to_owned)
            .into(),
            domain: "cluster.local".to_owned(),
        }
    }

    fn waits(
        peer: &str,
        in_process: bool,
        node: &str,
        names: &[&str],
        addresses: &[&str],
    ) -> Option<String> {
        let request = RequestedCertificate {
            dns_names: names.iter().map(|&name| name.to_owned()).collect(),
            addresses: addresses
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            ..RequestedCertificate::default()
        };
        let peer = Some(peer).filter(|peer| !peer.is_empty());
        cluster()
            .check(&csr(peer, in_process), &request, node)
            .err()
    }

    #[test]
    fn a_node_gets_a_certificate_for_the_address_that_it_came_from() {
        assert_eq!(
            waits("192.0.2.1", false, "n1", &["n1"], &["192.0.2.1"]),
            None
        );
        assert_eq!(waits("192.0.2.1", false, "n1", &[], &["192.0.2.1"]), None);
        assert_eq!(waits("fd00::7", false, "n1", &["n1"], &["fd00::7"]), None);
        assert_eq!(waits("192.0.2.4", false, "late", &["late"], &[]), None);
        // The node in the API server's process shares its address and name.
        assert_eq!(
            waits(
                "192.0.2.101",
                true,
                "api.example.com",
                &["api.example.com"],
                &["192.0.2.101"]
            ),
            None
        );
    }

    #[test]
    fn serving_certificates_for_unverified_addresses_are_not_approved_automatically() {
        for (peer, addresses, why) in [
            (
                "192.0.2.1",
                &["192.0.2.9"][..],
                "192.0.2.9 is not the address of the requester",
            ),
            (
                "192.0.2.1",
                &["192.0.2.1", "10.43.0.1"],
                "10.43.0.1 is not the address of the requester",
            ),
            (
                "10.43.0.1",
                &["10.43.0.1"][..],
                "10.43.0.1 is an address of a Service",
            ),
            (
                "fd00:43::1",
                &["fd00:43::1"][..],
                "fd00:43::1 is an address of a Service",
            ),
            (
                "10.200.0.9",
                &["10.200.0.9"][..],
                "10.200.0.9 is an address of a Service",
            ),
            (
                "192.0.2.2",
                &["192.0.2.2"][..],
                "192.0.2.2 is an address of node \"n2\"",
            ),
            (
                "192.0.2.100",
                &["192.0.2.100"][..],
                "192.0.2.100 is an address of the API server",
            ),
            (
                "192.0.2.101",
                &["192.0.2.101"][..],
                "192.0.2.101 is an address of the API server",
            ),
            (
                "fd00::1",
                &["fd00:0::1"][..],
                "fd00::1 is an address of the API server",
            ),
            (
                "127.0.0.1",
                &["127.0.0.1"][..],
                "127.0.0.1 is an address of no machine",
            ),
            (
                "10.42.3.4",
                &["10.42.3.4"][..],
                "10.42.3.4 is an address of a pod",
            ),
            (
                "10.99.9.4",
                &["10.99.9.4"][..],
                "10.99.9.4 is an address of a pod",
            ),
            (
                "172.20.0.5",
                &["172.20.0.5"][..],
                "172.20.0.5 is an address of a pod",
            ),
        ] {
            let waits = waits(peer, false, "n1", &[], addresses);
            assert_eq!(waits.as_deref(), Some(why), "{peer}");
        }
    }

    #[test]
    fn serving_certificates_for_other_names_are_not_approved_automatically() {
        for (peer, node, name, why) in [
            (
                "",
                "n1",
                "n1",
                "the API server does not know the address of the requester",
            ),
            ("192.0.2.1", "n1", "n2", "\"n2\" is not the node's name"),
            (
                "192.0.2.1",
                "n1",
                "kubernetes.default.svc",
                "\"kubernetes.default.svc\" is not the node's name",
            ),
            (
                "192.0.2.1",
                "kubernetes",
                "kubernetes",
                "\"kubernetes\" is a name of the API server",
            ),
            (
                "192.0.2.1",
                "localhost",
                "localhost",
                "\"localhost\" is a name of the API server",
            ),
            (
                "192.0.2.1",
                "s1",
                "s1",
                "\"s1\" is a name of the API server",
            ),
            (
                "192.0.2.1",
                "a.b.svc",
                "a.b.svc",
                "\"a.b.svc\" is a name of the cluster's DNS",
            ),
            (
                "192.0.2.1",
                "x.cluster.local",
                "x.cluster.local",
                "\"x.cluster.local\" is a name of the cluster's DNS",
            ),
            ("192.0.2.3", "web", "web", "\"web\" is a name of a Service"),
            (
                "192.0.2.5",
                "db.team",
                "db.team",
                "\"db.team\" is a name of a Service",
            ),
        ] {
            let waits = waits(peer, false, node, &[name], &[]);
            assert_eq!(waits.as_deref(), Some(why), "{peer} {node}");
        }
    }

    #[test]
    fn a_node_that_claims_many_addresses_keeps_few_others_from_their_certificates() {
        let addresses = [
            ("Hostname", "192.0.2.30"),
            ("InternalIP", "192.0.2.31"),
            ("InternalIP", "192.0.2.32"),
            ("ExternalIP", "203.0.113.31"),
            ("InternalIP", "fd00::31"),
            ("InternalIP", "fd00::32"),
        ];
        let addresses = addresses.map(|(kind, address)| json!({"type": kind, "address": address}));
        let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}});
        let node: Node = serde_json::from_value(node).unwrap();
        let found: Vec<String> = node_addresses(&node).map(|ip| ip.to_string()).collect();
        assert_eq!(found, ["192.0.2.31", "203.0.113.31", "fd00::31"]);
    }

    #[test]
    fn a_network_contains_its_addresses() {
        for (cidr, address, expected) in [
            ("10.42.0.0/16", "10.42.255.255", true),
            ("10.42.0.0/16", "10.43.0.0", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("192.0.2.1/32", "192.0.2.1", true),
            ("192.0.2.1/32", "192.0.2.2", false),
            ("::/0", "fd00::1", true),
            ("::/0", "10.0.0.1", false),
            ("fd00::/8", "fd12::1", true),
            ("nonsense", "10.0.0.1", false),
        ] {
            assert_eq!(
                holds(cidr, address.parse().unwrap()),
                expected,
                "{cidr} {address}"
            );
        }
    }
}
