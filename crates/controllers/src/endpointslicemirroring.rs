//! Mirrors manually written Endpoints of Services without a selector to EndpointSlices, which are
//! all that proxies read.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use client::Informer;
use k8s_openapi::api::{
    core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service},
    discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
};
use kube::{Resource, api::ObjectMeta};
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Writer};

use crate::{
    endpointslice::{
        pack::{self, Change, pack},
        tally::{self, Sizes, Tally},
        view::{self, Group, MANAGED_BY, SERVICE_NAME},
    },
    metrics::{Metrics, Spread},
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
    recorder: Recorder,
    metrics: Metrics,
    sizes: Sizes,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Mirror {
        services: shared.informer(),
        endpoints: shared.informer(),
        slices: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, "endpoint-slice-mirroring-controller"),
        metrics: shared.metrics.clone(),
        sizes: Sizes::new([
            &shared.metrics.mirror_endpoints,
            &shared.metrics.mirror_slices,
            &shared.metrics.mirror_slices_desired,
        ]),
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
        let begun = Instant::now();
        let written = self.mirror(key).await;
        self.metrics.mirror_seconds.took([], begun.elapsed());
        written.map(|()| Action::Done)
    }
}

impl Mirror {
    async fn mirror(&self, key: &Key) -> Result<(), Error> {
        let existing = view::slices_of(self.slices.cache(), key, MANAGER);
        let service = self.services.get(&key.namespace, &key.name);
        let endpoints = self.endpoints.get(&key.namespace, &key.name);
        let changes = match (service, endpoints) {
            (Some(service), Some(endpoints)) if is_mirrored(&service, &endpoints) => {
                let (groups, skipped) = groups(&endpoints);
                self.report(&endpoints, &skipped);
                let (known, sizes) = (existing.clone(), tally::sizes(&groups));
                let changes = pack(&model(&endpoints), groups, existing);
                self.sizes.set(key, &sizes, known.len(), &changes);
                self.tally(&Tally::new(&known, &changes));
                changes
            }
            _ => {
                self.sizes.set(key, &[], 0, &[]);
                existing.into_iter().map(Change::Delete).collect()
            }
        };
        for change in &changes {
            let by = [("operation", change.operation())];
            self.metrics.mirror_changes.add(by, 1);
        }
        pack::write(&self.slices, &key.namespace, &changes).await
    }

    fn tally(&self, tally: &Tally) {
        let observe = |metric: &Spread, count: usize| metric.observe([], count as f64);
        observe(&self.metrics.mirror_added, tally.added);
        observe(&self.metrics.mirror_updated, tally.updated);
        observe(&self.metrics.mirror_removed, tally.removed);
    }

    /// Counts addresses that are not mirrored, and records events for them.
    fn report(&self, endpoints: &Endpoints, skipped: &Skipped) {
        let metric = &self.metrics.mirror_skipped;
        metric.observe([], skipped.all as f64);
        let about = endpoints.object_ref(&());
        let warn = |reason, text| self.recorder.event(&about, Kind::Warning, reason, text);
        if skipped.invalid > 0 {
            let count = skipped.invalid;
            warn(
                "InvalidIPAddress",
                format!("Skipped {count} invalid IP addresses when mirroring to EndpointSlices"),
            );
        }
        if skipped.all > skipped.invalid {
            let count = skipped.all;
            warn(
                "TooManyAddressesToMirror",
                format!(
                    "A max of {LARGEST} addresses can be mirrored to EndpointSlices per Endpoints subset. \
                     {count} addresses were skipped"
                ),
            );
        }
    }
}

/// Addresses of Endpoints that are not mirrored.
#[derive(Debug, Default, PartialEq, Eq)]
struct Skipped {
    /// All of them.
    all: usize,
    /// Those that are no addresses.
    invalid: usize,
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

/// The addresses by family and ports, and what is left out. An address that is both ready and not ready counts as ready.
fn groups(endpoints: &Endpoints) -> (Vec<Group>, Skipped) {
    let mut groups: Vec<Group> = Vec::new();
    let mut skipped = Skipped::default();
    // Where the group of a family and ports is, and the addresses that it has.
    let mut known: HashMap<String, (usize, HashSet<&str>)> = HashMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let keys = ["IPv4", "IPv6"].map(|family| (family, pack::ports_key(family, &ports)));
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let waiting = subset.not_ready_addresses.iter().flatten();
        let mut mirrored = 0;
        for (address, ready) in ready.chain(waiting.map(|a| (a, false))) {
            if mirrored == LARGEST {
                skipped.all += 1;
                continue;
            }
            let family = family(address);
            let Some((family, key)) = keys.iter().find(|(one, _)| Some(*one) == family) else {
                skipped.all += 1;
                skipped.invalid += 1;
                continue;
            };
            mirrored += 1;
            let (place, addresses) = known.entry(key.clone()).or_insert_with(|| {
                groups.push(Group {
                    family: (*family).to_owned(),
                    ports: ports.clone(),
                    endpoints: Vec::new(),
                });
                (groups.len() - 1, HashSet::new())
            });
            if addresses.insert(&address.ip) {
                groups[*place].endpoints.push(endpoint(address, ready));
            }
        }
    }
    (groups, skipped)
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
        let (made, skipped) = groups(&endpoints(json!({"metadata": {"name": "db"}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
             "notReadyAddresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}],
             "ports": [{"port": 80}]},
            {"addresses": [{"ip": "10.0.0.3", "hostname": "c"}], "ports": [{"port": 81, "name": "x"}]},
            {"addresses": [{"ip": "10.0.0.4"}], "ports": [{"port": 80}]},
        ]})));
        assert_eq!(skipped, Skipped::default());
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
    fn of_a_subset_a_thousand_valid_addresses_are_mirrored_and_the_others_counted() {
        let address = |n: usize| json!({"ip": format!("10.0.{}.{}", n / 250, n % 250)});
        let many: Vec<Value> = (0..1002).map(address).collect();
        let (made, skipped) = groups(&endpoints(json!({"subsets": [
            {"addresses": [{"ip": "x"}], "notReadyAddresses": many, "ports": [{"port": 80}]},
            {"addresses": [{"ip": "10.1.0.1"}, {"ip": ""}], "ports": [{"port": 80}]},
        ]})));
        assert_eq!((made.len(), made[0].endpoints.len()), (1, 1001));
        let expected = Skipped { all: 4, invalid: 2 };
        assert_eq!(skipped, expected);
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
