//! Assigns addresses to Services of type LoadBalancer: those of the nodes, or of a pool, which one
//! node at a time announces. A Service has upstream's finalizer while it may have addresses. Ignores
//! Services of another class; `--disable load-balancer` turns it off.

mod claims;
mod decide;
mod nodes;
mod pool;
mod ports;

use std::{collections::BTreeSet, sync::Arc};

use client::{Api, Event, Informer};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::{EndpointConditions, EndpointSlice},
};
use kube::{
    Resource,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use reconcile::{Action, Controller, Error, Key, Kind, Recorder, StatusPatch};
use serde_json::{Value, json};

use crate::{
    endpointslice::view::SERVICE_NAME,
    shared::{LOAD_BALANCER, SERVICE, Shared, TRAFFIC, TYPE},
};
use claims::Claims;
pub use decide::{ANNOUNCER, CLASS, FROM_POOL};
use decide::{Decision, FINALIZER, View, decide};
use nodes::Target;
pub(crate) use nodes::traffic;
pub use pool::Pool;

/// The name in [`crate::ALL`].
pub const NAME: &str = "load-balancer";
const ACCOUNT: &str = "service-controller";

/// The settings of load balancers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Addresses to assign; if empty, the nodes' own addresses are used.
    pub pool: Pool,
    /// Ports of the nodes that no Service may use.
    pub reserved_ports: BTreeSet<u16>,
}

struct Balancers {
    client: kube::Client,
    services: Informer<Service>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    recorder: Recorder,
    settings: Settings,
    shared: Arc<Shared>,
    /// The claims of all Services, and the generation of the Services that they are from.
    claims: Mutex<Option<(u64, Arc<Claims>)>>,
    /// The nodes that accept traffic, and the generation of the Nodes that they are from.
    targets: Mutex<Option<(u64, Arc<Vec<Target>>)>>,
    /// Services that may lack an address or a port. Only these are reconciled when one becomes free.
    waiting: Mutex<BTreeSet<Key>>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Balancers {
        client: shared.client(ACCOUNT),
        services: shared.informer(),
        nodes: shared.informer(),
        slices: shared.informer(),
        recorder: shared.recorder(ACCOUNT, "service-controller"),
        settings: shared.config.load_balancer.clone(),
        shared: shared.clone(),
        claims: Mutex::default(),
        targets: Mutex::default(),
        waiting: Mutex::default(),
    });
    let (by_service, by_node, by_slice) =
        (controller.clone(), controller.clone(), controller.clone());
    // One worker, so that no address and no port is assigned twice.
    shared
        .controller(&controller)
        .watches_with(&controller.services, move |event| {
            concerned_by(event, &by_service.waiting.lock())
        })
        .watches_with(&controller.nodes, move |event| {
            let changed = match event {
                Event::Modified { old, new } => traffic(old) != traffic(new),
                Event::Added(_) | Event::Deleted(_) => true,
            };
            if changed { by_node.keys() } else { Vec::new() }
        })
        .watches_with(&controller.slices, move |event| {
            let key = service_of(event.object());
            let is_ours = |key: &Key| {
                let service = by_slice.services.get(&key.namespace, &key.name);
                service
                    .is_some_and(|service| decide::is_ours(&service) && decide::is_local(&service))
            };
            key.filter(is_ours).into_iter().collect()
        })
        .start();
}

/// The Services to reconcile after a Service's change: another one may wait for an address or port that it frees.
fn concerned_by(event: &Event<Service>, waiting: &BTreeSet<Key>) -> Vec<Key> {
    let mut keys = vec![Key::from_object(&**event.object())];
    if concerns_others(event) {
        keys.extend(waiting.iter().cloned());
    }
    keys
}

/// Whether a Service's change can free an address or a port for another.
fn concerns_others(event: &Event<Service>) -> bool {
    match event {
        Event::Added(_) => false,
        Event::Deleted(service) => decide::is_load_balancer(service),
        Event::Modified { old, new } => {
            decide::is_load_balancer(old) && (old.spec != new.spec || old.status != new.status)
        }
    }
}

fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(Key {
        namespace: slice.metadata.namespace.clone()?,
        name: name.clone(),
    })
}

