//! The map elements and chains of one Service. Pure.
//!
//! A plain Service needs only elements. A set per number of endpoints contains the addresses and
//! ports and leads to the chain that picks one of that many; a map per index returns endpoint
//! number 0, 1 and so on. All of these are shared, so that a change adds a rule only if a Service
//! is the first of its size. Only Services with session affinity have chains and sets of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    sync::Arc,
};

use network::{Protocol, names::object_hash};

use crate::{endpoints::Endpoint, service::PortView, sources::SourceRanges, table::on_node};

/// A map or set of the table, without the family's suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Map {
    /// Address, protocol, port (or only the last two, for node ports) with this many endpoints.
    Served(Front, u16),
    /// Address, protocol, port → a verdict other than a shared chain. Few, since the kernel
    /// validates all verdicts whenever one is added.
    Services,
    /// Address, protocol, port → the endpoint with this number.
    Endpoints(u16),
    /// As `Services`, but only for clients outside the cluster, and looked up first.
    OutsideServices,
    /// As `Endpoints`, for `OutsideServices`.
    OutsideEndpoints(u16),
    /// Protocol, port → verdict.
    NodePorts,
    /// Protocol, port → the endpoint with this number.
    NodePortEndpoints(u16),
    /// As `NodePorts`, but only for clients outside the cluster, and looked up first.
    OutsideNodePorts,
    /// As `NodePortEndpoints`, for `OutsideNodePorts`.
    OutsideNodePortEndpoints(u16),
    /// Address, protocol, port without any endpoint.
    Unserved,
    /// Protocol, node port without any endpoint.
    UnservedNodePorts,
    /// Endpoint, endpoint: a pod that reaches itself through a Service.
    Hairpin,
    /// Address, protocol, port with source ranges → the chain that admits some clients.
    Guarded,
}

impl Map {
    /// Those that always exist; maps of endpoints are added as needed.
    pub const FIXED: [Self; 8] = [
        Self::Services,
        Self::OutsideServices,
        Self::NodePorts,
        Self::OutsideNodePorts,
        Self::Unserved,
        Self::UnservedNodePorts,
        Self::Hairpin,
        Self::Guarded,
    ];

    /// Its name in the table.
    pub fn name(self, v4: bool) -> String {
        let digit = digit(v4);
        let name = match self {
            Self::Served(front, count) => return format!("served-{}{digit}-{count}", front.name()),
            Self::Services => "services",
            Self::Endpoints(number) => return format!("endpoints{digit}-{number}"),
            Self::OutsideServices => "outside-services",
            Self::OutsideEndpoints(number) => return format!("outside-endpoints{digit}-{number}"),
            Self::NodePorts => "nodeports",
            Self::NodePortEndpoints(number) => {
                return format!("nodeport-endpoints{digit}-{number}");
            }
            Self::OutsideNodePorts => "outside-nodeports",
            Self::OutsideNodePortEndpoints(number) => {
                return format!("outside-nodeport-endpoints{digit}-{number}");
            }
            Self::Unserved => "unserved",
            Self::UnservedNodePorts => "unserved-nodeports",
            Self::Hairpin => "hairpin",
            Self::Guarded => "guarded",
        };
        format!("{name}{digit}")
    }

    /// The first map of its kind, and this one's index.
    pub fn numbered(self) -> (Self, u16) {
        match self {
            Self::Endpoints(number) => (Self::Endpoints(0), number),
            Self::OutsideEndpoints(number) => (Self::OutsideEndpoints(0), number),
            Self::NodePortEndpoints(number) => (Self::NodePortEndpoints(0), number),
            Self::OutsideNodePortEndpoints(number) => (Self::OutsideNodePortEndpoints(0), number),
            other => (other, 0),
        }
    }

    /// The chain that translates to the endpoints of this map.
    pub fn chain(self, v4: bool) -> String {
        format!("to-{}", self.name(v4))
    }

    /// The rule of that chain.
    pub fn translation(self, v4: bool) -> String {
        let (ip, protocol) = if v4 { ("ip", "ipv4") } else { ("ip6", "ipv6") };
        let address = match self {
            Self::NodePortEndpoints(_) | Self::OutsideNodePortEndpoints(_) => String::new(),
            _ => format!("{ip} daddr . "),
        };
        let map = self.name(v4);
        format!("meta nfproto {protocol} dnat {ip} to {address}meta l4proto . th dport map @{map}")
    }
}

