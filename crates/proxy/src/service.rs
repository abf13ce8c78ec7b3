//! A Service reduced to plain data. Pure.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use k8s_openapi::api::{
    core::v1::{LoadBalancerIngress, Service},
    discovery::v1::EndpointSlice,
};
use network::Protocol;

use crate::{
    endpoints::{Chosen, EndpointQuery, IndexedSlice, NodeTopology, choose},
    sources::SourceRanges,
};

/// Services with this label, whatever its value, are served by another proxy.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// The annotation with the node that announces a load balancer's addresses.
const ANNOUNCER: &str = "mainstay.local/announced-by";
/// The condition of Services whose addresses are from the built-in load balancer's pool.
const FROM_POOL: &str = "mainstay.local/AddressFromPool";
/// The class of the built-in load balancer, which is also the default.
const CLASS: &str = "mainstay.local/load-balancer";

/// The maximum number of endpoints of a port: each needs a map of its own, which Services share.
const MOST_ENDPOINTS: usize = 2000;
/// The maximum of endpoints times ports of a Service.
const MOST_ELEMENTS: usize = 100_000;
/// The default affinity timeout.
const DEFAULT_AFFINITY_SECONDS: u32 = 10800;

/// One port of a Service in one IP family, with everything that determines its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortView {
    /// `namespace/name:port`, for names of chains.
    pub name: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the cluster IP and all other addresses.
    pub port: u16,
    /// The cluster IP.
    pub cluster_ip: IpAddr,
    /// Load balancer addresses, and external IPs if they are allowed.
    pub external_ips: Vec<IpAddr>,
    /// Those of them that are a load balancer's, with source ranges.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Allowed sources for the load balancer's addresses; all without it.
    pub source_ranges: Option<Arc<SourceRanges>>,
    /// The node port.
    pub node_port: Option<u16>,
    /// The session affinity timeout in seconds.
    pub affinity_seconds: Option<u32>,
    /// Whether internalTrafficPolicy is Local.
    pub internal_local: bool,
    /// Whether externalTrafficPolicy is Local: traffic stays on the node and keeps its source.
    pub external_local: bool,
    /// The endpoints.
    pub endpoints: Chosen,
}

impl PortView {
    /// The sets that remember clients: one for each endpoint, for clients inside and outside.
    pub fn affinity_sets(&self) -> usize {
        let Chosen { cluster, local, .. } = &self.endpoints;
        self.affinity_seconds
            .map_or(0, |_| cluster.len() + local.len())
    }

    /// Refuses clients of the load balancer's addresses, if it does not admit all.
    pub fn admit_no_source(&mut self) {
        if self.source_ranges.is_some() {
            self.source_ranges = Some(Arc::default());
        }
    }
}

/// The source ranges of a Service's views.
pub fn source_range_count(views: &[PortView]) -> usize {
    let guarded = views
        .iter()
        .filter(|view| !view.load_balancer_ips.is_empty());
    let of_family = |v4: bool| {
        let mut views = guarded.clone();
        let first = views.find(|view| view.cluster_ip.is_ipv4() == v4);
        first.and_then(|view| view.source_ranges.as_ref())
    };
    let ranges = [true, false].into_iter().filter_map(of_family);
    ranges.map(|ranges| ranges.count()).sum()
}

/// The operator's settings for Services.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether `spec.externalIPs` are used: anybody who may write Services can claim any address.
    pub allow_external_ips: bool,
}

