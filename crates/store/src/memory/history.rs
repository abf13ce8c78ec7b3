//! The events of the recent past, for watches that start in it and for reads of it.

use std::sync::Arc;

use imbl::{OrdMap, ordmap::RangedIter};

use super::Millis;
use crate::{Event, Revision};

/// How much is kept; whichever limit is met first counts.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Revisions.
    pub revisions: usize,
    /// Bytes of keys and previous values.
    pub bytes: usize,
    /// Age.
    pub age: std::time::Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            revisions: 1 << 16,
            bytes: 64 << 20,
            age: std::time::Duration::from_secs(600),
        }
    }
}

/// All events of one revision.
pub struct Batch<T> {
    /// The events.
    pub events: Arc<[Event<T>]>,
    /// When.
    pub time: Millis,
    /// What keeping it costs.
    pub bytes: usize,
}

/// The kept past: every event above `floor`.
pub struct History<T> {
    floor: Revision,
    batches: OrdMap<Revision, Arc<Batch<T>>>,
    bytes: usize,
}

impl<T> Clone for History<T> {
    fn clone(&self) -> Self {
        Self {
            floor: self.floor,
            batches: self.batches.clone(),
            bytes: self.bytes,
        }
    }
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self {
            floor: 0,
            batches: OrdMap::new(),
            bytes: 0,
        }
    }
}

impl<T> History<T> {
    /// Nothing is known of this revision and before, everything after it is.
    pub fn floor(&self) -> Revision {
        self.floor
    }

    /// The batches after a revision, in order.
    pub fn after(
        &self,
        revision: Revision,
    ) -> RangedIter<'_, Revision, Arc<Batch<T>>, imbl::shared_ptr::DefaultSharedPtr> {
        self.batches.range(revision + 1..)
    }

    /// The batch of one revision.
    pub fn at(&self, revision: Revision) -> Option<&Arc<Batch<T>>> {
        self.batches.get(&revision)
    }

    /// Adds the newest.
    pub fn push(&mut self, revision: Revision, batch: Batch<T>) {
        self.bytes += batch.bytes;
        self.batches.insert(revision, Arc::new(batch));
    }

    /// Forgets everything up to a revision.
    pub fn forget(&mut self, revision: Revision) {
        while self
            .batches
            .get_min()
            .is_some_and(|(oldest, _)| *oldest <= revision)
        {
            self.pop();
        }
        self.floor = self.floor.max(revision);
    }

    /// Forgets what is over the limits.
    pub fn prune(&mut self, limits: &Limits, now: Millis) {
        let oldest_kept = now.saturating_sub(limits.age.as_millis() as Millis);
        while let Some((_, batch)) = self.batches.get_min() {
            let within = self.batches.len() <= limits.revisions
                && self.bytes <= limits.bytes
                && batch.time >= oldest_kept;
            if within {
                break;
            }
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((revision, batch)) = self.batches.get_min().cloned() {
            self.batches.remove(&revision);
            self.bytes -= batch.bytes;
            self.floor = revision;
        }
    }
}
