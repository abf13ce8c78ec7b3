//! Explains which policy decides about a connection, from the objects alone. Pure.
//!
//! An independent evaluation of what [`crate::rules`] puts into the kernel.

use std::{collections::BTreeMap, net::IpAddr};

use network::Protocol;

use crate::{
    policy::{Direction, Key, Labels, Peer, Policy, Ports, Rule},
    state::Pod,
};

/// One end of a connection.
#[derive(Debug, Clone, Default)]
pub struct End {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The pod, with its key and its namespace's labels; `None` for hosts and nodes.
    pub pod: Option<(Key, Pod, Labels)>,
    /// The addresses of the pod's node.
    pub node: Vec<IpAddr>,
}

impl End {
    /// With the addresses of one family only; `None` without any.
    pub fn of_family(&self, v4: bool) -> Option<Self> {
        let mut end = self.clone();
        end.addresses.retain(|ip| ip.is_ipv4() == v4);
        (!end.addresses.is_empty()).then_some(end)
    }
}

/// A connection to explain.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The client.
    pub client: End,
    /// The server, after Service translation.
    pub server: End,
    /// The protocol.
    pub protocol: Protocol,
    /// The server's port.
    pub port: u16,
}

/// The result for one side of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// No policy isolates the pod in this direction, or there is no pod.
    NotIsolated,
    /// Policies isolate the pod, but not from itself.
    Itself,
    /// Policies isolate the pod, but not from its own node.
    OwnNode,
    /// This rule of this policy allows it; rules are counted from zero.
    Allowed(Key, usize),
    /// These policies isolate the pod, and no rule allows it.
    Denied(Vec<Key>),
}

impl Judgement {
    /// Whether the connection is allowed on this side.
    pub fn passes(&self) -> bool {
        !matches!(self, Self::Denied(_))
    }
}

/// Evaluates one side.
pub fn explain(
    direction: Direction,
    connection: &Connection,
    policies: &BTreeMap<Key, Policy>,
) -> Judgement {
    let (own, other) = match direction {
        Direction::Ingress => (&connection.server, &connection.client),
        Direction::Egress => (&connection.client, &connection.server),
    };
    let Some((key, pod, _)) = &own.pod else {
        return Judgement::NotIsolated;
    };
    let exception = exception(key, own, other);
    let selecting = policies.iter().filter(|(policy_key, policy)| {
        policy_key.0 == key.0
            && policy.rules(direction).is_some()
            && policy.selector.matches(Some(&pod.labels))
    });
    let mut isolating = Vec::new();
    for (policy_key, policy) in selecting {
        let rules = policy.rules(direction).unwrap_or_default();
        let allows = |rule: &Rule| allows(rule, other, connection);
        if let Some(rule) = rules.iter().position(allows) {
            return Judgement::Allowed(policy_key.clone(), rule);
        }
        isolating.push(policy_key.clone());
    }
    match (isolating.is_empty(), exception) {
        (true, _) => Judgement::NotIsolated,
        (false, Some(exception)) => exception,
        (false, None) => Judgement::Denied(isolating),
    }
}

/// What a pod reaches, and what reaches it, whatever its policies.
fn exception(key: &Key, own: &End, other: &End) -> Option<Judgement> {
    match &other.pod {
        Some((of, _, _)) => (of == key).then_some(Judgement::Itself),
        None => {
            let mut addresses = other.addresses.iter();
            let is_node = addresses.any(|ip| own.node.contains(ip));
            is_node.then_some(Judgement::OwnNode)
        }
    }
}

fn allows(rule: &Rule, other: &End, connection: &Connection) -> bool {
    let from_peer = rule.peers.is_empty() || rule.peers.iter().any(|peer| is_peer(peer, other));
    from_peer && is_port(&rule.ports, connection)
}

fn is_peer(peer: &Peer, end: &End) -> bool {
    match peer {
        Peer::Pods(query) => end.pod.as_ref().is_some_and(|(key, pod, namespace)| {
            query.matches(&key.0, Some(namespace), &pod.labels)
        }),
        Peer::Block(cidr, except) => end
            .addresses
            .iter()
            .any(|ip| cidr.contains(ip) && !except.iter().any(|except| except.contains(ip))),
    }
}

