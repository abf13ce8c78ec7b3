//! The state of the store at one revision: the live keys and their history. Clones are O(1) and
//! immutable, so that lists can be read while the writer continues.

use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;

use super::{Batch, Change, History, Millis, OneOrMany, Saved, Tree, tree::Keyed};
use crate::{Codec, Entry, Error, Key, ListRequest, Listed, Revision, Unreadable};

/// A live key with the engine's metadata.
pub struct Slot<T> {
    /// What readers see.
    pub entry: Entry<T>,
    /// When it expires; 0 for never.
    pub expires: Millis,
    /// Length of the stored value.
    pub size: u32,
}

impl<T> Keyed for Arc<Slot<T>> {
    fn key(&self) -> &Key {
        &self.entry.key
    }
}

/// The state at one revision.
pub(crate) struct State<T> {
    /// The newest revision.
    pub revision: Revision,
    /// The live keys.
    pub entries: Tree<Arc<Slot<T>>>,
    /// Live keys whose values cannot be read: they are not in `entries`.
    pub unreadable: OrdMap<Key, Arc<Unreadable>>,
    /// Bytes of all live keys and values.
    pub bytes: u64,
    /// The history up to this revision.
    pub history: History<T>,
}

impl<T> Clone for State<T> {
    fn clone(&self) -> Self {
        Self {
            revision: self.revision,
            entries: self.entries.clone(),
            unreadable: self.unreadable.clone(),
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
            unreadable: OrdMap::new(),
            bytes: 0,
            history: History::default(),
        }
    }
}

/// A commit's write of one key.
pub(crate) enum Write<T> {
    /// A new value.
    Put(Key, Fresh<T>),
    /// Gone.
    Delete(Key),
}

/// A new value whose previous value is not known yet.
pub(crate) struct Fresh<T>(Arc<Slot<T>>);

impl<T> Fresh<T> {
    /// A value from a draft with this revision.
    pub(crate) fn new<C: Codec<Object = T>>(
        codec: &C,
        key: &Key,
        draft: C::Draft,
        revision: Revision,
        expires: Millis,
    ) -> Self {
        let size = codec.bytes(&draft).len() as u32;
        let entry = Entry {
            key: Key::new(),
            create_revision: revision,
            mod_revision: revision,
            object: Arc::new(codec.publish(key, draft, revision)),
        };
        Self(Arc::new(Slot {
            entry,
            expires,
            size,
        }))
    }

    /// Completes the value with its key and create revision.
    fn settle(self, key: &Key, previous: Option<&Arc<Slot<T>>>) -> Arc<Slot<T>> {
        let mut slot = self.0;
        // Not shared yet.
        if let Some(Slot { entry, .. }) = Arc::get_mut(&mut slot) {
            // All versions share the bytes of the first key; a copy, because the caller's may be a
            // slice of something larger.
            (entry.key, entry.create_revision) = match previous {
                Some(slot) => (slot.entry.key.clone(), slot.entry.create_revision),
                None => (Key::copy_from_slice(key), entry.mod_revision),
            };
        }
        slot
    }
}

/// The range of a list.
struct Span<'a> {
    start: &'a Key,
    found: usize,
}

/// Where a list starts.
fn start(request: &ListRequest) -> &Key {
    match &request.from {
        Some(from) if *from > request.prefix => from,
        _ => &request.prefix,
    }
}