/// The health check port of a Service with policy Local.
pub fn health_check_port(service: &Service) -> Option<u16> {
    let spec = service.spec.as_ref()?;
    let is_balancer = spec.type_.as_deref() == Some("LoadBalancer");
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let port = spec
        .health_check_node_port
        .filter(|_| is_balancer && is_local)?;
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// The addresses of a built-in load balancer that a node announces. Anybody who may write Services
/// can set the annotation; addresses of nodes are never announced by it.
pub fn announced_by(service: &Service, node: &str) -> Vec<IpAddr> {
    let annotations = service.metadata.annotations.as_ref();
    let announcer = annotations.and_then(|annotations| annotations.get(ANNOUNCER));
    let spec = service.spec.as_ref();
    let class = spec.and_then(|spec| spec.load_balancer_class.as_deref());
    if announcer.map(String::as_str) != Some(node) || class.is_some_and(|class| class != CLASS) {
        return Vec::new();
    }
    let all = balancer_addresses(service).into_iter();
    all.map(|address| address.ip).collect()
}

/// Whether the addresses are from the load balancer's pool. Only controllers write a Service's
/// status, so that neither a node nor a user who may write Services can set it.
pub fn is_from_pool(service: &Service) -> bool {
    let status = service.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == FROM_POOL && one.status == "True")
}

/// The views of a Service; empty if it has no cluster IP.
pub fn views(
    service: &Service,
    slices: &[&EndpointSlice],
    place: &NodeTopology,
    policy: Policy,
) -> Vec<PortView> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let labels = service.metadata.labels.as_ref();
    let is_of_another = labels.is_some_and(|labels| labels.contains_key(PROXY_NAME));
    if is_of_another || spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    let slices: Vec<_> = slices
        .iter()
        .map(|slice| IndexedSlice::new(slice))
        .collect();
    let ports = spec.ports.as_ref().map_or(1, Vec::len).max(1);
    let most = (MOST_ELEMENTS / ports).clamp(1, MOST_ENDPOINTS);
    let balancer = balancer_addresses(service);
    let mut views = Vec::new();
    for cluster_ip in cluster_ips(service) {
        let source_ranges = SourceRanges::of_service(service, cluster_ip.is_ipv4());
        for port in spec.ports.iter().flatten() {
            let Some(protocol) = Protocol::from_kubernetes(port.protocol.as_deref()) else {
                continue;
            };
            let Ok(number) = u16::try_from(port.port) else {
                continue;
            };
            let port_name = port.name.as_deref().unwrap_or_default();
            let wanted = EndpointQuery {
                port_name,
                protocol,
                v4: cluster_ip.is_ipv4(),
            };
            let node_port = port.node_port.and_then(|port| u16::try_from(port).ok());
            let own = balancer.iter().filter(|address| {
                address.ip.is_ipv4() == cluster_ip.is_ipv4() && address.has(protocol, port.port)
            });
            let load_balancer_ips: Vec<IpAddr> = own.map(|address| address.ip).collect();
            let mut external_ips = load_balancer_ips.clone();
            if policy.allow_external_ips {
                external_ips.extend(same_family(spec.external_ips.iter().flatten(), cluster_ip));
            }
            views.push(PortView {
                name: name_of(service, port_name),
                protocol,
                port: number,
                cluster_ip,
                external_ips,
                load_balancer_ips,
                source_ranges: source_ranges.clone(),
                node_port: node_port.filter(|port| *port != 0),
                affinity_seconds: affinity(service),
                internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
                external_local: spec.external_traffic_policy.as_deref() == Some("Local"),
                endpoints: choose(&slices, wanted, place).limited(most, &place.node),
            });
        }
    }
    views
}

fn name_of(service: &Service, port_name: &str) -> String {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}:{port_name}")
}

fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let listed = spec.cluster_ips.iter().flatten();
    let mut ips: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
    if ips.is_empty() {
        ips.extend(
            spec.cluster_ip
                .iter()
                .filter_map(|ip| ip.parse::<IpAddr>().ok()),
        );
    }
    ips
}

fn same_family<'a>(ips: impl Iterator<Item = &'a String>, like: IpAddr) -> Vec<IpAddr> {
    ips.filter_map(|ip| ip.parse().ok())
        .filter(|ip: &IpAddr| ip.is_ipv4() == like.is_ipv4())
        .collect()
}

/// An address of a load balancer.
struct BalancerAddress {
    ip: IpAddr,
    /// The ports that the Service has got at the address; all without it. A user chooses how many there are.
    ports: Option<HashSet<(Protocol, i32)>>,
}