fn is_port(ports: &Ports, connection: &Connection) -> bool {
    let (protocol, port) = (connection.protocol, connection.port);
    let ranges = ports.numbers.get(&protocol).into_iter().flatten();
    let mut ranges = ranges.copied();
    let server = connection.server.pod.as_ref().map(|(_, pod, _)| pod);
    let is_named = |name: &String| {
        server.is_some_and(|pod| pod.ports.contains(&(protocol, name.clone(), port)))
    };
    let mut names = ports.names.iter().filter(|(of, _)| *of == protocol);
    !ports.restricted
        || ports.protocols.contains(&protocol)
        || ranges.any(|(first, last)| (first..=last).contains(&port))
        || names.any(|(_, name)| is_named(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn end(namespace: &str, name: &str, ip: &str) -> End {
        let labels = |key: &str, value: &str| Labels::from([(key.to_owned(), value.to_owned())]);
        let address: IpAddr = ip.parse().unwrap();
        let pod = Pod {
            labels: labels("pod", name),
            addresses: [address].into(),
            local: true,
            ports: [(Protocol::Tcp, "web".to_owned(), 80)].into(),
        };
        End {
            addresses: vec![address],
            pod: Some((
                (namespace.into(), name.into()),
                pod,
                labels("team", namespace),
            )),
            node: vec!["192.0.2.77".parse().unwrap()],
        }
    }

    fn judged(policies: &[Value], direction: Direction, client: End, port: u16) -> Judgement {
        let policies = policies.iter().enumerate().map(|(index, spec)| {
            let name = format!("p{index}");
            let object = json!({"metadata": {"name": name, "namespace": "x"}, "spec": spec});
            let policy = Policy::from_object(&serde_json::from_value(object).unwrap());
            (("x".to_owned(), name), policy)
        });
        let connection = Connection {
            client,
            server: end("x", "b", "10.42.0.2"),
            protocol: Protocol::Tcp,
            port,
        };
        explain(direction, &connection, &policies.collect())
    }

    #[test]
    fn the_first_rule_that_allows_is_named_and_else_all_that_isolate() {
        let policies = [
            json!({"podSelector": {}}),
            json!({"podSelector": {}, "ingress": [
                {"from": [{"podSelector": {"matchLabels": {"pod": "none"}}}]},
                {"from": [{"podSelector": {"matchLabels": {"pod": "a"}}}], "ports": [{"port": "web"}]}]}),
            json!({"podSelector": {"matchLabels": {"pod": "other"}}}),
        ];
        let key = |name: &str| ("x".to_owned(), name.to_owned());
        let ingress = |client: End, port: u16| judged(&policies, Direction::Ingress, client, port);
        let a = || end("x", "a", "10.42.0.1");
        assert_eq!(ingress(a(), 80), Judgement::Allowed(key("p1"), 1));
        let denied = Judgement::Denied(vec![key("p0"), key("p1")]);
        assert_eq!(ingress(a(), 81), denied);
        assert_eq!(ingress(end("y", "a", "10.42.0.3"), 80), denied);
        assert_eq!(ingress(end("x", "b", "10.42.0.2"), 81), Judgement::Itself);
        assert_eq!(
            judged(&policies, Direction::Egress, a(), 81),
            Judgement::NotIsolated
        );
    }

    #[test]
    fn a_host_is_known_by_its_address_alone() {
        let block = json!({"cidr": "192.0.2.0/26", "except": ["192.0.2.9/32"]});
        let policies = [json!({"podSelector": {}, "ingress": [
            {"from": [{"namespaceSelector": {}}]}, {"from": [{"ipBlock": block}]}]})];
        for (ip, passes) in [
            ("192.0.2.1", true),
            ("192.0.2.9", false),
            ("198.51.100.1", false),
            // The node of the pod.
            ("192.0.2.77", true),
        ] {
            let host = End {
                addresses: vec![ip.parse().unwrap()],
                ..End::default()
            };
            let found = judged(&policies, Direction::Ingress, host, 80);
            assert_eq!(found.passes(), passes, "{ip}");
        }
    }
}
