//! EndpointSlices of a Service: the addresses of the pods that its selector matches, in slices that
//! change as little as possible.

pub(crate) mod pack;
pub(crate) mod tally;
mod topology;
pub(crate) mod trigger;
pub(crate) mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use client::{Informer, informer::Labelled};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, Selector, Writer};

use crate::{
    metrics::{Metrics, Spread},
    shared::{REST, Shared, controller_reference, rest_of_pods, selected_in},
};
use kube::{Resource, api::ObjectMeta};
use pack::{Change, pack};
use tally::{Sizes, Tally};
use topology::Shares;
use trigger::{TriggerTimes, annotate_changes};
use view::{Group, MANAGED_BY, SERVICE_NAME, desired};

/// The name in [`crate::ALL`].
pub const NAME: &str = "endpointslice";
const ACCOUNT: &str = "endpointslice-controller";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";

struct Slices {
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Writer<EndpointSlice>,
    recorder: Recorder,
    /// Services with topology hints, which are reconciled when a node changes.
    by_topology: Mutex<BTreeSet<Key>>,
    /// The proportions of zones, which all Services with topology hints share.
    shares: Mutex<topology::Known>,
    trigger_times: TriggerTimes,
    metrics: Metrics,
    sizes: Sizes,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Slices {
        services: shared.informer(),
        pods: shared.informer(),
        nodes: shared.informer(),
        slices: shared.writer(ACCOUNT),
        recorder: shared.recorder(ACCOUNT, "endpoint-slice-controller"),
        by_topology: Mutex::default(),
        shares: Mutex::default(),
        trigger_times: TriggerTimes::default(),
        metrics: shared.metrics.clone(),
        sizes: Sizes::new([
            &shared.metrics.slice_endpoints,
            &shared.metrics.slices,
            &shared.metrics.slices_desired,
        ]),
    });
    let hinted = controller.clone();
    let concerned = view::services_of_pod(&controller.services);
    shared
        .controller(&controller)
        .watches(&controller.services)
        .watches_with(&controller.pods, concerned)
        .watches_with(controller.slices.cache(), view::service_of_slice(MANAGER))
        .watches_with(
            &controller.nodes,
            move |event| match topology::concerns_shares(event) {
                true => {
                    hinted.shares.lock().forget();
                    hinted.by_topology.lock().iter().cloned().collect()
                }
                false => Vec::new(),
            },
        )
        .workers(16)
        .rest(REST)
        .start();
}

impl Controller for Slices {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let existing = view::slices_of(self.slices.cache(), key, MANAGER);
        let service = self.services.get(&key.namespace, &key.name);
        if service.is_none() {
            self.by_topology.lock().remove(key);
            self.trigger_times.forget(key);
        }
        let selector = service
            .as_ref()
            .and_then(|service| selector_of(service).cloned());
        // Without a selector the slices belong to someone else; without a Service they are deleted.
        let mut rest = Action::Done;
        let wanted = match (&service, selector.filter(|selector| !selector.is_empty())) {
            (Some(service), Some(selector)) => {
                let selector = Selector::labels(&selector);
                let pods = selected_in(&self.pods, &key.namespace, &selector);
                rest = rest_of_pods(pods.len());
                let zone = |node: &str| {
                    let node = self.nodes.entry("", node)?;
                    node.label(topology::ZONE).map(ToOwned::to_owned)
                };
                let mut groups = desired(service, &pods, zone);
                self.hint(service, key, &mut groups, &existing);
                let trigger = self.trigger_times.observe(key, service, &pods);
                Some((service, groups, trigger))
            }
            (Some(_), None) => return Ok(Action::Done),
            (None, _) => None,
        };
        let changes = match wanted {
            Some((service, groups, trigger)) => {
                let (known, sizes) = (existing.clone(), tally::sizes(&groups));
                let mut changes = pack(&model(service), groups, existing);
                // The garbage collector deletes the slices of a Service that is being deleted.
                if service.metadata.deletion_timestamp.is_some() {
                    changes.retain(|change| !matches!(change, Change::Create(_)));
                }
                annotate_changes(&mut changes, trigger);
                self.sizes.set(key, &sizes, known.len(), &changes);
                self.tally(&Tally::new(&known, &changes));
                changes
            }
            None => {
                self.sizes.set(key, &[], 0, &[]);
                existing.into_iter().map(Change::Delete).collect()
            }
        };
        let written = pack::write(&self.slices, &key.namespace, &changes).await;
        self.count(service.as_deref(), &changes, written.is_ok());
        written.map(|()| rest)
    }
}

impl Slices {
    fn tally(&self, tally: &Tally) {
        let observe = |metric: &Spread, count: usize| metric.observe([], count as f64);
        observe(&self.metrics.slice_endpoints_added, tally.added);
        observe(&self.metrics.slice_endpoints_removed, tally.removed);
    }

    fn count(&self, service: Option<&Service>, changes: &[Change], is_ok: bool) {
        let result = if is_ok { "success" } else { "error" };
        self.metrics.slice_syncs.add([("result", result)], 1);
        let changed = &self.metrics.slices_changed;
        changed.observe(preferences(service), changes.len() as f64);
        for change in changes {
            let metric = &self.metrics.slice_changes;
            metric.add([("operation", change.operation())], 1);
        }
    }

