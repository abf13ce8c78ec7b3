//! The desired endpoints of a Service: pods, addresses, ports and conditions. Pure, shared with the
//! Endpoints controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use client::{Event, Informer};
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Pod, Service, ServicePort},
        discovery::v1::{
            Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode,
            ForZone,
        },
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use reconcile::{Key, Selector};

use super::{pack::ports_key, topology};
use crate::{
    pods::{is_deleting, is_ready, is_terminal},
    shared::{SELECTS, SERVICE, selected_key},
};

pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Endpoints with the same address family and ports.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) family: String,
    pub(crate) ports: Vec<EndpointPort>,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// Whether a slice has this manager.
fn is_managed_by(slice: &EndpointSlice, manager: &str) -> bool {
    let labels = slice.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(MANAGED_BY))
        .map(String::as_str)
        == Some(manager)
}

/// The slices of a Service with this manager.
pub(crate) fn slices_of(
    slices: &Informer<EndpointSlice>,
    service: &Key,
    manager: &str,
) -> Vec<Arc<EndpointSlice>> {
    let key = format!("{}/{}", service.namespace, service.name);
    let all = slices.by_index(SERVICE, &key).into_iter();
    all.filter(|slice| is_managed_by(slice, manager) && slice.metadata.deletion_timestamp.is_none())
        .collect()
}

/// The Service of a slice with this manager.
pub(crate) fn service_of_slice(
    manager: &'static str,
) -> impl Fn(&Event<EndpointSlice>) -> Vec<Key> {
    move |event| {
        let slice = event.object();
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get(SERVICE_NAME));
        let service = service.filter(|_| is_managed_by(slice, manager));
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        let service = service.into_iter();
        service
            .map(|name| Key::new(namespace.clone(), name.clone()))
            .collect()
    }
}

/// The Services whose endpoints a change of a pod concerns.
pub(crate) fn services_of_pod(
    services: &Informer<Service>,
) -> impl Fn(&Event<Pod>) -> Vec<Key> + use<> {
    let services = services.clone();
    move |event| {
        if let Event::Modified { old, new } = event
            && facts(old) == facts(new)
        {
            return Vec::new();
        }
        let pod = event.object();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let versions = || event.old().into_iter().chain([pod]);
        let selects = |service: &Service| {
            let selector = service
                .spec
                .as_ref()
                .and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| {
                let selector = Selector::labels(selector);
                versions().any(|pod| selector.matches(pod.metadata.labels.as_ref()))
            })
        };
        let labels: BTreeSet<_> = versions()
            .flat_map(|pod| pod.metadata.labels.iter().flatten())
            .collect();
        let found = labels
            .into_iter()
            .flat_map(|(key, value)| {
                services.by_index(SELECTS, &selected_key(namespace, key, value))
            })
            .filter(|service| selects(service));
        found.map(|service| Key::from_object(&*service)).collect()
    }
}

/// The parts of a pod that endpoints show.
#[allow(clippy::type_complexity)]
fn facts(
    pod: &Pod,
) -> (
    Option<&BTreeMap<String, String>>,
    Vec<IpAddr>,
    bool,
    bool,
    bool,
    &str,
) {
    let node = crate::pods::node(pod);
    let labels = pod.metadata.labels.as_ref();
    (
        labels,
        addresses(pod),
        is_ready(pod),
        is_deleting(pod),
        is_terminal(pod),
        node,
    )
}

pub(crate) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut all: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
    if all.is_empty() {
        all.extend(
            status
                .pod_ip
                .as_deref()
                .and_then(|ip| ip.parse::<IpAddr>().ok()),
        );
    }
    all
}

/// The pod's port for a Service's port.
pub(crate) fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars = spec.init_containers.iter().flatten();
            let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let mut ports = spec
                .containers
                .iter()
                .chain(sidecars)
                .flat_map(|c| c.ports.iter().flatten());
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let found = ports.find(|candidate| {
                candidate.name.as_ref() == Some(name)
                    && candidate.protocol.as_deref().unwrap_or("TCP") == protocol
            });
            found.map(|found| found.container_port)
        }
    }
}

fn ports(service: &Service, pod: Option<&Pod>) -> Vec<EndpointPort> {
    let spec = service.spec.as_ref();
    let ports = spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let resolve = |port: &ServicePort| {
        let number = match (pod, &port.target_port) {
            (Some(pod), _) => target_port(pod, port),
            (None, Some(IntOrString::Int(number))) => Some(*number),
            (None, _) => Some(port.port),
        };
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(number?),
            protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
            app_protocol: port.app_protocol.clone(),
        })
    };
    ports.filter_map(resolve).collect()
}

