//! Repairs allocations that others changed: if the IPAddress of an allocated address was deleted,
//! it is recreated at once, before the address could be allocated twice; allocations without a
//! Service are released.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use machinery::{Object, Status};
use store::{
    Action, Durability, Entry, Freshness, Key, ListRequest, Listed, Op, Precondition, Revision,
    WatchItem,
};

use super::{
    ALLOCATOR, Allocations, MANAGED_BY, address_key,
    addresses::put_address,
    events::{self, Warning},
    held_by_object,
    networks::{self, Network},
    port_key,
    ports::put_port,
    ports_prefix,
};
use crate::Allocator;
use registry::{Draft, Stored, failure, key_prefix, meta, object_key};

/// The retry interval after a failure.
const AGAIN: Duration = Duration::from_secs(10);
/// The interval of full comparisons, besides watching deletions.
const EVERYTHING: Duration = Duration::from_secs(60);

/// The reporting component of Events about addresses.
const ADDRESSES_BY: &str = "ipallocator-repair-controller";
/// The reporting component of Events about ports.
const PORTS_BY: &str = "portallocator-repair-controller";

/// Warnings already reported: key and revision of the Service, and the message.
type Reported = HashSet<(Key, Revision, String)>;

/// Keeps allocations consistent with Services for as long as the server runs; `synced` is called
/// after each full comparison.
pub async fn keep(allocator: Arc<Allocator>, synced: impl Fn() + Send) {
    let mut reported = Reported::new();
    loop {
        if let Err(status) = follow(&allocator, &mut reported, &synced).await {
            tracing::warn!(%status, "cannot watch Services for address repair");
            allocator.clock.sleep(AGAIN).await;
        }
    }
}

/// Compares everything once, then watches deletions for a while.
async fn follow(
    allocator: &Allocator,
    reported: &mut Reported,
    synced: &(impl Fn() + Send),
) -> Result<(), Status> {
    let revision = everything(allocator, reported).await?;
    synced();
    let changes = allocator.store.watch(address_key(""), revision).await;
    let mut changes = changes.map_err(failure::of_store)?;
    let mut rest = allocator.clock.sleep(EVERYTHING);
    loop {
        let item = tokio::select! {
            item = changes.next() => item,
            () = &mut rest => return Ok(()),
        };
        let Some(item) = item else {
            allocator.clock.sleep(AGAIN).await;
            return Ok(());
        };
        let WatchItem::Events { events, .. } = item.map_err(failure::of_store)? else {
            continue;
        };
        for event in events.iter().filter(|event| event.current.is_none()) {
            if let Some(lost) = &event.previous {
                give_back(allocator, &lost.object.parse()).await?;
            }
        }
    }
}

/// Recreates the IPAddress of an address that a Service still holds.
async fn give_back(allocator: &Allocator, lost: &Object) -> Result<(), Status> {
    let address = meta::text(lost, "name");
    let (namespace, name) = holder(lost);
    let key = service_key(&namespace, &name);
    let read = allocator.store.get(&key, Freshness::Newest).await;
    let Some(service) = read.map_err(failure::of_store)?.1 else {
        return Ok(());
    };
    let object = service.object.parse();
    if held_by_object(&object)
        .addresses
        .iter()
        .any(|held| held == address)
    {
        let event = not_allocated(allocator, &object, address)?;
        let op = put_address(allocator, &namespace, &name, address)?;
        let what = "an address that its service still holds";
        commit(allocator, vec![still(&service), event, op], what).await?;
    }
    Ok(())
}

/// The Service that an IPAddress references; empty if it references something else.
fn holder(address: &Object) -> (String, String) {
    let parent = address.get("spec").and_then(|spec| spec.get("parentRef"));
    let parent = |key: &str| {
        let value = parent.and_then(|parent| parent.get(key)?.as_str());
        value.unwrap_or_default().to_owned()
    };
    if (parent("group").as_str(), parent("resource").as_str()) != ("", "services") {
        return Default::default();
    }
    (parent("namespace"), parent("name"))
}

fn family(address: &str) -> &'static str {
    if address.contains(':') {
        "IPv6"
    } else {
        "IPv4"
    }
}

fn not_allocated(
    allocator: &Allocator,
    service: &Object,
    address: &str,
) -> Result<Op<Draft>, Status> {
    let family = family(address);
    let note = format!("Cluster IP [{family}]: {address} is not allocated; repairing");
    repairing(allocator, service, note)
}

