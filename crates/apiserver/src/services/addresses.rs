//! Cluster addresses: asked for, picked, and held as IPAddress objects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use machinery::{
    Object, Status,
    field::{Error, Path},
};
use rand::Rng;
use serde_json::json;
use store::Op;

use super::{Held, Owner, PICKS, address_key, list, put, text};
use crate::{Draft, meta};

impl Owner<'_> {
    pub(super) async fn addresses(
        &self,
        spec: &mut Object,
        before: &Held,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        if text(spec, "type") == "ExternalName" {
            return Ok(());
        }
        let mut addresses = list(spec, "clusterIPs");
        let single = text(spec, "clusterIP").to_owned();
        if addresses.is_empty() && !single.is_empty() {
            addresses.push(single);
        }
        if addresses.first().is_some_and(|first| first == "None") {
            spec.insert("clusterIPs".to_owned(), json!(["None"]));
            spec.insert("clusterIP".to_owned(), "None".into());
            settle_families(spec, &self.families(spec, &[]));
            return Ok(());
        }
        let families = self.families(spec, &addresses);
        for family in families.iter().skip(addresses.len()) {
            addresses.push(self.pick(family, ops).await?);
        }
        for address in &addresses {
            let taken_here = ops.iter().any(|op| op.key == address_key(address));
            if !before.addresses.contains(address) && !taken_here {
                self.claim(address, ops).await?;
            }
        }
        spec.insert(
            "clusterIP".to_owned(),
            addresses.first().cloned().unwrap_or_default().into(),
        );
        spec.insert("clusterIPs".to_owned(), addresses.into());
        settle_families(spec, &families);
        Ok(())
    }

    /// The families the Service gets: what it asks for, within what the cluster has.
    fn families(&self, spec: &Object, addresses: &[String]) -> Vec<&'static str> {
        let cluster: Vec<_> = self
            .write
            .core
            .config
            .service_cidrs
            .iter()
            .map(|(base, _)| family(base))
            .collect();
        let mut families: Vec<&'static str> = list(spec, "ipFamilies")
            .iter()
            .map(|name| if name == "IPv6" { "IPv6" } else { "IPv4" })
            .collect();
        for address in addresses.iter().skip(families.len()) {
            families.extend(
                address
                    .parse::<IpAddr>()
                    .ok()
                    .map(|address| family(&address)),
            );
        }
        let wanted = match text(spec, "ipFamilyPolicy") {
            "PreferDualStack" | "RequireDualStack" => cluster.len().max(families.len()),
            _ => families.len().max(1),
        };
        for family in cluster {
            if families.len() < wanted && !families.contains(&family) {
                families.push(family);
            }
        }
        families
    }

    /// A free address of a family.
    async fn pick(&self, wanted: &str, ops: &mut Vec<Op<Draft>>) -> Result<String, Status> {
        let cidrs = &self.write.core.config.service_cidrs;
        let cidr = cidrs.iter().find(|(base, _)| family(base) == wanted);
        let (base, length) = *cidr.ok_or_else(|| self.refuse_family(wanted))?;
        for _ in 0..PICKS {
            let address = random_address(base, length).to_string();
            let key = address_key(&address);
            if self.is_free(&key).await? {
                ops.push(self.put_address(&address)?);
                return Ok(address);
            }
        }
        let why = "failed to allocate a serviceIP: range is full";
        Err(Status::internal(why))
    }

    fn refuse_family(&self, family: &str) -> Status {
        let path = Path::new("spec").child("ipFamilies").index(0);
        let why = "not configured on this cluster";
        self.write
            .invalid(&self.name, &[Error::invalid(&path, family, why)])
    }

    /// Takes the address that the client named.
    async fn claim(&self, address: &str, ops: &mut Vec<Op<Draft>>) -> Result<(), Status> {
        let refuse = |why: String| {
            let path = Path::new("spec").child("clusterIPs");
            Err(self
                .write
                .invalid(&self.name, &[Error::invalid(&path, vec![address], why)]))
        };
        let Ok(parsed) = address.parse::<IpAddr>() else {
            // Validation names what is wrong with it.
            return Ok(());
        };
        let within = |(base, length): &(IpAddr, u8)| contains(*base, *length, parsed);
        if !self.write.core.config.service_cidrs.iter().any(within) {
            return refuse(format!(
                "failed to allocate IP {address}: the provided network does not match the current range"
            ));
        }
        if !self.is_free(&address_key(address)).await? {
            return refuse(format!(
                "failed to allocate IP {address}: provided IP is already allocated"
            ));
        }
        ops.push(self.put_address(address)?);
        Ok(())
    }

    fn put_address(&self, address: &str) -> Result<Op<Draft>, Status> {
        let version = if address.contains(':') {
            "IPv6"
        } else {
            "IPv4"
        };
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IPAddress",
            "metadata": {
                "name": address,
                "uid": uuid::Uuid::new_v4().to_string(),
                "generation": 1,
                "creationTimestamp": meta::time(self.write.core.config.clock.now()),
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": version,
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                },
            },
            "spec": {"parentRef": {
                "resource": "services", "namespace": self.namespace, "name": self.name}},
        });
        put(address_key(address), object)
    }
}

fn settle_families(spec: &mut Object, families: &[&'static str]) {
    spec.insert("ipFamilies".to_owned(), families.into());
    if text(spec, "ipFamilyPolicy").is_empty() {
        spec.insert("ipFamilyPolicy".to_owned(), "SingleStack".into());
    }
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn contains(base: IpAddr, length: u8, address: IpAddr) -> bool {
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(length.min(32)))
                .unwrap_or(0);
            base.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(length.min(128)))
                .unwrap_or(0);
            base.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    }
}

/// How many addresses at the start are only given to those who name them, as Kubernetes does.
fn reserved(size: u128) -> u128 {
    if size < 16 {
        1
    } else {
        (size / 16).clamp(16, 256)
    }
}

/// A random address of the part that is handed out by itself: neither the network's own address,
/// nor the reserved start, nor the broadcast address.
fn random_address(base: IpAddr, length: u8) -> IpAddr {
    let bits = if base.is_ipv4() {
        32 - length.min(32)
    } else {
        64.min(128 - length.min(128))
    };
    let size = 1u128.checked_shl(u32::from(bits)).unwrap_or(u128::MAX);
    let offset = rand::rng().random_range(reserved(size).min(size - 1)..size.max(2) - 1);
    match base {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits() + offset as u32).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() + offset).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_addresses_stay_inside_and_leave_the_start_free() {
        let base: IpAddr = "10.43.0.0".parse().unwrap();
        for _ in 0..1000 {
            let address = random_address(base, 16);
            assert!(contains(base, 16, address));
            let IpAddr::V4(v4) = address else { panic!() };
            assert!(v4.to_bits() & 0xffff >= 256 && v4.to_bits() & 0xffff != 0xffff);
        }
        assert!(contains(base, 16, "10.43.255.1".parse().unwrap()));
        assert!(!contains(base, 16, "10.44.0.1".parse().unwrap()));
    }
}