/// The host name of a pod whose subdomain is this headless Service.
pub(crate) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.clone().filter(|name| !name.is_empty())?;
    let same = spec.subdomain == service.metadata.name
        && pod.metadata.namespace == service.metadata.namespace;
    same.then_some(hostname)
}

/// All endpoints in groups; every address family of the Service has at least one group.
pub(crate) fn desired(
    service: &Service,
    pods: &[Arc<Pod>],
    zone: impl Fn(&str) -> Option<String>,
) -> Vec<Group> {
    let spec = service.spec.clone().unwrap_or_default();
    let families = spec.ip_families.filter(|families| !families.is_empty());
    let mut groups: Vec<Group> = Vec::new();
    for family in families.unwrap_or_else(|| vec!["IPv4".into()]) {
        let first = groups.len();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !is_terminal(pod)) {
            let Some(endpoint) = endpoint(pod, service, &family, &zone) else {
                continue;
            };
            let ports = ports(service, Some(pod));
            // Named ports can have another number in each pod.
            let place = places.entry(ports_key(&family, &ports)).or_insert_with(|| {
                groups.push(Group {
                    family: family.clone(),
                    ports,
                    endpoints: Vec::new(),
                });
                groups.len() - 1
            });
            groups[*place].endpoints.push(endpoint);
        }
        if groups.len() == first {
            let ports = Vec::new();
            groups.push(Group {
                family,
                ports,
                endpoints: Vec::new(),
            });
        }
    }
    groups
}

fn endpoint(
    pod: &Pod,
    service: &Service,
    family: &str,
    zone: &impl Fn(&str) -> Option<String>,
) -> Option<Endpoint> {
    let found = addresses(pod)
        .into_iter()
        .filter(|ip| ip.is_ipv6() == (family == "IPv6"));
    let addresses: Vec<String> = found.map(|ip| ip.to_string()).collect();
    if addresses.is_empty() {
        return None;
    }
    let publish = service
        .spec
        .as_ref()
        .and_then(|spec| spec.publish_not_ready_addresses);
    let (serving, terminating) = (is_ready(pod), is_deleting(pod));
    let node = Some(crate::pods::node(pod)).filter(|node| !node.is_empty());
    let zone = node.and_then(zone).filter(|zone| !zone.is_empty());
    let ready = publish == Some(true) || (serving && !terminating);
    Some(Endpoint {
        addresses,
        hints: hints(service, node, zone.as_deref()).filter(|_| ready),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(pod, service),
        node_name: node.map(ToOwned::to_owned),
        zone,
        target_ref: Some(reference(pod)),
        ..Default::default()
    })
}

/// The hints by `trafficDistribution`.
fn hints(service: &Service, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    let spec = service.spec.as_ref()?;
    if topology::is_enabled(service) {
        return None;
    }
    let by_node = match spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => false,
        "PreferSameNode" => true,
        _ => return None,
    };
    let for_zones = zone.map(|name| vec![ForZone { name: name.into() }]);
    let for_nodes = node
        .filter(|_| by_node)
        .map(|name| vec![ForNode { name: name.into() }]);
    let hinted = for_zones.is_some() || for_nodes.is_some();
    hinted.then_some(EndpointHints {
        for_zones,
        for_nodes,
    })
}

pub(crate) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
pub(crate) mod samples {
    use k8s_openapi::{
        api::core::v1::{PodIP, ServiceSpec},
        apimachinery::pkg::apis::meta::v1::Time,
    };

    use super::*;
    use crate::pods::samples;

    pub(crate) fn pod(name: &str, ip: &str, ready: bool) -> Arc<Pod> {
        let mut pod = samples::pod(name, ready.then_some(1));
        let status = pod.status.as_mut().unwrap();
        status.pod_ip = Some(ip.into());
        status.pod_ips = Some(vec![PodIP { ip: ip.into() }]);
        Arc::new(pod)
    }

    pub(crate) fn leaving(mut pod: Arc<Pod>) -> Arc<Pod> {
        Arc::make_mut(&mut pod).metadata.deletion_timestamp = Some(Time(samples::at(5)));
        pod
    }

    pub(crate) fn service(target: IntOrString) -> Service {
        let port = ServicePort {
            name: Some("http".into()),
            port: 80,
            protocol: Some("TCP".into()),
            target_port: Some(target),
            ..Default::default()
        };
        let mut service = Service {
            spec: Some(ServiceSpec {
                ports: Some(vec![port]),
                ..Default::default()
            }),
            ..Default::default()
        };
        service.metadata.name = Some("web".into());
        service.metadata.namespace = Some("default".into());
        service.metadata.uid = Some("service-uid".into());
        service
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, ContainerPort};

