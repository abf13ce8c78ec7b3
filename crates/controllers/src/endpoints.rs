//! Endpoints of a Service, the deprecated form of EndpointSlices: one object with all addresses.

use std::sync::Arc;

use client::Informer;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service,
};
use kube::api::ObjectMeta;
use reconcile::{Action, Controller, Error, Key, Selector, Writer};

use crate::{
    endpointslice::{
        trigger::{TriggerTimes, annotate},
        view::{addresses, hostname, reference, services_of_pod, target_port},
    },
    pods::{is_deleting, is_ready, is_terminal, node},
    shared::{REST, Shared, rest_of_pods, selected_in},
};

/// The name in [`crate::ALL`].
pub const NAME: &str = "endpoints";
const ACCOUNT: &str = "endpoint-controller";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const HEADLESS: &str = "service.kubernetes.io/headless";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// The maximum number of addresses in one object.
const LARGEST: usize = 1000;

struct Controlled {
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Writer<Endpoints>,
    trigger_times: TriggerTimes,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Controlled {
        services: shared.informer(),
        pods: shared.informer(),
        endpoints: shared.writer(ACCOUNT),
        trigger_times: TriggerTimes::default(),
    });
    let concerned = services_of_pod(&controller.services);
    shared
        .controller(&controller)
        .watches(&controller.services)
        .watches_with(&controller.pods, concerned)
        .watches(controller.endpoints.cache())
        .workers(16)
        .rest(REST)
        .start();
}

impl Controller for Controlled {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let known = self.endpoints.cache().get(&key.namespace, &key.name);
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            self.trigger_times.forget(key);
            let ours = known.filter(|known| {
                known
                    .metadata
                    .labels
                    .as_ref()
                    .is_some_and(|labels| labels.contains_key(MANAGED_BY))
            });
            if let Some(known) = ours {
                self.endpoints.delete(&known).await?;
            }
            return Ok(Action::Done);
        };
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
            return Ok(Action::Done);
        };
        let selector = Selector::labels(&selector);
        let pods = selected_in(&self.pods, &key.namespace, &selector);
        let mut wanted = decide(&service, &pods, known.as_deref());
        let trigger = self.trigger_times.observe(key, &service, &pods);
        let rest = rest_of_pods(pods.len());
        if known.as_deref() == Some(&wanted) {
            return Ok(rest);
        }
        annotate(&mut wanted.metadata, trigger);
        let outcome = match &known {
            Some(_) => self.endpoints.update(&key.namespace, &wanted).await,
            None => self.endpoints.create(&key.namespace, &wanted).await,
        };
        match outcome {
            Ok(_) => Ok(rest),
            Err(error) if error.is_namespace_terminating() => Ok(Action::Done),
            Err(error) => Err(error),
        }
    }
}

fn decide(service: &Service, pods: &[Arc<Pod>], known: Option<&Endpoints>) -> Endpoints {
    let mut endpoints = known.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..Default::default()
        },
        ..Default::default()
    });
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    let cluster_ip = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ip.as_deref());
    labels.remove(HEADLESS);
    if cluster_ip == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    endpoints.metadata.labels = Some(labels);
    let (subsets, cut) = subsets(service, pods);
    let annotations = endpoints.metadata.annotations.get_or_insert_default();
    if cut {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    if annotations.is_empty() {
        endpoints.metadata.annotations = None;
    }
    endpoints.subsets = (!subsets.is_empty()).then_some(subsets);
    endpoints
}

/// Addresses grouped by ports, in a stable order; and whether some did not fit.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let spec = service.spec.clone().unwrap_or_default();
    let publish = spec.publish_not_ready_addresses == Some(true);
    let mut subsets: Vec<EndpointSubset> = Vec::new();
    let mut found: Vec<_> = pods
        .iter()
        .filter(|pod| !is_terminal(pod) && (!is_deleting(pod) || publish))
        .filter_map(|pod| Some((addresses(pod).into_iter().next()?, pod)))
        .collect();
    found.sort_by_key(|(address, pod)| (!is_ready(pod), *address));
    let cut = found.len() > LARGEST;
    found.truncate(LARGEST);
    found.sort_by_key(|(address, _)| *address);
    for (ip, pod) in found {
        let address = EndpointAddress {
            ip: ip.to_string(),
            hostname: hostname(pod, service),
            node_name: Some(node(pod).to_owned()).filter(|node| !node.is_empty()),
            target_ref: Some(reference(pod)),
        };
        let ports = spec.ports.iter().flatten().filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone(),
                port: target_port(pod, port)?,
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            })
        });
        let ports = Some(ports.collect::<Vec<_>>()).filter(|ports| !ports.is_empty());
        let at = subsets
            .iter()
            .position(|subset| subset.ports == ports)
            .unwrap_or_else(|| {
                subsets.push(EndpointSubset {
                    ports,
                    ..Default::default()
                });
                subsets.len() - 1
            });
        let list = if is_ready(pod) || publish {
            &mut subsets[at].addresses
        } else {
            &mut subsets[at].not_ready_addresses
        };
        list.get_or_insert_default().push(address);
    }
    (subsets, cut)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::endpointslice::view::samples;

    #[test]
    fn ready_and_unready_addresses_are_separate_and_terminating_pods_are_omitted() {
        let pods = [
            samples::pod("b", "10.0.0.2", true),
            samples::pod("a", "10.0.0.1", true),
            samples::pod("c", "10.0.0.3", false),
            samples::leaving(samples::pod("d", "10.0.0.4", true)),
        ];
        let service = samples::service(IntOrString::Int(8080));
        let endpoints = decide(&service, &pods, None);
        let subsets = endpoints.subsets.clone().unwrap();
        assert_eq!(subsets.len(), 1);
        let ips = |list: &Option<Vec<EndpointAddress>>| {
            list.iter()
                .flatten()
                .map(|address| address.ip.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(ips(&subsets[0].addresses), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(ips(&subsets[0].not_ready_addresses), ["10.0.0.3"]);
        assert_eq!(subsets[0].ports.as_ref().unwrap()[0].port, 8080);
        assert_eq!(decide(&service, &pods, Some(&endpoints)), endpoints);
        let mut publishing = service;
        let spec = publishing.spec.as_mut().unwrap();
        spec.publish_not_ready_addresses = Some(true);
        let subsets = decide(&publishing, &pods, None).subsets.unwrap();
        assert_eq!(
            ips(&subsets[0].addresses).len(),
            4,
            "also the one that leaves"
        );
        assert!(subsets[0].not_ready_addresses.is_none());
    }
}
