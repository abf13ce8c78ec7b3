//! The networks of service addresses: the configured ones, and those of every ServiceCIDR that is
//! not marked unready.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use machinery::{Object, Status, Value};
use rand::Rng;

use super::families;
use crate::Allocator;
use registry::meta;

/// One network, such as `10.43.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    base: IpAddr,
    length: u8,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Network {
    pub(crate) fn new(base: IpAddr, length: u8) -> Option<Self> {
        let bits = if base.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(Self { base, length })
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (base, length) = text.split_once('/')?;
        Self::new(base.parse().ok()?, length.parse().ok()?)
    }

    pub(crate) fn family(&self) -> &'static str {
        families::family_of(&self.base)
    }

    fn host_bits(&self) -> u32 {
        let bits = if self.base.is_ipv4() { 32 } else { 128 };
        bits - u32::from(self.length)
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.base {
            IpAddr::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let prefix = |address: IpAddr| number(address).checked_shr(self.host_bits()).unwrap_or(0);
        self.base.is_ipv4() == address.is_ipv4() && prefix(self.base) == prefix(address)
    }

    /// The allocatable addresses: without the network address and, in IPv4, the broadcast address.
    fn usable(&self) -> RangeInclusive<u128> {
        // Of larger networks only the first part is used.
        let size = 1u128 << self.host_bits().min(64);
        let mask = u128::MAX.checked_shl(self.host_bits()).unwrap_or(0);
        let base = number(self.base) & mask;
        let broadcast = u128::from(self.base.is_ipv4());
        base + 1..=(base + size - 1).saturating_sub(broadcast)
    }

    pub(crate) fn can_hold(&self, address: IpAddr) -> bool {
        self.contains(address) && self.usable().contains(&number(address))
    }

    /// The upper band for dynamic allocation, and the lower band, which is reserved for requested
    /// addresses as long as the rest lasts.
    fn bands(&self) -> [RangeInclusive<u128>; 2] {
        let size = 1u128 << self.host_bits().min(64);
        let reserved = if size <= 16 {
            0
        } else {
            (size / 16).clamp(16, 256)
        };
        let (first, last) = self.usable().into_inner();
        // The first usable address is at least 1.
        [first + reserved..=last, first..=first + reserved - 1]
    }

    /// A random address of the upper band.
    pub(crate) fn pick(&self) -> Option<IpAddr> {
        let [band, _] = self.bands();
        (!band.is_empty()).then(|| self.address(rand::rng().random_range(band)))
    }

    /// Every address once: the upper band from a random position on, then the lower band.
    pub(crate) fn all(&self) -> impl Iterator<Item = IpAddr> + Send + use<'_> {
        let turned = |band: RangeInclusive<u128>| {
            let from = if band.is_empty() {
                *band.start()
            } else {
                rand::rng().random_range(band.clone())
            };
            (from..=*band.end()).chain(*band.start()..from)
        };
        let [upper, lower] = self.bands().map(turned);
        upper.chain(lower).map(|number| self.address(number))
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.length)
    }
}

/// The networks for new addresses.
pub(crate) async fn ready(allocator: &Allocator) -> Result<Vec<Network>, Status> {
    collected(allocator, networks_of_object).await
}

/// The networks of existing addresses, including terminating ones.
pub(crate) async fn existing(allocator: &Allocator) -> Result<Vec<Network>, Status> {
    collected(allocator, named).await
}

async fn collected(
    allocator: &Allocator,
    networks_of: fn(&Object) -> Vec<Network>,
) -> Result<Vec<Network>, Status> {
    let configured = allocator.cidrs.iter();
    let mut networks: Vec<Network> = configured
        .filter_map(|(base, length)| Network::new(*base, *length))
        .collect();
    // Addresses of a ServiceCIDR that cannot be read are not allocated.
    let readable = allocator
        .reader
        .list_readable("networking.k8s.io", "servicecidrs")
        .await?;
    for object in readable.parsed() {
        for network in networks_of(&object) {
            if !networks.contains(&network) {
                networks.push(network);
            }
        }
    }
    Ok(networks)
}

/// The networks of a ServiceCIDR: none while its Ready condition is false or once it is
/// terminating. Without a condition it counts, because there may be no controller to write one.
fn networks_of_object(object: &Object) -> Vec<Network> {
    let field = |outer: &str, inner: &str| object.get(outer).and_then(|o| o.get(inner)).cloned();
    let conditions = field("status", "conditions").unwrap_or_default();
    let mut reported = conditions.as_array().into_iter().flatten();
    let reported = reported.find(|condition| condition["type"] == "Ready");
    if reported.is_some_and(|reported| reported["status"] != "True") || meta::is_deleting(object) {
        return Vec::new();
    }
    named(object)
}

fn named(object: &Object) -> Vec<Network> {
    let spec = object.get("spec");
    let cidrs = spec.and_then(|spec| spec.get("cidrs")).cloned();
    let cidrs = cidrs.unwrap_or_default();
    let cidrs = cidrs.as_array().into_iter().flatten();
    cidrs
        .filter_map(Value::as_str)
        .filter_map(Network::parse)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use machinery::json::json;

    use super::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    #[test]
    fn picked_addresses_stay_inside_and_leave_the_start_free() {
        let wide = network("10.43.0.0/16");
        for _ in 0..1000 {
            let IpAddr::V4(address) = wide.pick().unwrap() else {
                panic!("of the other family");
            };
            assert!(wide.can_hold(address.into()));
            assert!(address.to_bits() & 0xffff > 256 && address.to_bits() & 0xffff != 0xffff);
        }
        assert!(wide.contains("10.43.255.1".parse().unwrap()));
        assert!(!wide.contains("10.44.0.1".parse().unwrap()));
        assert!(!wide.can_hold("10.43.0.0".parse().unwrap()));
        assert!(!wide.can_hold("10.43.255.255".parse().unwrap()));
    }

    #[test]
    fn every_usable_address_comes_once_and_the_start_last() {
        for (text, usable) in [
            ("10.0.0.0/24", 254),
            ("10.0.0.0/28", 14),
            ("10.0.0.0/31", 0),
            ("fd00::/120", 255),
        ] {
            let network = network(text);
            let all: Vec<IpAddr> = network.all().collect();
            let distinct: HashSet<&IpAddr> = all.iter().collect();
            assert_eq!((all.len(), distinct.len()), (usable, usable), "{text}");
            assert!(all.iter().all(|address| network.can_hold(*address)));
        }
        let all: Vec<IpAddr> = network("10.0.0.0/24").all().collect();
        let start: HashSet<IpAddr> = (1..=16)
            .map(|n| Ipv4Addr::new(10, 0, 0, n).into())
            .collect();
        assert_eq!(all[238..].iter().copied().collect::<HashSet<_>>(), start);
        assert!(network("fd00::/64").pick().is_some());
        assert!(network("fd00::/108").all().next().is_some());
    }

    #[test]
    fn a_service_cidr_is_used_unless_its_ready_condition_is_false() {
        let mut range = json!({"spec": {"cidrs": ["10.9.0.0/24", "fd00::/112"]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}, "metadata": {}});
        assert_eq!(networks_of_object(range.as_object().unwrap()).len(), 2);
        range["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(networks_of_object(range.as_object().unwrap()).is_empty());
        range["metadata"] = json!({});
        range["status"]["conditions"][0]["status"] = "False".into();
        assert!(networks_of_object(range.as_object().unwrap()).is_empty());
        range["status"] = json!({});
        assert_eq!(networks_of_object(range.as_object().unwrap()).len(), 2);
    }
}