impl BalancerAddress {
    /// Until the load balancer has assigned a new port, it may belong to another Service.
    fn has(&self, protocol: Protocol, port: i32) -> bool {
        let ports = self.ports.as_ref();
        ports.is_none_or(|ports| ports.contains(&(protocol, port)))
    }
}

/// The load balancer's addresses. Only the built-in one lists the ports that a Service has got.
fn balancer_addresses(service: &Service) -> Vec<BalancerAddress> {
    let spec = service.spec.as_ref();
    if spec.and_then(|spec| spec.type_.as_deref()) != Some("LoadBalancer") {
        return Vec::new();
    }
    let class = spec.and_then(|spec| spec.load_balancer_class.as_deref());
    let is_inside = class.is_none_or(|class| class == CLASS);
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    // With ipMode Proxy traffic is sent to the load balancer itself.
    let direct = ingress.into_iter().flatten();
    let direct = direct.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    let address = |ingress: &LoadBalancerIngress| {
        let ports = ingress.ports.as_deref().unwrap_or_default();
        let given = ports.iter().filter(|port| port.error.is_none());
        let given = given.filter_map(|given| {
            Some((
                Protocol::from_kubernetes(Some(&given.protocol))?,
                given.port,
            ))
        });
        Some(BalancerAddress {
            ip: ingress.ip.as_ref()?.parse().ok()?,
            ports: (is_inside && !ports.is_empty()).then(|| given.collect()),
        })
    };
    direct.filter_map(address).collect()
}