fn repairing(allocator: &Allocator, about: &Object, note: String) -> Result<Op<Draft>, Status> {
    let warning = Warning {
        by: ADDRESSES_BY,
        about,
        reason: "ClusterIPNotAllocated",
        action: "ClusterIPAllocation",
        note,
    };
    events::event(&*allocator.clock, warning)
}

/// A fault that only the Service's owner can repair.
struct UnrepairableFault {
    by: &'static str,
    reason: &'static str,
    action: &'static str,
    note: String,
}

impl UnrepairableFault {
    fn address(reason: &'static str, note: String) -> Self {
        let action = match reason {
            "ClusterIPNotValid" => "ClusterIPValidation",
            _ => "ClusterIPAllocation",
        };
        Self {
            by: ADDRESSES_BY,
            reason,
            action,
            note,
        }
    }

    fn port(reason: &'static str, note: String) -> Self {
        Self {
            by: PORTS_BY,
            reason,
            action: "PortAllocation",
            note,
        }
    }
}

/// Whether an address is invalid for any Service.
fn beyond_repair(address: &str, networks: &[Network]) -> Option<UnrepairableFault> {
    let Ok(parsed) = address.parse() else {
        let note = "Cluster IP <nil> is not a valid IP; please recreate Service".to_owned();
        return Some(UnrepairableFault::address("ClusterIPNotValid", note));
    };
    if networks.iter().any(|network| network.can_hold(parsed)) {
        return None;
    }
    let family = family(address);
    let note = format!(
        "Cluster IP [{family}]: {address} is not within any configured Service CIDR; please recreate service"
    );
    Some(UnrepairableFault::address("ClusterIPOutOfRange", note))
}

/// Reports an irreparable fault, once per revision of the Service.
async fn report_unrepairable(
    allocator: &Allocator,
    entry: &Entry<Stored>,
    service: &Object,
    beyond: UnrepairableFault,
    reported: &mut Reported,
) -> Result<(), Status> {
    let words = (
        entry.key.clone(),
        entry.object.revision,
        format!("{} {}", beyond.reason, beyond.note),
    );
    if reported.contains(&words) {
        return Ok(());
    }
    let warning = Warning {
        by: beyond.by,
        about: service,
        reason: beyond.reason,
        action: beyond.action,
        note: beyond.note,
    };
    let event = events::event(&*allocator.clock, warning)?;
    tracing::warn!(key = %String::from_utf8_lossy(&entry.key), "{}", words.2);
    match allocator
        .store
        .commit(vec![still(entry), event], Durability::Synced)
        .await
    {
        Ok(_) => {
            reported.insert(words);
            Ok(())
        }
        Err(store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(failure::of_store(error)),
    }
}

fn service_key(namespace: &str, name: &str) -> Key {
    object_key("", "services", namespace, name)
}

async fn list(allocator: &Allocator, prefix: Key) -> Result<Listed<Stored>, Status> {
    let ask = ListRequest {
        prefix,
        from: None,
        limit: None,
        freshness: Freshness::Newest,
        skip_unreadable: true,
    };
    allocator.store.list(ask).await.map_err(failure::of_store)
}

/// Compares all Services with all allocations. Services are read last: allocations are written with
/// them, so a Service created meanwhile is never mistaken for a leak.
async fn everything(allocator: &Allocator, reported: &mut Reported) -> Result<Revision, Status> {
    let networks = networks::existing(allocator).await?;
    let addresses = list(allocator, address_key("")).await?;
    let ports = list(allocator, ports_prefix()).await?;
    let services = list(allocator, key_prefix("", "services").into()).await?;
    let revision = addresses.revision;
    let all = [&addresses, &ports, &services];
    if let Some(first) = all.iter().find_map(|listed| listed.unreadable.first()) {
        // Nothing is released that a Service might hold.
        tracing::error!(
            why = first.why,
            "cannot check the addresses and ports of Services"
        );
        return Ok(revision);
    }
    let (addresses, ports) = (addresses.entries, ports.entries);
    let services: Vec<_> = services
        .entries
        .into_iter()
        .map(|entry| (entry.object.parse(), entry))
        .collect();
    reported.retain(|(key, revision, _)| {
        let is_it = |(_, entry): &(Object, Entry<Stored>)| {
            entry.key == *key && entry.object.revision == *revision
        };
        services.iter().any(is_it)
    });
    let stored = addresses.iter().chain(&ports);
    let mut comparison = Comparison {
        allocator,
        networks: &networks,
        services: &services,
        stored: stored.map(|entry| (&entry.key, entry)).collect(),
        kept: HashSet::new(),
        taken_ports: HashSet::new(),
        reported,
    };
    for (service, entry) in &services {
        let Allocations { addresses, ports } = held_by_object(service);
        for address in addresses {
            comparison.address(service, entry, &address).await?;
        }
        for port in ports {
            comparison.port(service, entry, port).await?;
        }
    }
    comparison.release(&addresses, &ports).await?;
    Ok(revision)
}

/// All Services and all stored allocations.
struct Comparison<'a> {
    allocator: &'a Allocator,
    networks: &'a [Network],
    services: &'a [(Object, Entry<Stored>)],
    /// IPAddresses and node ports by their keys.
    stored: HashMap<&'a Key, &'a Entry<Stored>>,
    /// Keys that a Service holds.
    kept: HashSet<Key>,
    taken_ports: HashSet<u16>,
    reported: &'a mut Reported,
}

