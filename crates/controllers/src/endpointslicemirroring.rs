//! Mirrors manually written Endpoints of Services without a selector to EndpointSlices, which are
//! all that proxies read.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use client::Informer;
use k8s_openapi::api::{
    core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service},
    discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
};
use kube::api::ObjectMeta;
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::{
    endpointslice::{
        pack::{self, Change, pack},
        view::{self, Group, MANAGED_BY, SERVICE_NAME},
    },
    shared::{Shared, controller_reference},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "endpointslicemirroring";
const ACCOUNT: &str = "endpointslicemirroring-controller";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// Endpoints with this label are not mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints with this annotation are a leader election lock.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that are not copied to the slices.
const NOT_COPIED: &[&str] = &[
    "endpoints.kubernetes.io/last-change-trigger-time",
    "kubectl.kubernetes.io/last-applied-configuration",
];
/// The maximum number of addresses per subset.
const LARGEST: usize = 1000;

struct Mirror {
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    slices: Writer<EndpointSlice>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Mirror {
        services: shared.informer(),
        endpoints: shared.informer(),
        slices: shared.writer(ACCOUNT),
    });
    shared
        .controller(&controller)
        .watches(&controller.services)
        .watches(&controller.endpoints)
        .watches_with(controller.slices.cache(), view::service_of_slice(MANAGER))
        .workers(5)
        .start();
}

impl Controller for Mirror {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let existing = view::slices_of(self.slices.cache(), key, MANAGER);
        let service = self.services.get(&key.namespace, &key.name);
        let endpoints = self.endpoints.get(&key.namespace, &key.name);
        let changes = match (service, endpoints) {
            (Some(service), Some(endpoints)) if is_mirrored(&service, &endpoints) => {
                pack(&model(&endpoints), groups(&endpoints), existing)
            }
            _ => existing.into_iter().map(Change::Delete).collect(),
        };
        pack::write(&self.slices, &key.namespace, &changes).await?;
        Ok(Action::Done)
    }
}

fn is_mirrored(service: &Service, endpoints: &Endpoints) -> bool {
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref());
    let has = |map: &Option<BTreeMap<String, String>>, key: &str, wanted: Option<&str>| {
        let value = map.as_ref().and_then(|map| map.get(key));
        value.is_some_and(|value| wanted.is_none_or(|wanted| value == wanted))
    };
    selector.is_none_or(BTreeMap::is_empty)
        && !has(&endpoints.metadata.labels, SKIP, Some("true"))
        && !has(&endpoints.metadata.annotations, LEADER, None)
}

/// The common metadata of the slices.
fn model(endpoints: &Endpoints) -> ObjectMeta {
    let meta = &endpoints.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let mut labels = meta.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !NOT_COPIED.contains(&key.as_str()));
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: meta.namespace.clone(),
        labels: Some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        owner_references: Some(vec![controller_reference(endpoints)]),
        ..Default::default()
    }
}

/// The addresses by family and ports. An address that is both ready and not ready counts as ready.
fn groups(endpoints: &Endpoints) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let waiting = subset.not_ready_addresses.iter().flatten();
        let all = ready.chain(waiting.map(|a| (a, false)));
        for (address, ready) in all.take(LARGEST) {
            let Some(family) = family(address) else {
                continue;
            };
            let made = endpoint(address, ready);
            let same = |group: &&mut Group| group.family == family && group.ports == ports;
            match groups.iter_mut().find(same) {
                Some(group)
                    if group
                        .endpoints
                        .iter()
                        .any(|e| e.addresses == made.addresses) => {}
                Some(group) => group.endpoints.push(made),
                None => groups.push(Group {
                    family: family.to_owned(),
                    ports: ports.clone(),
                    endpoints: vec![made],
                }),
            }
        }
    }
    groups
}

fn family(address: &EndpointAddress) -> Option<&'static str> {
    Some(match address.ip.parse().ok()? {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    })
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let ports = subset.ports.iter().flatten();
    ports
        .map(|port| EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(port.port),
            protocol: port.protocol.clone(),
            app_protocol: port.app_protocol.clone(),
        })
        .collect()
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..Default::default()
        }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoints(value: Value) -> Endpoints {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn addresses_are_grouped_by_family_and_ports() {
        let made = groups(&endpoints(json!({"metadata": {"name": "db"}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
             "notReadyAddresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}],
             "ports": [{"port": 80}]},
            {"addresses": [{"ip": "10.0.0.3", "hostname": "c"}], "ports": [{"port": 81, "name": "x"}]},
            {"addresses": [{"ip": "10.0.0.4"}], "ports": [{"port": 80}]},
        ]})));
        let reported: Vec<_> = made
            .iter()
            .map(|group| {
                let endpoint = |e: &Endpoint| {
                    let ready = e.conditions.as_ref().unwrap().ready == Some(true);
                    format!("{}{}", e.addresses[0], if ready { "" } else { "!" })
                };
                let endpoints: Vec<_> = group.endpoints.iter().map(endpoint).collect();
                format!(
                    "{} {}: {}",
                    group.family,
                    group.ports[0].port.unwrap(),
                    endpoints.join(" ")
                )
            })
            .collect();
        assert_eq!(
            reported,
            [
                "IPv4 80: 10.0.0.1 10.0.0.2! 10.0.0.4",
                "IPv6 80: fd00::1",
                "IPv4 81: 10.0.0.3"
            ]
        );
    }

    #[test]
    fn selectors_locks_and_a_label_keep_endpoints_from_being_mirrored() {
        let service = |spec: Value| serde_json::from_value(json!({"spec": spec})).unwrap();
        let plain = endpoints(json!({"metadata": {"name": "db"}}));
        assert!(is_mirrored(&service(json!({})), &plain));
        assert!(!is_mirrored(
            &service(json!({"selector": {"a": "b"}})),
            &plain
        ));
        let skipped = endpoints(json!({"metadata": {"labels": {SKIP: "true"}}}));
        assert!(!is_mirrored(&service(json!({})), &skipped));
        let lock = endpoints(json!({"metadata": {"annotations": {LEADER: "me"}}}));
        assert!(!is_mirrored(&service(json!({})), &lock));
    }

    #[test]
    fn slices_carry_the_labels_and_most_annotations() {
        let meta = model(&endpoints(json!({"metadata": {
            "name": "db", "namespace": "n", "labels": {"app": "db"},
            "annotations": {"a": "b", (NOT_COPIED[1]): "{}"}}})));
        let labels = meta.labels.unwrap();
        assert_eq!(labels["app"], "db");
        assert_eq!(labels[SERVICE_NAME], "db");
        assert_eq!(meta.annotations.unwrap().len(), 1);
        assert_eq!(meta.owner_references.unwrap()[0].kind, "Endpoints");
    }
}