/// The nodes with ready endpoints; if there are none, those with endpoints that terminate and still serve, as the nodes
/// themselves choose.
fn nodes_of(slices: &[Arc<EndpointSlice>]) -> BTreeSet<String> {
    let with = |is_wanted: fn(&EndpointConditions) -> bool| -> BTreeSet<String> {
        let endpoints = slices
            .iter()
            .flat_map(|slice| slice.endpoints.iter().flatten());
        let wanted = endpoints.filter(|endpoint| {
            let conditions = endpoint.conditions.clone();
            is_wanted(&conditions.unwrap_or_default())
        });
        let names = wanted.filter_map(|endpoint| endpoint.node_name.clone());
        names.collect()
    };
    let ready = with(|conditions| conditions.ready != Some(false));
    match ready.is_empty() {
        false => ready,
        true => with(|conditions| {
            conditions.terminating == Some(true) && conditions.serving != Some(false)
        }),
    }
}

impl Balancers {
    fn keys(&self) -> Vec<Key> {
        let services = self.services.by_index(TYPE, LOAD_BALANCER);
        let ours = services.iter().filter(|service| decide::is_ours(service));
        ours.map(|service| Key::from_object(&**service)).collect()
    }

    /// All nodes that accept traffic now.
    fn targets(&self) -> Arc<Vec<Target>> {
        let generation = self.nodes.generation();
        let mut known = self.targets.lock();
        if let Some((of, targets)) = known.as_ref()
            && *of == generation
        {
            return targets.clone();
        }
        let targets = Arc::new(nodes::targets(&self.nodes.index_keys(TRAFFIC)));
        *known = Some((generation, targets.clone()));
        targets
    }

    /// What all Services have and want now.
    fn claims(&self) -> Arc<Claims> {
        let generation = self.services.generation();
        let mut known = self.claims.lock();
        if let Some((of, claims)) = known.as_ref()
            && *of == generation
        {
            return claims.clone();
        }
        let services = self.services.by_index(TYPE, LOAD_BALANCER);
        let claims = Arc::new(Claims::new(&services, &self.settings.reserved_ports));
        *known = Some((generation, claims.clone()));
        claims
    }

    fn decide(&self, service: &Service, key: &Key) -> Decision {
        let own = format!("{}/{}", key.namespace, key.name);
        let view = View {
            claims: &self.claims(),
            nodes: &self.targets(),
            with_endpoints: &nodes_of(&self.slices.by_index(SERVICE, &own)),
            pool: &self.settings.pool,
        };
        decide(service, &view)
    }

    fn api(&self, key: &Key) -> Api<Service> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Waits until the informer has this version, so that the next decision sees it.
    async fn written(&self, service: Service) {
        let version = service.metadata.resource_version.unwrap_or_default();
        self.services.reached(&version).await;
    }

    /// Adds the finalizer and writes the announcer, before the addresses are assigned.
    async fn write_metadata(
        &self,
        service: &Service,
        key: &Key,
        decision: &Decision,
    ) -> Result<(), Error> {
        let is_announced = decide::announcer(service) == decision.announcer.as_deref();
        if is_announced && decide::has_finalizer(service) {
            return Ok(());
        }
        let annotations = json!({ANNOUNCER: decision.announcer});
        let metadata = json!({"finalizers": [FINALIZER], "annotations": annotations});
        let patched = self.patch_metadata(service, key, metadata).await?;
        self.written(patched).await;
        Ok(())
    }

    async fn patch_metadata(
        &self,
        service: &Service,
        key: &Key,
        mut metadata: Value,
    ) -> Result<Service, Error> {
        metadata["uid"] = json!(service.metadata.uid);
        let (parameters, patch) = (PatchParams::default(), json!({"metadata": metadata}));
        let patch = Patch::Strategic(&patch);
        Ok(self.api(key).patch(&key.name, &parameters, &patch).await?)
    }

    /// Writes addresses and conditions, which change in one write.
    async fn write_status(
        &self,
        service: &Service,
        key: &Key,
        decision: &Decision,
    ) -> Result<(), Error> {
        let status = service.status.as_ref();
        let before = status.and_then(|status| status.load_balancer.as_ref());
        let before = before.and_then(|balancer| balancer.ingress.clone());
        let wanted = decide::ingress(service, decision);
        let has_changed = before.unwrap_or_default() != wanted;
        let conditions = decide::conditions(service, decision, self.shared.now());
        let mut patch = StatusPatch::new(service).conditions(&conditions);
        if has_changed {
            let ingress = match wanted.is_empty() {
                true => Value::Null,
                false => json!(wanted),
            };
            patch = patch.field("loadBalancer", json!({"ingress": ingress}));
        }
        if !patch.is_empty() {
            let patched = patch.send(&self.api(key), &key.name).await?;
            self.written(patched).await;
        }
        if has_changed {
            self.report(service, decision);
        }
        Ok(())
    }