    use super::{samples::*, *};

    fn conditions(service: &Service, pod: Arc<Pod>) -> Vec<bool> {
        let groups = desired(service, &[pod], |_| None);
        let all = groups[0].endpoints[0].conditions.clone().unwrap();
        [all.ready, all.serving, all.terminating]
            .map(Option::unwrap)
            .to_vec()
    }

    #[test]
    fn endpoint_conditions_are_ready_serving_and_terminating() {
        let service = service(IntOrString::Int(8080));
        assert_eq!(
            conditions(&service, pod("a", "10.0.0.1", true)),
            [true, true, false]
        );
        assert_eq!(
            conditions(&service, pod("a", "10.0.0.1", false)),
            [false, false, false]
        );
        assert_eq!(
            conditions(&service, leaving(pod("a", "10.0.0.1", true))),
            [false, true, true]
        );
        let mut publishing = service;
        publishing
            .spec
            .as_mut()
            .unwrap()
            .publish_not_ready_addresses = Some(true);
        assert_eq!(
            conditions(&publishing, pod("a", "10.0.0.1", false)),
            [true, false, false]
        );
        assert_eq!(
            conditions(&publishing, leaving(pod("a", "10.0.0.1", false))),
            [true, false, true]
        );
    }

    #[test]
    fn traffic_distribution_writes_hints_for_near_clients() {
        for (distribution, ready, expected) in [
            (None, true, (0, 0)),
            (Some("PreferClose"), true, (1, 0)),
            (Some("PreferSameZone"), true, (1, 0)),
            (Some("PreferSameNode"), true, (1, 1)),
            (Some("PreferSameNode"), false, (0, 0)),
            (Some("Unheard"), true, (0, 0)),
        ] {
            let mut service = service(IntOrString::Int(8080));
            let spec = service.spec.as_mut().unwrap();
            spec.traffic_distribution = distribution.map(ToOwned::to_owned);
            let mut pod = pod("a", "10.0.0.1", ready);
            Arc::make_mut(&mut pod).spec.as_mut().unwrap().node_name = Some("n".into());
            let groups = desired(&service, std::slice::from_ref(&pod), |node| {
                Some(format!("zone of {node}"))
            });
            let hints = groups[0].endpoints[0].hints.clone().unwrap_or_default();
            let zones = hints.for_zones.unwrap_or_default();
            let nodes = hints.for_nodes.unwrap_or_default();
            assert_eq!((zones.len(), nodes.len()), expected, "{distribution:?}");
            assert!(zones.iter().all(|zone| zone.name == "zone of n"));
            assert!(nodes.iter().all(|node| node.name == "n"));
            // The label of a node may be empty.
            let groups = desired(&service, &[pod], |_| Some(String::new()));
            assert_eq!(groups[0].endpoints[0].zone, None);
            let hints = groups[0].endpoints[0].hints.clone().unwrap_or_default();
            assert_eq!(hints.for_zones, None);
        }
    }

    #[test]
    fn a_named_port_is_looked_up_in_each_pod_and_groups_pods_by_number() {
        let with_port = |name: &str, ip: &str, number| {
            let mut pod = pod(name, ip, true);
            let port = ContainerPort {
                name: Some("web".into()),
                container_port: number,
                ..Default::default()
            };
            let container = Container {
                ports: Some(vec![port]),
                ..Default::default()
            };
            Arc::make_mut(&mut pod).spec.as_mut().unwrap().containers = vec![container];
            pod
        };
        let pods = [
            with_port("a", "10.0.0.1", 8080),
            with_port("b", "10.0.0.2", 9090),
            with_port("c", "10.0.0.3", 8080),
        ];
        let groups = desired(&service(IntOrString::String("web".into())), &pods, |_| None);
        let seen: Vec<_> = groups
            .iter()
            .map(|g| (g.ports[0].port.unwrap(), g.endpoints.len()))
            .collect();
        assert_eq!(seen, [(8080, 2), (9090, 1)]);
    }

    #[test]
    fn pods_without_an_address_or_ended_are_left_out() {
        let mut ended = pod("a", "10.0.0.1", true);
        Arc::make_mut(&mut ended).status.as_mut().unwrap().phase = Some("Succeeded".into());
        let mut young = pod("b", "10.0.0.2", true);
        Arc::make_mut(&mut young).status = None;
        let groups = desired(&service(IntOrString::Int(80)), &[ended, young], |_| None);
        assert_eq!(groups.len(), 1);
        assert!(groups[0].endpoints.is_empty());
    }
}
