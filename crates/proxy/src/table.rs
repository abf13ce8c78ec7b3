//! The fixed part of the table: maps, sets and the base chains. Pure.
//!
//! Translation happens in the nat hooks of prerouting and output, so that pods, the node itself and
//! hosts outside are served alike. Rejection and network policies are in later filter hooks, where
//! packets have their translated destination.

use std::net::{IpAddr, SocketAddr};

use network::{IpNet, names, nft::Batch};

use crate::rules::{Front, Map};

/// The packet mark for masquerading; cleared afterwards.
const MARK: &str = "0x4000";

/// The parameters of the fixed part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The cluster's id.
    pub id: String,
    /// The cluster CIDRs.
    pub cluster_cidrs: Vec<IpNet>,
    /// The service CIDRs.
    pub service_cidrs: Vec<IpNet>,
    /// The redirection of the cluster's DNS address.
    pub dns: Option<DnsRedirect>,
    /// Node ports are served only at the node's addresses in these ranges; at all of them if empty.
    pub node_port_addresses: Vec<IpNet>,
}

/// Redirects the cluster DNS address to the node's own server, before any Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsRedirect {
    /// The addresses that pods use, at most one per family.
    pub cluster_dns: Vec<IpAddr>,
    /// The addresses of the node's server, at most one per family; not loopback.
    pub listeners: Vec<SocketAddr>,
}

impl Frame {
    /// The table's name.
    pub fn table(&self) -> String {
        names::table_of(&self.id, "services")
    }

    /// Writes the table from scratch, without any Service.
    pub fn write(&self, batch: &mut Batch) {
        let table = self.table();
        batch.replace_table("inet", &table);
        for v4 in [true, false] {
            for map in Map::FIXED {
                batch.push(declaration(&table, map, v4));
            }
        }
        let mut frame = Writer { table, batch };
        frame.node_addresses(self);
        frame.chains();
        frame.marks(self);
        frame.translation(self);
        frame.invalid(self);
        frame.rejection(self);
        frame.refusal();
        frame.masquerade();
    }

    fn cidrs(cidrs: &[IpNet], v4: bool) -> Option<String> {
        let of_family = cidrs.iter().filter(|cidr| cidr.addr().is_ipv4() == v4);
        let listed: Vec<String> = of_family.map(ToString::to_string).collect();
        (!listed.is_empty()).then(|| listed.join(", "))
    }
}

/// The statement that creates a map or set.
pub fn declaration(table: &str, map: Map, v4: bool) -> String {
    let address = if v4 { "ipv4_addr" } else { "ipv6_addr" };
    let name = map.name(v4);
    let port = "inet_proto . inet_service";
    let (what, key) = match map {
        Map::Served(Front::NodePort | Front::NodePortInside | Front::OutsideNodePort, _) => {
            ("set", port.to_owned())
        }
        Map::Served(..) => ("set", format!("{address} . {port}")),
        Map::Services | Map::OutsideServices => ("map", format!("{address} . {port} : verdict")),
        Map::NodePorts | Map::OutsideNodePorts => ("map", format!("{port} : verdict")),
        Map::Endpoints(_) | Map::OutsideEndpoints(_) => (
            "map",
            format!("{address} . {port} : {address} . inet_service"),
        ),
        Map::NodePortEndpoints(_) | Map::OutsideNodePortEndpoints(_) => {
            ("map", format!("{port} : {address} . inet_service"))
        }
        Map::Guarded => ("map", format!("{address} . {port} : verdict")),
        Map::Unserved => ("set", format!("{address} . {port}")),
        Map::UnservedNodePorts => ("set", port.to_owned()),
        Map::Hairpin => ("set", format!("{address} . {address}")),
    };
    format!("add {what} inet {table} {name} {{ type {key}; }}")
}

/// Adds chains and rules to one table.
struct Writer<'a> {
    table: String,
    batch: &'a mut Batch,
}

/// A family's address keyword, and whether it is IPv4.
const FAMILIES: [(&str, bool); 2] = [("ip", true), ("ip6", false)];

/// Matches addresses for node ports: the node's in the configured ranges, except IPv6 loopback,
/// from which packets cannot leave.
pub fn on_node(v4: bool) -> &'static str {
    if v4 {
        "ip daddr @node-addresses4 fib daddr type local"
    } else {
        "ip6 daddr != ::1 ip6 daddr @node-addresses6 fib daddr type local"
    }
}

