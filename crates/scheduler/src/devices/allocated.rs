//! The devices that claims have, counted as claims are allocated and deallocated.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::resource::v1::AllocationResult;
use machinery::quantity::Quantity;

use super::{DeviceId, slices::amount};

/// The shares of a device, and how much of its capacities they consume together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shares {
    count: usize,
    consumed: BTreeMap<String, Quantity>,
}

impl Shares {
    pub(super) fn add<'a>(&mut self, consumed: impl Iterator<Item = (&'a str, Quantity)>) {
        self.count += 1;
        for (name, amount) in consumed {
            let sum = self.consumed.entry(name.to_owned());
            let sum = sum.or_insert(Quantity::ZERO);
            *sum = sum.plus(amount);
        }
    }

    pub(super) fn remove<'a>(&mut self, consumed: impl Iterator<Item = (&'a str, Quantity)>) {
        self.count = self.count.saturating_sub(1);
        for (name, amount) in consumed {
            if let Some(sum) = self.consumed.get_mut(name) {
                *sum = sum.minus(amount);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn consumed(&self, capacity: &str) -> Quantity {
        let known = self.consumed.get(capacity);
        known.copied().unwrap_or(Quantity::ZERO)
    }
}

/// Allocated devices.
#[derive(Debug, Clone, Default)]
pub struct Allocated {
    /// Devices that a claim has alone. More than one claim only if another client allocates, too.
    dedicated: HashMap<DeviceId, usize>,
    shared: HashMap<DeviceId, Shares>,
}

impl Allocated {
    /// Adds the devices of an allocation. Devices with admin access stay available to others.
    pub fn add(&mut self, allocation: &AllocationResult) {
        for result in results(allocation) {
            if result.is_shared {
                let shares = self.shared.entry(result.id).or_default();
                shares.add(result.consumed.into_iter());
            } else {
                *self.dedicated.entry(result.id).or_default() += 1;
            }
        }
    }

    /// Removes the devices of an allocation that was added.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for result in results(allocation) {
            if result.is_shared {
                if let Some(shares) = self.shared.get_mut(&result.id) {
                    shares.remove(result.consumed.into_iter());
                    if shares.is_empty() {
                        self.shared.remove(&result.id);
                    }
                }
            } else if let Some(count) = self.dedicated.get_mut(&result.id) {
                *count -= 1;
                if *count == 0 {
                    self.dedicated.remove(&result.id);
                }
            }
        }
    }
}

struct Part<'a> {
    id: DeviceId,
    is_shared: bool,
    consumed: Vec<(&'a str, Quantity)>,
}

fn results(allocation: &AllocationResult) -> impl Iterator<Item = Part<'_>> {
    let devices = allocation.devices.iter();
    let results = devices.flat_map(|devices| devices.results.iter().flatten());
    let results = results.filter(|result| result.admin_access != Some(true));
    results.map(|result| Part {
        id: DeviceId::new(&result.driver, &result.pool, &result.device),
        is_shared: result.share_id.is_some(),
        consumed: result
            .consumed_capacity
            .iter()
            .flatten()
            .map(|(name, quantity)| (name.as_str(), amount(quantity)))
            .collect(),
    })
}

/// The devices that claims have or get: those that are known, and those of pods that are being
/// bound.
#[derive(Debug, Clone, Copy)]
pub struct InUse<'a> {
    /// Of claims that are allocated.
    pub known: &'a Allocated,
    /// Of claims whose allocations are being written.
    pub pending: &'a Allocated,
}

impl InUse<'_> {
    fn both(&self) -> [&Allocated; 2] {
        [self.known, self.pending]
    }

    /// Whether a claim has the device alone.
    pub(super) fn is_dedicated(&self, id: &DeviceId) -> bool {
        let mut both = self.both().into_iter();
        both.any(|allocated| allocated.dedicated.contains_key(id))
    }

    /// Whether claims share the device.
    pub(super) fn is_shared(&self, id: &DeviceId) -> bool {
        let mut both = self.both().into_iter();
        both.any(|allocated| allocated.shared.contains_key(id))
    }

    /// How much of a capacity the device's shares consume.
    pub(super) fn consumed(&self, id: &DeviceId, capacity: &str) -> Quantity {
        let shares = self.both().map(|allocated| allocated.shared.get(id));
        let shares = shares.into_iter().flatten();
        shares.fold(Quantity::ZERO, |sum, shares| {
            sum.plus(shares.consumed(capacity))
        })
    }
}
