//! Cluster IPs: requested, picked, and recorded as IPAddress objects.

use std::{collections::HashSet, net::IpAddr};

use machinery::json::json;
use machinery::{
    Object, Status,
    field::{Error, Path},
};
use store::{Freshness, ListRequest, Op};

use super::{
    Allocations, Owner, address_key, families, list,
    networks::{self, Network},
    put, text,
};
use crate::Allocator;
use registry::{Draft, failure, meta};

/// How many random picks are tried before all free addresses are searched.
const PICKS: usize = 16;

impl Owner<'_> {
    pub(super) async fn addresses(
        &self,
        spec: &mut Object,
        old: Option<&Object>,
        before: &Allocations,
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        if text(spec, "type") == "ExternalName" {
            return Ok(());
        }
        if old.is_some_and(|old| families::stays(spec, old)) {
            return Ok(());
        }
        let errors = families::default_and_validate(spec, old, &self.cluster_families());
        if !errors.is_empty() {
            return Err(self.invalid(&errors));
        }
        let mut addresses = list(spec, "clusterIPs");
        if addresses.first().is_some_and(|first| first == "None") {
            return Ok(());
        }
        let old = old.filter(|old| text(old, "type") != "ExternalName");
        if let Some(old) = old
            && (list(old, "clusterIPs")
                .first()
                .is_some_and(|ip| ip == "None")
                || list(old, "ipFamilies").len() >= list(spec, "ipFamilies").len())
        {
            // Addresses are immutable; validation rejects changed ones.
            return Ok(());
        }
        let networks = networks::ready(self.allocator).await?;
        let kept = usize::from(old.is_some());
        let families = list(spec, "ipFamilies");
        // As errors show them: with empty strings for addresses still to be allocated.
        let mut places = addresses.clone();
        places.resize(families.len().max(places.len()), String::new());
        for address in addresses.iter().skip(kept) {
            if !before.addresses.contains(address) {
                self.claim(address, &places, &networks, ops).await?;
            }
        }
        for family in families.iter().skip(addresses.len()) {
            addresses.push(self.pick(family, &networks, ops).await?);
        }
        spec.insert(
            "clusterIP".to_owned(),
            addresses.first().cloned().unwrap_or_default().into(),
        );
        spec.insert("clusterIPs".to_owned(), addresses.into());
        Ok(())
    }

    /// The IP families of the cluster, the primary one first.
    fn cluster_families(&self) -> Vec<&'static str> {
        let mut families = Vec::new();
        for (base, _) in &self.allocator.cidrs {
            let family = families::family_of(base);
            if !families.contains(&family) {
                families.push(family);
            }
        }
        families
    }

    /// A free address of a family: from the first network that has one.
    async fn pick(
        &self,
        family: &str,
        networks: &[Network],
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<String, Status> {
        let of_family = || networks.iter().filter(|network| network.family() == family);
        for network in of_family() {
            for _ in 0..PICKS {
                let Some(address) = network.pick() else { break };
                let key = address_key(&address.to_string());
                if self.is_free(&key).await? {
                    return self.take(address, ops);
                }
            }
            // Nearly full: list the allocated addresses once instead of guessing on.
            let held = self.held_addresses().await?;
            if let Some(address) = network.all().find(|address| !held.contains(address)) {
                return self.take(address, ops);
            }
        }
        Err(Status::internal(format!(
            "failed to allocate a serviceIP for Service {:?}: range is full",
            self.name
        )))
    }

    fn take(&self, address: IpAddr, ops: &mut Vec<Op<Draft>>) -> Result<String, Status> {
        let address = address.to_string();
        ops.push(self.put_address(&address)?);
        Ok(address)
    }

    async fn held_addresses(&self) -> Result<HashSet<IpAddr>, Status> {
        let prefix = address_key("");
        let ask = ListRequest {
            prefix: prefix.clone(),
            from: None,
            limit: None,
            freshness: Freshness::Newest,
            // An address that cannot be read is held.
            skip_unreadable: true,
        };
        let listed = self.allocator.store.list(ask).await;
        let listed = listed.map_err(failure::of_store)?;
        let name = |key: &[u8]| std::str::from_utf8(&key[prefix.len()..]).ok()?.parse().ok();
        let keys = listed.entries.iter().map(|entry| &entry.key);
        let keys = keys.chain(listed.unreadable.iter().map(|one| &one.key));
        Ok(keys.filter_map(|key| name(key)).collect())
    }

    /// Allocates the address that the client requested.
    async fn claim(
        &self,
        address: &str,
        all: &[String],
        networks: &[Network],
        ops: &mut Vec<Op<Draft>>,
    ) -> Result<(), Status> {
        let refuse = |why: String| {
            let path = Path::new("spec.clusterIPs");
            let why = format!("failed to allocate IP {address}: {why}");
            let error = Error::invalid(&path, all.to_vec(), why);
            Err(self.invalid(&[error]))
        };
        let Ok(parsed) = address.parse::<IpAddr>() else {
            // Validation reports the error.
            return Ok(());
        };
        let outside = |network: &Network| {
            format!(
                "the provided IP ({address}) is not in the valid range. The range of valid IPs is {network}"
            )
        };
        let Some(network) = networks.iter().find(|network| network.contains(parsed)) else {
            let family = families::family_of(&parsed);
            let first = networks.iter().find(|network| network.family() == family);
            // A dry run names the first range, as upstream does.
            return refuse(match first.filter(|_| self.dry_run) {
                Some(first) => outside(first),
                None => "the provided network does not match the current range".to_owned(),
            });
        };
        if !network.can_hold(parsed) {
            return refuse(outside(network));
        }
        if !self.is_free(&address_key(address)).await? {
            return refuse("provided IP is already allocated".to_owned());
        }
        ops.push(self.put_address(address)?);
        Ok(())
    }

    fn put_address(&self, address: &str) -> Result<Op<Draft>, Status> {
        put_address(self.allocator, &self.namespace, &self.name, address)
    }
}

/// The IPAddress that records which Service holds an address.
pub(super) fn put_address(
    allocator: &Allocator,
    namespace: &str,
    name: &str,
    address: &str,
) -> Result<Op<Draft>, Status> {
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
            "creationTimestamp": meta::time(allocator.clock.now()),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": version,
                (super::MANAGED_BY): super::ALLOCATOR,
            },
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    });
    put(address_key(address), object)
}
