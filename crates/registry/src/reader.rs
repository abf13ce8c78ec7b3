//! Reads of objects inside the server: for authorizers, admission plugins and the server's own controllers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use machinery::{Object, Status};
use stdx::Backoff;
use store::{Entry, Freshness, Key, ListRequest, Listed, Revision, Watch, WatchItem};
use tokio::sync::Notify;

use crate::{Registry, Resource, Shared, Store, Stored, Table, failure};

/// Retry intervals of ended watches.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// Values parsed from the objects of a cluster-scoped kind, by name: every revision is parsed once.
pub struct Readings<T>(HashMap<Box<str>, (Revision, Arc<T>)>);

impl<T> Default for Readings<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Readings<T> {
    /// Parses new revisions, and drops deleted objects. The result is in the order of the objects.
    pub fn update(&mut self, objects: &[Arc<Stored>], read: impl Fn(&Object) -> T) -> Vec<Arc<T>> {
        let mut before = std::mem::take(&mut self.0);
        let mut all = Vec::with_capacity(objects.len());
        for object in objects {
            let known = before.remove_entry(object.header.name());
            let known = known.filter(|(_, (revision, _))| *revision == object.revision);
            let (name, (revision, reading)) = known.unwrap_or_else(|| {
                let reading = Arc::new(read(&object.parse()));
                (object.header.name().into(), (object.revision, reading))
            });
            all.push(reading.clone());
            self.0.insert(name, (revision, reading));
        }
        all
    }
}

/// The objects of a kind, without those that cannot be read.
#[derive(Default)]
pub struct Readable {
    /// The revision of the read.
    pub revision: Revision,
    pub entries: Vec<Entry<Stored>>,
    /// The names of objects that cannot be read, with their namespace before a slash.
    pub unreadable: Vec<String>,
}

impl Readable {
    pub fn objects(self) -> Vec<Arc<Stored>> {
        self.entries.into_iter().map(|entry| entry.object).collect()
    }

    /// The parsed objects.
    pub fn parsed(&self) -> Vec<Object> {
        let objects = self.entries.iter().map(|entry| entry.object.parse());
        objects.collect()
    }
}

/// A view of the objects. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    store: Store,
    registry: Shared<Registry>,
}

impl Reader {
    /// A view of what the store holds.
    pub fn new(store: Store, registry: Arc<Registry>) -> Self {
        Self {
            store,
            registry: registry.into(),
        }
    }

    /// One object; `None` if it or its kind does not exist. `namespace` is empty for cluster-scoped
    /// kinds.
    pub async fn get(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Stored>>, Status> {
        let Some(resource) = self.resource(group, resource) else {
            return Ok(None);
        };
        let key = resource.key(namespace, name);
        let (_, entry) = self
            .store
            .get(&key, Freshness::AtLeast(0))
            .await
            .map_err(failure::of_store)?;
        Ok(entry.map(|entry| entry.object))
    }

    /// All objects of a kind, or of one namespace, and the revision of the read.
    pub async fn list(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<(Revision, Vec<Arc<Stored>>), Status> {
        let (revision, entries) = self.entries(group, resource, namespace).await?;
        let objects = entries.into_iter().map(|entry| entry.object);
        Ok((revision, objects.collect()))
    }

    /// The same, with their keys.
    pub async fn entries(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
    ) -> Result<(Revision, Vec<Entry<Stored>>), Status> {
        let Some(resource) = self.resource(group, resource) else {
            return Ok((0, Vec::new()));
        };
        let listed = self.listed(resource.prefix(namespace), false).await?;
        Ok((listed.revision, listed.entries))
    }

    /// All objects of a kind that can be read, and the names of the others. For work that is right without an object:
    /// nothing is allowed or deleted because it is missing.
    pub async fn list_readable(&self, group: &str, resource: &str) -> Result<Readable, Status> {
        let Some(resource) = self.resource(group, resource) else {
            return Ok(Readable::default());
        };
        let prefix = resource.prefix("");
        let listed = self.listed(prefix.clone(), true).await?;
        let name = |key: &Key| String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
        Ok(Readable {
            revision: listed.revision,
            unreadable: listed.unreadable.iter().map(|one| name(&one.key)).collect(),
            entries: listed.entries,
        })
    }

    async fn listed(&self, prefix: Key, skip_unreadable: bool) -> Result<Listed<Stored>, Status> {
        let request = ListRequest {
            prefix,
            from: None,
            limit: None,
            freshness: Freshness::AtLeast(0),
            skip_unreadable,
        };
        self.store.list(request).await.map_err(failure::of_store)
    }

    /// The newest revision.
    pub async fn revision(&self) -> Result<Revision, Status> {
        self.store.revision().await.map_err(failure::of_store)
    }

    /// Changes of a kind after a revision; `None` if the kind is not served.
    pub async fn watch(
        &self,
        group: &str,
        resource: &str,
        after: Revision,
    ) -> Result<Option<Watch<Stored>>, store::Error> {
        match self.resource(group, resource) {
            Some(resource) => self.store.watch(resource.prefix(""), after).await.map(Some),
            None => Ok(None),
        }
    }

    /// Notifies of every change of a kind, and once at the start, for as long as it is polled.
    pub async fn tell_of_changes(&self, group: &str, resource: &str, changed: &Notify) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            // The list covers changes between two watches.
            let listed = self.list_readable(group, resource).await;
            changed.notify_one();
            if let Ok(Readable {
                revision: since, ..
            }) = listed
                && let Ok(Some(mut events)) = self.watch(group, resource, since).await
            {
                while let Some(Ok(item)) = events.next().await {
                    if let WatchItem::Events { .. } = item {
                        backoff.reset();
                        changed.notify_one();
                    }
                }
            }
            tokio::time::sleep(backoff.step()).await;
        }
    }

    /// The kinds served now.
    pub fn table(&self) -> Arc<Table> {
        self.registry.kept_table()
    }

    pub fn resource(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        self.registry.table().any_version(group, plural).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use machinery::{Value, json::json};

    use super::*;
    use crate::Draft;

    fn stored(name: &str, revision: Revision) -> Arc<Stored> {
        let object = json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": name}});
        let object = object.as_object().unwrap();
        let encoded = machinery::encode::object(None, object);
        let draft = Draft::encoded(object, encoded, Vec::new()).unwrap();
        Arc::new(Stored::stamp(draft, revision))
    }

    #[test]
    fn an_object_is_read_again_when_it_has_changed() {
        let reads = Cell::new(0);
        let read = |object: &Object| {
            reads.set(reads.get() + 1);
            let metadata = object.get("metadata").and_then(Value::as_object);
            metadata.map(|metadata| metadata.to_owned())
        };
        let mut readings = Readings::default();
        for (objects, expected) in [
            (vec![stored("a", 1), stored("b", 2)], 2),
            (vec![stored("a", 1), stored("b", 2)], 2),
            (vec![stored("a", 3), stored("b", 2)], 3),
            (vec![stored("b", 2)], 3),
            (vec![stored("a", 3), stored("b", 2)], 4),
        ] {
            let found = readings.update(&objects, read);
            assert_eq!((found.len(), reads.get()), (objects.len(), expected));
        }
    }
}
