//! What all load balancers have and want, computed once for all of them: a user chooses how many there are. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;

use super::{
    decide::{addresses, competes},
    ports::refusals,
};

/// The namespace and the name of a Service.
pub(super) type Name = (Option<String>, Option<String>);

pub(super) fn name_of(service: &Service) -> Name {
    let meta = &service.metadata;
    (meta.namespace.clone(), meta.name.clone())
}

/// The claims of all Services of type LoadBalancer.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Why Services do not get their ports of the nodes.
    refusals: BTreeMap<Name, String>,
    /// The Service that has each address: if two show it, the older.
    holders: BTreeMap<IpAddr, (Option<Timestamp>, Name)>,
}

impl Claims {
    /// `reserved` are ports of the nodes that no Service may use.
    pub(super) fn new(services: &[Arc<Service>], reserved: &BTreeSet<u16>) -> Self {
        let mut holders = BTreeMap::new();
        for service in services.iter().filter(|service| competes(service)) {
            let since = service.metadata.creation_timestamp.as_ref();
            let claim = (since.map(|time| time.0), name_of(service));
            for ip in addresses(service) {
                let holder = holders.entry(ip).or_insert_with(|| claim.clone());
                if claim < *holder {
                    holder.clone_from(&claim);
                }
            }
        }
        Self {
            refusals: refusals(services, reserved),
            holders,
        }
    }

    /// Why a Service does not get its ports of the nodes.
    pub(super) fn refusal(&self, service: &Service) -> Option<&String> {
        self.refusals.get(&name_of(service))
    }

    /// Whether another Service has an address.
    pub(super) fn is_taken(&self, ip: IpAddr, service: &Service) -> bool {
        let holder = self.holders.get(&ip);
        holder.is_some_and(|(_, name)| *name != name_of(service))
    }
}
