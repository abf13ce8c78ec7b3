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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, created: &str, patch: &Value) -> Arc<Service> {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "d", "creationTimestamp": format!("2026-01-{created}T00:00:00Z")},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        });
        for (pointer, value) in patch.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn shows(ip: &str) -> Value {
        json!({"/status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})
    }

    #[test]
    fn an_address_belongs_to_the_oldest_load_balancer_that_shows_it() {
        let ip = "198.51.100.1";
        let mut deleted = shows(ip);
        deleted["/metadata/deletionTimestamp"] = json!("2026-02-01T00:00:00Z");
        let mut other_class = shows(ip);
        other_class["/spec/loadBalancerClass"] = json!("example.com/other");
        let mut other_type = shows(ip);
        other_type["/spec/type"] = json!("ClusterIP");
        let new = service("new", "09", &json!({}));
        for (services, holder) in [
            (vec![], None),
            (vec![service("a", "02", &shows(ip))], Some("a")),
            (
                vec![
                    service("a", "02", &shows(ip)),
                    service("b", "01", &shows(ip)),
                ],
                Some("b"),
            ),
            (
                vec![
                    service("b", "01", &shows(ip)),
                    service("a", "02", &shows(ip)),
                ],
                Some("b"),
            ),
            // Of the same second: by name.
            (
                vec![
                    service("b", "01", &shows(ip)),
                    service("a", "01", &shows(ip)),
                ],
                Some("a"),
            ),
            // It is freed by the cleanup of a deleted Service, not by its deletion.
            (vec![service("a", "01", &deleted)], Some("a")),
            (vec![service("a", "01", &other_class)], None),
            (vec![service("a", "01", &other_type)], None),
            (vec![service("a", "01", &shows("198.51.100.2"))], None),
        ] {
            let claims = Claims::new(&services, &BTreeSet::new());
            let ip = ip.parse().unwrap();
            assert_eq!(claims.is_taken(ip, &new), holder.is_some(), "{services:?}");
            for service in &services {
                let is_holder = service.metadata.name.as_deref() == holder;
                assert_eq!(claims.is_taken(ip, service), holder.is_some() && !is_holder);
            }
        }
    }

    #[test]
    fn of_services_with_one_port_all_but_the_oldest_are_refused_with_its_name() {
        let services: Vec<_> = ["03", "01", "02"]
            .into_iter()
            .map(|day| service(&format!("on-{day}"), day, &json!({})))
            .collect();
        let claims = Claims::new(&services, &BTreeSet::new());
        for (service, is_refused) in services.iter().zip([true, false, true]) {
            let refusal = claims.refusal(service);
            assert_eq!(refusal.is_some(), is_refused, "{refusal:?}");
            assert!(
                refusal.is_none_or(|text| text.contains("d/on-01")),
                "{refusal:?}"
            );
        }
        let claims = Claims::new(&services, &BTreeSet::from([80]));
        assert!(
            services
                .iter()
                .all(|service| claims.refusal(service).is_some())
        );
    }
}
