//! The rules of a policy's chain, and the sets they use. Pure.
//!
//! `ct original … saddr` is the client, `ct reply … saddr` the server and `ct reply proto-src` the
//! server's port, for packets of both directions and after Service translation.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use network::{IpNet, Protocol};
use sha2::{Digest, Sha256};

use crate::policy::{Direction, Peer, PodQuery, Ports, Rule};

/// The keywords and suffixes of both families.
pub const FAMILIES: [Family; 2] = [
    Family {
        ip: "ip",
        packets: "ipv4",
        kind: "ipv4_addr",
        digit: '4',
    },
    Family {
        ip: "ip6",
        packets: "ipv6",
        kind: "ipv6_addr",
        digit: '6',
    },
];

/// nftables' keywords of an address family.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// `ip` or `ip6`.
    pub ip: &'static str,
    /// `ipv4` or `ipv6`.
    pub packets: &'static str,
    /// The type of addresses.
    pub kind: &'static str,
    /// The suffix of its sets.
    pub digit: char,
}

impl Family {
    /// The family of an address.
    pub fn from_address(address: std::net::IpAddr) -> Self {
        FAMILIES[usize::from(address.is_ipv6())]
    }
}

/// A set that rules use, without the family's suffix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedSet {
    /// The addresses of selected pods; one set per family.
    Pods(PodQuery),
    /// Addresses and numbers of named ports; one set per family.
    NamedPorts(Protocol, BTreeSet<String>),
    /// Port numbers.
    Numbers(Vec<(u16, u16)>),
}

impl NamedSet {
    /// Its name in the table; equal sets have equal names.
    pub fn name(&self) -> String {
        match self {
            Self::Pods(query) => format!("pods-{}-", short_hash(&format!("{query:?}"))),
            Self::NamedPorts(protocol, names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let word = format!("{}/{}", protocol.as_str(), names.join(","));
                format!("port-{}-", short_hash(&word))
            }
            Self::Numbers(ranges) => format!("numbers-{}", short_hash(&format!("{ranges:?}"))),
        }
    }
}

/// Twelve hexadecimal digits of a hash.
pub fn short_hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Rules and the sets they use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// In order.
    pub rules: Vec<String>,
    /// By name.
    pub asked: BTreeMap<String, NamedSet>,
}

/// Every rule accepts; packets that no rule accepts return to the pod's chain.
pub fn compile(direction: Direction, rules: &[Rule]) -> Compiled {
    let (mut all, mut known) = (Compiled::default(), HashSet::new());
    for rule in rules {
        all.add(direction, rule, &mut known);
    }
    all
}

impl Compiled {
    fn ask(&mut self, asked: NamedSet) -> String {
        let name = asked.name();
        self.asked.insert(name.clone(), asked);
        name
    }

    /// Adds the rules that are not known yet. There are as many as peers, times a small number: a tenant chooses how
    /// many peers and ports a policy has.
    fn add(&mut self, direction: Direction, rule: &Rule, known: &mut HashSet<String>) {
        for family in FAMILIES {
            let ports = self.port_matches(family, &rule.ports);
            for peer in self.peer_matches(family, direction, &rule.peers) {
                for port in &ports {
                    let words = [peer.as_str(), port, "accept"];
                    let words = words.into_iter().filter(|words| !words.is_empty());
                    let rule = words.collect::<Vec<_>>().join(" ");
                    if known.insert(rule.clone()) {
                        self.rules.push(rule);
                    }
                }
            }
        }
    }

    /// The alternatives to match a port; an empty one matches all.
    fn port_matches(&mut self, family: Family, ports: &Ports) -> Vec<String> {
        if !ports.restricted {
            return vec![String::new()];
        }
        let is = |protocol: &Protocol| format!("meta l4proto {}", protocol.as_str());
        let mut matches: Vec<String> = ports.protocols.iter().map(is).collect();
        for (protocol, ranges) in &ports.numbers {
            let set = self.ask(NamedSet::Numbers(ranges.clone()));
            matches.push(format!("{} ct reply proto-src @{set}", is(protocol)));
        }
        // One set for all names of a protocol: each alternative is combined with each peer.
        let mut names: BTreeMap<Protocol, BTreeSet<String>> = BTreeMap::new();
        for (protocol, name) in &ports.names {
            names.entry(*protocol).or_default().insert(name.clone());
        }
        for (protocol, names) in names {
            let set = self.ask(NamedSet::NamedPorts(protocol, names));
            let (ip, digit) = (family.ip, family.digit);
            let server = format!("ct reply {ip} saddr . ct reply proto-src @{set}{digit}");
            matches.push(format!("{} {server}", is(&protocol)));
        }
        matches
    }

    fn peer_matches(
        &mut self,
        family: Family,
        direction: Direction,
        peers: &[Peer],
    ) -> Vec<String> {
        if peers.is_empty() {
            return vec![format!("meta nfproto {}", family.packets)];
        }
        let (ip, digit) = (family.ip, family.digit);
        let peer_address = match direction {
            Direction::Ingress => format!("ct original {ip} saddr"),
            Direction::Egress => format!("ct reply {ip} saddr"),
        };
        let mut matches = Vec::new();
        for peer in peers {
            match peer {
                Peer::Pods(query) => {
                    let set = self.ask(NamedSet::Pods(query.clone()));
                    matches.push(format!("{peer_address} @{set}{digit}"));
                }
                Peer::Block(cidr, except) if cidr.addr().is_ipv4() == (family.ip == "ip") => {
                    matches.push(block(family, &peer_address, *cidr, except));
                }
                Peer::Block(..) => {}
            }
        }
        matches
    }
}

