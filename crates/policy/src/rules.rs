//! The rules of a policy's chain, and the sets they use. Pure.
//!
//! `ct original … saddr` is the client, `ct reply … saddr` the server and `ct reply proto-src` the
//! server's port, for packets of both directions and after Service translation.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use network::{IpNet, Protocol, names::object_hash};

use crate::policy::{Direction, Namespaces, Peer, PodQuery, Ports, Rule};

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

/// More peers of one kind in a rule share a set. The kernel and nft search the sets of a table one by one: a thousand
/// more make every change of any table a millisecond slower.
const PEERS_APART: usize = 4;
/// More ranges of ports in a rule are in a set.
const RANGES_APART: usize = 3;

/// A set that rules use, without the family's suffix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedSet {
    /// The addresses of pods that one of these selects; one set per family.
    Pods(Vec<PodQuery>),
    /// Ranges of addresses of one family.
    Blocks(Vec<(IpAddr, IpAddr)>),
    /// Addresses and numbers of named ports; one set per family.
    NamedPorts(Protocol, BTreeSet<String>),
    /// Port numbers.
    Numbers(Vec<(u16, u16)>),
}

impl NamedSet {
    /// The namespace that all its pods are in, if it is known.
    pub fn namespace(&self) -> Option<&str> {
        let Self::Pods(queries) = self else {
            return None;
        };
        let name = |query: &PodQuery| match &query.namespaces {
            Namespaces::Named(name) => Some(name.clone()),
            Namespaces::Selected(_) => None,
        };
        let first = name(queries.first()?)?;
        let mut others = queries.iter();
        let is_same = others.all(|query| name(query).as_ref() == Some(&first));
        match &queries.first()?.namespaces {
            Namespaces::Named(name) if is_same => Some(name),
            _ => None,
        }
    }

    /// Its sets in the kernel, and the elements and selectors that are compared with pods.
    fn cost(&self) -> usize {
        match self {
            Self::Pods(queries) => 2 * SET_COST + QUERY_COST * queries.len(),
            Self::NamedPorts(_, names) => 2 * SET_COST + names.len(),
            Self::Blocks(ranges) => SET_COST + ranges.len(),
            Self::Numbers(ranges) => SET_COST + ranges.len(),
        }
    }

    /// Its name in the table; equal sets have equal names.
    pub fn name(&self) -> String {
        match self {
            Self::Pods(queries) => format!("pods-{}-", object_hash(&format!("{queries:?}"))),
            Self::Blocks(ranges) => format!("blocks-{}", object_hash(&format!("{ranges:?}"))),
            Self::NamedPorts(protocol, names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let word = format!("{}/{}", protocol.as_str(), names.join(","));
                format!("port-{}-", object_hash(&word))
            }
            Self::Numbers(ranges) => format!("numbers-{}", object_hash(&format!("{ranges:?}"))),
        }
    }
}

/// Rules and the sets they use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compiled {
    /// In order.
    pub rules: Vec<String>,
    /// By name.
    pub asked: BTreeMap<String, NamedSet>,
}

/// What a set, a rule and a selector cost, in elements of a set.
const SET_COST: usize = 25;
const RULE_COST: usize = 5;
const QUERY_COST: usize = 20;

/// Every rule accepts; packets that no rule accepts return to the pod's chain.
pub fn compile(direction: Direction, rules: &[Rule]) -> Compiled {
    let (mut all, mut known) = (Compiled::default(), HashSet::new());
    for rule in combined(rules) {
        all.add(direction, &rule, &mut known);
    }
    all
}

/// The same with one rule for all with the same peers, and one for all with the same ports.
fn combined(rules: &[Rule]) -> Vec<Rule> {
    let mut by_peers: Vec<Rule> = Vec::new();
    let mut places: HashMap<&[Peer], usize> = HashMap::new();
    for rule in rules {
        match places.get(rule.peers.as_slice()) {
            Some(place) if by_peers[*place].ports.restricted && rule.ports.restricted => {
                by_peers[*place].ports.extend(&rule.ports);
            }
            // Without ports it allows all of them.
            Some(place) => by_peers[*place].ports = Ports::default(),
            None => {
                places.insert(&rule.peers, by_peers.len());
                by_peers.push(rule.clone());
            }
        }
    }
    let mut by_ports: Vec<Rule> = Vec::new();
    let mut places: HashMap<Ports, usize> = HashMap::new();
    for rule in by_peers {
        match places.get(&rule.ports) {
            Some(place) if rule.peers.is_empty() => by_ports[*place].peers.clear(),
            Some(place) if by_ports[*place].peers.is_empty() => {}
            Some(place) => by_ports[*place].peers.extend(rule.peers),
            None => {
                places.insert(rule.ports.clone(), by_ports.len());
                by_ports.push(rule);
            }
        }
    }
    by_ports
}