impl<T: Send + Sync + 'static> State<T> {
    /// An error if the value of this key cannot be read.
    pub(crate) fn check_readable(&self, key: &Key) -> Result<(), Error> {
        match self.unreadable.get(key) {
            None => Ok(()),
            Some(one) => Err(Error::Unreadable(vec![Unreadable::clone(one)])),
        }
    }

    /// The keys of a list whose values cannot be read; an error that names them, unless the request skips them.
    pub(crate) fn check_list_readable(
        &self,
        request: &ListRequest,
    ) -> Result<Vec<Unreadable>, Error> {
        let keys = self.unreadable.range(start(request).clone()..);
        let keys = keys.take_while(|(key, _)| key.starts_with(&request.prefix));
        let keys: Vec<_> = keys.map(|(_, one)| Unreadable::clone(one)).collect();
        match keys.is_empty() || request.skip_unreadable {
            true => Ok(keys),
            false => Err(Error::Unreadable(keys)),
        }
    }

    /// Records that the newest value of a key cannot be read. This is no event: the caller drops the history.
    pub(crate) fn mark_unreadable(&mut self, unreadable: Unreadable) {
        self.change(Write::Delete(unreadable.key.clone()));
        let key = unreadable.key.clone();
        self.unreadable.insert(key, Arc::new(unreadable));
    }

    /// The entry at a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Entry<T>> {
        self.entries.get(key).map(|slot| slot.entry.clone())
    }

    /// Keys under a prefix.
    pub(crate) fn list(&self, request: &ListRequest) -> Listed<T> {
        let Span { start, found } = self.span(request);
        self.listed(start, found, request.limit)
    }

    /// The same, unless there are more than `most`. Iterates instead of counting: one search, where
    /// a list takes three.
    pub(crate) fn list_few(&self, request: &ListRequest, most: usize) -> Option<Listed<T>> {
        let start = start(request);
        let mut slots = self.entries.from(start);
        let mut entries = Vec::new();
        while let Some(slot) = slots.next()
            && slot.entry.key.starts_with(&request.prefix)
        {
            if entries.len() == most {
                return None;
            }
            entries.push(slot.entry.clone());
        }
        Some(Listed {
            revision: self.revision,
            entries,
            remaining: 0,
            unreadable: Vec::new(),
        })
    }

    /// The start of a list, and the number of keys from there on.
    fn span<'a>(&self, request: &'a ListRequest) -> Span<'a> {
        let start = start(request);
        // Counted by rank, not by iteration: many more may remain than are returned.
        let end = prefix_end(&request.prefix);
        let end = end.map_or(self.entries.len(), |end| self.entries.rank(&end));
        let found = end.saturating_sub(self.entries.rank(start));
        Span { start, found }
    }

    fn listed(&self, start: &Key, found: usize, limit: Option<usize>) -> Listed<T> {
        let taken = found.min(limit.unwrap_or(usize::MAX));
        let slots = self.entries.from(start).take(taken);
        Listed {
            revision: self.revision,
            entries: slots.map(|slot| slot.entry.clone()).collect(),
            remaining: found - taken,
            unreadable: Vec::new(),
        }
    }

    /// Applies the changes of one commit; `news` gets them for [`History::push`]. Returns the new
    /// entry of each put key and the old one of each deleted key. Deletes of absent keys do
    /// nothing.
    pub(crate) fn apply(
        &mut self,
        revision: Revision,
        time: Millis,
        writes: OneOrMany<Option<Write<T>>>,
        news: &mut Vec<(Revision, Batch<T>)>,
    ) -> OneOrMany<Option<Arc<Slot<T>>>> {
        let mut batch: Option<Batch<T>> = None;
        let slots = writes.map(|write| {
            let change = self.change(write?);
            let slot = change
                .current
                .as_ref()
                .or(change.previous.as_ref())?
                .clone();
            match &mut batch {
                None => batch = Some(Batch::new(change, time)),
                Some(batch) => batch.push(change),
            }
            Some(slot)
        });
        if let Some(batch) = batch {
            self.revision = revision;
            news.push((revision, batch));
        }
        slots
    }

    fn change(&mut self, write: Write<T>) -> Change<T> {
        let (key, fresh) = match write {
            Write::Put(key, fresh) => (key, fresh),
            Write::Delete(key) => {
                let previous = self.entries.remove(&key);
                if let Some(slot) = &previous {
                    self.bytes -= key.len() as u64 + u64::from(slot.size);
                }
                return Change {
                    previous,
                    current: None,
                };
            }
        };
        let size = fresh.0.size;
        let mut current = None;
        let previous = self.entries.upsert(&key, |previous| {
            let slot = fresh.settle(&key, previous);
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

    /// All entries in their stored form.
    pub(crate) fn saved<C: Codec<Object = T>>(&self, codec: &C) -> impl Iterator<Item = Saved> {
        self.entries.values().map(|slot| Saved {
            key: slot.entry.key.clone(),
            create_revision: slot.entry.create_revision,
            mod_revision: slot.entry.mod_revision,
            expires: slot.expires,
            value: codec
                .seal(&slot.entry.key, &codec.stored(&slot.entry.object))
                .into_owned(),
        })
    }

    /// Adds an entry of a snapshot.
    pub(crate) fn restore<C: Codec<Object = T>>(
        &mut self,
        codec: &C,
        saved: Saved,
    ) -> Result<(), String> {
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

    /// The state at an earlier revision that history covers; without history, and only for reading.
    pub(crate) fn back_to(&self, revision: Revision) -> Self {
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

/// The first key after all keys with this prefix; `None` if there is none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}
