//! The pods of each node, maintained by a watch: a kubelet's request looks only at its own node's
//! pods, and costs the same in a cluster of any size.
//!
//! A lookup that finds nothing first catches up with the store: a pod bound a moment ago counts, so
//! that a kubelet never has to retry.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use machinery::Status;
use parking_lot::RwLock;
use stdx::Backoff;
use store::{Event, Key, Revision, WatchItem};

use super::rbac::{FIRST, LONGEST};
use registry::{Reader, Stored};

const NODE: &str = "spec.nodeName";
/// How long an event may take from the store to its watchers.
const FAN_OUT: Duration = Duration::from_millis(10);

/// Which pods are bound to which node. Cheap to clone.
#[derive(Clone)]
pub(super) struct NodePods {
    reader: Reader,
    /// Guards the pods and their revision.
    known: Arc<RwLock<IndexedPods>>,
}

#[derive(Default)]
struct IndexedPods {
    /// The revision up to which events are applied; `None` before the first list.
    revision: Option<Revision>,
    nodes: HashMap<Box<str>, BTreeMap<Key, Arc<Stored>>>,
}

impl IndexedPods {
    fn remove(&mut self, key: &Key, pod: &Stored) {
        let Some(node) = pod.field(NODE) else { return };
        if let Some(pods) = self.nodes.get_mut(node) {
            pods.remove(key);
            if pods.is_empty() {
                self.nodes.remove(node);
            }
        }
    }

    fn insert(&mut self, key: Key, pod: Arc<Stored>) {
        let Some(node) = pod.field(NODE).filter(|node| !node.is_empty()) else {
            return;
        };
        let node = Box::from(node);
        self.nodes.entry(node).or_default().insert(key, pod);
    }

    /// Applies the events of one revision, unless already applied.
    fn apply_events(&mut self, revision: Revision, events: &[Event<Stored>]) {
        if self.revision.is_some_and(|known| revision <= known) {
            return;
        }
        for event in events {
            if let Some(previous) = &event.previous {
                self.remove(&previous.key, &previous.object);
            }
            if let Some(current) = &event.current {
                self.insert(current.key.clone(), current.object.clone());
            }
        }
        self.revision = Some(revision);
    }

    fn reached(&mut self, revision: Revision) {
        self.revision = self.revision.max(Some(revision));
    }
}

impl NodePods {
    pub(super) fn new(reader: Reader) -> Self {
        Self {
            reader,
            known: Arc::default(),
        }
    }

    /// The known pods of a node in a namespace.
    pub(super) fn pods_on_node(&self, node: &str, namespace: &str) -> Vec<Arc<Stored>> {
        let known = self.known.read();
        let pods = known.nodes.get(node).into_iter().flat_map(BTreeMap::values);
        pods.filter(|pod| pod.header.namespace() == namespace)
            .cloned()
            .collect()
    }

    /// The known pods of a node in all namespaces.
    pub(super) fn of_node(&self, node: &str) -> Vec<Arc<Stored>> {
        let known = self.known.read();
        let pods = known.nodes.get(node).into_iter().flat_map(BTreeMap::values);
        pods.cloned().collect()
    }

    /// Catches up with the store's revision at the time of the call.
    pub(super) async fn catch_up(&self) -> Result<(), Status> {
        let newest = self.reader.revision().await?;
        let Some(after) = self.revision() else {
            return self.list().await;
        };
        let Ok(Some(mut events)) = self.reader.watch("", "pods", after).await else {
            return self.list().await;
        };
        while self.revision() < Some(newest) {
            // If the missing revisions are of other kinds, no event comes; then list.
            match tokio::time::timeout(FAN_OUT, events.next()).await {
                Ok(Some(Ok(item))) => self.apply(item),
                _ => return self.list().await,
            }
        }
        Ok(())
    }

    fn apply(&self, item: WatchItem<Stored>) {
        let mut known = self.known.write();
        match item {
            WatchItem::Events { revision, events } => known.apply_events(revision, &events),
            WatchItem::Progress(revision) => known.reached(revision),
        }
    }

    async fn list(&self) -> Result<(), Status> {
        // A pod that cannot be read gives its node access to nothing.
        let readable = self.reader.list_readable("", "pods").await?;
        let revision = readable.revision;
        let mut fresh = IndexedPods {
            revision: Some(revision),
            ..IndexedPods::default()
        };
        for pod in readable.entries {
            fresh.insert(pod.key, pod.object);
        }
        let mut known = self.known.write();
        if known.revision.is_none_or(|known| known < revision) {
            *known = fresh;
        }
        Ok(())
    }

    /// Watches the pods for as long as the server runs.
    pub(super) async fn follow(self) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            if self.list().await.is_ok()
                && let Some(after) = self.revision()
                && let Ok(Some(mut events)) = self.reader.watch("", "pods", after).await
            {
                while let Some(Ok(item)) = events.next().await {
                    backoff.reset();
                    self.apply(item);
                }
            }
            tokio::time::sleep(backoff.step()).await;
        }
    }

    fn revision(&self) -> Option<Revision> {
        self.known.read().revision
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use registry_testing::World;

    fn pod(name: &str, node: &str) -> machinery::json::Value {
        json!({"metadata": {"name": name, "namespace": "team"}, "spec": {"nodeName": node}})
    }

    fn names(pods: &NodePods, node: &str) -> Vec<String> {
        let pods = pods.pods_on_node(node, "team");
        pods.iter()
            .map(|pod| pod.header.name().to_string())
            .collect()
    }

    #[tokio::test]
    async fn pods_are_tracked_when_created_bound_and_deleted() {
        let world = World::new();
        world.put("", "pods", pod("old", "a")).await;
        let pods = NodePods::new(world.reader.clone());
        assert!(names(&pods, "a").is_empty(), "nothing is known before");
        pods.catch_up().await.unwrap();
        assert_eq!(names(&pods, "a"), ["old"]);
        world.put("", "pods", pod("new", "a")).await;
        world.put("", "pods", pod("waiting", "")).await;
        world.put("", "pods", pod("old", "b")).await;
        pods.catch_up().await.unwrap();
        assert_eq!(
            (names(&pods, "a"), names(&pods, "b")),
            (vec!["new".to_owned()], vec!["old".to_owned()])
        );
        assert!(
            pods.pods_on_node("a", "other").is_empty() && pods.pods_on_node("", "team").is_empty()
        );
        world.delete("", "pods", "team", "new").await;
        pods.catch_up().await.unwrap();
        assert!(names(&pods, "a").is_empty());
    }

    #[tokio::test]
    async fn an_event_received_twice_counts_once() {
        let world = World::new();
        let pods = NodePods::new(world.reader.clone());
        pods.catch_up().await.unwrap();
        let mut late = world
            .reader
            .watch("", "pods", pods.revision().unwrap())
            .await
            .unwrap()
            .unwrap();
        world.put("", "pods", pod("web", "a")).await;
        world.delete("", "pods", "team", "web").await;
        pods.catch_up().await.unwrap();
        // The watch delivers the same events later; the pod does not reappear.
        for _ in 0..2 {
            if let Some(Ok(item)) = late.next().await {
                pods.apply(item);
            }
            assert!(names(&pods, "a").is_empty());
        }
    }
}