impl Comparison<'_> {
    /// Stores the IPAddress of a Service's address, or reports why it cannot.
    async fn address(
        &mut self,
        service: &Object,
        entry: &Entry<Stored>,
        address: &str,
    ) -> Result<(), Status> {
        let allocator = self.allocator;
        let key = address_key(address);
        if let Some(beyond) = beyond_repair(address, self.networks) {
            report_unrepairable(allocator, entry, service, beyond, self.reported).await?;
            self.kept.insert(key);
            return Ok(());
        }
        let (namespace, name) = (
            meta::text(service, "namespace"),
            meta::text(service, "name"),
        );
        let mut op = put_address(allocator, namespace, name, address)?;
        if let Some(stored) = self.stored.get(&key) {
            let other = holder(&stored.object.parse());
            let right = (other.0.as_str(), other.1.as_str()) == (namespace, name);
            let family = family(address);
            if !right && !self.holds(&other, address) {
                op.precondition = Precondition::Revision(stored.object.revision);
                let note = format!(
                    "the ClusterIP [{family}]: {address} for Service {namespace}/{name} has a wrong reference; repairing"
                );
                let event = repairing(allocator, service, note)?;
                let what = "an address that named another service";
                commit(allocator, vec![still(entry), event, op], what).await?;
            } else if !right {
                let note = format!(
                    "Cluster IP [{family}]:{address} was assigned to multiple services; please recreate service"
                );
                let beyond = UnrepairableFault::address("ClusterIPAlreadyAllocated", note);
                report_unrepairable(allocator, entry, service, beyond, self.reported).await?;
            }
        } else {
            let event = not_allocated(allocator, service, address)?;
            let what = "an address that its service holds";
            commit(allocator, vec![still(entry), event, op], what).await?;
        }
        self.kept.insert(key);
        Ok(())
    }

    /// Whether a Service of this namespace and name holds an address.
    fn holds(&self, (namespace, name): &(String, String), address: &str) -> bool {
        self.services.iter().any(|(service, _)| {
            meta::text(service, "namespace") == namespace
                && meta::text(service, "name") == name
                && held_by_object(service)
                    .addresses
                    .iter()
                    .any(|held| held == address)
        })
    }

    /// The same for a node port.
    async fn port(
        &mut self,
        service: &Object,
        entry: &Entry<Stored>,
        port: u16,
    ) -> Result<(), Status> {
        let allocator = self.allocator;
        let key = port_key(port);
        let range = &allocator.node_ports;
        if !range.contains(&port) {
            let (first, last) = (range.start(), range.end());
            let note = format!(
                "Port {port} is not within the port range {first}-{last}; please recreate service"
            );
            let beyond = UnrepairableFault::port("PortOutOfRange", note);
            report_unrepairable(allocator, entry, service, beyond, self.reported).await?;
        } else if !self.taken_ports.insert(port) {
            let note =
                format!("Port {port} was assigned to multiple services; please recreate service");
            let beyond = UnrepairableFault::port("PortAlreadyAllocated", note);
            report_unrepairable(allocator, entry, service, beyond, self.reported).await?;
        } else if !self.stored.contains_key(&key) {
            let warning = Warning {
                by: PORTS_BY,
                about: service,
                reason: "PortNotAllocated",
                action: "PortAllocation",
                note: format!("Port {port} is not allocated; repairing"),
            };
            let event = events::event(&*allocator.clock, warning)?;
            let (namespace, name) = (
                meta::text(service, "namespace"),
                meta::text(service, "name"),
            );
            let op = put_port(namespace, name, port)?;
            let what = "a port that its service holds";
            commit(allocator, vec![still(entry), event, op], what).await?;
        }
        self.kept.insert(key);
        Ok(())
    }

    /// Deletes allocations without a Service.
    async fn release(
        &self,
        addresses: &[Entry<Stored>],
        ports: &[Entry<Stored>],
    ) -> Result<(), Status> {
        let allocator = self.allocator;
        let ours = |entry: &Entry<Stored>| entry.object.label(MANAGED_BY) == Some(ALLOCATOR);
        for entry in addresses.iter().filter(|entry| ours(entry)) {
            if !self.kept.contains(&entry.key) {
                let event = leaked(allocator, &entry.object.parse(), self.services)?;
                let what = "an address that no service holds";
                commit(allocator, vec![event, free(entry)], what).await?;
            }
        }
        for entry in ports.iter().filter(|entry| !self.kept.contains(&entry.key)) {
            let what = "a port that no service holds";
            commit(allocator, vec![free(entry)], what).await?;
        }
        Ok(())
    }
}

