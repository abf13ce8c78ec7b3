//! Assigns addresses to Services of type LoadBalancer. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{claims::Claims, nodes::Target, pool::Pool, ports::ports};
use crate::{shared::LOAD_BALANCER, templatehash::short_hash};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{LoadBalancerIngress, PortStatus, Service, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use reconcile::condition;

/// The load balancer class of this controller; it also serves Services without a class.
pub const CLASS: &str = "mainstay.local/load-balancer";
/// The annotation of a Service with an address of the pool: the node that announces it.
pub const ANNOUNCER: &str = "mainstay.local/announced-by";
/// The condition of a Service whose addresses are from the pool. Nodes trust it, unlike the
/// annotation, since only controllers write a Service's status.
pub const FROM_POOL: &str = "mainstay.local/AddressFromPool";
/// Upstream's finalizer of a Service with a load balancer: it is deleted after its addresses are free.
pub(super) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Upstream's condition of a Service that does not get its ports.
const PORTS_ERROR: &str = "LoadBalancerPortsError";
/// The maximum number of node addresses in a status. Clients try only a few, and a status that
/// listed every node would change constantly.
const MOST_NODES: usize = 100;

/// The inputs of the decision about one Service.
pub(super) struct View<'a> {
    /// What all load balancers have and want.
    pub claims: &'a Claims,
    /// All nodes that accept traffic.
    pub nodes: &'a [Target],
    /// The nodes with serving endpoints of this Service.
    pub with_endpoints: &'a BTreeSet<String>,
    /// Addresses to assign; if empty, the nodes' own addresses are used.
    pub pool: &'a Pool,
}

/// The decision about a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Decision {
    /// The assigned addresses.
    pub ingress: Vec<IpAddr>,
    /// The node that announces them, if they are from the pool.
    pub announcer: Option<String>,
    /// Whether the addresses are from the pool.
    pub is_from_pool: bool,
    /// Why it has none, or not all.
    pub problem: Option<String>,
    /// Whether the problem is about its ports.
    pub lacks_ports: bool,
}

/// Whether a Service is of type LoadBalancer and has our class or none.
fn has_our_class(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let class = spec.and_then(|spec| spec.load_balancer_class.as_deref());
    is_load_balancer(service) && class.is_none_or(|class| class == CLASS)
}

fn is_deleting(service: &Service) -> bool {
    service.metadata.deletion_timestamp.is_some()
}

/// Whether the controller assigns addresses to a Service.
pub(super) fn is_ours(service: &Service) -> bool {
    has_our_class(service) && !is_deleting(service)
}

/// Whether a Service wants addresses and ports, or still has them while it is being deleted.
pub(super) fn competes(service: &Service) -> bool {
    is_ours(service) || (has_our_class(service) && !addresses(service).is_empty())
}

/// Whether a Service has the finalizer.
pub(super) fn has_finalizer(service: &Service) -> bool {
    let mut finalizers = service.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == FINALIZER)
}

/// Whether a Service that is being deleted, or of another type, still has addresses or the finalizer.
pub(super) fn needs_cleanup(service: &Service) -> bool {
    let is_released = match is_load_balancer(service) {
        true => has_our_class(service) && is_deleting(service),
        false => true,
    };
    is_released && (has_finalizer(service) || !addresses(service).is_empty())
}

/// Whether two are the same Service.
pub(super) fn is_same(one: &Service, other: &Service) -> bool {
    one.metadata.namespace == other.metadata.namespace && one.metadata.name == other.metadata.name
}

/// Whether a Service is of type LoadBalancer.
pub(super) fn is_load_balancer(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.type_.as_deref()) == Some(LOAD_BALANCER)
}

/// The addresses in a Service's status.
pub(super) fn addresses(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    let ips = ingress
        .into_iter()
        .flatten()
        .filter_map(|one| one.ip.as_ref());
    ips.filter_map(|ip| ip.parse().ok()).collect()
}