fn affinity(service: &Service) -> Option<u32> {
    let spec = service.spec.as_ref()?;
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let seconds = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    Some(
        seconds
            .and_then(|seconds| u32::try_from(seconds).ok())
            .unwrap_or(DEFAULT_AFFINITY_SECONDS),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn view(spec: Value, status: Value) -> Vec<PortView> {
        let service: Service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"}, "spec": spec, "status": status,
        }))
        .unwrap();
        views(&service, &[], &NodeTopology::default(), Policy::default())
    }

    #[test]
    fn headless_external_name_and_empty_services_need_nothing() {
        let ports = json!([{"port": 80}]);
        assert!(
            view(
                json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": ports}),
                json!({})
            )
            .is_empty()
        );
        assert!(
            view(
                json!({"type": "ExternalName", "externalName": "a.b"}),
                json!({})
            )
            .is_empty()
        );
        assert!(view(json!({"ports": ports}), json!({})).is_empty());
    }

    #[test]
    fn a_service_with_the_label_of_another_proxy_is_not_served() {
        for (label, served) in [
            ("service.kubernetes.io/headless", 1),
            ("service.kubernetes.io/service-proxy-name", 0),
            ("app", 1),
        ] {
            let service: Service = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "default", "labels": {label: ""}},
                "spec": {"clusterIP": "10.43.0.9", "ports": [{"port": 80}]},
            }))
            .unwrap();
            let views = views(&service, &[], &NodeTopology::default(), Policy::default());
            assert_eq!(views.len(), served, "{label}");
        }
    }

    #[test]
    fn external_ips_are_served_only_if_they_are_allowed() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"clusterIPs": ["10.43.0.9", "fd43::9"], "ports": [{"port": 80}],
                     "externalIPs": ["192.0.2.7", "2001:db8::7"]},
        }))
        .unwrap();
        for (allow_external_ips, expected) in
            [(false, ["", ""]), (true, ["192.0.2.7", "2001:db8::7"])]
        {
            let policy = Policy { allow_external_ips };
            let views = views(&service, &[], &NodeTopology::default(), policy);
            let shown: Vec<String> = views
                .iter()
                .map(|view| {
                    let ips = view.external_ips.iter().map(ToString::to_string);
                    ips.collect::<Vec<_>>().join(" ")
                })
                .collect();
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn every_cluster_address_and_port_is_a_view() {
        let views = view(
            json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9", "fd00::9"],
                   "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP", "nodePort": 30053}]}),
            json!({}),
        );
        let shown: Vec<_> = views
            .iter()
            .map(|view| {
                (
                    view.cluster_ip.to_string(),
                    view.protocol,
                    view.port,
                    view.node_port,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("10.43.0.9".into(), Protocol::Tcp, 80, None),
                ("10.43.0.9".into(), Protocol::Udp, 53, Some(30053)),
                ("fd00::9".into(), Protocol::Tcp, 80, None),
                ("fd00::9".into(), Protocol::Udp, 53, Some(30053)),
            ]
        );
    }

    #[test]
    fn a_service_of_many_ports_has_fewer_endpoints() {
        let endpoints: Vec<Value> = (0..2100)
            .map(
                |number| json!({"addresses": [format!("10.42.{}.{}", number / 250, number % 250)]}),
            )
            .collect();
        for (count, expected) in [(1, 2000), (50, 2000), (100, 1000)] {
            let port = |number: i32| json!({"name": format!("p{number}"), "port": number});
            let ports: Vec<Value> = (1..=count).map(port).collect();
            let service: Service = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"clusterIP": "10.43.0.9", "ports": ports}}))
            .unwrap();
            let slice: EndpointSlice = serde_json::from_value(json!({
                "metadata": {"name": "web-1", "namespace": "default"},
                "addressType": "IPv4", "ports": ports, "endpoints": endpoints}))
            .unwrap();
            let place = NodeTopology::default();
            let views = views(&service, &[&slice], &place, Policy::default());
            assert_eq!(views.len(), usize::try_from(count).unwrap());
            for view in views {
                assert_eq!(view.endpoints.cluster.len(), expected, "{count} ports");
            }
        }
    }

    #[test]
    fn load_balancer_addresses_count_unless_it_wants_the_traffic_itself() {
        let views = view(
            json!({"type": "LoadBalancer", "clusterIP": "10.43.0.9", "ports": [{"port": 80}],
                   "externalIPs": ["203.0.113.1"], "loadBalancerSourceRanges": ["198.51.100.0/24"]}),
            json!({"loadBalancer": {"ingress": [
                {"ip": "203.0.113.7"}, {"ip": "203.0.113.8", "ipMode": "Proxy"}, {"hostname": "lb.example"}]}}),
        );
        assert_eq!(
            views[0].external_ips,
            ["203.0.113.7".parse::<IpAddr>().unwrap()]
        );
        let ranges = views[0].source_ranges.as_ref().unwrap();
        assert_eq!(ranges.elements(), ["198.51.100.0/24"]);
        assert_eq!(source_range_count(&views), 1);
    }

    #[test]
    fn a_port_that_the_load_balancer_inside_has_not_given_yet_is_not_served_at_its_addresses() {
        let served = |class: Value| -> Vec<u16> {
            let views = view(
                json!({"type": "LoadBalancer", "clusterIP": "10.43.0.9", "loadBalancerClass": class,
                       "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 443},
                                 {"name": "c", "port": 80, "protocol": "UDP"}]}),
                json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.7",
                    "ports": [{"port": 80, "protocol": "TCP"}]}]}}),
            );
            assert_eq!(views.len(), 3);
            let with = views.iter().filter(|view| !view.external_ips.is_empty());
            with.map(|view| view.port).collect()
        };
        assert_eq!(served(json!(null)), [80]);
        assert_eq!(served(json!(CLASS)), [80]);
        assert_eq!(served(json!("example.com/other")), [80, 443, 80]);
    }

    #[test]
    fn affinity_has_three_hours_unless_it_says_otherwise() {
        let spec = |config: Value| {
            json!({"clusterIP": "10.43.0.9", "ports": [{"port": 80}],
                   "sessionAffinity": "ClientIP", "sessionAffinityConfig": config})
        };
        assert_eq!(
            view(spec(json!(null)), json!({}))[0].affinity_seconds,
            Some(10800)
        );
        assert_eq!(
            view(spec(json!({"clientIP": {"timeoutSeconds": 5}})), json!({}))[0].affinity_seconds,
            Some(5)
        );
    }
}
