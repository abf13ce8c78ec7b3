//! Host ports: two pods of a node may not use the same one.

use k8s_openapi::api::core::v1::{ContainerPort, Pod};

use crate::pod::spec;

/// Whether the pod wants a host port that another pod uses.
pub(super) fn conflict(pod: &Pod, others: &[&Pod]) -> bool {
    let mut wanted = host_ports(pod);
    wanted.any(|port| {
        let mut taken = others.iter().flat_map(|other| host_ports(other));
        taken.any(|other| overlap(port, other))
    })
}

fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = spec::init_containers(pod)
        .iter()
        .filter(|container| spec::is_sidecar(container));
    sidecars
        .chain(&spec::spec(pod).containers)
        .flat_map(|container| container.ports.iter().flatten())
        .filter(|port| port.host_port.is_some_and(|port| port > 0))
}

fn overlap(one: &ContainerPort, other: &ContainerPort) -> bool {
    fn address(port: &ContainerPort) -> &str {
        match port.host_ip.as_deref() {
            None | Some("" | "0.0.0.0") => "",
            Some(ip) => ip,
        }
    }
    fn protocol(port: &ContainerPort) -> &str {
        port.protocol.as_deref().unwrap_or("TCP")
    }
    let (a, b) = (address(one), address(other));
    one.host_port == other.host_port
        && protocol(one) == protocol(other)
        && (a.is_empty() || b.is_empty() || a == b)
}