/// The status of a decision, with the ports that the Service has got.
pub(super) fn ingress(service: &Service, decision: &Decision) -> Vec<LoadBalancerIngress> {
    let ports: Vec<PortStatus> = ports(service)
        .into_iter()
        .map(|(protocol, port)| PortStatus {
            port,
            protocol,
            error: None,
        })
        .collect();
    let shown = |ip: &IpAddr| LoadBalancerIngress {
        ip: Some(ip.to_string()),
        ip_mode: Some("VIP".to_owned()),
        ports: Some(ports.clone()),
        ..LoadBalancerIngress::default()
    };
    decision.ingress.iter().map(shown).collect()
}

/// The conditions that a decision changes. A condition that was never true is not added.
pub(super) fn conditions(service: &Service, decision: &Decision, now: Timestamp) -> Vec<Condition> {
    let status = service.status.as_ref();
    let known = status.and_then(|status| status.conditions.as_deref());
    let known = known.unwrap_or_default();
    let problem = decision.problem.clone().filter(|_| decision.lacks_ports);
    let changed = |(type_, is_true, reason, message): (&str, bool, &str, String)| {
        let new = Condition {
            type_: type_.to_owned(),
            status: if is_true { "True" } else { "False" }.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: None,
            last_transition_time: Time(now),
        };
        let is_shown = is_true || condition::find(known, type_).is_some();
        condition::transition(known, new, now).filter(|_| is_shown)
    };
    let from = match decision.is_from_pool {
        true => "Allocated",
        false => "NotAllocated",
    };
    let ports = match problem.is_some() {
        true => "PortsNotAvailable",
        false => "PortsAvailable",
    };
    [
        (FROM_POOL, decision.is_from_pool, from, String::new()),
        (
            PORTS_ERROR,
            problem.is_some(),
            ports,
            problem.unwrap_or_default(),
        ),
    ]
    .into_iter()
    .filter_map(changed)
    .collect()
}

/// The node in the Service's annotation.
pub(super) fn announcer(service: &Service) -> Option<&str> {
    let annotations = service.metadata.annotations.as_ref()?;
    annotations.get(ANNOUNCER).map(String::as_str)
}

/// Decides about one of our Services.
pub(super) fn decide(service: &Service, view: &View<'_>) -> Decision {
    let Some(spec) = &service.spec else {
        return Decision::default();
    };
    let nodes = candidates(spec, view);
    if view.pool.is_empty() {
        from_nodes(service, spec, &nodes, view)
    } else {
        from_pool(service, spec, &nodes, view)
    }
}

/// Whether the Service's external traffic policy is Local.
pub(super) fn is_local(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.external_traffic_policy.as_deref()) == Some("Local")
}

/// The IP families of the Service; IPv4 by default.
fn families(spec: &ServiceSpec) -> Vec<bool> {
    let families = spec.ip_families.as_deref().unwrap_or_default();
    match families.is_empty() {
        true => vec![true],
        false => families.iter().map(|family| family == "IPv4").collect(),
    }
}

/// The nodes that accept traffic for the Service.
fn candidates<'a>(spec: &ServiceSpec, view: &View<'a>) -> Vec<&'a Target> {
    let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
    let serves = |node: &&Target| !is_local || view.with_endpoints.contains(&node.name);
    view.nodes.iter().filter(serves).collect()
}

fn from_nodes(
    service: &Service,
    spec: &ServiceSpec,
    nodes: &[&Target],
    view: &View<'_>,
) -> Decision {
    if let Some(problem) = view.claims.refusal(service) {
        return Decision {
            problem: Some(problem.clone()),
            lacks_ports: true,
            ..Decision::default()
        };
    }
    let mut all = Vec::new();
    for v4 in families(spec) {
        let addresses = nodes.iter().flat_map(|node| &node.addresses);
        let addresses = addresses.filter(|ip| ip.is_ipv4() == v4).copied();
        let addresses: BTreeSet<IpAddr> = addresses.collect();
        all.extend(addresses.into_iter().take(MOST_NODES));
    }
    Decision {
        ingress: all,
        ..Decision::default()
    }
}

