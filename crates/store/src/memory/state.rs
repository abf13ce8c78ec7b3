//! What the store holds at one moment: the live keys and the history that leads to them. Cloning is
//! O(1), and a clone never changes: lists and watches read theirs while the writer goes on.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use imbl::OrdMap;

use super::{Batch, History, Millis, Saved};
use crate::{
    Action, Codec, Committed, Entry, Error, Event, Key, ListRequest, Listed, Op, Precondition,
    Revision,
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

/// What happens to one key.
pub enum Change<D> {
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

    /// Makes the changes of one commit, and its events. Deletes of absent keys do nothing.
    pub fn apply<C: Codec<Object = T>>(
        &mut self,
        codec: &C,
        revision: Revision,
        time: Millis,
        changes: impl IntoIterator<Item = (Key, Option<Change<C::Draft>>)>,
    ) -> Committed<T> {
        let (mut entries, mut events, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (key, change) in changes {
            let Some(change) = change else {
                entries.push(None);
                continue;
            };
            let (current, previous) = self.change(codec, &key, revision, change);
            if current.is_none() && previous.is_none() {
                entries.push(None);
                continue;
            }
            bytes += key.len() + previous.as_ref().map_or(0, |slot| slot.size as usize);
            let previous = previous.map(|slot| slot.entry.clone());
            entries.push(current.clone().or_else(|| previous.clone()));
            events.push(Event {
                key,
                revision,
                current,
                previous,
            });
        }
        if !events.is_empty() {
            self.revision = revision;
            self.history.push(
                revision,
                Batch {
                    events: events.into(),
                    time,
                    bytes,
                },
            );
        }
        Committed {
            revision: self.revision,
            entries,
        }
    }

    fn change<C: Codec<Object = T>>(
        &mut self,
        codec: &C,
        key: &Key,
        revision: Revision,
        change: Change<C::Draft>,
    ) -> (Option<Entry<T>>, Option<Arc<Slot<T>>>) {
        let Change::Put(draft, expires) = change else {
            let previous = self.entries.remove(key);
            if let Some(slot) = &previous {
                self.bytes -= key.len() as u64 + u64::from(slot.size);
            }
            return (None, previous);
        };
        let size = codec.bytes(&draft).len() as u32;
        let object = Arc::new(codec.publish(key, draft, revision));
        let previous = self.entries.get(key).cloned();
        // The first key's bytes serve all later versions.
        let (key, create_revision) = match &previous {
            Some(slot) => (slot.entry.key.clone(), slot.entry.create_revision),
            None => (key.clone(), revision),
        };
        let entry = Entry {
            key: key.clone(),
            create_revision,
            mod_revision: revision,
            object,
        };
        let slot = Arc::new(Slot {
            entry: entry.clone(),
            expires,
            size,
        });
        self.bytes += u64::from(size);
        match &previous {
            Some(previous) => self.bytes -= u64::from(previous.size),
            None => self.bytes += key.len() as u64,
        }
        self.entries.insert(key, slot);
        (Some(entry), previous)
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
            for event in batch.events.iter() {
                match &event.previous {
                    Some(entry) => {
                        let slot = Slot {
                            entry: entry.clone(),
                            expires: 0,
                            size: 0,
                        };
                        past.entries.insert(entry.key.clone(), Arc::new(slot));
                    }
                    None => {
                        past.entries.remove(&event.key);
                    }
                }
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
