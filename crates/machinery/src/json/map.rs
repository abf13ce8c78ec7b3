//! Entries in insertion order, with unique names.

use super::index::Index;
use super::{Key, Value};
use crate::schema::Type;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longer maps have a hash table.
const SHORT: usize = 32;

/// A JSON object.
#[derive(Clone, Default)]
pub struct Map {
    entries: Vec<(Key, Value)>,
    /// The positions of long maps' names, or a filter of short maps' names.
    index: Index,
}

impl Map {
    /// Empty, without an allocation.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            index: Index::EMPTY,
        }
    }

    /// With capacity for entries.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            entries: Vec::with_capacity(capacity),
            index: Index::EMPTY,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.index = Index::EMPTY;
    }

    #[inline]
    fn position(&self, key: &str) -> Option<usize> {
        // Most lookups are of absent names.
        if !self.index.may_have(key) {
            return None;
        }
        self.find(key)
    }

    fn find(&self, key: &str) -> Option<usize> {
        match self.index.places() {
            None => self.entries.iter().position(|(k, _)| k.is(key)),
            Some(places) => places.get(key).map(|&at| at as usize),
        }
    }

    #[inline]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.position(key).map(|at| &self.entries[at].1)
    }

    /// The value at a position.
    pub(crate) fn at(&self, place: usize) -> &Value {
        &self.entries[place].1
    }

    /// The entry at a position.
    pub(crate) fn entry_at(&self, place: usize) -> (&Key, &Value) {
        let (key, value) = &self.entries[place];
        (key, value)
    }

    #[inline]
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.position(key).map(|at| &mut self.entries[at].1)
    }

    #[inline]
    pub fn contains_key(&self, key: &str) -> bool {
        self.position(key).is_some()
    }

    /// Sets an entry: in its position if present, else at the end. Returns the previous value.
    pub fn insert(&mut self, key: impl Into<Key>, value: Value) -> Option<Value> {
        let key = key.into();
        match self.position(&key) {
            Some(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            None => {
                self.push(key, value);
                None
            }
        }
    }

    /// Adds an entry whose name is known to be absent.
    pub fn push(&mut self, key: Key, value: Value) {
        debug_assert!(!self.contains_key(&key), "{key} is there already");
        match self.index.places_mut() {
            None => self.index.note(&key),
            Some(places) => drop(places.insert(key.clone(), self.entries.len() as u32)),
        }
        self.entries.push((key, value));
        if self.entries.len() > SHORT && self.index.places().is_none() {
            self.reindex();
        }
    }

    fn reindex(&mut self) {
        self.index = if self.entries.len() > SHORT {
            let places = self.entries.iter().enumerate();
            Index::long(places.map(|(at, (k, _))| (k.clone(), at as u32)).collect())
        } else {
            Index::short(self.entries.iter().map(|(key, _)| key))
        };
    }

    /// Removes an entry; later ones move up.
    pub fn shift_remove(&mut self, key: &str) -> Option<Value> {
        self.shift_remove_entry(key).map(|(_, value)| value)
    }

    /// As [`Map::shift_remove`], with the name.
    pub fn shift_remove_entry(&mut self, key: &str) -> Option<(Key, Value)> {
        let at = self.position(key)?;
        if let Some(places) = self.index.places_mut() {
            places.remove(key);
            let behind = places.values_mut().filter(|place| **place as usize > at);
            behind.for_each(|place| *place -= 1);
        }
        let entry = self.entries.remove(at);
        if self.entries.len() <= SHORT && self.index.places().is_some() {
            self.reindex();
        }
        Some(entry)
    }

    /// The entry of a name, to read or insert.
    pub fn entry(&mut self, key: impl Into<Key>) -> Entry<'_> {
        Entry {
            map: self,
            key: key.into(),
        }
    }

    pub fn iter(&self) -> Iter<'_> {
        Iter(self.entries.iter())
    }

    pub fn iter_mut(&mut self) -> IterMut<'_> {
        IterMut(self.entries.iter_mut())
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Key> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator + Clone {
        self.entries.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Value> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    pub fn into_values(self) -> impl DoubleEndedIterator<Item = Value> {
        self.entries.into_iter().map(|(_, value)| value)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&Key, &mut Value) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
        if self.index.places().is_some() {
            self.reindex();
        }
    }

    /// Sorts the entries by name.
    pub fn sort_keys(&mut self) {
        self.entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        if self.index.places().is_some() {
            self.reindex();
        }
    }

    /// Sorts the fields of a type into its order.
    pub(crate) fn sort_fields(&mut self, schema: &Type) {
        self.entries
            .sort_unstable_by_key(|(key, _)| schema.position_of(key));
        if self.index.places().is_some() {
            self.reindex();
        }
    }

    /// Moves all entries of another map here.
    pub fn append(&mut self, other: &mut Self) {
        self.extend(std::mem::take(other));
    }
}

