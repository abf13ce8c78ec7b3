//! Packs endpoints into slices of at most a hundred, changing as few slices as possible: existing
//! endpoints stay in their slices, free places are filled, then slices that are no longer needed are reused, then new
//! slices are created. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::api::ObjectMeta;
use reconcile::{Error, Writer};

use super::view::Group;

/// The most endpoints of a slice.
pub(super) const LARGEST: usize = 100;

/// A write.
#[derive(Debug)]
pub(crate) enum Change {
    Create(Box<EndpointSlice>),
    Update(Box<EndpointSlice>),
    Delete(Arc<EndpointSlice>),
}

impl Change {
    /// Its name in metrics.
    pub(crate) fn operation(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Update(_) => "update",
            Self::Delete(_) => "delete",
        }
    }
}

/// The changes that make `existing` contain exactly `groups`. New slices start with the metadata of
/// `model`, and all slices get its labels and annotations.
pub(crate) fn pack(
    model: &ObjectMeta,
    groups: Vec<Group>,
    existing: Vec<Arc<EndpointSlice>>,
) -> Vec<Change> {
    // There may be thousands of both: Endpoints that a user writes can have a group for each address.
    let mut by_ports: BTreeMap<String, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let ports = slice.ports.as_deref().unwrap_or_default();
        let key = ports_key(&slice.address_type, ports);
        by_ports.entry(key).or_default().push(slice);
    }
    let mut changes = Vec::new();
    for group in groups {
        let mine = by_ports.remove(&ports_key(&group.family, &group.ports));
        changes.extend(pack_group(model, group, mine.unwrap_or_default()));
    }
    changes.extend(by_ports.into_values().flatten().map(Change::Delete));
    reuse(changes)
}

/// A text that is the same for slices of the same family and ports, and only for these.
pub(crate) fn ports_key(family: &str, ports: &[EndpointPort]) -> String {
    format!("{family} {ports:?}")
}

/// Turns a deletion and a creation of slices of the same owner and family into one update.
fn reuse(changes: Vec<Change>) -> Vec<Change> {
    let is_delete = |change: &Change| matches!(change, Change::Delete(_));
    let (mut deleted, mut changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_delete);
    for change in &mut changes {
        if deleted.is_empty() {
            break;
        }
        let Change::Create(new) = change else {
            continue;
        };
        let fits = |change: &Change| match change {
            Change::Delete(old) => {
                old.address_type == new.address_type
                    && old.metadata.owner_references == new.metadata.owner_references
            }
            _ => false,
        };
        let Some(at) = deleted.iter().position(fits) else {
            continue;
        };
        if let Change::Delete(old) = deleted.remove(at) {
            let mut next = std::mem::take(&mut **new);
            let model = std::mem::replace(&mut next.metadata, old.metadata.clone());
            next.metadata.labels = model.labels;
            if model.annotations.is_some() {
                next.metadata.annotations = model.annotations;
            }
            *change = Change::Update(Box::new(next));
        }
    }
    changes.extend(deleted);
    changes
}

/// Identifies an endpoint by its pod's uid, or by its addresses.
pub(super) fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|target| target.uid.clone());
    uid.unwrap_or_else(|| endpoint.addresses.join(","))
}

fn pack_group(model: &ObjectMeta, group: Group, slices: Vec<Arc<EndpointSlice>>) -> Vec<Change> {
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
    // Slices that change anyway are filled first, starting with the fullest.
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
        next.metadata.labels = model.labels.clone();
        if model.annotations.is_some() {
            next.metadata.annotations = model.annotations.clone();
        }
        if next.endpoints.as_deref().unwrap_or_default()
            != slice.endpoints.as_deref().unwrap_or_default()
            || next.metadata != slice.metadata
        {
            changes.push(Change::Update(Box::new(next)));
        }
    }
    let make = |endpoints: &[Endpoint]| {
        Change::Create(Box::new(EndpointSlice {
            metadata: model.clone(),
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

/// Writes the changes concurrently.
pub(crate) async fn write(
    slices: &Writer<EndpointSlice>,
    namespace: &str,
    changes: &[Change],
) -> Result<(), Error> {
    let writes = changes.iter().map(|change| async move {
        match change {
            Change::Create(slice) => match slices.create(namespace, slice).await {
                Err(error) if error.is_namespace_terminating() => Ok(()),
                other => other.map(|_| ()),
            },
            Change::Update(slice) => slices.update(namespace, slice).await.map(|_| ()),
            Change::Delete(slice) => slices.delete(slice).await,
        }
    });
    reconcile::all(reconcile::join_bounded(writes).await)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::endpointslice::{
        model,
        view::{desired, samples},
    };

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
        let service = samples::service(IntOrString::Int(80));
        pack(&model(&service), group(pods), existing)
    }

    fn made(changes: Vec<Change>) -> Vec<Arc<EndpointSlice>> {
        let made = changes.into_iter().filter_map(|change| match change {
            Change::Create(slice) | Change::Update(slice) => Some(Arc::from(slice)),
            Change::Delete(_) => None,
        });
        made.collect()
    }

    fn render(changes: &[Change]) -> Vec<String> {
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
        assert_eq!(render(&changes), ["create 100", "create 100", "create 50"]);
        assert!(run(&all, made(changes)).is_empty());
    }

    #[test]
    fn one_pod_more_or_less_changes_one_slice() {
        let slices = made(run(&(0..150).collect::<Vec<_>>(), vec![]));
        let more = run(&(0..151).collect::<Vec<_>>(), slices.clone());
        assert_eq!(render(&more), ["update 51"]);
        let less = run(&(1..150).collect::<Vec<_>>(), slices);
        assert_eq!(render(&less), ["update 99"]);
    }

    #[test]
    fn a_slice_that_is_no_longer_needed_is_reused_unless_another_service_owns_it() {
        let mut old = (*made(run(&[], vec![]))[0]).clone();
        old.metadata.name = Some("web-abc".into());
        let changes = run(&[1], vec![Arc::new(old.clone())]);
        let Change::Update(slice) = &changes[0] else {
            panic!("{changes:?}");
        };
        assert_eq!(slice.metadata.name.as_deref(), Some("web-abc"));
        assert_eq!(slice.ports.as_ref().map(Vec::len), Some(1));
        let owners = old.metadata.owner_references.as_mut().unwrap();
        owners[0].uid = "an earlier Service of that name".into();
        let changes = run(&[1], vec![Arc::new(old)]);
        assert_eq!(render(&changes), ["create 1", "delete 0"]);
    }

    #[test]
    fn a_service_without_pods_keeps_one_empty_slice() {
        let changes = run(&[], vec![]);
        assert_eq!(render(&changes), ["create 0"]);
        let empty = made(changes);
        assert!(run(&[], empty.clone()).is_empty());
        let first = run(&[1], empty);
        assert_eq!(
            render(&first),
            ["update 1"],
            "its ports were not known before"
        );
    }
}
