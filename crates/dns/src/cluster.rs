//! The zone's data: Services and EndpointSlices, indexed by name and by address.

use std::{net::IpAddr, path::Path, sync::Arc};

use client::informer::Informer;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use lifecycle::Context;

/// The label with the Service of an EndpointSlice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Namespace and name of the ConfigMap with the Corefile.
pub const SETTINGS: (&str, &str) = ("kube-system", "coredns");
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
        let settings = Informer::builder(client.clone())
            .namespace(SETTINGS.0)
            .fields(format!("metadata.name={}", SETTINGS.1));
        Self {
            services: services.saved_at(file("services.json")).start(context),
            slices: slices.saved_at(file("endpointslices.json")).start(context),
            settings: settings.saved_at(file("corefile.json")).start(context),
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

/// The endpoint's label below the Service's name.
pub fn endpoint_label(endpoint: &Endpoint, ip: IpAddr) -> String {
    match endpoint
        .hostname
        .as_deref()
        .filter(|hostname| !hostname.is_empty())
    {
        Some(hostname) => hostname.to_lowercase(),
        None => ip.to_string().replace(['.', ':'], "-"),
    }
}
