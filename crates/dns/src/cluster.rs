//! The zone's data: Services and EndpointSlices, indexed by name and by address.

use std::{collections::BTreeMap, net::IpAddr, path::Path, sync::Arc};

use client::informer::Informer;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use lifecycle::Context;

use crate::corefile;

/// The label with the Service of an EndpointSlice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Namespace and name of the ConfigMap with the Corefile.
pub const SETTINGS: (&str, &str) = ("kube-system", "coredns");
/// The ConfigMap with more files for `import`, as other distributions have it.
pub const CUSTOM: &str = "coredns-custom";
const BY_SERVICE: &str = "service";
const BY_ADDRESS: &str = "address";

/// Informers with the indexes of the zone. Clones share them.
#[derive(Clone)]
pub struct Cluster {
    /// All Services.
    pub services: Informer<Service>,
    /// All EndpointSlices.
    pub slices: Informer<EndpointSlice>,
    /// The ConfigMap with the Corefile.
    pub settings: Informer<ConfigMap>,
    /// The ConfigMap with more files.
    pub custom: Informer<ConfigMap>,
}

/// The keys of both ConfigMaps as files. Those of the first one count before.
pub fn files(settings: Option<&ConfigMap>, custom: Option<&ConfigMap>) -> BTreeMap<String, String> {
    let data = |map: Option<&ConfigMap>| map.and_then(|map| map.data.clone()).unwrap_or_default();
    let mut all = data(custom);
    all.remove(corefile::KEY);
    all.extend(data(settings));
    all
}

fn addresses_of_service(service: &Service) -> Vec<String> {
    cluster_ips(service)
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn service_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    owner(slice)
        .map(|name| format!("{namespace}/{name}"))
        .into_iter()
        .collect()
}

fn addresses_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let endpoints = slice.endpoints.iter().flatten();
    // Addresses have several spellings; the index uses one.
    let parsed = endpoints
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|ip| ip.parse::<IpAddr>().ok());
    parsed.map(|ip| ip.to_string()).collect()
}

impl Cluster {
    /// Starts the informers, for the context's run. They save their objects in the directory, if there is one.
    pub fn start(client: &kube::Client, saved: Option<&Path>, context: &Context) -> Self {
        let file = |name| saved.map(|directory| directory.join(name));
        let services = Informer::builder(client.clone()).index(BY_ADDRESS, addresses_of_service);
        let slices = Informer::builder(client.clone())
            .index(BY_SERVICE, service_of_slice)
            .index(BY_ADDRESS, addresses_of_slice);
        let map = |name: &str| {
            Informer::builder(client.clone())
                .namespace(SETTINGS.0)
                .fields(format!("metadata.name={name}"))
        };
        let (settings, custom) = (map(SETTINGS.1), map(CUSTOM));
        Self {
            services: services.saved_at(file("services.json")).start(context),
            slices: slices.saved_at(file("endpointslices.json")).start(context),
            settings: settings.saved_at(file("corefile.json")).start(context),
            custom: custom.saved_at(file("imports.json")).start(context),
        }
    }

    /// Informers without a server, for tests.
    pub fn offline(client: &kube::Client) -> Self {
        let services = Informer::builder(client.clone()).index(BY_ADDRESS, addresses_of_service);
        let slices = Informer::builder(client.clone())
            .index(BY_SERVICE, service_of_slice)
            .index(BY_ADDRESS, addresses_of_slice);
        Self {
            services: services.offline(),
            slices: slices.offline(),
            settings: Informer::builder(client.clone()).offline(),
            custom: Informer::builder(client.clone()).offline(),
        }
    }

    /// Waits until the informers have synced.
    pub async fn synced(&self) {
        tokio::join!(self.services.synced(), self.slices.synced());
    }

    /// Whether the informers have synced.
    pub fn has_synced(&self) -> bool {
        self.services.has_synced() && self.slices.has_synced()
    }

    /// Changes with every change of the zone's data.
    pub fn generation(&self) -> u64 {
        self.services.generation() + self.slices.generation()
    }

    /// The slices of a service.
    pub fn slices_of(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        self.slices
            .by_index(BY_SERVICE, &format!("{namespace}/{service}"))
    }

    /// The services with this cluster address.
    pub fn services_at(&self, ip: IpAddr) -> Vec<Arc<Service>> {
        self.services.by_index(BY_ADDRESS, &ip.to_string())
    }

    /// The slices that list this address.
    pub fn slices_at(&self, ip: IpAddr) -> Vec<Arc<EndpointSlice>> {
        self.slices.by_index(BY_ADDRESS, &ip.to_string())
    }

    /// Whether a namespace has any Service.
    pub fn has_services_in(&self, namespace: &str) -> bool {
        self.services.has_any_in(namespace)
    }
}

/// The Service of an EndpointSlice.
pub fn owner(slice: &EndpointSlice) -> Option<&str> {
    slice
        .metadata
        .labels
        .as_ref()?
        .get(SERVICE_NAME)
        .map(String::as_str)
}

/// A Service's cluster IPs; empty if it is headless.
pub fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let mut ips: Vec<IpAddr> = spec
        .cluster_ips
        .iter()
        .flatten()
        .filter_map(|ip| ip.parse().ok())
        .collect();
    if ips.is_empty() {
        ips.extend(
            spec.cluster_ip
                .iter()
                .filter_map(|ip| ip.parse::<IpAddr>().ok()),
        );
    }
    ips
}

/// Whether the Service is headless.
pub fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        spec.cluster_ip.as_deref() == Some("None") && spec.type_.as_deref() != Some("ExternalName")
    })
}

/// Whether an endpoint is published. The controller already marks endpoints as ready if their
/// Service publishes not-ready addresses.
pub fn is_published(endpoint: &Endpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .and_then(|conditions| conditions.ready)
        .unwrap_or(true)
}

/// The endpoint's label below the Service's name; with `pod_names` its pod's name, if it has no host name.
pub fn endpoint_label(endpoint: &Endpoint, ip: IpAddr, pod_names: bool) -> String {
    let target = endpoint.target_ref.as_ref();
    let pod = target.and_then(|target| target.name.as_deref());
    let pod = pod.filter(|_| pod_names);
    let hostname = endpoint.hostname.as_deref();
    let mut named = [hostname, pod].into_iter().flatten();
    match named.find(|name| !name.is_empty()) {
        Some(name) => name.to_lowercase(),
        None => ip.to_string().replace(['.', ':'], "-"),
    }
}
