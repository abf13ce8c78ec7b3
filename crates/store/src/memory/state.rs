//! What the store holds at one moment: the live keys and the history that leads to them. Cloning is
//! O(1), and a clone never changes: lists and watches read theirs while the writer goes on.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use imbl::OrdMap;

use super::{Batch, Change, History, Millis, Saved};
use crate::{
    Action, Codec, Committed, Entry, Error, Key, ListRequest, Listed, Op, Precondition, Revision,
};

/// A live key with what the engine knows about it.
pub struct Slot<T> {
    /// What readers see.
    pub entry: Entry<T>,
    /// When it goes by itself, 0 for never.
    pub expires: Millis,
    /// Length of the stored value.
    pub size: u32,
}

/// One moment.
pub struct State<T> {
    /// The newest revision.
    pub revision: Revision,
    /// The live keys.
    pub entries: OrdMap<Key, Arc<Slot<T>>>,
    /// Bytes of all live keys and values.
    pub bytes: u64,
    /// The events before this moment that are still kept.
    pub history: History<T>,
}

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self {
            revision: self.revision,
            entries: self.entries.clone(),
            bytes: self.bytes,
            history: self.history.clone(),
        }
    }
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self {
            revision: 0,
            entries: OrdMap::new(),
            bytes: 0,
            history: History::default(),
        }
    }
}

/// What a commit does to one key.
pub enum Write<D> {
    /// A new value.
    Put(D, Millis),
    /// Gone.
    Delete,
}

impl<T: Send + Sync + 'static> State<T> {
    /// The entry at a key.
    pub fn get(&self, key: &[u8]) -> Option<Entry<T>> {
        self.entries.get(key).map(|slot| slot.entry.clone())
    }

    /// Keys under a prefix.
    pub fn list(&self, request: &ListRequest) -> Listed<T> {
        let start = match &request.from {
            Some(from) if *from > request.prefix => from,
            _ => &request.prefix,
        };
        let end = prefix_end(&request.prefix);
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let is_empty = end.as_ref().is_some_and(|end| start[..] >= end[..]);
        let mut rest = (!is_empty)
            .then(|| {
                self.entries
                    .range::<_, [u8]>((Bound::Included(&start[..]), upper))
            })
            .into_iter()
            .flatten();
        let limit = request.limit.unwrap_or(usize::MAX);
        let entries = rest
            .by_ref()
            .take(limit)
            .map(|(_, slot)| slot.entry.clone())
            .collect();
        let remaining = if request.limit.is_some() {
            rest.count()
        } else {
            0
        };
        Listed {
            revision: self.revision,
            entries,
            remaining,
        }
    }

    /// Whether all preconditions hold.
    pub fn check<D>(&self, ops: &[Op<D>]) -> Result<(), Error> {
        for op in ops {
            let current = self
                .entries
                .get(&op.key)
                .map(|slot| slot.entry.mod_revision);
            let holds = match op.precondition {
                Precondition::Any => true,
                Precondition::Absent => current.is_none(),
                Precondition::Exists => current.is_some(),
                Precondition::Revision(revision) => current == Some(revision),
            };
            if !holds {
                return Err(Error::Conflict {
                    key: op.key.clone(),
                    current,
                });
            }
        }
        Ok(())
    }

    /// Whether any of these operations would change something.
    pub fn would_change<D>(&self, ops: &[Op<D>]) -> bool {
        ops.iter().any(|op| match op.action {
            Action::Put { .. } => true,
            Action::Delete => self.entries.contains_key(&op.key),
            Action::Check => false,
        })
    }

    /// Makes the changes of one commit, and its history. Deletes of absent keys do nothing.
    pub fn apply<C: Codec<Object = T>>(
        &mut self,
        codec: &C,
        revision: Revision,
        time: Millis,
        writes: impl IntoIterator<Item = (Key, Option<Write<C::Draft>>)>,
    ) -> Committed<T> {
        let (mut entries, mut changes) = (Vec::new(), Vec::new());
        for (key, write) in writes {
            let Some(write) = write else {
                entries.push(None);
                continue;
            };
            let change = self.change(codec, key, revision, write);
            let slot = change.current.as_ref().or(change.previous.as_ref());
            entries.push(slot.map(|slot| slot.entry.clone()));
            if slot.is_some() {
                changes.push(change);
            }
        }
        if let Some(batch) = Batch::new(changes, time) {
            self.revision = revision;
            self.history.push(revision, batch);
        }
        Committed {
            revision: self.revision,
            entries,
        }
    }

    fn change<C: Codec<Object = T>>(
        &mut self,
        codec: &C,
        key: Key,
        revision: Revision,
        write: Write<C::Draft>,
    ) -> Change<T> {
        let Write::Put(draft, expires) = write else {
            let previous = self.entries.remove(&key);
            if let Some(slot) = &previous {
                self.bytes -= key.len() as u64 + u64::from(slot.size);
            }
            return Change {
                previous,
                current: None,
            };
        };
        let size = codec.bytes(&draft).len() as u32;
        let object = Arc::new(codec.publish(&key, draft, revision));
        let previous = self.entries.get(&key).cloned();
        // The first key's bytes serve all later versions; a copy, because the caller's may be part
        // of something larger.
        let (key, create_revision) = match &previous {
            Some(slot) => (slot.entry.key.clone(), slot.entry.create_revision),
            None => (Key::copy_from_slice(&key), revision),
        };
        self.bytes += u64::from(size);
        match &previous {
            Some(previous) => self.bytes -= u64::from(previous.size),
            None => self.bytes += key.len() as u64,
        }
        let entry = Entry {
            key: key.clone(),
            create_revision,
            mod_revision: revision,
            object,
        };
        let current = Arc::new(Slot {
            entry,
            expires,
            size,
        });
        self.entries.insert(key, current.clone());
        Change {
            previous,
            current: Some(current),
        }
    }

    /// All entries as snapshots keep them.
    pub fn saved<C: Codec<Object = T>>(&self, codec: &C) -> impl Iterator<Item = Saved> {
        self.entries.values().map(|slot| Saved {
            key: slot.entry.key.clone(),
            create_revision: slot.entry.create_revision,
            mod_revision: slot.entry.mod_revision,
            expires: slot.expires,
            value: codec.stored(&slot.entry.object),
        })
    }

    /// Takes an entry from a snapshot.
    pub fn restore<C: Codec<Object = T>>(&mut self, codec: &C, saved: Saved) -> Result<(), String> {
        let Saved {
            key,
            create_revision,
            mod_revision,
            expires,
            value,
        } = saved;
        let size = value.len() as u32;
        let draft = codec.load(&key, value)?;
        let object = Arc::new(codec.publish(&key, draft, mod_revision));
        self.bytes += key.len() as u64 + u64::from(size);
        let entry = Entry {
            key: key.clone(),
            create_revision,
            mod_revision,
            object,
        };
        self.entries.insert(
            key,
            Arc::new(Slot {
                entry,
                expires,
                size,
            }),
        );
        Ok(())
    }

    /// This state as it was at an earlier revision that history still covers; without a history of
    /// its own, and only for reading.
    pub fn back_to(&self, revision: Revision) -> Self {
        let mut past = self.clone();
        for (_, batch) in self.history.after(revision).rev() {
            for change in batch.changes() {
                match &change.previous {
                    Some(slot) => past.entries.insert(slot.entry.key.clone(), slot.clone()),
                    None => past.entries.remove(change.key()),
                };
            }
        }
        past.revision = revision;
        past.history = History::default();
        past
    }
}

/// The first key behind all keys with this prefix; `None` when there is no such key.
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}