impl PartialEq for Map {
    /// Order-independent.
    fn eq(&self, other: &Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        let in_step = self.entries.iter().zip(&other.entries);
        in_step
            .enumerate()
            .all(|(at, ((key, value), (theirs, _)))| {
                let other = match key == theirs {
                    true => Some(&other.entries[at].1),
                    false => other.get(key),
                };
                other == Some(value)
            })
    }
}

impl Eq for Map {}

impl Hash for Map {
    /// Order-independent: entries are hashed one by one and added.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let one = |entry: &(Key, Value)| {
            let mut hasher = DefaultHasher::new();
            entry.hash(&mut hasher);
            hasher.finish()
        };
        let sum = self.entries.iter().map(one);
        state.write_u64(sum.fold(0, u64::wrapping_add));
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Into<Key>> FromIterator<(K, Value)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Into<Key>> Extend<(K, Value)> for Map {
    fn extend<I: IntoIterator<Item = (K, Value)>>(&mut self, entries: I) {
        let entries = entries.into_iter();
        self.entries.reserve(entries.size_hint().0);
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl std::ops::Index<&str> for Map {
    type Output = Value;

    /// Panics if there is no such entry; [`Map::get`] does not.
    fn index(&self, key: &str) -> &Value {
        match self.get(key) {
            Some(value) => value,
            None => panic!("no entry named {key}"),
        }
    }
}

impl std::ops::IndexMut<&str> for Map {
    fn index_mut(&mut self, key: &str) -> &mut Value {
        match self.get_mut(key) {
            Some(value) => value,
            None => panic!("no entry named {key}"),
        }
    }
}

/// An entry of a map, present or not.
pub struct Entry<'a> {
    map: &'a mut Map,
    key: Key,
}

impl<'a> Entry<'a> {
    pub fn or_insert_with(self, value: impl FnOnce() -> Value) -> &'a mut Value {
        let at = match self.map.position(&self.key) {
            Some(at) => at,
            None => {
                self.map.push(self.key, value());
                self.map.len() - 1
            }
        };
        &mut self.map.entries[at].1
    }

    pub fn or_insert(self, value: Value) -> &'a mut Value {
        self.or_insert_with(|| value)
    }

    pub fn and_modify(self, change: impl FnOnce(&mut Value)) -> Self {
        if let Some(value) = self.map.get_mut(&self.key) {
            change(value);
        }
        self
    }
}

/// Borrowed entries.
#[derive(Clone)]
pub struct Iter<'a>(std::slice::Iter<'a, (Key, Value)>);

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a Key, &'a Value);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(key, value)| (key, value))
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// Entries with mutable values.
pub struct IterMut<'a>(std::slice::IterMut<'a, (Key, Value)>);

impl<'a> Iterator for IterMut<'a> {
    type Item = (&'a Key, &'a mut Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (&*key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for IterMut<'_> {}

/// Owned entries.
pub struct IntoIter(std::vec::IntoIter<(Key, Value)>);

impl Iterator for IntoIter {
    type Item = (Key, Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for IntoIter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back()
    }
}

impl ExactSizeIterator for IntoIter {}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a Key, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Map {
    type Item = (&'a Key, &'a mut Value);
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}

impl IntoIterator for Map {
    type Item = (Key, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        IntoIter(self.entries.into_iter())
    }
}
