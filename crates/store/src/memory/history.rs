//! Recent events, for watches and reads of past revisions.

use std::sync::Arc;

use imbl::OrdMap;

use super::{Millis, Slot};
use crate::{Event, Key, Revision};

/// How much history is kept; the first limit that is reached counts.
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
            // As upstream compacts: a continue token is valid for about five minutes.
            age: std::time::Duration::from_secs(300),
        }
    }
}

/// The change of one key by one revision. Slots are shared with the states, so that history costs
/// little more than the previous values.
pub(crate) struct Change<T> {
    /// The previous value.
    pub previous: Option<Arc<Slot<T>>>,
    /// The current value.
    pub current: Option<Arc<Slot<T>>>,
}

impl<T> Clone for Change<T> {
    fn clone(&self) -> Self {
        Self {
            previous: self.previous.clone(),
            current: self.current.clone(),
        }
    }
}

impl<T> Change<T> {
    /// The key that changed.
    pub(crate) fn key(&self) -> &[u8] {
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

/// Bytes that history keeps in memory for a change.
fn cost<T>(change: &Change<T>) -> usize {
    let previous = change.previous.as_ref().map_or(0, |slot| slot.size);
    change.key().len() + previous as usize
}

/// All changes of one revision.
pub(crate) struct Batch<T> {
    changes: Changes<T>,
    time: Millis,
    bytes: usize,
}

impl<T> Clone for Batch<T> {
    fn clone(&self) -> Self {
        Self {
            changes: self.changes.clone(),
            ..*self
        }
    }
}

/// Most commits change one key.
enum Changes<T> {
    One(Change<T>),
    Many(Arc<Vec<Change<T>>>),
}

impl<T> Clone for Changes<T> {
    fn clone(&self) -> Self {
        match self {
            Self::One(change) => Self::One(change.clone()),
            Self::Many(changes) => Self::Many(changes.clone()),
        }
    }
}

impl<T> Batch<T> {
    /// A batch with the first change of a commit made at `time`.
    pub(crate) fn new(first: Change<T>, time: Millis) -> Self {
        let bytes = cost(&first);
        Self {
            changes: Changes::One(first),
            time,
            bytes,
        }
    }

    /// Adds another change of the same commit.
    pub(crate) fn push(&mut self, change: Change<T>) {
        self.bytes += cost(&change);
        match &mut self.changes {
            Changes::One(first) => {
                self.changes = Changes::Many(Arc::new(vec![first.clone(), change]));
            }
            Changes::Many(changes) => Arc::make_mut(changes).push(change),
        }
    }

    /// The changes, in the order of the commit.
    pub(crate) fn changes(&self) -> &[Change<T>] {
        match &self.changes {
            Changes::One(change) => std::slice::from_ref(change),
            Changes::Many(changes) => changes,
        }
    }

    /// The events of keys with this prefix; `None` if there are none.
    pub(crate) fn events(&self, revision: Revision, prefix: &[u8]) -> Option<Arc<[Event<T>]>> {
        let matching = |change: &&Change<T>| change.key().starts_with(prefix);
        let mut events = self.changes().iter().filter(matching).peekable();
        events.peek()?;
        Some(events.map(|change| change.event(revision)).collect())
    }
}

/// Batches published together: one group commit, one log frame, one message of etcd.
type Chunk<T> = Arc<[(Revision, Batch<T>)]>;

/// The history: every event above `floor`. It is kept and dropped in whole chunks, so that it adds
/// little to the cost of a commit.
pub(crate) struct History<T> {
    floor: Revision,
    /// By their last revision; never empty.
    chunks: OrdMap<Revision, Chunk<T>>,
    revisions: usize,
    bytes: usize,
}

impl<T> Clone for History<T> {
    fn clone(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            ..*self
        }
    }
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self {
            floor: 0,
            chunks: OrdMap::new(),
            revisions: 0,
            bytes: 0,
        }
    }
}

impl<T> History<T> {
    /// Events after this revision are kept; earlier ones are not.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    /// The batches after a revision, in order.
    pub(crate) fn after(
        &self,
        revision: Revision,
    ) -> impl DoubleEndedIterator<Item = &(Revision, Batch<T>)> {
        let chunks = self.chunks.range(revision.saturating_add(1)..);
        chunks.flat_map(move |(_, chunk)| {
            let known = chunk.partition_point(|(at, _)| *at <= revision);
            &chunk[known..]
        })
    }

    /// The batch of one revision.
    pub(crate) fn at(&self, revision: Revision) -> Option<&Batch<T>> {
        let (_, chunk) = self.chunks.range(revision..).next()?;
        let place = chunk.binary_search_by_key(&revision, |(at, _)| *at).ok()?;
        Some(&chunk[place].1)
    }

    /// Adds the newest batches, in order.
    pub(crate) fn push(&mut self, news: Vec<(Revision, Batch<T>)>) {
        let Some((last, _)) = news.last() else { return };
        self.revisions += news.len();
        self.bytes += bytes(&news);
        self.chunks.insert(*last, news.into());
    }

    /// Drops everything up to a revision. Returns it, since freeing it takes time.
    pub(crate) fn forget(&mut self, revision: Revision) -> Forgotten<T> {
        let mut forgotten = Vec::new();
        while let Some((last, chunk)) = self.chunks.get_min().cloned() {
            let known = chunk.partition_point(|(at, _)| *at <= revision);
            if known == 0 {
                break;
            }
            self.revisions -= known;
            self.bytes -= bytes(&chunk[..known]);
            self.chunks.remove(&last);
            let rest: Option<Chunk<T>> =
                (known < chunk.len()).then(|| chunk[known..].iter().cloned().collect());
            forgotten.push(chunk);
            if let Some(rest) = rest {
                self.chunks.insert(last, rest);
                break;
            }
        }
        self.floor = self.floor.max(revision);
        Forgotten(forgotten)
    }

    /// Drops what exceeds the limits.
    pub(crate) fn prune(&mut self, limits: &Limits, now: Millis) -> Forgotten<T> {
        let mut forgotten = Vec::new();
        let oldest_kept = now.saturating_sub(limits.age.as_millis() as Millis);
        while let Some((last, chunk)) = self.chunks.get_min() {
            let within = self.revisions <= limits.revisions
                && self.bytes <= limits.bytes
                && chunk
                    .first()
                    .is_none_or(|(_, batch)| batch.time >= oldest_kept);
            if within {
                break;
            }
            forgotten.append(&mut self.forget(*last).0);
        }
        Forgotten(forgotten)
    }
}

/// Dropped history.
pub(crate) struct Forgotten<T>(Vec<Chunk<T>>);

impl<T> Forgotten<T> {
    /// Whether nothing was forgotten.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn bytes<T>(chunk: &[(Revision, Batch<T>)]) -> usize {
    chunk.iter().map(|(_, batch)| batch.bytes).sum()
}
