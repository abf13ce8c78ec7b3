//! The endpoints of a Service port: chosen from its EndpointSlices by readiness, locality and
//! hints. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    net::IpAddr,
};

use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use network::Protocol;

/// This node's name and zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeTopology {
    /// The node's name.
    pub node: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
}

/// A backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its address.
    pub ip: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether it runs on this node.
    pub local: bool,
}

/// The Service port whose endpoints are wanted.
#[derive(Debug, Clone, Copy)]
pub struct EndpointQuery<'a> {
    /// The port's name; empty for a single unnamed port.
    pub port_name: &'a str,
    /// Its protocol.
    pub protocol: Protocol,
    /// IPv4 or IPv6.
    pub v4: bool,
}

#[derive(Debug, Clone)]
struct Candidate {
    local: bool,
    ready: bool,
    serving: bool,
    terminating: bool,
    zones: Vec<String>,
    nodes: Vec<String>,
}

/// The endpoints of a port for both traffic policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// For policy Cluster.
    pub cluster: Vec<Endpoint>,
    /// For policy Local: only those on this node.
    pub local: Vec<Endpoint>,
    /// For UDP: the endpoints whose conversations go on, whatever policies and hints say about new ones.
    pub kept: BTreeSet<(IpAddr, u16)>,
}

/// The label of slices whose endpoints clients reach without a proxy, whatever its value.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Whether the endpoints of a slice are reached through the Service's addresses.
pub fn is_proxied(slice: &EndpointSlice) -> bool {
    let labels = slice.metadata.labels.as_ref();
    !labels.is_some_and(|labels| labels.contains_key(HEADLESS))
}

/// A slice with its port numbers by name and protocol: a user chooses how many there are.
pub struct IndexedSlice<'a> {
    slice: &'a EndpointSlice,
    ports: HashMap<(&'a str, Protocol), Vec<u16>>,
}

impl<'a> IndexedSlice<'a> {
    /// Indexes the ports of a slice.
    pub fn new(slice: &'a EndpointSlice) -> Self {
        let mut ports: HashMap<_, Vec<u16>> = HashMap::new();
        for port in slice.ports.iter().flatten() {
            let number = port.port.and_then(|number| u16::try_from(number).ok());
            let protocol = Protocol::from_kubernetes(port.protocol.as_deref());
            if let (Some(number), Some(protocol)) = (number, protocol) {
                let name = port.name.as_deref().unwrap_or_default();
                ports.entry((name, protocol)).or_default().push(number);
            }
        }
        Self { slice, ports }
    }
}

/// Whether an address can be an endpoint. The API server refuses others, which would lead pods to processes of their
/// node that listen on its loopback address.
fn is_usable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !(is_link_local || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

impl Chosen {
    /// With at most this many endpoints of each kind; other nodes take others.
    pub fn limited(mut self, most: usize, node: &str) -> Self {
        let start = node.bytes().fold(7_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        for endpoints in [&mut self.cluster, &mut self.local] {
            if endpoints.len() > most {
                let start = start % endpoints.len();
                endpoints.rotate_left(start);
                endpoints.truncate(most);
                endpoints.sort_unstable();
            }
        }
        self
    }
}

/// Chooses among all slices of one service.
pub fn choose<'a>(
    slices: impl IntoIterator<Item = &'a IndexedSlice<'a>>,
    wanted: EndpointQuery<'_>,
    place: &NodeTopology,
) -> Chosen {
    let mut candidates = BTreeMap::new();
    for slice in slices {
        collect(slice, wanted, place, &mut candidates);
    }
    let (usable, has_ready) = ready_or_serving(&candidates, |_| true);
    let (local, _) = ready_or_serving(&candidates, |candidate| candidate.local);
    let cluster = match has_ready {
        true => by_hints(&usable, place),
        false => usable,
    };
    let kept = match wanted.protocol {
        Protocol::Udp => kept(&candidates),
        Protocol::Tcp | Protocol::Sctp => BTreeSet::new(),
    };
    let to_endpoints = |chosen: Vec<(&(IpAddr, u16), &Candidate)>| {
        let endpoint = |(at, candidate): (&(IpAddr, u16), &Candidate)| Endpoint {
            ip: at.0,
            port: at.1,
            local: candidate.local,
        };
        chosen.into_iter().map(endpoint).collect()
    };
    Chosen {
        cluster: to_endpoints(cluster),
        local: to_endpoints(local),
        kept,
    }
}

/// The serving endpoints, also those that terminate or are not chosen; all that exist if none serves.
fn kept(candidates: &Candidates) -> BTreeSet<(IpAddr, u16)> {
    let is_served = candidates.values().any(|candidate| candidate.serving);
    let kept = candidates
        .iter()
        .filter(|(_, candidate)| candidate.serving || !is_served);
    kept.map(|(at, _)| *at).collect()
}

/// The addresses of ready endpoints on a node.
pub fn local_addresses(slices: &[&EndpointSlice], node: &str) -> BTreeSet<String> {
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten());
    let local = endpoints.filter(|endpoint| endpoint.node_name.as_deref() == Some(node));
    let ready = local.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready) != Some(false)
    });
    ready
        .filter_map(|endpoint| endpoint.addresses.first().cloned())
        .collect()
}

