//! Addresses and ports of Services. Each address is an IPAddress object and each node port a key of
//! its own, written in the same transaction as the Service: two Services can never hold the same
//! one, whatever races or restarts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};
use rand::Rng;
use serde_json::json;
use store::{Action, Freshness, Key, Op, Precondition};

use crate::{Draft, failure, meta, write::Write};

/// How many random picks before the allocator gives up.
const PICKS: usize = 256;

/// What a Service holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    addresses: Vec<String>,
    ports: Vec<u16>,
}

/// Gives a new Service what it asked for or what it left open.
pub(crate) async fn on_create(
    write: &Write,
    object: &mut Object,
) -> Result<Vec<Op<Draft>>, Status> {
    allocate(write, object, &Held::default()).await
}

/// Gives and takes what an update changes.
pub(crate) async fn on_update(
    write: &Write,
    object: &mut Object,
    old: &Object,
) -> Result<Vec<Op<Draft>>, Status> {
    carry_over(object, old);
    let before = held(old);
    let mut ops = allocate(write, object, &before).await?;
    let now = held(object);
    let dropped = Held {
        addresses: before
            .addresses
            .into_iter()
            .filter(|a| !now.addresses.contains(a))
            .collect(),
        ports: before
            .ports
            .into_iter()
            .filter(|p| !now.ports.contains(p))
            .collect(),
    };
    ops.extend(release(&dropped));
    Ok(ops)
}

/// Gives back what a Service held.
pub(crate) fn on_remove(object: &Object) -> Vec<Op<Draft>> {
    release(&held(object))
}

/// An update that leaves the addresses out keeps them, unless the type says otherwise.
fn carry_over(object: &mut Object, old: &Object) {
    let (Some(old_spec), Some(spec)) = (
        old.get("spec").and_then(Value::as_object),
        object.get_mut("spec").and_then(Value::as_object_mut),
    ) else {
        return;
    };
    if text(spec, "type") == "ExternalName" {
        if text(old_spec, "type") != "ExternalName"
            && text(spec, "clusterIP") == text(old_spec, "clusterIP")
        {
            spec.shift_remove("clusterIP");
            spec.shift_remove("clusterIPs");
        }
        return;
    }
    if text(old_spec, "type") == "ExternalName" {
        return;
    }
    for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let (false, Some(value)) = (spec.contains_key(key), old_spec.get(key)) {
            spec.insert(key.to_owned(), value.clone());
        }
    }
    carry_over_ports(spec, old_spec);
}

/// Node ports that are left out are kept for the port they belonged to.
fn carry_over_ports(spec: &mut Object, old_spec: &Object) {
    if !wants_node_ports(spec) || !wants_node_ports(old_spec) {
        return;
    }
    let identity = |port: &Value| (port.get("protocol").cloned(), port.get("port").cloned());
    let old_ports = old_spec
        .get("ports")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let old = old_ports.iter().find(|old| identity(old) == identity(port));
        let (Some(port), Some(node_port)) = (
            port.as_object_mut(),
            old.and_then(|old| old.get("nodePort")),
        ) else {
            continue;
        };
        if port.get("nodePort").and_then(Value::as_u64).unwrap_or(0) == 0 {
            port.insert("nodePort".to_owned(), node_port.clone());
        }
    }
}

async fn allocate(
    write: &Write,
    object: &mut Object,
    before: &Held,
) -> Result<Vec<Op<Draft>>, Status> {
    let (namespace, name) = (
        write.namespace.clone(),
        meta::text(object, "name").to_owned(),
    );
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return Ok(Vec::new());
    };
    let owner = Owner {
        write,
        namespace,
        name,
    };
    let mut ops = Vec::new();
    owner.addresses(spec, before, &mut ops).await?;
    owner.ports(spec, before, &mut ops).await?;
    Ok(ops)
}

struct Owner<'a> {
    write: &'a Write,
    namespace: String,
    name: String,
}