impl Writer<'_> {
    fn rule(&mut self, chain: &str, rule: impl AsRef<str>) {
        self.batch.push(format!(
            "add rule inet {} {chain} {}",
            self.table,
            rule.as_ref()
        ));
    }

    fn chains(&mut self) {
        let plain = |name: String| (name, "");
        let base = [
            ("prerouting", "{ type nat hook prerouting priority -100; }"),
            ("output", "{ type nat hook output priority -100; }"),
            ("postrouting", "{ type nat hook postrouting priority 100; }"),
            ("filter-input", "{ type filter hook input priority 0; }"),
            ("filter-forward", "{ type filter hook forward priority 0; }"),
            ("filter-output", "{ type filter hook output priority 0; }"),
        ];
        let regular = [
            "dns",
            "outside",
            "outside-entries",
            "services",
            "entries",
            "guard",
            "unserved",
            "refuse",
        ];
        let chains = base
            .into_iter()
            .map(|(name, kind)| (name.to_owned(), kind))
            .chain(regular.map(|name| plain(name.to_owned())))
            .chain(Front::ALL.map(|front| plain(front.mark_chain())));
        for (name, kind) in chains {
            self.batch.push(
                format!("add chain inet {} {name} {kind}", self.table)
                    .trim_end()
                    .to_owned(),
            );
        }
    }

    /// The ranges of node addresses for node ports.
    fn node_addresses(&mut self, frame: &Frame) {
        for (_, v4) in FAMILIES {
            let (digit, kind, all) = match v4 {
                true => ('4', "ipv4_addr", "0.0.0.0/0"),
                false => ('6', "ipv6_addr", "::/0"),
            };
            let chosen = match frame.node_port_addresses.is_empty() {
                true => Some(all.to_owned()),
                false => Frame::cidrs(&frame.node_port_addresses, v4),
            };
            let elements = chosen.map(|chosen| format!("elements = {{ {chosen} }};"));
            let elements = elements.unwrap_or_default();
            let table = &self.table;
            self.batch.push(format!(
                "add set inet {table} node-addresses{digit} {{ type {kind}; flags interval; auto-merge; {elements} }}"
            ));
        }
    }

    /// Which traffic is masqueraded, by the kind of address.
    fn marks(&mut self, frame: &Frame) {
        let mark = format!("meta mark set meta mark or {MARK}");
        for front in Front::ALL {
            match front {
                Front::External | Front::NodePort => self.rule(&front.mark_chain(), &mark),
                Front::Outside | Front::OutsideNodePort => {}
                // With policy Local pods keep their address, like clients outside.
                Front::ExternalInside | Front::NodePortInside => {
                    for (ip, v4) in FAMILIES {
                        let not_pods = match Frame::cidrs(&frame.cluster_cidrs, v4) {
                            Some(pods) => format!("{ip} saddr != {{ {pods} }}"),
                            None if v4 => "meta nfproto ipv4".to_owned(),
                            None => "meta nfproto ipv6".to_owned(),
                        };
                        self.rule(&front.mark_chain(), format!("{not_pods} {mark}"));
                    }
                }
                Front::Cluster => {
                    for (ip, v4) in FAMILIES {
                        if let Some(inside) = Frame::cidrs(&frame.cluster_cidrs, v4) {
                            let foreign =
                                format!("{ip} saddr != {{ {inside} }} fib saddr type != local");
                            self.rule(&front.mark_chain(), format!("{foreign} {mark}"));
                        }
                    }
                }
            }
        }
    }

    fn translation(&mut self, frame: &Frame) {
        self.dns(frame);
        for chain in ["prerouting", "output"] {
            self.rule(chain, "jump dns");
        }
        let port = "meta l4proto . th dport";
        for (ip, v4) in FAMILIES {
            let (services, outside) = (Map::Services.name(v4), Map::OutsideServices.name(v4));
            let (ports, outside_ports) = (Map::NodePorts.name(v4), Map::OutsideNodePorts.name(v4));
            let guarded = Map::Guarded.name(v4);
            let local = format!("{} {port}", on_node(v4));
            self.rule("guard", format!("{ip} daddr . {port} vmap @{guarded}"));
            let foreign = match Frame::cidrs(&frame.cluster_cidrs, v4) {
                Some(inside) => format!("{ip} saddr != {{ {inside} }}"),
                None => format!("meta nfproto {}", if v4 { "ipv4" } else { "ipv6" }),
            };
            self.rule(
                "prerouting",
                format!("{foreign} fib saddr type != local jump outside"),
            );
            self.rule("outside", format!("{ip} daddr . {port} vmap @{outside}"));
            self.rule("outside", format!("{local} vmap @{outside_ports}"));
            self.rule("services", format!("{ip} daddr . {port} vmap @{services}"));
            self.rule("services", format!("{local} vmap @{ports}"));
        }
        // Entries of picking chains change with the numbers of endpoints.
        self.rule("outside", "jump outside-entries");
        self.rule("services", "jump entries");
        self.batch.push(format!(
            "insert rule inet {} prerouting jump guard",
            self.table
        ));
        for chain in ["prerouting", "output"] {
            self.rule(chain, "jump services");
        }
    }

    /// Serves only pods and the node itself: otherwise the node's DNS server would be an open
    /// resolver.
    fn dns(&mut self, frame: &Frame) {
        let Some(dns) = &frame.dns else { return };
        for (ip, v4) in FAMILIES {
            let foreign = Frame::cidrs(&frame.cluster_cidrs, v4)
                .map(|inside| format!("{ip} saddr != {{ {inside} }} fib saddr type != local"));
            if let Some(foreign) = &foreign {
                self.rule("dns", format!("{foreign} return"));
            }
            let listeners: Vec<_> = dns
                .listeners
                .iter()
                .filter(|to| to.is_ipv4() == v4)
                .collect();
            for protocol in ["udp", "tcp"] {
                if let Some(to) = listeners.first() {
                    for address in dns
                        .cluster_dns
                        .iter()
                        .filter(|address| address.is_ipv4() == v4)
                    {
                        let asked = format!("{ip} daddr {address} {protocol} dport 53");
                        self.rule("dns", format!("{asked} dnat {ip} to {to}"));
                    }
                }
                for (to, foreign) in listeners.iter().zip(foreign.iter().cycle()) {
                    let reached = format!("{ip} daddr {} {protocol} dport {}", to.ip(), to.port());
                    self.rule("filter-input", format!("{foreign} {reached} drop"));
                }
            }
        }
    }

    /// Drops packets of pods that connection tracking cannot assign, e.g. with a sequence number outside the window.
    /// Their source would not be translated back to the Service's address, and the client would reset the connection.
    fn invalid(&mut self, frame: &Frame) {
        for (ip, v4) in FAMILIES {
            if let Some(pods) = Frame::cidrs(&frame.cluster_cidrs, v4) {
                let of_pods = format!("{ip} saddr {{ {pods} }} meta l4proto tcp");
                self.rule("filter-forward", format!("{of_pods} ct state invalid drop"));
            }
        }
    }

    /// Rejects packets to a Service that were not translated, since it has no endpoints.
    fn rejection(&mut self, frame: &Frame) {
        let refuse = "goto refuse";
        let port = "meta l4proto . th dport";
        for chain in ["filter-input", "filter-forward", "filter-output"] {
            self.rule(chain, "ct state new jump unserved");
        }
        for (ip, v4) in FAMILIES {
            if let Some(services) = Frame::cidrs(&frame.service_cidrs, v4) {
                self.rule("unserved", format!("{ip} daddr {{ {services} }} {refuse}"));
            }
            let (unserved, ports) = (Map::Unserved.name(v4), Map::UnservedNodePorts.name(v4));
            self.rule(
                "unserved",
                format!("{ip} daddr . {port} @{unserved} {refuse}"),
            );
            self.rule(
                "unserved",
                format!("{} {port} @{ports} {refuse}", on_node(v4)),
            );
        }
    }

    /// The node's own packets to Services are routed to the loopback link, where the kernel
    /// delivers no ICMP error to the sender; a TCP reset reaches it.
    fn refusal(&mut self) {
        let own = "fib saddr type local meta l4proto tcp";
        self.rule("refuse", format!("{own} reject with tcp reset"));
        self.rule("refuse", "reject with icmpx port-unreachable");
    }

    fn masquerade(&mut self) {
        for (ip, v4) in FAMILIES {
            let itself = format!("{ip} saddr . {ip} daddr @{}", Map::Hairpin.name(v4));
            self.rule(
                "postrouting",
                format!("ct status dnat {itself} masquerade fully-random"),
            );
        }
        self.rule(
            "postrouting",
            format!(
                "meta mark and {MARK} == {MARK} meta mark set meta mark xor {MARK} masquerade fully-random"
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_pods_without_a_known_connection_are_dropped_in_each_family_of_the_cluster() {
        let frame = |cidrs: &[&str]| Frame {
            id: "0123abcd".into(),
            cluster_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            service_cidrs: Vec::new(),
            dns: None,
            node_port_addresses: Vec::new(),
        };
        for (cidrs, families) in [
            (&["10.42.0.0/16"][..], &["ip"][..]),
            (&["10.42.0.0/16", "fd42::/56"], &["ip", "ip6"]),
        ] {
            let mut batch = Batch::new();
            frame(cidrs).write(&mut batch);
            let drops: Vec<&String> = batch
                .statements()
                .iter()
                .filter(|statement| statement.ends_with("ct state invalid drop"))
                .collect();
            assert_eq!(drops.len(), families.len());
            for ((drop, family), cidr) in drops.iter().zip(families).zip(cidrs) {
                let wanted = format!("filter-forward {family} saddr {{ {cidr} }} meta l4proto tcp");
                assert!(drop.contains(&wanted), "{drop}");
            }
        }
    }
}