fn digit(v4: bool) -> char {
    if v4 { '4' } else { '6' }
}

/// An element's key in a map or set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The map.
    pub map: Map,
    /// The IP family.
    pub v4: bool,
    /// The key in nftables' syntax.
    pub key: String,
}

/// How clients reach a port, which determines the map of its endpoints and masquerading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Front {
    /// A cluster IP: masqueraded if the client is outside the cluster.
    Cluster,
    /// A load balancer or external address: masqueraded.
    External,
    /// The same with policy Local, for clients inside: masqueraded unless the client is a pod.
    ExternalInside,
    /// The same for clients outside, which keep their address and get only endpoints of this node.
    Outside,
    /// A node port: masqueraded.
    NodePort,
    /// The same with policy Local, for clients inside: masqueraded unless the client is a pod.
    NodePortInside,
    /// The same for clients outside, which keep their address and get only endpoints of this node.
    OutsideNodePort,
}

impl Front {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cluster,
        Self::External,
        Self::ExternalInside,
        Self::Outside,
        Self::NodePort,
        Self::NodePortInside,
        Self::OutsideNodePort,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::External => "external",
            Self::ExternalInside => "external-inside",
            Self::Outside => "outside",
            Self::NodePort => "nodeport",
            Self::NodePortInside => "nodeport-inside",
            Self::OutsideNodePort => "outside-nodeport",
        }
    }

    fn verdicts(self) -> Map {
        match self {
            Self::Cluster | Self::External | Self::ExternalInside => Map::Services,
            Self::Outside => Map::OutsideServices,
            Self::NodePort | Self::NodePortInside => Map::NodePorts,
            Self::OutsideNodePort => Map::OutsideNodePorts,
        }
    }

    fn endpoints(self, number: u16) -> Map {
        match self {
            Self::Cluster | Self::External | Self::ExternalInside => Map::Endpoints(number),
            Self::Outside => Map::OutsideEndpoints(number),
            Self::NodePort | Self::NodePortInside => Map::NodePortEndpoints(number),
            Self::OutsideNodePort => Map::OutsideNodePortEndpoints(number),
        }
    }

    /// The chain that decides about masquerading before an endpoint is picked.
    pub fn mark_chain(self) -> String {
        format!("mark-{}", self.name())
    }
}

/// A chain that picks one of `count` endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pick {
    /// The kind of address.
    pub front: Front,
    /// The IP family.
    pub v4: bool,
    /// The number of endpoints.
    pub count: u16,
}

impl Pick {
    /// The chain's name.
    pub fn chain(self) -> String {
        format!(
            "pick-{}{}-{}",
            self.front.name(),
            digit(self.v4),
            self.count
        )
    }

    /// The set of addresses with this many endpoints.
    pub fn set(self) -> Map {
        Map::Served(self.front, self.count)
    }

    /// The rule that leads here, and the chain that contains it.
    pub fn entry(self) -> (&'static str, String) {
        let port = "meta l4proto . th dport";
        let key = match self.front {
            Front::NodePort | Front::NodePortInside | Front::OutsideNodePort => {
                format!("{} {port}", on_node(self.v4))
            }
            _ if self.v4 => format!("ip daddr . {port}"),
            _ => format!("ip6 daddr . {port}"),
        };
        let chain = match self.front {
            Front::Outside | Front::OutsideNodePort => "outside-entries",
            _ => "entries",
        };
        (
            chain,
            format!("{key} @{} goto {}", self.set().name(self.v4), self.chain()),
        )
    }

    /// The maps of the endpoints that it picks from.
    pub fn maps(self) -> impl Iterator<Item = Map> {
        (0..self.count).map(move |number| self.front.endpoints(number))
    }

    /// The first of them.
    pub fn first_map(self) -> Map {
        self.front.endpoints(0)
    }

    /// Its rules.
    pub fn rules(self) -> Vec<String> {
        let choices: Vec<String> = self
            .maps()
            .enumerate()
            .map(|(number, map)| format!("{number} : goto {}", map.chain(self.v4)))
            .collect();
        vec![
            format!("jump {}", self.front.mark_chain()),
            format!(
                "numgen random mod {} vmap {{ {} }}",
                self.count,
                choices.join(", ")
            ),
        ]
    }
}

/// A chain or set of a single Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A chain with these rules.
    Chain(Vec<String>),
    /// A set with this declaration.
    Set(String),
    /// A set of source ranges, which does not change.
    Ranges(Arc<SourceRanges>),
}

