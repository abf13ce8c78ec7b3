//! The objects of an informer, their secondary indexes, and its subscribers. Pure: no
//! server and no task; the informer guards it with one lock.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{Event, IndexFn, subscription::Sender};
use kube::Resource;

/// Namespace and name.
pub(super) type Key = (String, String);

struct Index<K> {
    name: &'static str,
    keys: IndexFn<K>,
    entries: HashMap<String, BTreeMap<Key, Arc<K>>>,
}

pub(super) struct Cache<K> {
    objects: BTreeMap<String, BTreeMap<String, Arc<K>>>,
    indexes: Vec<Index<K>>,
    subscribers: Vec<Sender<K>>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            indexes: Vec::new(),
            subscribers: Vec::new(),
        }
    }
}

impl<K: Resource> Cache<K> {
    /// Must be called before the first object is stored.
    pub(super) fn add_index(&mut self, name: &'static str, keys: IndexFn<K>) {
        self.indexes.push(Index {
            name,
            keys,
            entries: HashMap::new(),
        });
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.objects.get(namespace)?.get(name).cloned()
    }

    pub(super) fn list(&self) -> Vec<Arc<K>> {
        self.objects
            .values()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    pub(super) fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        self.objects
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    pub(super) fn by_index(&self, index: &str, key: &str) -> Vec<Arc<K>> {
        let index = self
            .indexes
            .iter()
            .find(|candidate| candidate.name == index);
        let entry = index.and_then(|index| index.entries.get(key));
        entry
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    pub(super) fn count(&self) -> usize {
        self.objects.values().map(BTreeMap::len).sum()
    }

    pub(super) fn subscribe(&mut self, sender: Sender<K>) {
        for object in self.objects.values().flat_map(BTreeMap::values) {
            if !sender.send(Event::Added(object.clone())) {
                return;
            }
        }
        self.subscribers.push(sender);
    }

    /// Stores the newest state of an object and publishes the change. An object that was made anew
    /// under the same name is published as a deletion and an addition.
    pub(super) fn upsert(&mut self, new: Arc<K>) {
        let (namespace, name) = key(&*new);
        if let Some(old) = self.get(&namespace, &name) {
            if old.meta().uid != new.meta().uid {
                self.remove(&namespace, &name, None);
            } else if old.meta().resource_version == new.meta().resource_version
                && new.meta().resource_version.is_some()
            {
                return;
            }
        }
        let slot = self.objects.entry(namespace.clone()).or_default();
        let old = slot.insert(name.clone(), new.clone());
        let key = (namespace, name);
        for index in &mut self.indexes {
            let now = (index.keys)(&new);
            if let Some(old) = &old {
                let before = (index.keys)(old);
                for gone in before.iter().filter(|value| !now.contains(value)) {
                    index.forget(gone, &key);
                }
            }
            for value in now {
                index
                    .entries
                    .entry(value)
                    .or_default()
                    .insert(key.clone(), new.clone());
            }
        }
        self.publish(match old {
            Some(old) => Event::Modified { old, new },
            None => Event::Added(new),
        });
    }

    /// Removes an object; `last` is its final state when the server sent one.
    pub(super) fn remove(&mut self, namespace: &str, name: &str, last: Option<Arc<K>>) {
        let Some(slot) = self.objects.get_mut(namespace) else {
            return;
        };
        let Some(old) = slot.remove(name) else { return };
        if slot.is_empty() {
            self.objects.remove(namespace);
        }
        let key = (namespace.to_owned(), name.to_owned());
        for index in &mut self.indexes {
            for value in (index.keys)(&old) {
                index.forget(&value, &key);
            }
        }
        self.publish(Event::Deleted(last.unwrap_or(old)));
    }

    /// Takes a complete list: what is not in it is gone.
    pub(super) fn replace(&mut self, objects: Vec<Arc<K>>) {
        let kept: HashSet<Key> = objects.iter().map(|object| key(&**object)).collect();
        let known = self
            .objects
            .values()
            .flat_map(BTreeMap::values)
            .map(|object| key(&**object));
        let gone: Vec<Key> = known.filter(|key| !kept.contains(key)).collect();
        for (namespace, name) in gone {
            self.remove(&namespace, &name, None);
        }
        for object in objects {
            self.upsert(object);
        }
    }

    fn publish(&mut self, event: Event<K>) {
        self.subscribers
            .retain(|subscriber| subscriber.send(event.clone()));
    }
}

impl<K> Index<K> {
    fn forget(&mut self, value: &str, key: &Key) {
        if let Some(entry) = self.entries.get_mut(value) {
            entry.remove(key);
            if entry.is_empty() {
                self.entries.remove(value);
            }
        }
    }
}

/// Namespace (empty for cluster-scoped objects) and name.
pub(super) fn key<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::subscription::{Subscription, channel},
        *,
    };
    use k8s_openapi::api::core::v1::{Pod, PodSpec};
    use kube::api::ObjectMeta;

    fn pod(name: &str, uid: &str, version: u32, node: &str) -> Arc<Pod> {
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
        Arc::new(Pod {
            metadata,
            spec: Some(spec),
            status: None,
        })
    }

    fn cache() -> (Cache<Pod>, Subscription<Pod>) {
        let mut cache = Cache::default();
        cache.add_index("node", |pod: &Pod| {
            pod.spec
                .iter()
                .filter_map(|spec| spec.node_name.clone())
                .collect()
        });
        let (sender, receiver) = channel();
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
    fn an_index_follows_its_objects() {
        let (mut cache, _events) = cache();
        cache.upsert(pod("a", "1", 1, "n1"));
        cache.upsert(pod("b", "2", 2, "n1"));
        cache.upsert(pod("a", "1", 3, "n2"));
        assert_eq!(cache.by_index("node", "n1").len(), 1);
        assert_eq!(cache.by_index("node", "n2").len(), 1);
        cache.remove("default", "a", None);
        assert!(cache.by_index("node", "n2").is_empty());
        assert!(cache.by_index("unknown", "n1").is_empty());
    }

    #[test]
    fn a_relist_tells_only_what_differs() {
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
    }

    #[test]
    fn a_late_subscriber_begins_with_everything_there_is() {
        let (mut cache, _events) = cache();
        cache.upsert(pod("a", "1", 1, "n"));
        let (sender, mut late) = channel();
        cache.subscribe(sender);
        cache.remove("default", "a", Some(pod("a", "1", 2, "n")));
        assert_eq!(received(&mut late), ["+1", "-2"]);
    }
}