type Candidates = BTreeMap<(IpAddr, u16), Candidate>;

fn collect(
    indexed: &IndexedSlice<'_>,
    wanted: EndpointQuery<'_>,
    place: &NodeTopology,
    into: &mut Candidates,
) {
    let slice = indexed.slice;
    if slice.address_type != if wanted.v4 { "IPv4" } else { "IPv6" } {
        return;
    }
    let ports = indexed.ports.get(&(wanted.port_name, wanted.protocol));
    for port in ports.into_iter().flatten().copied() {
        for endpoint in slice.endpoints.iter().flatten() {
            // Addresses of one endpoint are alternatives for the same backend: the first is used.
            let Some(Ok(ip)) = endpoint
                .addresses
                .first()
                .map(|address| address.parse::<IpAddr>())
            else {
                continue;
            };
            if ip.is_ipv4() != wanted.v4 || !is_usable(ip) {
                continue;
            }
            let candidate = candidate(endpoint, place);
            match into.entry((ip, port)) {
                Entry::Vacant(entry) => {
                    entry.insert(candidate);
                }
                Entry::Occupied(mut known) => known.get_mut().join(candidate),
            }
        }
    }
}

impl Candidate {
    /// An address can be in two slices, while its endpoint moves between them: the better state wins. Or the address of a
    /// pod that terminates already has another pod, which wins.
    fn join(&mut self, other: Self) {
        match (self.terminating, other.terminating) {
            (true, false) => *self = other,
            (false, true) => {}
            _ => {
                self.ready |= other.ready;
                self.serving |= other.serving;
            }
        }
    }
}

fn candidate(endpoint: &SliceEndpoint, place: &NodeTopology) -> Candidate {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let hints = endpoint.hints.as_ref();
    let zones = hints.and_then(|hints| hints.for_zones.as_ref());
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref());
    Candidate {
        local: endpoint.node_name.as_deref() == Some(&place.node),
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        zones: zones
            .into_iter()
            .flatten()
            .map(|zone| zone.name.clone())
            .collect(),
        nodes: nodes
            .into_iter()
            .flatten()
            .map(|node| node.name.clone())
            .collect(),
    }
}

/// An address and port with what its slices say of it.
type Usable<'a> = (&'a (IpAddr, u16), &'a Candidate);

/// The ready endpoints, or if there are none, those that are serving while terminating; and whether any is ready.
fn ready_or_serving(
    candidates: &Candidates,
    eligible: impl Fn(&Candidate) -> bool,
) -> (Vec<Usable<'_>>, bool) {
    let pick = |wanted: fn(&Candidate) -> bool| -> Vec<_> {
        candidates
            .iter()
            .filter(|(_, candidate)| eligible(candidate) && wanted(candidate))
            .collect()
    };
    let ready = pick(|candidate| candidate.ready);
    match ready.is_empty() {
        true => {
            let serving = |candidate: &Candidate| candidate.serving && candidate.terminating;
            (pick(serving), false)
        }
        false => (ready, true),
    }
}