/// An address of a Service for UDP; without an address, a node port.
pub type Frontend = (Option<IpAddr>, u16);

/// Everything that one Service adds to the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contribution {
    /// Elements; the value is empty in sets.
    pub elements: BTreeMap<Slot, String>,
    /// Shared chains that the elements lead to.
    pub picks: BTreeSet<Pick>,
    /// Chains and sets of its own.
    pub objects: BTreeMap<String, Object>,
    /// For UDP: the endpoints whose conversations go on, by address.
    pub datagrams: BTreeMap<Frontend, BTreeSet<(IpAddr, u16)>>,
}

/// The contribution of a Service's views.
pub fn contribution(views: &[PortView]) -> Contribution {
    let mut all = Contribution::default();
    for view in views {
        all.add(view);
    }
    all
}

impl Contribution {
    fn add(&mut self, view: &PortView) {
        let cluster = &view.endpoints.cluster;
        let internal = if view.internal_local {
            &view.endpoints.local
        } else {
            cluster
        };
        let deserted = cluster.is_empty();
        self.serve(
            view,
            Front::Cluster,
            Some(view.cluster_ip),
            internal,
            deserted,
        );
        let (external, node_port) = match view.external_local {
            true => (Front::ExternalInside, Front::NodePortInside),
            false => (Front::External, Front::NodePort),
        };
        for ip in &view.external_ips {
            self.serve(view, external, Some(*ip), cluster, deserted);
            if view.external_local && !deserted {
                self.serve(
                    view,
                    Front::Outside,
                    Some(*ip),
                    &view.endpoints.local,
                    false,
                );
            }
        }
        if view.node_port.is_some() {
            self.serve(view, node_port, None, cluster, deserted);
            if view.external_local && !deserted {
                self.serve(
                    view,
                    Front::OutsideNodePort,
                    None,
                    &view.endpoints.local,
                    false,
                );
            }
        }
        self.guard(view);
        for endpoint in cluster
            .iter()
            .chain(&view.endpoints.local)
            .filter(|endpoint| endpoint.local)
        {
            self.element(
                Map::Hairpin,
                view,
                format!("{} . {}", endpoint.ip, endpoint.ip),
                "",
            );
        }
    }

    fn element(&mut self, map: Map, view: &PortView, key: String, value: impl Into<String>) {
        let v4 = view.cluster_ip.is_ipv4();
        self.elements.insert(Slot { map, v4, key }, value.into());
    }

    /// Adds one address (or the node port) with its endpoints.
    fn serve(
        &mut self,
        view: &PortView,
        front: Front,
        ip: Option<IpAddr>,
        endpoints: &[Endpoint],
        deserted: bool,
    ) {
        let port = if ip.is_some() {
            view.port
        } else {
            view.node_port.unwrap_or_default()
        };
        let key = key(ip, view.protocol, port);
        if view.protocol == Protocol::Udp {
            let kept = &view.endpoints.kept;
            self.datagrams.entry((ip, port)).or_default().extend(kept);
        }
        if deserted {
            // A cluster IP without endpoints needs nothing: untranslated packets to the service
            // CIDR are rejected.
            match front {
                Front::External | Front::ExternalInside => {
                    self.element(Map::Unserved, view, key, "");
                }
                Front::NodePort | Front::NodePortInside => {
                    self.element(Map::UnservedNodePorts, view, key, "");
                }
                _ => {}
            }
            return;
        }
        if endpoints.is_empty() {
            // There are endpoints, but not on this node: the client may reach them through another
            // one.
            self.element(front.verdicts(), view, key, "drop");
            return;
        }
        if let Some(seconds) = view.affinity_seconds {
            let chain = self.sticky(view, front, endpoints, seconds);
            self.element(front.verdicts(), view, key, format!("goto {chain}"));
            return;
        }
        // Endpoints beyond the maximum index are not used.
        let numbered = || (0..u16::MAX).zip(endpoints);
        let v4 = view.cluster_ip.is_ipv4();
        let pick = Pick {
            front,
            v4,
            count: numbered().map(|(number, _)| number + 1).max().unwrap_or(1),
        };
        self.picks.insert(pick);
        for (number, endpoint) in numbered() {
            let value = format!("{} . {}", endpoint.ip, endpoint.port);
            self.element(front.endpoints(number), view, key.clone(), value);
        }
        self.element(pick.set(), view, key, "");
    }