fn free(entry: &Entry<Stored>) -> Op<Draft> {
    Op {
        key: entry.key.clone(),
        precondition: Precondition::Revision(entry.object.revision),
        action: Action::Delete,
    }
}

/// The Event for a released address.
fn leaked(
    allocator: &Allocator,
    address: &Object,
    services: &[(Object, Entry<Stored>)],
) -> Result<Op<Draft>, Status> {
    let (namespace, name) = holder(address);
    let there = services.iter().any(|(service, _)| {
        meta::text(service, "namespace") == namespace && meta::text(service, "name") == name
    });
    let (reason, why) = match there {
        true => ("IPAddressWrongReference", "has a wrong reference;"),
        false => ("IPAddressNotAllocated", "appears to have leaked:"),
    };
    let what = meta::text(address, "name");
    let warning = Warning {
        by: ADDRESSES_BY,
        about: address,
        reason,
        action: "IPAddressAllocation",
        note: format!("IPAddress: {what} for Service {namespace}/{name} {why} cleaning up"),
    };
    events::event(&*allocator.clock, warning)
}

/// A precondition that the Service is unchanged: a Service deleted meanwhile gets no allocation.
fn still(service: &Entry<Stored>) -> Op<Draft> {
    Op {
        key: service.key.clone(),
        precondition: Precondition::Revision(service.object.revision),
        action: Action::Check,
    }
}

/// Commits a repair. A conflict is no error: the concurrent write repaired it.
async fn commit(allocator: &Allocator, ops: Vec<Op<Draft>>, what: &str) -> Result<(), Status> {
    let key = ops.last().map(|op| op.key.clone()).unwrap_or_default();
    let key = String::from_utf8_lossy(&key).into_owned();
    match allocator.store.commit(ops, Durability::Synced).await {
        Ok(_) => {
            tracing::warn!(key, "repaired {what}");
            Ok(())
        }
        Err(store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(failure::of_store(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_and_addresses_outside_all_service_cidrs_are_reported() {
        let networks = [Network::parse("10.43.0.0/16").unwrap()];
        let messages =
            |address: &str| beyond_repair(address, &networks).map(|b| (b.reason, b.note));
        assert_eq!(messages("10.43.0.9"), None);
        let outside = "Cluster IP [IPv4]: 10.44.0.9 is not within any configured Service CIDR; please recreate service";
        let cases = [
            ("10.44.0.9", "ClusterIPOutOfRange", outside),
            (
                "a",
                "ClusterIPNotValid",
                "Cluster IP <nil> is not a valid IP; please recreate Service",
            ),
        ];
        for (address, reason, note) in cases {
            assert_eq!(messages(address), Some((reason, note.to_owned())));
        }
    }
}
