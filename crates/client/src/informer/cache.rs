//! The objects of an informer, their indexes, and its subscribers. Pure: no server and no task; the
//! informer guards it with one lock.
//!
//! Sets of objects are ordered by the names inside the objects: an object is one pointer in the
//! cache and one in each index that contains it.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use super::{
    AnyObject, Object,
    slot::{Decoded, Slot, Summarize},
    subscription::{Change, Sender},
};

/// Namespace and name.
pub(super) type Key = (String, String);

/// Has a namespace and name to sort by.
pub(super) trait Named {
    /// Namespace (empty for cluster-scoped objects) and name.
    fn key(&self) -> (&str, &str);
}

impl Named for (&str, &str) {
    fn key(&self) -> (&str, &str) {
        *self
    }
}

impl Ord for dyn Named + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for dyn Named + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for dyn Named + '_ {}

/// A slot, ordered by its object's key.
struct ByKey(Arc<Slot>);

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(&other.0.key())
    }
}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl<'a> Borrow<dyn Named + 'a> for ByKey {
    fn borrow(&self) -> &(dyn Named + 'a) {
        &*self.0
    }
}

/// The objects under one key of an index: usually one.
#[expect(
    clippy::box_collection,
    reason = "most keys have one object: the set must not make all entries larger"
)]
enum Filed {
    One(ByKey),
    Many(Box<BTreeSet<ByKey>>),
}

impl Filed {
    /// Adds an object, replacing its earlier version.
    fn put(&mut self, slot: ByKey) {
        match self {
            Self::One(only) if *only == slot => *only = slot,
            Self::One(only) => {
                let only = ByKey(only.0.clone());
                *self = Self::Many(Box::new(BTreeSet::from([only, slot])));
            }
            Self::Many(slots) => drop(slots.replace(slot)),
        }
    }

    /// Removes an object; returns whether none is left.
    fn take(&mut self, slot: &ByKey) -> bool {
        match self {
            Self::One(only) => only == slot,
            Self::Many(slots) => {
                slots.remove(slot);
                slots.is_empty()
            }
        }
    }

    fn slots(&self) -> Vec<Arc<Slot>> {
        match self {
            Self::One(only) => vec![only.0.clone()],
            Self::Many(slots) => slots.iter().map(|slot| slot.0.clone()).collect(),
        }
    }
}

/// Returns the keys of an object in an index.
pub(super) type Keys = Box<dyn Fn(&dyn AnyObject) -> Vec<String> + Send + Sync>;

struct Index {
    name: &'static str,
    keys: Keys,
    entries: HashMap<Box<str>, Filed>,
}

pub(super) struct Cache {
    objects: BTreeSet<ByKey>,
    indexes: Vec<Index>,
    subscribers: Vec<Sender>,
    /// Decoded forms of the objects.
    pub(super) decoded: Arc<Decoded>,
}

impl Cache {
    /// For objects of this kind.
    pub(super) fn new<K: Object>() -> Self {
        Self {
            objects: BTreeSet::new(),
            indexes: Vec::new(),
            subscribers: Vec::new(),
            decoded: Arc::new(Decoded::new::<K>()),
        }
    }

    /// Must be called before the first object is stored.
    pub(super) fn add_index(&mut self, name: &'static str, keys: Keys) {
        self.indexes.push(Index {
            name,
            keys,
            entries: HashMap::new(),
        });
    }