    /// Adds chains and sets that remember each client's endpoint.
    fn sticky(
        &mut self,
        view: &PortView,
        front: Front,
        endpoints: &[Endpoint],
        seconds: u32,
    ) -> String {
        let v4 = view.cluster_ip.is_ipv4();
        let (ip, kind) = if v4 {
            ("ip", "ipv4_addr")
        } else {
            ("ip6", "ipv6_addr")
        };
        // Clients keep their endpoint on all addresses of a Service, unless policies differ.
        let scope = match front {
            Front::Outside | Front::OutsideNodePort => "outside",
            Front::Cluster if view.internal_local => "inside",
            _ => "all",
        };
        let hash = object_hash(&format!(
            "{}/{:?}/{}/{scope}",
            view.name,
            view.protocol,
            digit(v4)
        ));
        let (mut known, mut fresh) = (Vec::new(), Vec::new());
        for (number, endpoint) in endpoints.iter().enumerate() {
            let tail = format!(
                "{hash}-{}-{}",
                endpoint.ip.to_string().replace(':', "_"),
                endpoint.port
            );
            let (set, chain) = (format!("clients-{tail}"), format!("endpoint-{tail}"));
            let declaration =
                format!("{{ type {kind}; flags dynamic,timeout; timeout {seconds}s; }}");
            self.objects.insert(set.clone(), Object::Set(declaration));
            let to = std::net::SocketAddr::new(endpoint.ip, endpoint.port);
            let rules = vec![
                format!("update @{set} {{ {ip} saddr }}"),
                format!("meta l4proto {} dnat {ip} to {to}", view.protocol.as_str()),
            ];
            self.objects.insert(chain.clone(), Object::Chain(rules));
            known.push(format!("{ip} saddr @{set} goto {chain}"));
            fresh.push(format!("{number} : goto {chain}"));
        }
        let choose = format!("choose-{hash}");
        known.push(format!(
            "numgen random mod {} vmap {{ {} }}",
            endpoints.len(),
            fresh.join(", ")
        ));
        self.objects.insert(choose.clone(), Object::Chain(known));
        let entry = format!("sticky-{hash}-{}", front.name());
        let rules = vec![
            format!("jump {}", front.mark_chain()),
            format!("goto {choose}"),
        ];
        self.objects.insert(entry.clone(), Object::Chain(rules));
        entry
    }

    fn guard(&mut self, view: &PortView) {
        let Some(ranges) = &view.source_ranges else {
            return;
        };
        for ip in &view.load_balancer_ips {
            let key = key(Some(*ip), view.protocol, view.port);
            let verdict = ranges.verdict(&mut self.objects);
            self.element(Map::Guarded, view, key, verdict);
        }
    }
}

