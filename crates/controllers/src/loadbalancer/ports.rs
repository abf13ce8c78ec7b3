//! Assigns the nodes' ports to Services. A Service gets all of its ports or none: a rejected one
//! blocks no port. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Service, ServicePort};

use super::{
    claims::{Name, name_of},
    decide::{competes, is_same},
};

/// Protocol and number.
pub(super) type Port = (String, i32);

/// The ports that a Service wants.
pub(super) fn ports(service: &Service) -> BTreeSet<Port> {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref());
    let port = |port: &ServicePort| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        (protocol, port.port)
    };
    ports.into_iter().flatten().map(port).collect()
}

/// Why Services do not get their ports, by Service.
pub(super) fn refusals(
    services: &[Arc<Service>],
    reserved: &BTreeSet<u16>,
) -> BTreeMap<Name, String> {
    let mut all: Vec<&Service> = services.iter().map(AsRef::as_ref).collect();
    all.retain(|other| competes(other));
    all.sort_by_cached_key(|service| {
        let since = service.metadata.creation_timestamp.as_ref();
        (since.map(|time| time.0), name_of(service))
    });
    // A Service keeps the ports it has, until its status shows that it was rejected.
    let mut owners: BTreeMap<Port, &Service> = BTreeMap::new();
    for holder in &all {
        let given = given_ports(holder);
        let held = ports(holder).into_iter();
        for port in held.filter(|port| given.has(port)) {
            owners.entry(port).or_insert(holder);
        }
    }
    // The other ports go to the older Services first.
    let mut refusals = BTreeMap::new();
    for claimant in all {
        match refused_by(claimant, &owners, reserved) {
            Some(refusal) => drop(refusals.insert(name_of(claimant), refusal)),
            None => {
                let wanted = ports(claimant).into_iter();
                owners.extend(wanted.map(|port| (port, claimant)));
            }
        }
    }
    refusals
}

fn refused_by(
    service: &Service,
    owners: &BTreeMap<Port, &Service>,
    reserved: &BTreeSet<u16>,
) -> Option<String> {
    for port in ports(service) {
        let (protocol, number) = &port;
        if u16::try_from(*number).is_ok_and(|number| reserved.contains(&number)) {
            return Some(format!(
                "port {number}/{protocol} of the nodes is not given away"
            ));
        }
        let owner = owners.get(&port).filter(|owner| !is_same(owner, service));
        if let Some(owner) = owner {
            let meta = &owner.metadata;
            let name = meta.name.as_deref().unwrap_or_default();
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            return Some(format!(
                "port {number}/{protocol} of the nodes belongs to Service {namespace}/{name}"
            ));
        }
    }
    None
}

/// The ports that a Service has by its status; a status without ports means all of them. A user chooses how many there
/// are.
enum GivenPorts<'a> {
    All,
    Some(HashSet<(&'a str, i32)>),
}

impl GivenPorts<'_> {
    fn has(&self, (protocol, number): &Port) -> bool {
        match self {
            Self::All => true,
            Self::Some(ports) => ports.contains(&(protocol.as_str(), *number)),
        }
    }
}

fn given_ports(service: &Service) -> GivenPorts<'_> {
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_deref());
    let lists = ingress.unwrap_or_default().iter();
    let mut lists = lists.map(|ingress| ingress.ports.as_deref().unwrap_or_default());
    if lists.clone().any(<[_]>::is_empty) {
        return GivenPorts::All;
    }
    let mut given = HashSet::new();
    for ports in &mut lists {
        given.extend(ports.iter().map(|port| (port.protocol.as_str(), port.port)));
    }
    GivenPorts::Some(given)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A Service by name, day of creation, wanted ports, and ports in its status.
    fn service(name: &str, day: u32, wanted: &[i32], shown: &[i32]) -> Arc<Service> {
        let port = |port: &i32| json!({"port": port, "protocol": "TCP"});
        let wanted: Vec<_> = wanted.iter().map(port).collect();
        let ingress = match shown {
            [] => json!([]),
            shown => {
                json!([{"ip": "192.0.2.1", "ports": shown.iter().map(port).collect::<Vec<_>>()}])
            }
        };
        let object = json!({
            "metadata": {"name": name, "namespace": "d",
                         "creationTimestamp": format!("2026-01-{day:02}T00:00:00Z")},
            "spec": {"type": "LoadBalancer", "ports": wanted},
            "status": {"loadBalancer": {"ingress": ingress}},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// The Services that block each Service, in the order of the Services.
    fn refusals(services: &[Arc<Service>]) -> Vec<String> {
        let reserved = BTreeSet::from([22]);
        let refused = super::refusals(services, &reserved);
        services
            .iter()
            .map(|one| {
                let text = refused.get(&name_of(one)).cloned().unwrap_or_default();
                let name = text.rsplit_once("d/").map(|(_, name)| name.to_owned());
                name.unwrap_or(text)
            })
            .collect()
    }

    #[test]
    fn a_service_refused_for_one_port_reserves_none_of_its_ports() {
        let services = [
            service("holder", 3, &[443], &[443]),
            service("refused", 1, &[80, 443], &[]),
            service("waiting", 2, &[80], &[]),
        ];
        assert_eq!(refusals(&services), ["", "holder", ""]);
        let services = [
            service("reserved", 1, &[22, 80], &[]),
            service("waiting", 2, &[80], &[]),
        ];
        let found = refusals(&services);
        assert!(found[0].contains("22/TCP"), "{found:?}");
        assert_eq!(found[1], "");
    }

    #[test]
    fn a_service_that_adds_a_port_of_another_loses_its_ports_to_waiting_services() {
        let before = [
            service("greedy", 1, &[80, 443], &[80]),
            service("holder", 2, &[443], &[443]),
            service("waiting", 3, &[80], &[]),
        ];
        // Its status still has the port: no other Service gets it until the status is written.
        assert_eq!(refusals(&before), ["holder", "", "greedy"]);
        let after = [
            service("greedy", 1, &[80, 443], &[]),
            service("holder", 2, &[443], &[443]),
            service("waiting", 3, &[80], &[]),
        ];
        assert_eq!(refusals(&after), ["holder", "", ""]);
    }

    #[test]
    fn of_two_that_want_each_others_ports_the_first_that_is_refused_leaves_its_own() {
        let both = [
            service("a", 1, &[80, 443], &[80]),
            service("b", 2, &[80, 443], &[443]),
        ];
        assert_eq!(refusals(&both), ["b", "a"]);
        let one = [
            service("a", 1, &[80, 443], &[]),
            service("b", 2, &[80, 443], &[443]),
        ];
        assert_eq!(refusals(&one), ["b", ""]);
    }
}
