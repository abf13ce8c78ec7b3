//! Endpoints into slices of at most a hundred, changing as few slices as possible: what stays is
//! left where it is, gaps are filled, and only then new slices are made. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::api::ObjectMeta;

use super::{
    MANAGER,
    view::{Group, MANAGED_BY, SERVICE_NAME},
};
use crate::shared::controller_reference;

const LARGEST: usize = 100;
const HEADLESS: &str = "service.kubernetes.io/headless";

/// What to write.
#[derive(Debug)]
pub(super) enum Change {
    Create(Box<EndpointSlice>),
    Update(Box<EndpointSlice>),
    Delete(Arc<EndpointSlice>),
}

/// The changes that make `existing` hold exactly `groups`.
pub(super) fn pack(
    service: &Service,
    groups: Vec<Group>,
    mut existing: Vec<Arc<EndpointSlice>>,
) -> Vec<Change> {
    let labels = labels(service);
    let mut changes = Vec::new();
    for group in groups {
        let same = |slice: &Arc<EndpointSlice>| {
            slice.address_type == group.family
                && slice.ports.clone().unwrap_or_default() == group.ports
        };
        let (mine, others) = existing.into_iter().partition(same);
        existing = others;
        changes.extend(pack_group(service, &labels, group, mine));
    }
    changes.extend(existing.into_iter().map(Change::Delete));
    changes
}

/// An endpoint is the same while it is the same pod.
fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|target| target.uid.clone());
    uid.unwrap_or_else(|| endpoint.addresses.join(","))
}

fn pack_group(
    service: &Service,
    labels: &BTreeMap<String, String>,
    group: Group,
    slices: Vec<Arc<EndpointSlice>>,
) -> Vec<Change> {
    let mut left: BTreeMap<String, Endpoint> = group
        .endpoints
        .iter()
        .map(|endpoint| (identity(endpoint), endpoint.clone()))
        .collect();
    let mut kept: Vec<(Arc<EndpointSlice>, Vec<Endpoint>)> = Vec::new();
    for slice in slices {
        let known = slice.endpoints.iter().flatten();
        let stay = known
            .filter_map(|endpoint| left.remove(&identity(endpoint)))
            .collect();
        kept.push((slice, stay));
    }
    let mut new = left.into_values();
    // Slices that change anyway are filled first, the fullest of them before the others.
    kept.sort_by_key(|(slice, stay)| {
        let changes = slice.endpoints.clone().unwrap_or_default() != *stay;
        (!changes, std::cmp::Reverse(stay.len()))
    });
    for (_, stay) in &mut kept {
        let room = LARGEST.saturating_sub(stay.len());
        stay.extend(new.by_ref().take(room));
    }
    let rest: Vec<Endpoint> = new.collect();
    let mut changes = Vec::new();
    let nothing_at_all = group.endpoints.is_empty();
    let mut placeholder = nothing_at_all;
    for (slice, stay) in kept {
        if stay.is_empty() && !std::mem::take(&mut placeholder) {
            changes.push(Change::Delete(slice));
            continue;
        }
        let mut next = (*slice).clone();
        next.endpoints = (!stay.is_empty()).then_some(stay);
        next.metadata.labels = Some(labels.clone());
        if next.endpoints.as_deref().unwrap_or_default()
            != slice.endpoints.as_deref().unwrap_or_default()
            || next.metadata.labels != slice.metadata.labels
        {
            changes.push(Change::Update(Box::new(next)));
        }
    }
    let make = |endpoints: &[Endpoint]| {
        Change::Create(Box::new(EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!(
                    "{}-",
                    service.metadata.name.as_deref().unwrap_or_default()
                )),
                namespace: service.metadata.namespace.clone(),
                labels: Some(labels.clone()),
                owner_references: Some(vec![controller_reference(service)]),
                ..Default::default()
            },
            address_type: group.family.clone(),
            ports: Some(group.ports.clone()),
            endpoints: Some(endpoints.to_vec()),
        }))
    };
    changes.extend(rest.chunks(LARGEST).map(make));
    if placeholder {
        changes.push(make(&[]));
    }
    changes
}

/// The Service's labels and those that say whose slice it is.
fn labels(service: &Service) -> BTreeMap<String, String> {
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
    labels.insert(SERVICE_NAME.to_owned(), name);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::endpointslice::view::{desired, samples};

    fn group(pods: &[usize]) -> Vec<Group> {
        let service = samples::service(IntOrString::Int(80));
        let pods: Vec<_> = pods
            .iter()
            .map(|n| {
                samples::pod(
                    &format!("p{n:03}"),
                    &format!("10.0.{}.{}", n / 250, n % 250 + 1),
                    true,
                )
            })
            .collect();
        desired(&service, &pods, |_| None)
    }

    fn run(pods: &[usize], existing: Vec<Arc<EndpointSlice>>) -> Vec<Change> {
        pack(
            &samples::service(IntOrString::Int(80)),
            group(pods),
            existing,
        )
    }

    fn made(changes: Vec<Change>) -> Vec<Arc<EndpointSlice>> {
        let made = changes.into_iter().filter_map(|change| match change {
            Change::Create(slice) | Change::Update(slice) => Some(Arc::from(slice)),
            Change::Delete(_) => None,
        });
        made.collect()
    }

    fn told(changes: &[Change]) -> Vec<String> {
        let size = |slice: &EndpointSlice| slice.endpoints.as_ref().map_or(0, Vec::len);
        let tell = |change: &Change| match change {
            Change::Create(slice) => format!("create {}", size(slice)),
            Change::Update(slice) => format!("update {}", size(slice)),
            Change::Delete(slice) => format!("delete {}", size(slice)),
        };
        changes.iter().map(tell).collect()
    }

    #[test]
    fn endpoints_fill_slices_of_a_hundred_and_nothing_changes_twice() {
        let all: Vec<usize> = (0..250).collect();
        let changes = run(&all, vec![]);
        assert_eq!(told(&changes), ["create 100", "create 100", "create 50"]);
        assert!(run(&all, made(changes)).is_empty());
    }

    #[test]
    fn one_pod_more_or_less_changes_one_slice() {
        let slices = made(run(&(0..150).collect::<Vec<_>>(), vec![]));
        let more = run(&(0..151).collect::<Vec<_>>(), slices.clone());
        assert_eq!(told(&more), ["update 51"]);
        let less = run(&(1..150).collect::<Vec<_>>(), slices);
        assert_eq!(told(&less), ["update 99"]);
    }

    #[test]
    fn a_service_without_pods_keeps_one_empty_slice() {
        let changes = run(&[], vec![]);
        assert_eq!(told(&changes), ["create 0"]);
        let empty = made(changes);
        assert!(run(&[], empty.clone()).is_empty());
        let first = run(&[1], empty);
        assert_eq!(
            told(&first),
            ["create 1", "delete 0"],
            "its ports were not known before"
        );
    }
}
