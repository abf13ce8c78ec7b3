//! A NetworkPolicy reduced to what determines connections. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use network::{IpNet, Protocol};
use reconcile::Selector;

/// Labels of a pod or a namespace.
pub type Labels = BTreeMap<String, String>;

/// Namespace and name of an object.
pub type Key = (String, String);

/// The direction of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// The selected pods are servers.
    Ingress,
    /// The selected pods are clients.
    Egress,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Its name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The pods of its namespace that it isolates.
    pub selector: Selector,
    /// The allowed connections to them; `None` if it does not isolate them for ingress.
    pub ingress: Option<Vec<Rule>>,
    /// The allowed connections from them; `None` if it does not isolate them for egress.
    pub egress: Option<Vec<Rule>>,
}

/// Allows connections with one of the peers on one of the ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Rule {
    /// Empty means all peers.
    pub peers: Vec<Peer>,
    /// Empty means every port and protocol.
    pub ports: Ports,
}

/// The other side of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Pods.
    Pods(PodQuery),
    /// A CIDR with exceptions.
    Block(IpNet, Vec<IpNet>),
}

/// A selector of pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodQuery {
    /// The namespaces.
    pub namespaces: Namespaces,
    /// The pods' labels.
    pub pods: Selector,
}

/// A selector of namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Namespaces {
    /// This namespace.
    Named(String),
    /// Namespaces with these labels.
    Selected(Selector),
}

impl PodQuery {
    /// Whether a pod is selected.
    pub fn matches(
        &self,
        namespace: &str,
        namespace_labels: Option<&Labels>,
        pod: &Labels,
    ) -> bool {
        let in_namespace = match &self.namespaces {
            Namespaces::Named(name) => name == namespace,
            Namespaces::Selected(selector) => {
                namespace_labels.is_some_and(|labels| selector.matches(Some(labels)))
            }
        };
        in_namespace && self.pods.matches(Some(pod))
    }
}

/// Ports of servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Ports {
    /// Whole protocols.
    pub protocols: BTreeSet<Protocol>,
    /// Ranges of numbers, merged and sorted.
    pub numbers: BTreeMap<Protocol, Vec<(u16, u16)>>,
    /// Named ports.
    pub names: BTreeSet<(Protocol, String)>,
    /// Whether ports were given, even if none of them can match.
    pub restricted: bool,
}

impl Policy {
    /// From the API object. Invalid parts allow nothing.
    pub fn from_object(policy: &NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let spec = policy.spec.clone().unwrap_or_default();
        let (ingress, egress) = types(&spec);
        let ingress_rules = || {
            let rules = spec.ingress.iter().flatten();
            rules.map(|rule| Rule::new(namespace, rule.from.as_deref(), rule.ports.as_deref()))
        };
        let egress_rules = || {
            let rules = spec.egress.iter().flatten();
            rules.map(|rule| Rule::new(namespace, rule.to.as_deref(), rule.ports.as_deref()))
        };
        Self {
            // A missing podSelector is empty and selects all pods of the namespace.
            selector: Selector::from_label_selector(Some(
                &spec.pod_selector.clone().unwrap_or_default(),
            )),
            ingress: ingress.then(|| ingress_rules().collect()),
            egress: egress.then(|| egress_rules().collect()),
        }
    }

    /// The rules of a direction; `None` if it does not isolate there.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// Whether a policy isolates for ingress and for egress.
fn types(spec: &NetworkPolicySpec) -> (bool, bool) {
    match spec.policy_types.as_deref() {
        None | Some([]) => (
            true,
            spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()),
        ),
        Some(types) => {
            let has = |name: &str| types.iter().any(|kind| kind == name);
            (has("Ingress"), has("Egress"))
        }
    }
}

impl Rule {
    fn new(
        namespace: &str,
        peers: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Self {
        let peers = peers.unwrap_or_default();
        Self {
            peers: peers
                .iter()
                .map(|peer| Peer::new(namespace, peer))
                .collect(),
            ports: Ports::new(ports.unwrap_or_default()),
        }
    }
}

impl Peer {
    fn new(namespace: &str, peer: &NetworkPolicyPeer) -> Self {
        if let Some(block) = &peer.ip_block {
            let parse = |cidr: &str| cidr.parse::<IpNet>().ok().map(|cidr| cidr.trunc());
            let except = block.except.iter().flatten().map(|cidr| parse(cidr));
            let except: Option<Vec<IpNet>> = except.collect();
            return match (parse(&block.cidr), except) {
                (Some(cidr), Some(except)) => Self::Block(cidr, except),
                _ => Self::none(),
            };
        }
        if peer.pod_selector.is_none() && peer.namespace_selector.is_none() {
            return Self::none();
        }
        let namespaces = match &peer.namespace_selector {
            Some(selector) => Namespaces::Selected(Selector::from_label_selector(Some(selector))),
            None => Namespaces::Named(namespace.to_owned()),
        };
        let pods = peer.pod_selector.clone().unwrap_or_default();
        Self::Pods(PodQuery {
            namespaces,
            pods: Selector::from_label_selector(Some(&pods)),
        })
    }