impl Owner<'_> {
    async fn addresses(
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

    async fn ports(
        &self,
        spec: &mut Object,
        before: &Held,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let wanted = wants_node_ports(spec);
        let mut taken: Vec<(u16, String)> = Vec::new();
        let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
        for (index, port) in ports.into_iter().flatten().enumerate() {
            let Some(port) = port.as_object_mut() else {
                continue;
            };
            if !wanted {
                port.shift_remove("nodePort");
                continue;
            }
            let protocol = text(port, "protocol").to_owned();
            let number = port.get("nodePort").and_then(Value::as_u64).unwrap_or(0) as u16;
            let shared = |(taken, other): &(u16, String)| *taken == number && *other != protocol;
            let number = match number {
                0 => self.pick_port(ops).await?,
                held if before.ports.contains(&held) || taken.iter().any(shared) => held,
                asked => self.claim_port(index, asked, ops).await?,
            };
            taken.push((number, protocol));
            port.insert("nodePort".to_owned(), number.into());
        }
        self.health_check_port(spec, before, ops).await
    }

    async fn health_check_port(
        &self,
        spec: &mut Object,
        before: &Held,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let needed =
            text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local";
        if !needed {
            spec.shift_remove("healthCheckNodePort");
            return Ok(());
        }
        let number = spec
            .get("healthCheckNodePort")
            .and_then(Value::as_u64)
            .unwrap_or(0) as u16;
        let number = match number {
            0 => self.pick_port(ops).await?,
            held if before.ports.contains(&held) => held,
            asked => self.claim_port(usize::MAX, asked, ops).await?,
        };
        spec.insert("healthCheckNodePort".to_owned(), number.into());
        Ok(())
    }

    async fn pick_port(&self, ops: &mut Vec<Op<Draft>>) -> Result<u16, Status> {
        for _ in 0..PICKS {
            let number = rand::rng().random_range(self.write.core.config.node_ports.clone());
            let key = port_key(number);
            if ops.iter().all(|op| op.key != key) && self.is_free(&key).await? {
                ops.push(self.put_port(number)?);
                return Ok(number);
            }
        }
        Err(Status::internal(
            "failed to allocate a nodePort: range is full",
        ))
    }

    async fn claim_port(
        &self,
        index: usize,
        number: u16,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<u16, Status> {
        let spec = Path::new("spec");
        let path = if index == usize::MAX {
            spec.child("healthCheckNodePort")
        } else {
            spec.child("ports").index(index).child("nodePort")
        };
        let refuse = |why: String| {
            Err(self
                .write
                .invalid(&self.name, &[Error::invalid(&path, number, why)]))
        };
        let range = &self.write.core.config.node_ports;
        if !range.contains(&number) {
            return refuse(format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                range.start(),
                range.end()
            ));
        }
        let key = port_key(number);
        if ops.iter().any(|op| op.key == key) || !self.is_free(&key).await? {
            return refuse("provided port is already allocated".to_owned());
        }
        ops.push(self.put_port(number)?);
        Ok(number)
    }

    async fn is_free(&self, key: &Key) -> Result<bool, Status> {
        let read = self.write.core.store.get(key, Freshness::Newest).await;
        Ok(read.map_err(failure::of_store)?.1.is_none())
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

    fn put_port(&self, number: u16) -> Result<Op<Draft>, Status> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "NodePort",
            "metadata": {"name": number.to_string()},
            "service": {"namespace": self.namespace, "name": self.name},
        });
        put(port_key(number), object)
    }
}

fn put(key: Key, object: Value) -> Result<Op<Draft>, Status> {
    let bytes = Bytes::from(object.to_string());
    let object = object.as_object().cloned().unwrap_or_default();
    let draft = Draft::new(&object, bytes, Vec::new()).map_err(Status::internal)?;
    let action = Action::Put {
        draft,
        expires_in: None,
    };
    Ok(Op {
        key,
        precondition: Precondition::Absent,
        action,
    })
}

fn release(held: &Held) -> Vec<Op<Draft>> {
    let addresses = held.addresses.iter().map(|address| address_key(address));
    let ports = held.ports.iter().map(|port| port_key(*port));
    let free = |key| Op {
        key,
        precondition: Precondition::Any,
        action: Action::Delete,
    };
    addresses.chain(ports).map(free).collect()
}

fn address_key(address: &str) -> Key {
    Bytes::from(format!("/registry/networking.k8s.io/ipaddresses/{address}"))
}

/// Node ports have no kind of their own: a key that nothing serves.
fn port_key(number: u16) -> Key {
    Bytes::from(format!("/registry/core/nodeports/{number}"))
}

fn held(object: &Object) -> Held {
    let Some(spec) = object.get("spec").and_then(Value::as_object) else {
        return Held::default();
    };
    let ports = spec
        .get("ports")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let ports = ports
        .filter_map(|port| port.get("nodePort"))
        .chain(spec.get("healthCheckNodePort"));
    let mut ports: Vec<u16> = ports
        .filter_map(|port| u16::try_from(port.as_u64()?).ok())
        .filter(|port| *port > 0)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    let addresses = list(spec, "clusterIPs")
        .into_iter()
        .filter(|address| address != "None");
    Held {
        addresses: addresses.collect(),
        ports,
    }
}

fn settle_families(spec: &mut Object, families: &[&'static str]) {
    spec.insert("ipFamilies".to_owned(), families.into());
    if text(spec, "ipFamilyPolicy").is_empty() {
        spec.insert("ipFamilyPolicy".to_owned(), "SingleStack".into());
    }
}

fn wants_node_ports(spec: &Object) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

fn text<'a>(object: &'a Object, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list(object: &Object, key: &str) -> Vec<String> {
    let list = object
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    list.filter_map(Value::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect()
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

    #[test]
    fn a_service_holds_its_addresses_and_ports_once() {
        let service = json!({"spec": {"clusterIPs": ["10.43.0.7"], "ports": [
            {"nodePort": 30001}, {"nodePort": 30001}, {"port": 1}], "healthCheckNodePort": 30002}});
        let held = held(service.as_object().unwrap());
        assert_eq!(
            held,
            Held {
                addresses: vec!["10.43.0.7".into()],
                ports: vec![30001, 30002]
            }
        );
    }
}
