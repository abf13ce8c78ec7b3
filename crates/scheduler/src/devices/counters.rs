//! The counters of a pool, which its devices consume while they are allocated: partitions of one
//! device exclude each other by them.

use std::collections::BTreeMap;

use machinery::quantity::Quantity;

use super::{allocated::InUse, pools::Pool, slices::Device};

/// What is left of a pool's counters in a search.
#[derive(Debug)]
pub(super) struct Counters<'a> {
    left: BTreeMap<(&'a str, &'a str), Quantity>,
}

impl<'a> Counters<'a> {
    /// The counters of a pool without what allocated devices consume.
    pub(super) fn new(pool: &Pool<'a>, in_use: &InUse<'_>) -> Self {
        let mut left = BTreeMap::new();
        for (set, counters) in &pool.counter_sets {
            for (name, amount) in counters.iter() {
                left.insert((*set, name.as_str()), *amount);
            }
        }
        let mut counters = Self { left };
        let slices = pool.slices.iter().chain(&pool.others);
        for device in slices.flat_map(|slice| &slice.devices) {
            if in_use.is_dedicated(&device.id) || in_use.is_shared(&device.id) {
                counters.shift(device, Quantity::minus);
            }
        }
        counters
    }

    fn shift(&mut self, device: &'a Device, change: fn(Quantity, Quantity) -> Quantity) {
        for (set, counters) in &device.consumes {
            for (name, amount) in counters {
                if let Some(left) = self.left.get_mut(&(set.as_str(), name.as_str())) {
                    *left = change(*left, *amount);
                }
            }
        }
    }

    /// Consumes what a device needs; false if it is not there. Nothing more fits into a pool of
    /// which more is allocated than it has.
    pub(super) fn take(&mut self, device: &'a Device) -> bool {
        self.shift(device, Quantity::minus);
        let has_enough = !self.left.values().any(|left| left.is_negative());
        if !has_enough {
            self.give_back(device);
        }
        has_enough
    }

    /// Undoes [`Counters::take`].
    pub(super) fn give_back(&mut self, device: &'a Device) {
        self.shift(device, Quantity::plus);
    }
}