    fn none() -> Self {
        Self::Pods(PodQuery {
            namespaces: Namespaces::Selected(Selector::nothing()),
            pods: Selector::nothing(),
        })
    }
}

impl Ports {
    fn new(ports: &[NetworkPolicyPort]) -> Self {
        let mut all = Self {
            restricted: !ports.is_empty(),
            ..Self::default()
        };
        for port in ports {
            let Some(protocol) = Protocol::from_kubernetes(port.protocol.as_deref()) else {
                continue;
            };
            match &port.port {
                None => {
                    all.protocols.insert(protocol);
                }
                Some(IntOrString::String(name)) => {
                    all.names.insert((protocol, name.clone()));
                }
                Some(IntOrString::Int(first)) => {
                    let last = port.end_port.unwrap_or(*first);
                    if let (Ok(first), Ok(last)) = (u16::try_from(*first), u16::try_from(last))
                        && first <= last
                    {
                        all.numbers.entry(protocol).or_default().push((first, last));
                    }
                }
            }
        }
        all.normalise();
        all
    }

    /// Adds the ports of another rule, both of which have ports.
    pub fn extend(&mut self, other: &Self) {
        self.protocols.extend(&other.protocols);
        self.names.extend(other.names.iter().cloned());
        for (protocol, ranges) in &other.numbers {
            self.numbers.entry(*protocol).or_default().extend(ranges);
        }
        self.normalise();
    }

    fn normalise(&mut self) {
        for protocol in &self.protocols {
            self.numbers.remove(protocol);
        }
        self.names
            .retain(|(protocol, _)| !self.protocols.contains(protocol));
        for ranges in self.numbers.values_mut() {
            *ranges = merged(std::mem::take(ranges));
        }
    }
}

/// Sorts and merges ranges.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if u32::from(first) <= u32::from(before.1) + 1 => {
                before.1 = before.1.max(last);
            }
            _ => merged.push((first, last)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(spec: Value) -> Policy {
        let object = json!({"metadata": {"name": "p", "namespace": "a"}, "spec": spec});
        Policy::from_object(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn types_are_by_default_ingress_and_egress_where_it_has_rules() {
        for (spec, expected) in [
            (json!({"podSelector": {}}), (true, false)),
            (json!({"podSelector": {}, "egress": [{}]}), (true, true)),
            (json!({"podSelector": {}, "egress": []}), (true, false)),
            (
                json!({"podSelector": {}, "policyTypes": ["Egress"]}),
                (false, true),
            ),
            (
                json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": []}),
                (true, true),
            ),
            (
                json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}),
                (true, false),
            ),
        ] {
            let policy = policy(spec.clone());
            let found = (policy.ingress.is_some(), policy.egress.is_some());
            assert_eq!(found, expected, "{spec}");
        }
    }

    #[test]
    fn a_peer_without_a_namespace_selector_means_the_own_namespace() {
        let policy = policy(json!({"podSelector": {}, "ingress": [{"from": [
            {"podSelector": {"matchLabels": {"app": "x"}}},
            {"namespaceSelector": {"matchLabels": {"team": "y"}}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "x"}}},
        ]}]}));
        let rules = policy.ingress.unwrap();
        let queries: Vec<&PodQuery> = rules[0]
            .peers
            .iter()
            .map(|peer| match peer {
                Peer::Pods(query) => query,
                Peer::Block(..) => panic!("no block"),
            })
            .collect();
        let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
        let (x, y) = (labels("app", "x"), labels("team", "y"));
        let none = Labels::new();
        for (namespace, of_namespace, pod, expected) in [
            ("a", &none, &x, [true, false, true]),
            ("b", &none, &x, [false, false, true]),
            ("b", &y, &none, [false, true, false]),
            ("a", &y, &none, [false, true, false]),
        ] {
            let found: Vec<bool> = queries
                .iter()
                .map(|query| query.matches(namespace, Some(of_namespace), pod))
                .collect();
            assert_eq!(found, expected, "{namespace} {of_namespace:?} {pod:?}");
        }
        assert!(!queries[2].matches("b", None, &x), "an unknown namespace");
    }

    #[test]
    fn ports_are_merged_and_a_whole_protocol_covers_its_numbers() {
        let policy = policy(json!({"podSelector": {}, "ingress": [{"ports": [
            {"port": 80}, {"port": 81, "endPort": 90}, {"port": 85, "endPort": 86},
            {"port": 65535, "protocol": "TCP"}, {"port": "web"},
            {"port": 53, "protocol": "UDP"}, {"protocol": "UDP"}, {"port": "dns", "protocol": "UDP"},
            {"port": 7, "protocol": "SCTP"},
        ]}]}));
        let ports = &policy.ingress.unwrap()[0].ports;
        assert_eq!(ports.protocols, BTreeSet::from([Protocol::Udp]));
        assert_eq!(
            ports.numbers,
            BTreeMap::from([
                (Protocol::Tcp, vec![(80, 90), (65535, 65535)]),
                (Protocol::Sctp, vec![(7, 7)]),
            ])
        );
        assert_eq!(
            ports.names,
            BTreeSet::from([(Protocol::Tcp, "web".to_owned())])
        );
    }

    #[test]
    fn invalid_peers_and_ports_allow_nothing() {
        let policy = policy(json!({"podSelector": {}, "ingress": [
            {"from": [{"ipBlock": {"cidr": "nonsense"}}, {}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}]},
            {"ports": [{"port": 80, "endPort": 70}, {"protocol": "ICMP"}]},
        ]}));
        let rules = policy.ingress.unwrap();
        let everybody = Labels::new();
        for peer in rules[0].peers.iter().chain(&rules[1].peers) {
            match peer {
                Peer::Pods(query) => assert!(!query.matches("a", Some(&everybody), &everybody)),
                Peer::Block(..) => panic!("{peer:?}"),
            }
        }
        let ports = &rules[2].ports;
        assert!(ports.restricted && ports.protocols.is_empty() && ports.numbers.is_empty());
    }
}