fn from_pool(
    service: &Service,
    spec: &ServiceSpec,
    nodes: &[&Target],
    view: &View<'_>,
) -> Decision {
    let is_taken = |ip: &IpAddr| view.claims.is_taken(*ip, service);
    let wish = spec.load_balancer_ip.as_deref().filter(|ip| !ip.is_empty());
    let wish = wish.map(|ip| ip.parse::<IpAddr>());
    let mut decision = Decision::default();
    for v4 in families(spec) {
        let own = addresses(service).into_iter();
        let own = own
            .filter(|ip| ip.is_ipv4() == v4)
            .find(|ip| view.pool.contains(*ip));
        let free = match &wish {
            Some(Err(_)) => None,
            Some(Ok(ip)) if ip.is_ipv4() == v4 => Some(*ip).filter(|ip| view.pool.contains(*ip)),
            _ => own
                .filter(|ip| !is_taken(ip))
                .or_else(|| view.pool.first_free(v4, is_taken)),
        };
        match free.filter(|ip| !is_taken(ip)) {
            Some(ip) => decision.ingress.push(ip),
            None => {
                let family = if v4 { "IPv4" } else { "IPv6" };
                let what = match &spec.load_balancer_ip {
                    Some(wish) if !wish.is_empty() => {
                        format!("address {wish} is not free in the pool")
                    }
                    _ => format!("the pool has no free {family} address"),
                };
                decision.problem = Some(what);
            }
        }
    }
    if !decision.ingress.is_empty() {
        decision.is_from_pool = true;
        decision.announcer = choose_announcer(service, nodes);
    }
    decision
}