fn key(ip: Option<IpAddr>, protocol: Protocol, port: u16) -> String {
    let address = ip.map(|ip| format!("{ip} . ")).unwrap_or_default();
    format!("{address}{} . {port}", protocol.as_str())
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.map.name(self.v4), self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::Chosen;

    fn endpoint(ip: &str, local: bool) -> Endpoint {
        Endpoint {
            ip: ip.parse().unwrap(),
            port: 8080,
            local,
        }
    }

    fn view() -> PortView {
        PortView {
            name: "default/web:http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            cluster_ip: "10.43.0.9".parse().unwrap(),
            external_ips: vec![],
            load_balancer_ips: vec![],
            source_ranges: None,
            node_port: None,
            affinity_seconds: None,
            internal_local: false,
            external_local: false,
            endpoints: Chosen {
                cluster: vec![endpoint("10.42.0.1", true), endpoint("10.42.1.1", false)],
                local: vec![endpoint("10.42.0.1", true)],
                ..Chosen::default()
            },
        }
    }

    fn shown(view: &PortView) -> Vec<String> {
        let elements = contribution(std::slice::from_ref(view)).elements;
        elements
            .iter()
            .map(|(slot, value)| format!("{slot} : {value}"))
            .collect()
    }

    #[test]
    fn a_cluster_address_leads_to_all_endpoints() {
        assert_eq!(
            shown(&view()),
            [
                "served-cluster4-2 10.43.0.9 . tcp . 80 : ",
                "endpoints4-0 10.43.0.9 . tcp . 80 : 10.42.0.1 . 8080",
                "endpoints4-1 10.43.0.9 . tcp . 80 : 10.42.1.1 . 8080",
                "hairpin4 10.42.0.1 . 10.42.0.1 : ",
            ]
        );
    }

    #[test]
    fn a_cluster_address_without_endpoints_needs_nothing() {
        let mut view = view();
        view.endpoints = Chosen::default();
        assert!(shown(&view).is_empty());
    }

    #[test]
    fn internal_policy_local_drops_when_this_node_has_no_endpoint() {
        let mut view = view();
        view.internal_local = true;
        view.endpoints.local.clear();
        assert_eq!(shown(&view)[0], "services4 10.43.0.9 . tcp . 80 : drop");
    }

    #[test]
    fn external_policy_local_gives_outsiders_the_endpoints_of_this_node() {
        let mut view = view();
        view.node_port = Some(30080);
        view.external_ips = vec!["203.0.113.7".parse().unwrap()];
        view.external_local = true;
        let shown = shown(&view);
        for expected in [
            "served-external-inside4-2 203.0.113.7 . tcp . 80 : ",
            "served-outside4-1 203.0.113.7 . tcp . 80 : ",
            "outside-endpoints4-0 203.0.113.7 . tcp . 80 : 10.42.0.1 . 8080",
            "served-nodeport-inside4-2 tcp . 30080 : ",
            "served-outside-nodeport4-1 tcp . 30080 : ",
            "outside-nodeport-endpoints4-0 tcp . 30080 : 10.42.0.1 . 8080",
        ] {
            assert!(
                shown.iter().any(|element| element == expected),
                "{expected} in {shown:#?}"
            );
        }
    }

    #[test]
    fn addresses_and_ports_without_any_endpoint_are_rejected() {
        let mut view = view();
        view.node_port = Some(30080);
        view.external_ips = vec!["203.0.113.7".parse().unwrap()];
        view.external_local = true;
        view.endpoints = Chosen::default();
        assert_eq!(
            shown(&view),
            [
                "unserved4 203.0.113.7 . tcp . 80 : ",
                "unserved-nodeports4 tcp . 30080 : "
            ]
        );
    }

    #[test]
    fn affinity_has_a_set_of_clients_per_endpoint() {
        let mut view = view();
        view.affinity_seconds = Some(60);
        let contribution = contribution(&[view]);
        let sets = contribution
            .objects
            .values()
            .filter(|object| matches!(object, Object::Set(_)))
            .count();
        assert_eq!(sets, 2);
        assert!(
            contribution
                .elements
                .values()
                .any(|value| value.starts_with("goto sticky-"))
        );
        assert!(contribution.picks.is_empty());
    }

    #[test]
    fn source_ranges_guard_the_load_balancer() {
        let mut view = view();
        view.external_ips = vec!["203.0.113.7".parse().unwrap()];
        view.load_balancer_ips = view.external_ips.clone();
        let ranges: Vec<network::IpNet> = (0..200_u8)
            .map(|number| network::Ipv4Net::new([198, 51, number, 0].into(), 25).unwrap())
            .map(Into::into)
            .collect();
        let ranges = Arc::new(SourceRanges::new("default/web", true, ranges));
        view.source_ranges = Some(ranges);
        let ports = (1..=100).map(|port| PortView {
            port,
            ..view.clone()
        });
        let all = contribution(&ports.collect::<Vec<_>>());
        // The ranges are there once, whatever the number of ports.
        let (guards, sets): (Vec<&String>, Vec<&String>) = all
            .objects
            .keys()
            .partition(|name| name.starts_with("guard-"));
        assert_eq!((guards.len(), sets.len()), (1, 1));
        let goto = format!("goto {}", guards[0]);
        let is_guard =
            |(slot, value): &(&Slot, &String)| slot.map == Map::Guarded && **value == goto;
        assert_eq!(all.elements.iter().filter(is_guard).count(), 100);
        view.admit_no_source();
        let none = contribution(&[view]);
        assert!(none.objects.is_empty());
        let guarded = none
            .elements
            .iter()
            .find(|(slot, _)| slot.map == Map::Guarded);
        assert_eq!(guarded.map(|(_, value)| value.as_str()), Some("drop"));
    }

    #[test]
    fn udp_addresses_are_recorded_with_their_endpoints() {
        let mut view = view();
        view.protocol = Protocol::Udp;
        view.endpoints.kept = ["10.42.0.1", "10.42.1.1"]
            .map(|ip| (ip.parse().unwrap(), 8080))
            .into();
        let contribution = contribution(&[view]);
        assert_eq!(
            contribution.datagrams[&(Some("10.43.0.9".parse().unwrap()), 80)].len(),
            2
        );
    }
}
