//! What one evaluation may do and make, beside its cost: costs are upstream's numbers, and some of
//! them are small for what grows with every step. Where the cost bounds the work, this is never
//! reached.
//!
//! Functions are plain: they find the meter of the evaluation under way in their thread.

use std::cell::Cell;

use crate::value::{Error, Result};

/// Elements that functions may look at.
const WORK: u64 = 5_000_000;
/// Bytes that functions may make.
const MEMORY: u64 = 64 << 20;

/// What is left.
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

thread_local! {
    static UNDER_WAY: Cell<Option<Meter>> = const { Cell::new(None) };
}

/// Puts back what was under way before, also after a panic.
struct Before(Option<Meter>);

impl Drop for Before {
    fn drop(&mut self) {
        UNDER_WAY.set(self.0);
    }
}

impl Meter {
    /// Counts what happens within towards this meter, for evaluations that belong together.
    pub fn count<T>(&mut self, within: impl FnOnce() -> T) -> T {
        let before = Before(UNDER_WAY.replace(Some(*self)));
        let done = within();
        *self = UNDER_WAY.get().unwrap_or(*self);
        drop(before);
        done
    }
}

/// Counts what happens within towards the evaluation under way, or towards one of its own.
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

/// Counts elements that are looked at.
pub(crate) fn work(elements: usize) -> Result<()> {
    spend(|meter| &mut meter.work, elements)
}

/// Counts bytes, before they are made.
pub(crate) fn memory(bytes: usize) -> Result<()> {
    spend(|meter| &mut meter.memory, bytes)
}

/// Said of everything that is too much.
pub(crate) fn exceeded() -> Error {
    Error {
        message: "operation cancelled: actual cost limit exceeded".to_owned(),
        fatal: true,
    }
}