    /// Must be called before the cache is shared.
    pub(super) fn summarize(&mut self, summarize: Summarize) {
        if let Some(decoded) = Arc::get_mut(&mut self.decoded) {
            decoded.summarize = Some(summarize);
        }
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Slot>> {
        let key: &dyn Named = &(namespace, name);
        self.objects.get(key).map(|slot| slot.0.clone())
    }

    pub(super) fn list(&self) -> Vec<Arc<Slot>> {
        self.objects.iter().map(|slot| slot.0.clone()).collect()
    }

    /// The objects of a namespace for which `is_wanted` returns true.
    pub(super) fn list_in(
        &self,
        namespace: &str,
        is_wanted: impl Fn(&Slot) -> bool,
    ) -> Vec<Arc<Slot>> {
        let first: &dyn Named = &(namespace, "");
        let from = (Bound::Included(first), Bound::Unbounded);
        let all = self.objects.range::<dyn Named, _>(from);
        all.take_while(|slot| slot.0.key().0 == namespace)
            .filter(|slot| is_wanted(&slot.0))
            .map(|slot| slot.0.clone())
            .collect()
    }

    pub(super) fn has_any_in(&self, namespace: &str) -> bool {
        let first: &dyn Named = &(namespace, "");
        let from = (Bound::Included(first), Bound::Unbounded);
        let mut all = self.objects.range::<dyn Named, _>(from);
        all.next().is_some_and(|slot| slot.0.key().0 == namespace)
    }

    pub(super) fn by_index(&self, index: &str, key: &str) -> Vec<Arc<Slot>> {
        let index = self
            .indexes
            .iter()
            .find(|candidate| candidate.name == index);
        let entry = index.and_then(|index| index.entries.get(key));
        entry.map(Filed::slots).unwrap_or_default()
    }

    pub(super) fn index_keys(&self, index: &str) -> Vec<String> {
        let indexes = self.indexes.iter();
        let index = indexes.filter(|candidate| candidate.name == index);
        let keys = index.flat_map(|index| index.entries.keys());
        keys.map(ToString::to_string).collect()
    }

    pub(super) fn count_by_index(&self, index: &str, key: &str) -> usize {
        let mut indexes = self.indexes.iter();
        let index = indexes.find(|candidate| candidate.name == index);
        let entry = index.and_then(|index| index.entries.get(key));
        entry.map_or(0, |filed| match filed {
            Filed::One(_) => 1,
            Filed::Many(slots) => slots.len(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.objects.len()
    }

    /// The number of queued changes of the slowest subscriber.
    pub(super) fn queued(&self) -> usize {
        let lengths = self.subscribers.iter().map(Sender::len);
        lengths.max().unwrap_or(0)
    }

    pub(super) fn subscribe(&mut self, sender: Sender) {
        for slot in &self.objects {
            if !sender.send(Change::Added(slot.0.clone())) {
                return;
            }
        }
        self.subscribers.push(sender);
    }

    /// Stores the newest version of an object and publishes the change. An object that was
    /// recreated under the same name is published as a deletion and an addition.
    pub(super) fn upsert(&mut self, new: Arc<Slot>) {
        let (namespace, name) = new.key();
        let mut old = self.get(namespace, name);
        if let Some(before) = &old {
            if !before.is_same_object(&new) {
                self.remove(namespace, name, None);
                old = None;
            } else if !new.version().is_empty() && before.version() == new.version() {
                return;
            }
        }
        self.objects.replace(ByKey(new.clone()));
        let object = new.peek(&self.decoded);
        for index in &mut self.indexes {
            let now = (index.keys)(&*object);
            if let Some(old) = &old {
                let before = (index.keys)(&*old.peek(&self.decoded));
                for gone in before.iter().filter(|value| !now.contains(value)) {
                    index.forget(gone, old);
                }
            }
            for value in now {
                index.file(value, &new);
            }
        }
        self.publish(match old {
            Some(old) => Change::Modified { old, new },
            None => Change::Added(new),
        });
    }

    /// Removes an object; `last` is its final version if the server sent one.
    pub(super) fn remove(&mut self, namespace: &str, name: &str, last: Option<Arc<Slot>>) {
        let key: &dyn Named = &(namespace, name);
        let Some(ByKey(old)) = self.objects.take(key) else {
            return;
        };
        if !self.indexes.is_empty() {
            let object = old.peek(&self.decoded);
            for index in &mut self.indexes {
                for value in (index.keys)(&*object) {
                    index.forget(&value, &old);
                }
            }
        }
        self.publish(Change::Deleted(last.unwrap_or(old)));
    }

    /// Applies a complete list: objects that are not in it are removed.
    #[expect(
        clippy::mutable_key_type,
        reason = "objects are ordered by their names, which do not change"
    )]
    pub(super) fn replace(&mut self, objects: Vec<Arc<Slot>>) {
        let kept: BTreeSet<ByKey> = objects.iter().cloned().map(ByKey).collect();
        let gone = self.objects.iter().filter(|slot| !kept.contains(*slot));
        let gone: Vec<_> = gone.map(|slot| slot.0.clone()).collect();
        for slot in gone {
            let (namespace, name) = slot.key();
            self.remove(namespace, name, None);
        }
        for object in objects {
            self.upsert(object);
        }
    }

    fn publish(&mut self, change: Change) {
        self.subscribers
            .retain(|subscriber| subscriber.send(change.clone()));
        if self.subscribers.is_empty() {
            // Without subscribers the decoded form is dropped; a later reader decodes the object again.
            change.slot().drop_decoded();
        }
    }
}

impl Index {
    fn file(&mut self, value: String, slot: &Arc<Slot>) {
        let slot = ByKey(slot.clone());
        match self.entries.get_mut(value.as_str()) {
            Some(filed) => filed.put(slot),
            None => drop(self.entries.insert(value.into(), Filed::One(slot))),
        }
    }

    fn forget(&mut self, value: &str, slot: &Arc<Slot>) {
        let slot = ByKey(slot.clone());
        if let Some(filed) = self.entries.get_mut(value)
            && filed.take(&slot)
        {
            self.entries.remove(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Event,
            subscription::{Subscription, channel},
        },
        *,
    };
    use k8s_openapi::api::core::v1::{Pod, PodSpec};
    use kube::api::ObjectMeta;

    fn pod(name: &str, uid: &str, version: u32, node: &str) -> Arc<Slot> {
        let metadata = ObjectMeta {
            namespace: Some("default".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            ..Default::default()
        };
        let spec = PodSpec {
            node_name: Some(node.into()),
            ..Default::default()
        };
        let pod = Pod {
            metadata,
            spec: Some(spec),
            status: None,
        };
        Slot::typed(Arc::new(pod), &Decoded::new::<Pod>())
    }

    fn cache() -> (Cache, Subscription<Pod>) {
        let mut cache = Cache::new::<Pod>();
        let keys = super::super::erased_keys(|pod: &Pod| {
            pod.spec
                .iter()
                .filter_map(|spec| spec.node_name.clone())
                .collect()
        });
        cache.add_index("node", keys);
        let (sender, receiver) = channel(cache.decoded.clone(), None);
        cache.subscribe(sender);
        (cache, receiver)
    }

    fn received(receiver: &mut Subscription<Pod>) -> Vec<String> {
        let version = |pod: &Pod| pod.metadata.resource_version.clone().unwrap_or_default();
        std::iter::from_fn(|| receiver.try_next())
            .map(|event| match event {
                Event::Added(new) => format!("+{}", version(&new)),
                Event::Modified { old, new } => format!("{}→{}", version(&old), version(&new)),
                Event::Deleted(old) => format!("-{}", version(&old)),
            })
            .collect()
    }

    #[test]
    fn an_entry_of_an_index_takes_two_words() {
        assert_eq!(size_of::<Filed>(), 2 * size_of::<usize>());
    }

    #[test]
    fn an_index_follows_its_objects() {
        let (mut cache, _events) = cache();
        cache.upsert(pod("a", "1", 1, "n1"));
        cache.upsert(pod("b", "2", 2, "n1"));
        cache.upsert(pod("a", "1", 3, "n2"));
        assert_eq!(cache.by_index("node", "n1").len(), 1);
        assert_eq!(cache.by_index("node", "n2").len(), 1);
        assert_eq!(cache.count_by_index("node", "n2"), 1);
        cache.upsert(pod("c", "3", 4, "n2"));
        assert_eq!(cache.count_by_index("node", "n2"), 2);
        let mut keys = cache.index_keys("node");
        keys.sort();
        assert_eq!(keys, ["n1", "n2"]);
        cache.remove("default", "c", None);
        cache.remove("default", "a", None);
        assert_eq!(cache.count_by_index("node", "n2"), 0);
        assert!(cache.by_index("node", "n2").is_empty());
        assert!(cache.by_index("unknown", "n1").is_empty());
    }

    #[test]
    fn a_relist_sends_only_differences() {
        let (mut cache, mut events) = cache();
        cache.upsert(pod("same", "1", 1, "n"));
        cache.upsert(pod("changed", "2", 2, "n"));
        cache.upsert(pod("gone", "3", 3, "n"));
        cache.upsert(pod("reborn", "4", 4, "n"));
        received(&mut events);
        cache.replace(vec![
            pod("same", "1", 1, "n"),
            pod("changed", "2", 5, "n"),
            pod("new", "6", 6, "n"),
            pod("reborn", "7", 7, "n"),
        ]);
        assert_eq!(received(&mut events), ["-3", "2→5", "+6", "-4", "+7"]);
        assert_eq!(cache.count(), 4);
        assert!(cache.has_any_in("default"));
        assert!(!cache.has_any_in("defaul") && !cache.has_any_in("other"));
        let named = |slot: &Slot| slot.key().1.starts_with('n');
        assert_eq!(cache.list_in("default", named).len(), 1);
        assert_eq!(cache.list_in("default", |_| true).len(), 4);
    }

    #[test]
    fn a_late_subscriber_begins_with_everything_there_is() {
        let (mut cache, _events) = cache();
        cache.upsert(pod("a", "1", 1, "n"));
        let (sender, mut late) = channel(cache.decoded.clone(), None);
        cache.subscribe(sender);
        cache.remove("default", "a", Some(pod("a", "1", 2, "n")));
        assert_eq!(received(&mut late), ["+1", "-2"]);
    }
}