/// The current announcer while it can; otherwise the node with the highest hash of its name and the
/// Service's, which spreads Services over nodes.
fn choose_announcer(service: &Service, nodes: &[&Target]) -> Option<String> {
    let names: BTreeMap<(String, &str), &str> = nodes
        .iter()
        .map(|node| {
            let node = node.name.as_str();
            let meta = &service.metadata;
            let word = format!("{node}/{:?}/{:?}", meta.namespace, meta.name);
            ((short_hash(word.as_bytes(), None), node), node)
        })
        .collect();
    let now = announcer(service).filter(|now| names.values().any(|name| name == now));
    let chosen = now.or_else(|| names.values().next_back().copied());
    chosen.map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::{
        super::nodes::{self, EXCLUDED, LEAVING},
        *,
    };

    fn service(name: &str, patch: Value) -> Arc<Service> {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "d"},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        });
        merge(&mut object, patch);
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn merge(into: &mut Value, patch: Value) {
        match (into, patch) {
            (Value::Object(into), Value::Object(patch)) => {
                for (key, value) in patch {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, patch) => *into = patch,
        }
    }

    fn node(name: &str, address: &str, patch: Value) -> Arc<Node> {
        let mut object = json!({
            "metadata": {"name": name},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                       "addresses": [{"type": "InternalIP", "address": address},
                                     {"type": "Hostname", "address": name}]},
        });
        merge(&mut object, patch);
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn has(ips: &[&str]) -> Value {
        let ingress: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"status": {"loadBalancer": {"ingress": ingress}}})
    }

    struct World {
        services: Vec<Arc<Service>>,
        nodes: Vec<Arc<Node>>,
        with_endpoints: BTreeSet<String>,
        pool: Pool,
    }

    impl World {
        fn new(services: Vec<Arc<Service>>, pool: &str) -> Self {
            Self {
                services,
                nodes: vec![
                    node("one", "192.0.2.1", json!({})),
                    node("two", "192.0.2.2", json!({})),
                ],
                with_endpoints: BTreeSet::from(["two".to_owned()]),
                pool: pool.parse().unwrap(),
            }
        }

        fn decide(&self, index: usize) -> Decision {
            let keys: Vec<String> = self
                .nodes
                .iter()
                .flat_map(|node| nodes::traffic(node))
                .collect();
            let view = View {
                claims: &Claims::new(&self.services, &BTreeSet::from([22, 6443])),
                nodes: &nodes::targets(&keys),
                with_endpoints: &self.with_endpoints,
                pool: &self.pool,
            };
            decide(&self.services[index], &view)
        }

        fn ingress(&self, index: usize) -> Vec<String> {
            let ingress = self.decide(index).ingress;
            ingress.iter().map(ToString::to_string).collect()
        }
    }

    #[test]
    fn other_types_and_classes_are_not_ours() {
        assert!(is_ours(&service("a", json!({}))));
        for patch in [
            json!({"spec": {"type": "NodePort"}}),
            json!({"spec": {"loadBalancerClass": "example.com/other"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            assert!(!is_ours(&service("a", patch.clone())), "{patch}");
        }
        assert!(is_ours(&service(
            "a",
            json!({"spec": {"loadBalancerClass": CLASS}})
        )));
    }

    #[test]
    fn a_deleted_service_or_one_of_another_type_is_cleaned_up() {
        let gone = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let kept = json!({"finalizers": [FINALIZER]});
        let mut both = gone.clone();
        merge(&mut both, kept.clone());
        let cluster_ip = json!({"type": "ClusterIP"});
        for (metadata, spec, ips, expected) in [
            (json!({}), json!({}), &["192.0.2.1"][..], false),
            (kept.clone(), json!({}), &["192.0.2.1"], false),
            (gone.clone(), json!({}), &["192.0.2.1"], true),
            (gone, json!({}), &[], false),
            (both.clone(), json!({}), &[], true),
            (
                both,
                json!({"loadBalancerClass": "example.com/a"}),
                &[],
                false,
            ),
            (kept, cluster_ip.clone(), &[], true),
            (json!({}), cluster_ip.clone(), &["192.0.2.1"], true),
            (json!({}), cluster_ip, &[], false),
        ] {
            let mut object = has(ips);
            object["metadata"] = metadata;
            object["spec"] = spec;
            let shown = object.to_string();
            assert_eq!(needs_cleanup(&service("a", object)), expected, "{shown}");
        }
    }

    #[test]
    fn addresses_and_ports_of_a_deleted_service_are_free_after_its_cleanup() {
        let gone = |ips: &[&str]| {
            let mut object = has(ips);
            object["metadata"] = json!({"deletionTimestamp": "2026-01-01T00:00:00Z",
                                        "finalizers": ["example.com/slow"]});
            service("gone", object)
        };
        let pool = "198.51.100.1";
        let world = World::new(vec![service("a", json!({})), gone(&[pool])], pool);
        assert!(world.decide(0).problem.is_some());
        let world = World::new(vec![service("a", json!({})), gone(&[])], pool);
        assert_eq!(world.ingress(0), [pool]);
        let world = World::new(vec![service("a", json!({})), gone(&["192.0.2.1"])], "");
        assert!(world.decide(0).problem.is_some());
        let world = World::new(vec![service("a", json!({})), gone(&[])], "");
        assert_eq!(world.decide(0).problem, None);
    }

    #[test]
    fn a_service_gets_the_addresses_of_nodes_that_take_traffic() {
        let mut world = World::new(vec![service("a", json!({}))], "");
        assert_eq!(world.ingress(0), ["192.0.2.1", "192.0.2.2"]);
        let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        for patch in [
            not_ready,
            json!({"metadata": {"labels": {EXCLUDED: ""}}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"spec": {"taints": [{"key": LEAVING, "effect": "NoSchedule"}]}}),
        ] {
            world.nodes[0] = node("one", "192.0.2.1", patch.clone());
            assert_eq!(world.ingress(0), ["192.0.2.2"], "{patch}");
        }
        world.nodes[0] = node(
            "one",
            "192.0.2.1",
            json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "ExternalIP", "address": "203.0.113.1"}]}}),
        );
        assert_eq!(world.ingress(0), ["192.0.2.2", "203.0.113.1"]);
    }

    #[test]
    fn policy_local_leaves_nodes_without_endpoints_out() {
        let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
        let mut world = World::new(vec![service("a", local)], "");
        assert_eq!(world.ingress(0), ["192.0.2.2"]);
        world.with_endpoints.clear();
        assert!(world.ingress(0).is_empty());
    }

    #[test]
    fn a_port_of_the_nodes_has_one_service_and_some_have_none() {
        let at = |time: &str| json!({"metadata": {"creationTimestamp": time}});
        let (old, new) = (at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"));
        let world = World::new(
            vec![service("a", new.clone()), service("b", old.clone())],
            "",
        );
        assert!(world.ingress(0).is_empty() && !world.ingress(1).is_empty());
        let problem = world.decide(0).problem.unwrap();
        assert!(
            problem.contains("80/TCP") && problem.contains("d/b"),
            "{problem}"
        );
        // The Service that has it keeps it.
        let mut holder = has(&["192.0.2.1"]);
        merge(&mut holder, new);
        let world = World::new(vec![service("a", holder), service("b", old)], "");
        assert!(!world.ingress(0).is_empty() && world.ingress(1).is_empty());
        // An older Service does not get a port that another one has.
        let with_port = |patch: &Value, ports: &[i32], shown: &[i32]| {
            let wished: Vec<Value> = ports.iter().map(|port| json!({"port": port})).collect();
            let shown = shown.iter();
            let shown: Vec<Value> = shown
                .map(|port| json!({"port": port, "protocol": "TCP"}))
                .collect();
            let mut all = json!({"spec": {"ports": wished}, "status": {"loadBalancer": {
                "ingress": [{"ip": "192.0.2.1", "ports": shown}]}}});
            merge(&mut all, patch.clone());
            all
        };
        let (old, new) = (at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"));
        let greedy = with_port(&old, &[80, 443], &[80]);
        let holder = with_port(&new, &[443], &[443]);
        let world = World::new(vec![service("a", greedy), service("b", holder)], "");
        assert!(world.decide(0).problem.unwrap().contains("443/TCP"));
        assert_eq!(world.decide(1).problem, None);
        // The same number of another protocol is another port.
        let udp = json!({"spec": {"ports": [{"port": 80, "protocol": "UDP"}]}});
        let world = World::new(vec![service("a", json!({})), service("b", udp)], "");
        assert!(!world.ingress(0).is_empty() && !world.ingress(1).is_empty());
        let world = World::new(
            vec![service("a", json!({"spec": {"ports": [{"port": 22}]}}))],
            "",
        );
        assert!(world.decide(0).problem.is_some());
    }

    #[test]
    fn conditions_report_port_conflicts_and_pool_addresses() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let shown = |service: &Service, decision: &Decision| -> Vec<String> {
            let conditions = conditions(service, decision, now).into_iter();
            let shown = conditions.map(|one| format!("{} {}", one.type_, one.status));
            shown.collect()
        };
        let world = World::new(
            vec![service("a", json!({"spec": {"ports": [{"port": 22}]}}))],
            "",
        );
        let refused = world.decide(0);
        let made = conditions(&world.services[0], &refused, now);
        assert_eq!(made[0].message, refused.problem.clone().unwrap());
        assert_eq!(
            shown(&world.services[0], &refused),
            ["LoadBalancerPortsError True"]
        );
        let refused = service("a", json!({"status": {"conditions": made}}));
        assert_eq!(
            shown(&refused, &Decision::default()),
            ["LoadBalancerPortsError False"]
        );
        let fresh = service("a", json!({}));
        assert!(shown(&fresh, &Decision::default()).is_empty());
        let world = World::new(vec![fresh.clone()], "198.51.100.1");
        let pooled = world.decide(0);
        let expected = format!("{FROM_POOL} True");
        assert_eq!(shown(&fresh, &pooled), [expected]);
        let made = conditions(&fresh, &pooled, now);
        let had = service("a", json!({"status": {"conditions": made}}));
        assert!(shown(&had, &pooled).is_empty());
        // Addresses of nodes replace it.
        let nodes = World::new(vec![had.clone()], "").decide(0);
        assert_eq!(shown(&had, &nodes), [format!("{FROM_POOL} False")]);
    }

    #[test]
    fn addresses_of_the_pool_are_given_once_and_kept() {
        let pool = "198.51.100.1-198.51.100.2";
        let services = vec![
            service("a", json!({})),
            service("b", has(&["198.51.100.1"])),
            service("c", has(&["203.0.113.9"])),
        ];
        let world = World::new(services, pool);
        assert_eq!(world.ingress(0), ["198.51.100.2"]);
        assert_eq!(world.ingress(1), ["198.51.100.1"]);
        // An address that is no longer in the pool is replaced.
        assert_eq!(world.ingress(2), ["198.51.100.2"]);
        let wish = |ip: &str| json!({"spec": {"loadBalancerIP": ip}});
        let services = vec![
            service("a", wish("198.51.100.2")),
            service("b", has(&["198.51.100.1"])),
            service("c", wish("198.51.100.1")),
            service("d", wish("203.0.113.9")),
        ];
        let world = World::new(services, pool);
        assert_eq!(world.ingress(0), ["198.51.100.2"]);
        assert!(world.decide(2).problem.unwrap().contains("198.51.100.1"));
        assert!(world.decide(3).problem.is_some());
        let services = vec![
            service("a", has(&["198.51.100.1"])),
            service("b", has(&["198.51.100.2"])),
            service("c", json!({})),
        ];
        let exhausted = World::new(services, pool).decide(2);
        assert!(exhausted.ingress.is_empty() && exhausted.announcer.is_none());
        assert!(exhausted.problem.unwrap().contains("no free IPv4"));
    }

    #[test]
    fn an_address_that_another_service_has_cannot_be_wished_away() {
        let older = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        let younger = json!({"metadata": {"creationTimestamp": "2026-01-02T00:00:00Z"}});
        let with = |mut patch: Value, ip: &str, wish: &str| {
            merge(&mut patch, has(&[ip]));
            merge(&mut patch, json!({"spec": {"loadBalancerIP": wish}}));
            patch
        };
        let services = vec![
            service("thief", with(older, "198.51.100.1", "198.51.100.2")),
            service("victim", with(younger, "198.51.100.2", "")),
        ];
        let world = World::new(services, "198.51.100.1-198.51.100.9");
        let thief = world.decide(0);
        assert!(
            thief.ingress.is_empty() && thief.problem.is_some(),
            "{thief:?}"
        );
        assert_eq!(world.ingress(1), ["198.51.100.2"]);
    }

    #[test]
    fn one_node_announces_and_stays_while_it_can() {
        let mut world = World::new(vec![service("a", json!({}))], "198.51.100.1");
        let first = world.decide(0).announcer.unwrap();
        let announced = json!({"metadata": {"annotations": {ANNOUNCER: "one"}}});
        for name in ["one", "two"] {
            let mut patch = announced.clone();
            patch["metadata"]["annotations"][ANNOUNCER] = json!(name);
            world.services = vec![service("a", patch)];
            assert_eq!(world.decide(0).announcer.as_deref(), Some(name));
        }
        world.services = vec![service("a", announced)];
        world.nodes.remove(0);
        assert_eq!(world.decide(0).announcer.as_deref(), Some("two"));
        assert!(["one", "two"].contains(&first.as_str()));
    }
}