    /// The proportions of zones: all nodes are decoded only after a change of one that matters.
    fn shares(&self) -> Option<Arc<Shares>> {
        let seen = self.shares.lock().clone();
        if let Some(shares) = seen.shares {
            return shares;
        }
        let shares = topology::shares(&self.nodes.list()).map(Arc::new);
        self.shares.lock().keep(seen.changes, shares.clone());
        shares
    }

    /// Hints for zones, where the Service asks for them by its annotation.
    fn hint(
        &self,
        service: &Service,
        key: &Key,
        groups: &mut [Group],
        existing: &[Arc<EndpointSlice>],
    ) {
        let enabled = topology::is_enabled(service);
        match enabled {
            true => self.by_topology.lock().insert(key.clone()),
            false => self.by_topology.lock().remove(key),
        };
        let near = |service: &Service| service.spec.as_ref()?.traffic_distribution.clone();
        let shares = enabled.then(|| self.shares());
        let families: BTreeSet<String> = groups.iter().map(|group| group.family.clone()).collect();
        for family in families {
            let known = topology::known_hints(existing, &family);
            let outcome = match &shares {
                Some(shares) => {
                    let of_family = groups.iter_mut().filter(|group| group.family == family);
                    let mut endpoints: Vec<_> =
                        of_family.flat_map(|group| &mut group.endpoints).collect();
                    topology::hint(&mut endpoints, shares.as_deref(), &known)
                }
                // The annotation was removed.
                None if !known.is_empty() && near(service).is_none() => {
                    Err("Topology Aware Hints has been disabled".to_owned())
                }
                None => continue,
            };
            let about = service.object_ref(&());
            let (kind, reason, text) = match outcome {
                Err(problem) => (Kind::Warning, "TopologyAwareHintsDisabled", problem),
                Ok(()) if known.is_empty() => {
                    let text = "Topology Aware Hints has been enabled".to_owned();
                    (Kind::Normal, "TopologyAwareHintsEnabled", text)
                }
                Ok(()) => continue,
            };
            let text = format!("{text}, addressType: {family}");
            self.recorder.event(&about, kind, reason, text);
        }
    }
}

/// The selector of a Service's endpoints. A Service that is only a name for another host has none, whatever it selects.
fn selector_of(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    let is_name = spec.type_.as_deref() == Some("ExternalName");
    spec.selector.as_ref().filter(|_| !is_name)
}

/// How a Service prefers near endpoints, as metrics name it. The annotation for zones is stronger than the field.
fn preferences(service: Option<&Service>) -> [(&'static str, &str); 2] {
    let is_auto = service.is_some_and(topology::is_enabled);
    let distribution = service
        .and_then(|service| service.spec.as_ref()?.traffic_distribution.as_deref())
        .filter(|name| ["PreferClose", "PreferSameZone", "PreferSameNode"].contains(name))
        .filter(|_| !is_auto);
    [
        ("topology", if is_auto { "Auto" } else { "Disabled" }),
        ("traffic_distribution", distribution.unwrap_or_default()),
    ]
}

/// The common metadata of a Service's slices: its labels, the service name and the manager.
fn model(service: &Service) -> ObjectMeta {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    let cluster_ip = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref());
    if matches!(cluster_ip, None | Some("" | "None")) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let name = service.metadata.name.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name.clone());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    ObjectMeta {
        generate_name: Some(format!("{name}-")),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        owner_references: Some(vec![controller_reference(service)]),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn syncs_are_counted_by_the_way_near_endpoints_are_preferred() {
        let auto = json!({"service.kubernetes.io/topology-mode": "Auto"});
        for (annotations, distribution, expected) in [
            (json!({}), json!(null), ("Disabled", "")),
            (
                json!({}),
                json!("PreferSameZone"),
                ("Disabled", "PreferSameZone"),
            ),
            (json!({}), json!("Other"), ("Disabled", "")),
            (auto.clone(), json!(null), ("Auto", "")),
            (auto, json!("PreferClose"), ("Auto", "")),
        ] {
            let service = json!({
                "metadata": {"annotations": annotations},
                "spec": {"trafficDistribution": distribution},
            });
            let service = serde_json::from_value(service).unwrap();
            let [(_, topology), (_, traffic)] = preferences(Some(&service));
            assert_eq!((topology, traffic), expected);
        }
        assert_eq!(preferences(None)[0].1, "Disabled");
    }

    #[test]
    fn a_name_for_another_host_has_no_endpoints() {
        for (kind, selector, expected) in [
            ("ClusterIP", json!({"app": "web"}), true),
            ("ExternalName", json!({"app": "web"}), false),
            ("ClusterIP", json!(null), false),
        ] {
            let service = json!({"spec": {"type": kind, "selector": selector}});
            let service: Service = serde_json::from_value(service).unwrap();
            assert_eq!(selector_of(&service).is_some(), expected, "{kind}");
        }
    }
}