fn block(family: Family, peer_address: &str, cidr: IpNet, except: &[IpNet]) -> String {
    let inside = match cidr.prefix_len() {
        0 => format!("meta nfproto {}", family.packets),
        _ => format!("{peer_address} {cidr}"),
    };
    let same_family = |except: &&IpNet| except.addr().is_ipv4() == cidr.addr().is_ipv4();
    // The kernel rejects overlapping ranges.
    let mut listed = IpNet::aggregate(&except.iter().filter(same_family).copied().collect());
    listed.sort_unstable();
    if listed.iter().any(|except| except.prefix_len() == 0) {
        return format!("{inside} meta nfproto != {}", family.packets);
    }
    if listed.is_empty() {
        return inside;
    }
    let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
    format!("{inside} {peer_address} != {{ {} }}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use serde_json::{Value, json};

    fn compiled(direction: Direction, rules: Value) -> Vec<String> {
        let field = direction.as_str();
        let object = json!({"metadata": {"name": "p", "namespace": "a"}, "spec": {
            "podSelector": {}, "policyTypes": ["Ingress", "Egress"], field: rules}});
        let policy = Policy::from_object(&serde_json::from_value(object).unwrap());
        let compiled = compile(direction, policy.rules(direction).unwrap());
        let mut text = compiled.rules.join("\n");
        for (name, asked) in &compiled.asked {
            let word = match asked {
                NamedSet::Pods(_) => "PODS",
                NamedSet::NamedPorts(_, ports) => ports.first().unwrap().as_str(),
                NamedSet::Numbers(_) => "NUMBERS",
            };
            text = text.replace(name, word);
        }
        text.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_rule_without_peers_and_ports_allows_everything_and_no_rule_nothing() {
        assert_eq!(
            compiled(Direction::Ingress, json!([{}])),
            ["meta nfproto ipv4 accept", "meta nfproto ipv6 accept"]
        );
        assert!(compiled(Direction::Ingress, json!([])).is_empty());
    }

    #[test]
    fn ingress_looks_at_the_client_and_egress_at_the_server() {
        let peer = json!([{"podSelector": {}}]);
        assert_eq!(
            compiled(
                Direction::Ingress,
                json!([{"from": peer, "ports": [{"port": 80}]}])
            ),
            [
                "ct original ip saddr @PODS4 meta l4proto tcp ct reply proto-src @NUMBERS accept",
                "ct original ip6 saddr @PODS6 meta l4proto tcp ct reply proto-src @NUMBERS accept",
            ]
        );
        assert_eq!(
            compiled(
                Direction::Egress,
                json!([{"to": peer, "ports": [{"port": "web"}]}])
            ),
            [
                "ct reply ip saddr @PODS4 meta l4proto tcp ct reply ip saddr . ct reply proto-src @web4 accept",
                "ct reply ip6 saddr @PODS6 meta l4proto tcp ct reply ip6 saddr . ct reply proto-src @web6 accept",
            ]
        );
    }

    #[test]
    fn a_block_counts_in_its_family_without_its_exceptions() {
        let blocks =
            |block: Value| compiled(Direction::Egress, json!([{"to": [{"ipBlock": block}]}]));
        assert_eq!(
            blocks(json!({"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.1.2.0/24"]})),
            ["ct reply ip saddr 10.0.0.0/8 ct reply ip saddr != { 10.1.0.0/16 } accept"]
        );
        assert_eq!(
            blocks(json!({"cidr": "::/0", "except": ["fd00::/8"]})),
            ["meta nfproto ipv6 ct reply ip6 saddr != { fd00::/8 } accept"]
        );
        assert_eq!(
            blocks(json!({"cidr": "192.0.2.7/32"})),
            ["ct reply ip saddr 192.0.2.7/32 accept"]
        );
    }

    #[test]
    fn ports_that_cannot_be_matched_allow_nothing() {
        let ports = json!([{"ports": [{"port": 80, "endPort": 70}]}]);
        assert!(compiled(Direction::Ingress, ports).is_empty());
    }

    #[test]
    fn ports_of_sctp_match_its_packets_only() {
        let ports = json!([{"ports": [{"protocol": "SCTP", "port": 3868}, {"protocol": "SCTP", "port": "signal"}]}]);
        assert_eq!(
            compiled(Direction::Ingress, ports)[..2],
            [
                "meta nfproto ipv4 meta l4proto sctp ct reply proto-src @NUMBERS accept",
                "meta nfproto ipv4 meta l4proto sctp ct reply ip saddr . ct reply proto-src @signal4 accept",
            ]
        );
        let whole = compiled(
            Direction::Egress,
            json!([{"ports": [{"protocol": "SCTP"}]}]),
        );
        assert_eq!(whole[0], "meta nfproto ipv4 meta l4proto sctp accept");
    }

    #[test]
    fn many_peers_with_many_ports_are_as_many_rules_as_peers() {
        let peers: Vec<Value> = (0..100)
            .map(|number| json!({"podSelector": {"matchLabels": {"app": number.to_string()}}}))
            .collect();
        let ports: Vec<Value> = (0..200)
            .flat_map(|number| {
                let name = format!("p{number}");
                [
                    json!({"port": name}),
                    json!({"port": number + 1}),
                    json!({"port": name, "protocol": "SCTP"}),
                ]
            })
            .collect();
        let rules = compiled(Direction::Ingress, json!([{"from": peers, "ports": ports}]));
        // Numbers of TCP, and names of TCP and SCTP, for each peer and family.
        assert_eq!(rules.len(), 100 * 3 * 2);
    }
}