impl Compiled {
    /// What it costs the node.
    pub fn cost(&self) -> usize {
        let sets: usize = self.asked.values().map(NamedSet::cost).sum();
        sets + RULE_COST * self.rules.len()
    }

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
            let mut number = |words: String| {
                matches.push(format!("{} ct reply proto-src {words}", is(protocol)));
            };
            match ranges.len() <= RANGES_APART {
                true => ranges.iter().copied().map(port_range).for_each(&mut number),
                false => number(format!("@{}", self.ask(NamedSet::Numbers(ranges.clone())))),
            }
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
        let (mut queries, mut blocks) = (Vec::new(), Vec::new());
        for peer in peers {
            match peer {
                Peer::Pods(query) => queries.push(query.clone()),
                Peer::Block(cidr, except) if cidr.addr().is_ipv4() == (family.ip == "ip") => {
                    blocks.push((*cidr, except.as_slice()));
                }
                Peer::Block(..) => {}
            }
        }
        let together = match queries.len() <= PEERS_APART {
            true => queries.into_iter().map(|query| vec![query]).collect(),
            false => vec![queries],
        };
        let mut matches = Vec::new();
        for queries in together {
            let set = self.ask(NamedSet::Pods(queries));
            matches.push(format!("{peer_address} @{set}{digit}"));
        }
        let is_plain = |(_, except): &(IpNet, &[IpNet])| except.is_empty();
        if blocks.len() <= PEERS_APART && blocks.iter().all(is_plain) {
            let each = blocks.into_iter();
            matches.extend(each.map(|(cidr, _)| plain(family, &peer_address, cidr)));
            return matches;
        }
        let ranges = union(
            blocks
                .into_iter()
                .flat_map(|(cidr, except)| without(cidr, except)),
        );
        if !ranges.is_empty() {
            let set = self.ask(NamedSet::Blocks(ranges));
            matches.push(format!("{peer_address} @{set}"));
        }
        matches
    }
}

/// A range of ports in nftables' syntax.
pub fn port_range((first, last): (u16, u16)) -> String {
    match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    }
}

/// A range of addresses in nftables' syntax.
pub fn address_range((first, last): (IpAddr, IpAddr)) -> String {
    match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    }
}

/// Addresses as numbers that can be counted up and down.
type Range = (u128, u128, bool);

fn range(cidr: IpNet) -> Range {
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let v4 = cidr.addr().is_ipv4();
    (number(cidr.network()), number(cidr.broadcast()), v4)
}

/// What is left of a block without its exceptions.
fn without(cidr: IpNet, except: &[IpNet]) -> Vec<Range> {
    let (mut first, last, v4) = range(cidr);
    let same_family = except.iter().filter(|one| one.addr().is_ipv4() == v4);
    let mut holes: Vec<Range> = same_family.map(|one| range(*one)).collect();
    holes.sort_unstable();
    let mut left = Vec::new();
    for (from, to, _) in holes {
        if to < first || from > last {
            continue;
        }
        if from > first {
            left.push((first, from - 1, v4));
        }
        match to.checked_add(1) {
            Some(next) => first = next,
            None => return left,
        }
    }
    if first <= last {
        left.push((first, last, v4));
    }
    left
}

/// Sorted ranges that do not overlap, as the kernel requires.
fn union(ranges: impl Iterator<Item = Range>) -> Vec<(IpAddr, IpAddr)> {
    let mut ranges: Vec<Range> = ranges.collect();
    ranges.sort_unstable();
    let mut all: Vec<Range> = Vec::new();
    for (first, last, v4) in ranges {
        match all.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => all.push((first, last, v4)),
        }
    }
    let address = |number: u128, v4: bool| match u32::try_from(number) {
        Ok(number) if v4 => IpAddr::V4(number.into()),
        _ => IpAddr::V6(number.into()),
    };
    all.into_iter()
        .map(|(first, last, v4)| (address(first, v4), address(last, v4)))
        .collect()
}

