//! The events of the recent past, for watches that start in it and for reads of it.

use std::sync::Arc;

use imbl::{OrdMap, ordmap::RangedIter};

use super::{Millis, Slot};
use crate::{Event, Key, Revision};

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
            revisions: 1 << 15,
            bytes: 64 << 20,
            // As upstream compacts: a continue token lives five minutes and little more.
            age: std::time::Duration::from_secs(300),
        }
    }
}

/// What one revision did to one key. Slots are shared with the states that have them: history costs
/// little more than the previous values.
pub struct Change<T> {
    /// What stood there before.
    pub previous: Option<Arc<Slot<T>>>,
    /// What stands there now.
    pub current: Option<Arc<Slot<T>>>,
}

impl<T> Change<T> {
    /// The key that changed.
    pub fn key(&self) -> &[u8] {
        let slot = self.current.as_ref().or(self.previous.as_ref());
        slot.map_or(&[], |slot| &slot.entry.key)
    }

    fn event(&self, revision: Revision) -> Event<T> {
        let entry = |slot: &Option<Arc<Slot<T>>>| slot.as_ref().map(|slot| slot.entry.clone());
        let (current, previous) = (entry(&self.current), entry(&self.previous));
        let known = current.as_ref().or(previous.as_ref());
        let key = known.map_or_else(Key::new, |entry| entry.key.clone());
        Event {
            key,
            revision,
            current,
            previous,
        }
    }
}

/// All that one revision did.
pub struct Batch<T> {
    changes: Changes<T>,
    time: Millis,
    bytes: usize,
}

/// Most commits change one key.
enum Changes<T> {
    One(Change<T>),
    Many(Box<[Change<T>]>),
}

impl<T> Batch<T> {
    /// Of changes made at `time`; `None` when there are none.
    pub fn new(mut changes: Vec<Change<T>>, time: Millis) -> Option<Self> {
        let previous = |change: &Change<T>| change.previous.as_ref().map_or(0, |slot| slot.size);
        let cost = |change: &Change<T>| change.key().len() + previous(change) as usize;
        let bytes = changes.iter().map(cost).sum();
        let changes = match changes.len() {
            0 => return None,
            1 => Changes::One(changes.remove(0)),
            _ => Changes::Many(changes.into()),
        };
        Some(Self {
            changes,
            time,
            bytes,
        })
    }

    /// What changed, in the order of the commit.
    pub fn changes(&self) -> &[Change<T>] {
        match &self.changes {
            Changes::One(change) => std::slice::from_ref(change),
            Changes::Many(changes) => changes,
        }
    }

    /// The events about keys with this prefix; `None` when there are none.
    pub fn events(&self, revision: Revision, prefix: &[u8]) -> Option<Arc<[Event<T>]>> {
        let matching = |change: &&Change<T>| change.key().starts_with(prefix);
        let mut events = self.changes().iter().filter(matching).peekable();
        events.peek()?;
        Some(events.map(|change| change.event(revision)).collect())
    }
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
