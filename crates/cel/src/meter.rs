//! Limits on the work and memory of one evaluation, in addition to its cost: costs are upstream's
//! numbers, and some of them are too small for operations that grow with every step. If the cost
//! limits the work, these limits are never reached.
//!
//! Functions have no context argument: they find the meter of the current evaluation in a thread
//! local.

use std::cell::Cell;

use crate::value::{Error, Result};

/// Elements that functions may visit.
const WORK: u64 = 5_000_000;
/// Bytes that functions may allocate.
const MEMORY: u64 = 64 << 20;

/// The remaining limits.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    work: u64,
    memory: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            work: WORK,
            memory: MEMORY,
        }
    }
}

/// Of a small meter.
const SMALL_WORK: u64 = 50_000;
const SMALL_MEMORY: u64 = 1 << 20;
/// The cost that goes with a small meter: less than a millisecond for nearly all expressions.
pub const SMALL_COST: u64 = 20_000;

thread_local! {
    static UNDER_WAY: Cell<Option<Meter>> = const { Cell::new(None) };
}

/// Restores the previous meter, also after a panic.
struct Before(Option<Meter>);

impl Drop for Before {
    fn drop(&mut self) {
        UNDER_WAY.set(self.0);
    }
}

impl Meter {
    /// For an attempt that must not take long.
    pub fn small() -> Self {
        Self {
            work: SMALL_WORK,
            memory: SMALL_MEMORY,
        }
    }

    /// Counts bytes against the evaluation under way before they are allocated.
    pub fn memory(bytes: usize) -> Result<()> {
        memory(bytes)
    }

    /// Whether a limit was exceeded.
    pub fn is_spent(&self) -> bool {
        self.work == 0 || self.memory == 0
    }

    /// Counts everything in `within` against this meter, for related evaluations.
    pub fn count<T>(&mut self, within: impl FnOnce() -> T) -> T {
        let before = Before(UNDER_WAY.replace(Some(*self)));
        let done = within();
        *self = UNDER_WAY.get().unwrap_or(*self);
        drop(before);
        done
    }
}

/// Counts everything in `within` against the current evaluation, or against a new meter.
pub(crate) fn counted<T>(within: impl FnOnce() -> T) -> T {
    match UNDER_WAY.get() {
        Some(_) => within(),
        None => Meter::default().count(within),
    }
}

fn spend(part: impl FnOnce(&mut Meter) -> &mut u64, amount: usize) -> Result<()> {
    let Some(mut meter) = UNDER_WAY.get() else {
        return Ok(());
    };
    let left = part(&mut meter);
    let enough = u64::try_from(amount).is_ok_and(|amount| amount <= *left);
    *left = left.saturating_sub(amount as u64);
    UNDER_WAY.set(Some(meter));
    match enough {
        true => Ok(()),
        false => Err(exceeded()),
    }
}

/// Counts visited elements.
pub(crate) fn work(elements: usize) -> Result<()> {
    spend(|meter| &mut meter.work, elements)
}

/// Counts bytes before they are allocated.
pub(crate) fn memory(bytes: usize) -> Result<()> {
    spend(|meter| &mut meter.memory, bytes)
}

/// The error for an exceeded limit.
pub(crate) fn exceeded() -> Error {
    Error {
        message: "operation cancelled: actual cost limit exceeded".to_owned(),
        fatal: true,
    }
}