/// Matches a block without exceptions.
fn plain(family: Family, peer_address: &str, cidr: IpNet) -> String {
    match cidr.prefix_len() {
        0 => format!("meta nfproto {}", family.packets),
        _ => format!("{peer_address} {cidr}"),
    }
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
                NamedSet::Blocks(_) => "BLOCKS",
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
                "ct original ip saddr @PODS4 meta l4proto tcp ct reply proto-src 80 accept",
                "ct original ip6 saddr @PODS6 meta l4proto tcp ct reply proto-src 80 accept",
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
        for cidr in ["10.0.0.0/8", "0.0.0.0/0"] {
            let except = json!({"cidr": cidr, "except": ["10.1.0.0/16"]});
            assert_eq!(blocks(except), ["ct reply ip saddr @BLOCKS accept"]);
        }
        assert_eq!(
            blocks(json!({"cidr": "::/0"})),
            ["meta nfproto ipv6 accept"]
        );
        let nothing = json!({"cidr": "::/0", "except": ["::/0"]});
        assert!(blocks(nothing).is_empty());
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
                "meta nfproto ipv4 meta l4proto sctp ct reply proto-src 3868 accept",
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
    fn many_peers_with_many_ports_need_few_rules_and_sets() {
        let mut peers: Vec<Value> = (0..100)
            .map(|number| json!({"podSelector": {"matchLabels": {"app": number.to_string()}}}))
            .collect();
        peers.extend(
            (0..100).map(|number| json!({"ipBlock": {"cidr": format!("10.0.{number}.0/25")}})),
        );
        let ports: Vec<Value> = (0..200)
            .flat_map(|number| {
                let name = format!("p{number}");
                [
                    json!({"port": name}),
                    json!({"port": 2 * number + 1}),
                    json!({"port": name, "protocol": "SCTP"}),
                ]
            })
            .collect();
        let rules = compiled(Direction::Ingress, json!([{"from": peers, "ports": ports}]));
        // Numbers of TCP, and names of TCP and SCTP, for pods of each family and for blocks.
        assert_eq!(rules.len(), 3 * 3);
        let blocks =
            "ct original ip saddr @BLOCKS meta l4proto tcp ct reply proto-src @NUMBERS accept";
        assert!(rules.iter().any(|rule| rule == blocks), "{rules:#?}");
    }

    #[test]
    fn rules_with_equal_peers_or_ports_are_one() {
        let pod = |name: &str| json!({"podSelector": {"matchLabels": {"app": name}}});
        for (rules, expected) in [
            (
                json!([{"from": [pod("a")], "ports": [{"port": 1}]}, {"from": [pod("a")], "ports": [{"port": 2}]}]),
                vec!["@PODS4 meta l4proto tcp ct reply proto-src 1-2"],
            ),
            (
                json!([{"from": [pod("a")], "ports": [{"port": 1}]}, {"from": [pod("a")]}]),
                vec!["@PODS4"],
            ),
            (
                json!([{"from": [pod("a")]}, {"from": [pod("b")]}]),
                vec!["@PODS4", "@PODS4"],
            ),
            (
                json!([{"ports": [{"port": 1}]}, {"from": [pod("a")], "ports": [{"port": 1}]}]),
                vec!["meta nfproto ipv4 meta l4proto tcp ct reply proto-src 1"],
            ),
            (
                json!([{"from": [pod("a")], "ports": [{"port": 1}]}, {"ports": [{"port": 1}]}]),
                vec!["meta nfproto ipv4 meta l4proto tcp ct reply proto-src 1"],
            ),
            (json!([{"from": [pod("a")]}, {}]), vec!["meta nfproto ipv4"]),
        ] {
            let found = compiled(Direction::Ingress, rules.clone());
            let expected: Vec<String> = expected
                .iter()
                .map(|text| match text.strip_prefix("@PODS4") {
                    Some(rest) => format!("ct original ip saddr @PODS4{rest} accept"),
                    None => format!("{text} accept"),
                })
                .collect();
            assert_eq!(found[..found.len() / 2], expected, "{rules}");
        }
    }

    #[test]
    fn many_blocks_are_ranges_without_their_exceptions() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let all = |blocks: &[(&str, &[&str])]| -> Vec<String> {
            let left = blocks.iter().flat_map(|(cidr, except)| {
                let except: Vec<IpNet> = except.iter().map(|text| net(text)).collect();
                without(net(cidr), &except)
            });
            union(left).into_iter().map(address_range).collect()
        };
        for (blocks, expected) in [
            (
                &[("10.0.0.0/24", &["10.0.0.0/25"][..])][..],
                vec!["10.0.0.128-10.0.0.255"],
            ),
            (
                &[(
                    "10.0.0.0/8",
                    &["10.1.0.0/16", "10.1.2.0/24", "10.255.255.255/32"],
                )],
                vec!["10.0.0.0-10.0.255.255", "10.2.0.0-10.255.255.254"],
            ),
            // What one block excludes, another may contain.
            (
                &[
                    ("10.0.0.0/24", &["10.0.0.0/25"]),
                    ("10.0.0.7/32", &[]),
                    ("10.0.1.0/24", &[]),
                ],
                vec!["10.0.0.7", "10.0.0.128-10.0.1.255"],
            ),
            (&[("0.0.0.0/0", &["0.0.0.0/0"])], vec![]),
            (
                &[("0.0.0.0/0", &["128.0.0.0/1"])],
                vec!["0.0.0.0-127.255.255.255"],
            ),
            (
                &[("::/0", &["fd00::/8"])],
                vec![
                    "::-fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                    "fe00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                ],
            ),
            (
                &[("::/0", &["8000::/1"])],
                vec!["::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
            ),
            (
                &[("fd00::1/128", &[]), ("fd00::2/128", &[])],
                vec!["fd00::1-fd00::2"],
            ),
        ] {
            assert_eq!(all(blocks), expected, "{blocks:?}");
        }
    }
}
