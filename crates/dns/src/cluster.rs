//! What the zone reads: Services and EndpointSlices, found by name and by address.

use std::{net::IpAddr, sync::Arc};

use client::informer::Informer;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use lifecycle::Context;

/// The label that says which service a slice belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Where the Corefile is.
pub const SETTINGS: (&str, &str) = ("kube-system", "coredns");
const BY_SERVICE: &str = "service";
const BY_ADDRESS: &str = "address";

/// Informers with the indexes that the zone needs. Cloning shares them.
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
    // Addresses can be written in several ways; the index has one.
    let parsed = endpoints
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|ip| ip.parse::<IpAddr>().ok());
    parsed.map(|ip| ip.to_string()).collect()
}

impl Cluster {
    /// Follows the API for as long as the context's run lasts.
    pub fn start(client: &kube::Client, context: &Context) -> Self {
        let services = Informer::builder(client.clone()).index(BY_ADDRESS, addresses_of_service);
        let slices = Informer::builder(client.clone())
            .index(BY_SERVICE, service_of_slice)
            .index(BY_ADDRESS, addresses_of_slice);
        let settings = Informer::builder(client.clone())
            .namespace(SETTINGS.0)
            .fields(format!("metadata.name={}", SETTINGS.1));
        Self {
            services: services.start(context),
            slices: slices.start(context),
            settings: settings.start(context),
        }
    }

    /// Holds what is put there, and asks no server: for tests.
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

    /// Waits until everything is known.
    pub async fn synced(&self) {
        tokio::join!(self.services.synced(), self.slices.synced());
    }

    /// Whether everything is known.
    pub fn has_synced(&self) -> bool {
        self.services.has_synced() && self.slices.has_synced()
    }

    /// Changes with every change of what names mean.
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

    /// Whether a namespace has any name in the zone.
    pub fn has_services_in(&self, namespace: &str) -> bool {
        self.services.has_any_in(namespace)
    }
}

/// The name of the service that a slice belongs to.
pub fn owner(slice: &EndpointSlice) -> Option<&str> {
    slice
        .metadata
        .labels
        .as_ref()?
        .get(SERVICE_NAME)
        .map(String::as_str)
}

/// A service's cluster addresses; none when it is headless.
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

/// Whether clients are given the endpoints' own addresses.
pub fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        spec.cluster_ip.as_deref() == Some("None") && spec.type_.as_deref() != Some("ExternalName")
    })
}

/// Whether an endpoint is given to clients. The controller that writes slices has already counted
/// endpoints as ready whose service publishes not-ready addresses.
pub fn is_published(endpoint: &Endpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .and_then(|conditions| conditions.ready)
        .unwrap_or(true)
}

/// The endpoint's own label under the service's name.
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
