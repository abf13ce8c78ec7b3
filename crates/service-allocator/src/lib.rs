//! Addresses and ports of Services. Each address is an IPAddress object and each node port a
//! separate key, written in the same transaction as the Service: two Services can never hold the
//! same one, whatever races or restarts.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod events;
mod families;
mod networks;
mod ports;
mod repair;

use std::{net::IpAddr, ops::RangeInclusive, sync::Arc};

pub use repair::keep;

use bytes::Bytes;
use machinery::{Object, Status, Value, field};
use store::{Action, Freshness, Key, Op, Precondition};

use registry::{Draft, Reader, Store, failure, key_prefix, meta, object_key};
use stdx::Clock;

/// The label and its value of managed IPAddresses.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// The allocations of a Service.
#[derive(Debug, Default, PartialEq, Eq)]
struct Allocations {
    addresses: Vec<String>,
    ports: Vec<u16>,
}

/// The ranges and the store of allocations.
pub struct Allocator {
    pub store: Store,
    pub reader: Reader,
    pub clock: Arc<dyn Clock>,
    /// The configured networks, the primary one first.
    pub cidrs: Vec<(IpAddr, u8)>,
    pub node_ports: RangeInclusive<u16>,
}

/// The namespace of a written Service, and whether it is a dry run.
#[derive(Debug, Clone, Copy)]
pub struct ServiceWrite<'a> {
    pub namespace: &'a str,
    pub dry_run: bool,
}

impl Allocator {
    /// Allocates for a new Service; returns operations for the transaction of its creation.
    pub async fn on_create(
        &self,
        write: ServiceWrite<'_>,
        object: &mut Object,
    ) -> Result<Vec<Op<Draft>>, Status> {
        self.allocate(write, object, None).await
    }

    /// Allocates and releases for an update.
    pub async fn on_update(
        &self,
        write: ServiceWrite<'_>,
        object: &mut Object,
        old: &Object,
    ) -> Result<Vec<Op<Draft>>, Status> {
        let before = held_by_object(old);
        let mut ops = self.allocate(write, object, Some(old)).await?;
        let now = held_by_object(object);
        let dropped = Allocations {
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

    async fn allocate(
        &self,
        write: ServiceWrite<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Vec<Op<Draft>>, Status> {
        let name = meta::text(object, "name").to_owned();
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(Vec::new());
        };
        let owner = Owner {
            allocator: self,
            dry_run: write.dry_run,
            namespace: write.namespace.to_owned(),
            name,
            dry_run_ports: parking_lot::Mutex::default(),
        };
        let before = old.map(held_by_object).unwrap_or_default();
        let old_spec = old.and_then(|old| old.get("spec")?.as_object());
        let mut ops = Vec::new();
        owner.addresses(spec, old_spec, &before, &mut ops).await?;
        owner.ports(spec, old_spec, &before, &mut ops).await?;
        Ok(ops)
    }
}

/// Releases the allocations of a Service; returns operations for the transaction of its removal.
pub fn on_remove(object: &Object) -> Vec<Op<Draft>> {
    release(&held_by_object(object))
}

/// The Service that is allocated for.
struct Owner<'a> {
    allocator: &'a Allocator,
    dry_run: bool,
    namespace: String,
    name: String,
    /// Guards the node ports of a dry run.
    dry_run_ports: parking_lot::Mutex<Vec<i64>>,
}

impl Owner<'_> {
    async fn is_free(&self, key: &Key) -> Result<bool, Status> {
        let read = self.allocator.store.get(key, Freshness::Newest).await;
        Ok(read.map_err(failure::of_store)?.1.is_none())
    }

    fn invalid(&self, errors: &[field::Error]) -> Status {
        Status::invalid("", "Service", &self.name, errors)
    }
}

fn put(key: Key, object: Value) -> Result<Op<Draft>, Status> {
    let bytes = Bytes::from(object.to_string());
    let draft = Draft::from_bytes(bytes, |_| Vec::new()).map_err(Status::internal)?;
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

fn release(held: &Allocations) -> Vec<Op<Draft>> {
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
    object_key("networking.k8s.io", "ipaddresses", "", address)
}

/// Node ports have no kind: their keys are not served.
fn ports_prefix() -> Key {
    key_prefix("", "nodeports").into()
}

fn port_key(number: u16) -> Key {
    object_key("", "nodeports", "", &number.to_string())
}

fn held_by_object(object: &Object) -> Allocations {
    let Some(spec) = object.get("spec").and_then(Value::as_object) else {
        return Allocations::default();
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
    Allocations {
        addresses: addresses.collect(),
        ports,
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

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn a_service_holds_its_addresses_and_ports_once() {
        let service = json!({"spec": {"clusterIPs": ["10.43.0.7"], "ports": [
            {"nodePort": 30001}, {"nodePort": 30001}, {"port": 1}], "healthCheckNodePort": 30002}});
        let held = held_by_object(service.as_object().unwrap());
        assert_eq!(
            held,
            Allocations {
                addresses: vec!["10.43.0.7".into()],
                ports: vec![30001, 30002]
            }
        );
    }
}