    /// Frees the addresses, then removes the finalizer.
    async fn clean_up(&self, service: &Service, key: &Key) -> Result<(), Error> {
        self.write_status(service, key, &Decision::default())
            .await?;
        let is_announced = decide::announcer(service).is_some();
        if is_announced || decide::has_finalizer(service) {
            let metadata = json!({
                "$deleteFromPrimitiveList/finalizers": [FINALIZER],
                "annotations": {ANNOUNCER: null},
            });
            self.patch_metadata(service, key, metadata).await?;
        }
        Ok(())
    }

    fn report(&self, service: &Service, decision: &Decision) {
        let listed: Vec<String> = decision.ingress.iter().map(ToString::to_string).collect();
        let (reason, text) = match listed.is_empty() {
            true => ("DeletedLoadBalancer", "Deleted load balancer".to_owned()),
            false => {
                let text = format!("Ensured load balancer at {}", listed.join(", "));
                ("EnsuredLoadBalancer", text)
            }
        };
        let about = service.object_ref(&());
        self.recorder.event(&about, Kind::Normal, reason, text);
    }
}

impl Controller for Balancers {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        // Before its decision: what becomes free afterwards concerns it.
        self.waiting.lock().insert(key.clone());
        let lacks_something = self.assign(key).await?;
        if !lacks_something {
            self.waiting.lock().remove(key);
        }
        Ok(Action::Done)
    }
}

impl Balancers {
    /// Reconciles a Service. Returns whether it waits for an address or a port.
    async fn assign(&self, key: &Key) -> Result<bool, Error> {
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            return Ok(false);
        };
        if decide::needs_cleanup(&service) {
            self.clean_up(&service, key).await?;
        } else if decide::is_ours(&service) {
            let decision = self.decide(&service, key);
            self.write_metadata(&service, key, &decision).await?;
            self.write_status(&service, key, &decision).await?;
            if let Some(problem) = &decision.problem {
                let about = service.object_ref(&());
                let text = format!("Error syncing load balancer: {problem}");
                self.recorder
                    .event(&about, Kind::Warning, "SyncLoadBalancerFailed", text);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, spec: Value) -> Arc<Service> {
        let object = json!({"metadata": {"name": name, "namespace": "d"}, "spec": spec});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_change_wakes_the_services_that_wait_and_no_others() {
        let waiting = BTreeSet::from([Key::new("d", "x"), Key::new("d", "y")]);
        let on_port = |port: u16| json!({"type": "LoadBalancer", "ports": [{"port": port}]});
        let (one, other) = (service("a", on_port(80)), service("a", on_port(81)));
        let plain = service("a", json!({"type": "ClusterIP"}));
        let modified = |old: &Arc<Service>, new: &Arc<Service>| Event::Modified {
            old: old.clone(),
            new: new.clone(),
        };
        for (event, is_freed) in [
            // A new Service frees nothing.
            (Event::Added(one.clone()), false),
            (Event::Deleted(one.clone()), true),
            (Event::Deleted(plain.clone()), false),
            (modified(&one, &one), false),
            (modified(&one, &other), true),
            (modified(&one, &plain), true),
            (modified(&plain, &one), false),
        ] {
            let mut expected = vec![Key::new("d", "a")];
            expected.extend(waiting.iter().filter(|_| is_freed).cloned());
            assert_eq!(concerned_by(&event, &waiting), expected);
        }
    }

    #[test]
    fn nodes_with_ready_endpoints_count_before_those_where_all_terminate() {
        let endpoint = |node: &str, (ready, serving, terminating): (bool, bool, bool)| {
            json!({"addresses": ["10.0.0.1"], "nodeName": node,
                   "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
        };
        let (ready, leaving) = ((true, true, false), (false, true, true));
        let (ended, failing) = ((false, false, true), (false, false, false));
        for (endpoints, expected) in [
            (
                vec![endpoint("a", ready), endpoint("b", leaving)],
                &["a"][..],
            ),
            (
                vec![endpoint("a", leaving), endpoint("b", leaving)],
                &["a", "b"],
            ),
            (vec![endpoint("a", leaving), endpoint("b", ended)], &["a"]),
            (vec![endpoint("a", ended), endpoint("b", failing)], &[]),
            (
                vec![json!({"addresses": ["10.0.0.1"], "nodeName": "a"})],
                &["a"],
            ),
        ] {
            let slice =
                json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints});
            let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
            let found = nodes_of(&[Arc::new(slice)]);
            assert_eq!(Vec::from_iter(found), expected, "{endpoints:?}");
        }
    }
}
