//! Counts of the endpoints and slices of a controller, for its metrics.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use parking_lot::Mutex;
use reconcile::Key;

use super::{
    pack::{Change, LARGEST, identity},
    view::Group,
};
use crate::metrics::Gauges;

/// The numbers of endpoints of these groups.
pub(crate) fn sizes(groups: &[Group]) -> Vec<usize> {
    groups.iter().map(|group| group.endpoints.len()).collect()
}

/// Endpoints, and the slices that have them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    endpoints: usize,
    slices: usize,
    /// The slices that would be enough.
    desired: usize,
}

/// The sizes of everything that one controller keeps, and the gauges of their sums.
pub(crate) struct Sizes {
    /// Guards the sizes by key and their sum; never held across an await.
    known: Mutex<(HashMap<Key, Size>, Size)>,
    endpoints: Gauges,
    slices: Gauges,
    desired: Gauges,
}

impl Sizes {
    /// With the gauges of endpoints, slices and slices that would be enough.
    pub(crate) fn new([endpoints, slices, desired]: [&Gauges; 3]) -> Self {
        Self {
            known: Mutex::default(),
            endpoints: endpoints.clone(),
            slices: slices.clone(),
            desired: desired.clone(),
        }
    }

    /// Sets the size of one Service by the endpoints of its groups. It has `existing` slices that `changes` change. Without
    /// groups it is gone.
    pub(crate) fn set(&self, key: &Key, groups: &[usize], existing: usize, changes: &[Change]) {
        let count = |wanted: fn(&Change) -> bool| changes.iter().filter(|one| wanted(one)).count();
        let created = count(|change| matches!(change, Change::Create(_)));
        let deleted = count(|change| matches!(change, Change::Delete(_)));
        let desired = groups.iter().map(|count| count.div_ceil(LARGEST));
        let now = Size {
            endpoints: groups.iter().sum(),
            slices: (existing + created).saturating_sub(deleted),
            desired: desired.sum(),
        };
        let (known, sum) = &mut *self.known.lock();
        let before = match groups.is_empty() {
            true => known.remove(key),
            false => known.insert(key.clone(), now),
        };
        let (before, now) = match groups.is_empty() {
            true => (before.unwrap_or_default(), Size::default()),
            false => (before.unwrap_or_default(), now),
        };
        sum.endpoints = sum.endpoints + now.endpoints - before.endpoints;
        sum.slices = sum.slices + now.slices - before.slices;
        sum.desired = sum.desired + now.desired - before.desired;
        self.endpoints.set([], sum.endpoints);
        self.slices.set([], sum.slices);
        self.desired.set([], sum.desired);
    }
}

/// How many endpoints changes add, update and remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) added: usize,
    pub(crate) updated: usize,
    pub(crate) removed: usize,
}

impl Tally {
    /// Of changes to these slices.
    pub(crate) fn new(existing: &[Arc<EndpointSlice>], changes: &[Change]) -> Self {
        let by_name = existing
            .iter()
            .map(|slice| (&slice.metadata.name, &**slice));
        let by_name: HashMap<_, _> = by_name.collect();
        let mut tally = Self::default();
        for change in changes {
            match change {
                Change::Create(slice) => tally.added += endpoints(slice).len(),
                Change::Delete(slice) => tally.removed += endpoints(slice).len(),
                Change::Update(slice) => {
                    let before = by_name.get(&slice.metadata.name);
                    let before = before.map_or(&[][..], |before| endpoints(before));
                    tally.compare(before, endpoints(slice));
                }
            }
        }
        tally
    }

    fn compare(&mut self, before: &[Endpoint], now: &[Endpoint]) {
        let known = before.iter().map(|endpoint| (identity(endpoint), endpoint));
        let mut known: HashMap<_, _> = known.collect();
        for endpoint in now {
            match known.remove(&identity(endpoint)) {
                None => self.added += 1,
                Some(before) => self.updated += usize::from(before != endpoint),
            }
        }
        self.removed += known.len();
    }
}

fn endpoints(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;

    use super::*;
    use crate::metrics::Metrics;

    fn endpoint(address: &str, host: &str) -> Endpoint {
        Endpoint {
            addresses: vec![address.into()],
            hostname: Some(host.into()),
            ..Default::default()
        }
    }

    fn slice(name: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
        EndpointSlice {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..Default::default()
            },
            endpoints: Some(endpoints),
            ..Default::default()
        }
    }

    #[test]
    fn endpoints_that_changes_add_update_and_remove_are_counted() {
        let before = [
            slice(
                "a",
                vec![endpoint("1", "x"), endpoint("2", "x"), endpoint("3", "x")],
            ),
            slice("b", vec![endpoint("4", "x"), endpoint("5", "x")]),
        ];
        let before = before.map(Arc::new);
        let changes = [
            Change::Update(Box::new(slice(
                "a",
                vec![endpoint("1", "x"), endpoint("2", "y"), endpoint("6", "x")],
            ))),
            Change::Delete(before[1].clone()),
            Change::Create(Box::new(slice("c", vec![endpoint("7", "x")]))),
        ];
        let expected = Tally {
            added: 2,
            updated: 1,
            removed: 3,
        };
        assert_eq!(Tally::new(&before, &changes), expected);
        assert_eq!(Tally::new(&before, &[]), Tally::default());
    }

    #[test]
    fn sizes_are_summed_and_forgotten_with_their_service() {
        let metrics = Metrics::default();
        let gauges = [
            &metrics.slice_endpoints,
            &metrics.slices,
            &metrics.slices_desired,
        ];
        let sizes = Sizes::new(gauges);
        let create = || Change::Create(Box::new(slice("new", Vec::new())));
        sizes.set(
            &Key::new("d", "a"),
            &[150, 1],
            0,
            &[create(), create(), create()],
        );
        sizes.set(&Key::new("d", "b"), &[2], 0, &[create()]);
        sizes.set(&Key::new("d", "a"), &[20], 3, &[]);
        let shown =
            |line: &str| assert!(metrics.text().contains(line), "{line}\n{}", metrics.text());
        shown("endpoint_slice_controller_endpoints_desired{} 22");
        shown("endpoint_slice_controller_num_endpoint_slices{} 4");
        shown("endpoint_slice_controller_desired_endpoint_slices{} 2");
        sizes.set(&Key::new("d", "a"), &[], 3, &[]);
        sizes.set(&Key::new("d", "unknown"), &[], 0, &[]);
        shown("endpoint_slice_controller_endpoints_desired{} 2");
        shown("endpoint_slice_controller_num_endpoint_slices{} 1");
    }
}
