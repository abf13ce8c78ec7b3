//! Facts about the machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;

use crate::Error;

/// The host's name, lower case, as a node name.
pub(crate) fn name() -> Result<String, Error> {
    let name = nix::unistd::gethostname().map_err(|error| {
        Error::Option("node-name", format!("cannot read the host name: {error}"))
    })?;
    Ok(name.to_string_lossy().to_lowercase())
}

/// The machine's addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct Current {
    /// All of both families that others could reach.
    pub(crate) all: Vec<IpAddr>,
    /// The default one of each family.
    pub(crate) preferred: Vec<IpAddr>,
    pub(crate) has_default_route: bool,
}

impl Current {
    pub(crate) fn read() -> Self {
        let preferred = [address().ok(), address_v6()];
        Self {
            all: [addresses(), addresses_v6()].concat(),
            preferred: preferred.into_iter().flatten().collect(),
            has_default_route: has_default_route(),
        }
    }
}

/// Whether there is a default route of IPv4.
pub(crate) fn has_default_route() -> bool {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    default_interface(&routes).is_some()
}

/// The IPv4 address of the interface with the default route, or else the first address that is not
/// loopback.
pub(crate) fn address() -> Result<IpAddr, Error> {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let preferred = default_interface(&routes);
    let mut candidates = interfaces();
    candidates.sort_by_key(|(interface, _)| Some(interface.as_str()) != preferred);
    candidates
        .first()
        .map(|(_, address)| IpAddr::V4(*address))
        .ok_or_else(|| {
            let why = "this machine has no address that pods could reach; set one with --node-ip";
            Error::Option("node-ip", why.into())
        })
}

/// The first global IPv6 address of the machine, preferably of the interface with the default
/// route.
pub(crate) fn address_v6() -> Option<IpAddr> {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let preferred = default_interface(&routes);
    let mut found = interfaces_v6();
    found.sort_by_key(|(interface, _)| Some(interface.as_str()) != preferred);
    found.first().map(|(_, address)| IpAddr::V6(*address))
}

/// Every global IPv6 address of the machine.
pub(crate) fn addresses_v6() -> Vec<IpAddr> {
    let all = interfaces_v6().into_iter();
    all.map(|(_, ip)| ip.into()).collect()
}

fn interfaces_v6() -> Vec<(String, Ipv6Addr)> {
    let all = getifaddrs().into_iter().flatten();
    let of = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?.as_sockaddr_in6()?.ip();
        let reachable = !address.is_loopback() && !address.is_unicast_link_local();
        reachable.then_some((interface.interface_name, address))
    };
    all.filter_map(of).collect()
}

/// Every address of the machine that others could reach.
pub(crate) fn addresses() -> Vec<IpAddr> {
    interfaces().into_iter().map(|(_, ip)| ip.into()).collect()
}

/// Every externally reachable IPv4 address of the machine, with its interface.
fn interfaces() -> Vec<(String, Ipv4Addr)> {
    let Ok(interfaces) = getifaddrs() else {
        return Vec::new();
    };
    let of = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?.as_sockaddr_in()?.ip();
        let reachable = !address.is_loopback() && !address.is_link_local();
        reachable.then_some((interface.interface_name, address))
    };
    interfaces.filter_map(of).collect()
}

/// The interface of the default route in the kernel's table.
fn default_interface(routes: &str) -> Option<&str> {
    routes.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (interface, destination) = (fields.next()?, fields.next()?);
        (destination == "00000000").then_some(interface)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_the_default_route_is_found() {
        let table = "Iface\tDestination\tGateway\neth1\t0000A8C0\t0\neth0\t00000000\t0101A8C0\n";
        assert_eq!(default_interface(table), Some("eth0"));
        assert_eq!(default_interface("Iface\n"), None);
    }
}