/// Hints count only if every endpoint has one and one of them is for this node or zone.
fn by_hints<'a>(usable: &[Usable<'a>], place: &NodeTopology) -> Vec<Usable<'a>> {
    if usable
        .iter()
        .all(|(_, candidate)| !candidate.nodes.is_empty())
    {
        let here: Vec<_> = usable
            .iter()
            .filter(|(_, candidate)| candidate.nodes.contains(&place.node))
            .copied()
            .collect();
        if !here.is_empty() {
            return here;
        }
    }
    if let Some(zone) = &place.zone
        && usable
            .iter()
            .all(|(_, candidate)| !candidate.zones.is_empty())
    {
        let here: Vec<_> = usable
            .iter()
            .filter(|(_, candidate)| candidate.zones.contains(zone))
            .copied()
            .collect();
        if !here.is_empty() {
            return here;
        }
    }
    usable.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(endpoints: Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "namespace": "default"},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn chosen(endpoints: Value) -> (Vec<String>, Vec<String>) {
        let wanted = EndpointQuery {
            port_name: "http",
            protocol: Protocol::Tcp,
            v4: true,
        };
        let place = NodeTopology {
            node: "here".into(),
            zone: Some("z1".into()),
        };
        let slice = slice(endpoints);
        let chosen = choose([&IndexedSlice::new(&slice)], wanted, &place);
        let show = |endpoints: Vec<Endpoint>| {
            endpoints
                .iter()
                .map(|endpoint| endpoint.ip.to_string())
                .collect()
        };
        (show(chosen.cluster), show(chosen.local))
    }

    #[test]
    fn slices_with_the_headless_label_are_not_proxied() {
        let mut slice = slice(json!([]));
        assert!(is_proxied(&slice));
        slice.metadata.labels = Some([(HEADLESS.to_owned(), String::new())].into());
        assert!(!is_proxied(&slice));
    }

    #[test]
    fn only_ready_endpoints_serve() {
        let (cluster, local) = chosen(json!([
            {"addresses": ["10.0.0.1"], "nodeName": "here"},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}, "nodeName": "here"},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": true}, "nodeName": "there"},
        ]));
        assert_eq!(cluster, ["10.0.0.1", "10.0.0.3"]);
        assert_eq!(local, ["10.0.0.1"]);
    }

    #[test]
    fn terminating_endpoints_serve_when_no_other_is_ready() {
        let (cluster, local) = chosen(json!([
            {"addresses": ["10.0.0.1"], "nodeName": "here",
             "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.0.0.2"], "nodeName": "there",
             "conditions": {"ready": false, "serving": false, "terminating": true}},
            {"addresses": ["10.0.0.3"], "nodeName": "here",
             "conditions": {"ready": false, "serving": true}},
            // Without a statement it serves.
            {"addresses": ["10.0.0.4"], "nodeName": "there",
             "conditions": {"ready": false, "terminating": true}},
        ]));
        assert_eq!(cluster, ["10.0.0.1", "10.0.0.4"]);
        assert_eq!(local, ["10.0.0.1"]);
    }

    #[test]
    fn hints_of_terminating_endpoints_do_not_count() {
        let leaving = |ip: &str, zone: &str| {
            json!({"addresses": [ip], "hints": {"forZones": [{"name": zone}]},
                   "conditions": {"ready": false, "serving": true, "terminating": true}})
        };
        let (cluster, _) = chosen(json!([
            leaving("10.0.0.1", "z1"),
            leaving("10.0.0.2", "z2")
        ]));
        assert_eq!(cluster, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn the_new_pod_of_an_address_counts_instead_of_the_terminating_one() {
        let old = json!({"addresses": ["10.0.0.1"], "nodeName": "there",
            "conditions": {"ready": false, "serving": true, "terminating": true}});
        let new = json!({"addresses": ["10.0.0.1"], "nodeName": "here",
            "conditions": {"ready": false, "serving": false}});
        for both in [json!([old, new]), json!([new, old])] {
            assert_eq!(chosen(both), (vec![], vec![]));
        }
    }

    #[test]
    fn udp_conversations_stay_with_endpoints_that_serve_or_with_all_if_none_does() {
        let endpoint = |ip: &str, ready: bool, serving: bool, terminating: bool| {
            json!({"addresses": [ip], "hints": {"forZones": [{"name": "z1"}]},
                   "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
        };
        let ready = endpoint("10.0.0.1", true, true, false);
        let leaving = endpoint("10.0.0.2", false, true, true);
        let failing = endpoint("10.0.0.3", false, false, false);
        for (endpoints, expected) in [
            (
                json!([ready, leaving, failing]),
                &["10.0.0.1", "10.0.0.2"][..],
            ),
            (json!([failing]), &["10.0.0.3"]),
            (json!([]), &[]),
        ] {
            let mut slice = slice(endpoints);
            slice.ports.as_mut().unwrap()[0].protocol = Some("UDP".into());
            let wanted = EndpointQuery {
                port_name: "http",
                protocol: Protocol::Udp,
                v4: true,
            };
            let place = NodeTopology::default();
            let kept = choose([&IndexedSlice::new(&slice)], wanted, &place).kept;
            let shown: Vec<String> = kept.iter().map(|(ip, _)| ip.to_string()).collect();
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn hints_for_nodes_count_before_those_for_zones() {
        let hints = |node: &str, zone: &str| json!({"forNodes": [{"name": node}], "forZones": [{"name": zone}]});
        let (near, far) = (hints("here", "z1"), hints("there", "z1"));
        for (hints, expected) in [
            ([near.clone(), far.clone()], vec!["10.0.0.1"]),
            // None for this node: those for its zone count.
            ([far, hints("there", "z2")], vec!["10.0.0.1"]),
            (
                [near, json!({"forZones": [{"name": "z1"}]})],
                vec!["10.0.0.1", "10.0.0.2"],
            ),
        ] {
            let (cluster, _) = chosen(json!([
                {"addresses": ["10.0.0.1"], "hints": hints[0]},
                {"addresses": ["10.0.0.2"], "hints": hints[1]},
            ]));
            assert_eq!(cluster, expected, "{hints:?}");
        }
    }

    #[test]
    fn hints_keep_traffic_in_the_zone_when_all_endpoints_have_them() {
        let zone = |name: &str| json!({"forZones": [{"name": name}]});
        let (cluster, _) = chosen(json!([
            {"addresses": ["10.0.0.1"], "hints": zone("z1")},
            {"addresses": ["10.0.0.2"], "hints": zone("z2")},
        ]));
        assert_eq!(cluster, ["10.0.0.1"]);
        let (cluster, _) = chosen(json!([
            {"addresses": ["10.0.0.1"], "hints": zone("z1")},
            {"addresses": ["10.0.0.2"]},
        ]));
        assert_eq!(cluster, ["10.0.0.1", "10.0.0.2"]);
    }

    #[test]
    fn other_families_ports_and_protocols_do_not_count() {
        let slice = slice(json!([{"addresses": ["10.0.0.1"]}]));
        for wanted in [
            EndpointQuery {
                port_name: "http",
                protocol: Protocol::Tcp,
                v4: false,
            },
            EndpointQuery {
                port_name: "",
                protocol: Protocol::Tcp,
                v4: true,
            },
            EndpointQuery {
                port_name: "http",
                protocol: Protocol::Udp,
                v4: true,
            },
        ] {
            assert_eq!(
                choose(
                    [&IndexedSlice::new(&slice)],
                    wanted,
                    &NodeTopology::default()
                ),
                Chosen::default()
            );
        }
    }
    #[test]
    fn addresses_that_are_no_endpoints_are_not_used() {
        let (cluster, _) = chosen(json!([
            {"addresses": ["127.0.0.1"]}, {"addresses": ["0.0.0.0"]}, {"addresses": ["169.254.169.254"]},
            {"addresses": ["224.0.0.9"]}, {"addresses": ["255.255.255.255"]}, {"addresses": ["::1"]},
            {"addresses": ["fd00::1"]}, {"addresses": ["nonsense"]}, {"addresses": ["10.0.0.1"]},
        ]));
        assert_eq!(cluster, ["10.0.0.1"]);
        for (ip, usable) in [
            ("fd00::1", true),
            ("::1", false),
            ("::", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
        ] {
            assert_eq!(is_usable(ip.parse().unwrap()), usable, "{ip}");
        }
    }

    #[test]
    fn of_very_many_endpoints_each_node_takes_a_part() {
        let endpoint = |number: u8| Endpoint {
            ip: IpAddr::from([10, 0, 0, number]),
            port: 80,
            local: false,
        };
        let all = Chosen {
            cluster: (0..100).map(endpoint).collect(),
            local: (0..5).map(endpoint).collect(),
            ..Chosen::default()
        };
        assert_eq!(all.clone().limited(100, "one"), all);
        let mut taken = BTreeSet::new();
        for node in 0..100 {
            let part = all.clone().limited(10, &format!("node-{node}"));
            assert_eq!((part.cluster.len(), part.local.len()), (10, 5));
            assert!(part.cluster.is_sorted());
            taken.extend(part.cluster);
        }
        assert!(taken.len() > 90, "{}", taken.len());
    }
}
