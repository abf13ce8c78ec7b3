//! What the store holds at one moment: the live keys and the history that leads to them. Cloning is
//! O(1), and a clone never changes: lists and watches read theirs while the writer goes on.

use std::sync::Arc;

use bytes::Bytes;

use super::{Batch, Change, History, Millis, Saved, Tree, tree::Keyed};
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

impl<T> Keyed for Arc<Slot<T>> {
    fn key(&self) -> &Key {
        &self.entry.key
    }
}

/// One moment.
pub struct State<T> {
    /// The newest revision.
    pub revision: Revision,
    /// The live keys.
    pub entries: Tree<Arc<Slot<T>>>,
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
            entries: Tree::default(),
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
        // Counted, not walked over: what remains may be much more than what is wanted.
        let end = prefix_end(&request.prefix);
        let end = end.map_or(self.entries.len(), |end| self.entries.rank(&end));
        let found = end.saturating_sub(self.entries.rank(start));
        let taken = found.min(request.limit.unwrap_or(usize::MAX));
        let slots = self.entries.from(start).take(taken);
        Listed {
            revision: self.revision,
            entries: slots.map(|slot| slot.entry.clone()).collect(),
            remaining: found - taken,
        }
    }

    /// Whether all preconditions hold.
    pub fn check<D>(&self, ops: &[Op<D>]) -> Result<(), Error> {
        for op in ops {
            if op.precondition == Precondition::Any {
                continue;
            }
            let current = self.entries.get(&op.key);
            let current = current.map(|slot| slot.entry.mod_revision);
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

    /// Whether an operation would change something.
    pub fn would_change<D>(&self, op: &Op<D>) -> bool {
        match op.action {
            Action::Put { .. } => true,
            Action::Delete => self.entries.get(&op.key).is_some(),
            Action::Check => false,
        }
    }

    /// Makes the changes of one commit; `news` gets what they were, for [`History::push`]. Deletes of
    /// absent keys do nothing.
    pub fn apply<C: Codec<Object = T>>(
        &mut self,
        codec: &C,
        revision: Revision,
        time: Millis,
        writes: impl ExactSizeIterator<Item = (Key, Option<Write<C::Draft>>)>,
        news: &mut Vec<(Revision, Batch<T>)>,
    ) -> Committed<T> {
        let mut entries = Vec::with_capacity(writes.len());
        let mut batch: Option<Batch<T>> = None;
        for (key, write) in writes {
            let Some(write) = write else {
                entries.push(None);
                continue;
            };
            let change = self.change(codec, &key, revision, write);
            let slot = change.current.as_ref().or(change.previous.as_ref());
            entries.push(slot.map(|slot| slot.entry.clone()));
            if slot.is_some() {
                match &mut batch {
                    None => batch = Some(Batch::new(change, time)),
                    Some(batch) => batch.push(change),
                }
            }
        }
        if let Some(batch) = batch {
            self.revision = revision;
            news.push((revision, batch));
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
        write: Write<C::Draft>,
    ) -> Change<T> {
        let Write::Put(draft, expires) = write else {
            let previous = self.entries.remove(key);
            if let Some(slot) = &previous {
                self.bytes -= key.len() as u64 + u64::from(slot.size);
            }
            return Change {
                previous,
                current: None,
            };
        };
        let size = codec.bytes(&draft).len() as u32;
        let object = Arc::new(codec.publish(key, draft, revision));
        let mut current = None;
        let previous = self.entries.upsert(key, |previous| {
            // The first key's bytes serve all later versions; a copy, because the caller's may be
            // part of something larger.
            let (key, create_revision) = match previous {
                Some(slot) => (slot.entry.key.clone(), slot.entry.create_revision),
                None => (Key::copy_from_slice(key), revision),
            };
            let entry = Entry {
                key,
                create_revision,
                mod_revision: revision,
                object,
            };
            let slot = Arc::new(Slot {
                entry,
                expires,
                size,
            });
            current = Some(slot.clone());
            slot
        });
        self.bytes += u64::from(size);
        match &previous {
            Some(previous) => self.bytes -= u64::from(previous.size),
            None => self.bytes += key.len() as u64,
        }
        Change { previous, current }
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
            key,
            create_revision,
            mod_revision,
            object,
        };
        self.entries.insert(Arc::new(Slot {
            entry,
            expires,
            size,
        }));
        Ok(())
    }

    /// This state as it was at an earlier revision that history still covers; without a history of
    /// its own, and only for reading.
    pub fn back_to(&self, revision: Revision) -> Self {
        let mut past = self.clone();
        for (_, batch) in self.history.after(revision).rev() {
            for change in batch.changes() {
                match &change.previous {
                    Some(slot) => past.entries.insert(slot.clone()),
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
