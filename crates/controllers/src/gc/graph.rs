//! All objects of all kinds by uid and by owner: one metadata-only informer per kind, started and
//! stopped as kinds appear and disappear.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Event, Informer};
use kube::{
    Resource as _,
    api::{DynamicObject, ObjectMeta, PartialObjectMeta},
};
use lifecycle::Context;
use parking_lot::RwLock;
use reconcile::Queue;
use tokio_util::sync::CancellationToken;

use crate::discovery::{Resource, has_failed};

type Meta = PartialObjectMeta<DynamicObject>;

const UID: &str = "uid";
const OWNERS: &str = "owners";

/// Identifies an object by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Item {
    pub(super) group: String,
    pub(super) plural: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// After this time a kind that cannot be listed no longer delays the collection.
const SYNC_PATIENCE: Duration = Duration::from_secs(30);

struct Watched {
    resource: Resource,
    informer: Informer<Meta>,
    started: Instant,
    stop: CancellationToken,
}

pub(super) struct Graph {
    client: kube::Client,
    queue: Queue<Item>,
    /// Guards the informers by group and plural; never held across an await.
    kinds: RwLock<HashMap<(String, String), Watched>>,
    /// Guards all discovered kinds, watched or not: owners may be of any kind.
    known: RwLock<Vec<Resource>>,
}

impl Graph {
    pub(super) fn new(client: kube::Client, queue: Queue<Item>) -> Self {
        Self {
            client,
            queue,
            kinds: RwLock::default(),
            known: RwLock::default(),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.kinds.read().len()
    }

    /// Whether the graph knows all dependents: kinds are discovered, and each has synced or cannot
    /// be listed.
    pub(super) fn is_settled(&self) -> bool {
        let kinds = self.kinds.read();
        let settled = |watched: &Watched| {
            watched.informer.has_synced() || watched.started.elapsed() >= SYNC_PATIENCE
        };
        !kinds.is_empty() && kinds.values().all(settled)
    }

    /// Waits until [`Graph::is_settled`].
    pub(super) async fn settled(&self) {
        while !self.is_settled() {
            let waiting = self.unsynced();
            let moment = Duration::from_millis(200);
            match waiting {
                // A kind that never syncs is given up after `SYNC_PATIENCE`.
                Some(informer) => {
                    let _ = tokio::time::timeout(moment, informer.synced()).await;
                }
                None => tokio::time::sleep(moment).await,
            }
        }
    }

    /// A kind that has not synced.
    fn unsynced(&self) -> Option<Informer<Meta>> {
        let kinds = self.kinds.read();
        let mut informers = kinds.values().map(|watched| &watched.informer);
        informers.find(|informer| !informer.has_synced()).cloned()
    }

    /// Watches exactly these kinds, and keeps those of `failed` groups, whose discovery failed.
    pub(super) fn follow(
        self: &Arc<Self>,
        mut resources: Vec<Resource>,
        failed: &[String],
        token: &CancellationToken,
    ) {
        resources.extend(of_failed(&self.known.read(), failed));
        let wanted: HashMap<_, _> = resources
            .iter()
            .filter(|resource| is_collectable(resource))
            .map(|resource| (resource.identity(), resource.clone()))
            .collect();
        *self.known.write() = resources;
        let mut kinds = self.kinds.write();
        kinds.retain(|identity, watched| {
            let keep = wanted
                .get(identity)
                .is_some_and(|r| r.api == watched.resource.api);
            if !keep {
                watched.stop.cancel();
            }
            keep
        });
        for (identity, resource) in wanted {
            kinds
                .entry(identity)
                .or_insert_with(|| self.watch(resource, token.child_token()));
        }
    }

    fn watch(self: &Arc<Self>, resource: Resource, stop: CancellationToken) -> Watched {
        let context = Context::standalone("garbage-collector", stop.clone());
        let informer = Informer::<Meta>::dynamic(self.client.clone(), &resource.api)
            .index(UID, |object| object.metadata.uid.iter().cloned().collect())
            .index(OWNERS, |object| {
                let owners = object.metadata.owner_references.iter().flatten();
                owners.map(|owner| owner.uid.clone()).collect()
            })
            .start(&context);
        let (mut events, graph) = (informer.subscribe(), self.clone());
        let (group, plural) = resource.identity();
        context.spawn("follow", async move {
            while let Some(event) = events.next().await {
                graph.handle(&event, &group, &plural);
            }
        });
        Watched {
            resource,
            informer,
            started: Instant::now(),
            stop,
        }
    }

    /// Enqueues the items that an event concerns.
    fn handle(&self, event: &Event<Meta>, group: &str, plural: &str) {
        let object = event.object();
        let item = Item {
            group: group.to_owned(),
            plural: plural.to_owned(),
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
        };
        let meta = &object.metadata;
        let owned = meta
            .owner_references
            .as_ref()
            .is_some_and(|owners| !owners.is_empty());
        if let Event::Deleted(_) = event {
            for dependent in self.claimants(meta.uid.as_deref().unwrap_or_default()) {
                self.queue.add(dependent);
            }
        } else {
            let was = event.old().map(|old| {
                (
                    &old.metadata.owner_references,
                    &old.metadata.deletion_timestamp,
                )
            });
            let changed = was != Some((&meta.owner_references, &meta.deletion_timestamp));
            let finalizes = meta.deletion_timestamp.is_some()
                && meta
                    .finalizers
                    .as_ref()
                    .is_some_and(|finalizers| !finalizers.is_empty());
            if (owned && changed) || finalizes {
                self.queue.add(item);
            }
        }
        // An owner may wait for this object to be deleted or to lose the reference.
        let before = event
            .old()
            .and_then(|old| old.metadata.owner_references.clone());
        if !matches!(event, Event::Added(_)) {
            let owners = meta
                .owner_references
                .iter()
                .flatten()
                .chain(before.iter().flatten());
            for owner in owners.filter(|owner| owner.block_owner_deletion == Some(true)) {
                self.queue_if_waiting(&owner.uid);
            }
        }
    }

    fn queue_if_waiting(&self, uid: &str) {
        let waiting = self.find(uid).filter(|(_, meta)| {
            meta.deletion_timestamp.is_some()
                && meta.finalizers.as_ref().is_some_and(|f| !f.is_empty())
        });
        if let Some((item, _)) = waiting {
            self.queue.add(item);
        }
    }

    /// The cached metadata of an object.
    pub(super) fn get(&self, item: &Item) -> Option<ObjectMeta> {
        let kinds = self.kinds.read();
        let watched = kinds.get(&(item.group.clone(), item.plural.clone()))?;
        Some(
            watched
                .informer
                .get(&item.namespace, &item.name)?
                .meta()
                .clone(),
        )
    }

    /// The object of this uid, of any kind and namespace.
    pub(super) fn find(&self, uid: &str) -> Option<(Item, ObjectMeta)> {
        self.kinds.read().values().find_map(|watched| {
            let found = watched.informer.by_index(UID, uid).into_iter().next()?;
            Some((item(&watched.resource, &found), found.metadata.clone()))
        })
    }

    /// The objects with a valid reference to this owner: dependents of a namespaced owner are in
    /// its namespace.
    pub(super) fn dependents(&self, uid: &str, namespace: &str) -> Vec<Item> {
        let kinds = self.kinds.read();
        let of = |watched: &Watched| {
            let found = watched.informer.by_index(OWNERS, uid);
            let is_near = |object: &&Arc<Meta>| {
                let other = object.metadata.namespace.as_deref().unwrap_or_default();
                namespace.is_empty() || namespace == other
            };
            found
                .iter()
                .filter(is_near)
                .map(|object| item(&watched.resource, object))
                .collect::<Vec<_>>()
        };
        kinds.values().flat_map(of).collect()
    }

    /// The objects with a reference to this uid, valid or not.
    fn claimants(&self, uid: &str) -> Vec<Item> {
        self.dependents(uid, "")
    }

    pub(super) fn resource(&self, item: &Item) -> Option<Resource> {
        let kinds = self.kinds.read();
        kinds
            .get(&(item.group.clone(), item.plural.clone()))
            .map(|watched| watched.resource.clone())
    }

    /// The kind of an owner reference, in any served version.
    pub(super) fn kind(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let known = self.known.read();
        known
            .iter()
            .find(|r| r.api.group == group && r.api.kind == kind && r.can(&["get"]))
            .cloned()
    }
}

fn item(resource: &Resource, object: &Meta) -> Item {
    let (group, plural) = resource.identity();
    Item {
        group,
        plural,
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

/// Events are too many and never owners.
fn is_collectable(resource: &Resource) -> bool {
    resource.api.plural != "events" && resource.can(&["list", "watch", "delete"])
}

/// The known kinds of groups whose discovery failed.
fn of_failed(known: &[Resource], failed: &[String]) -> Vec<Resource> {
    let has_failed = |resource: &&Resource| has_failed(failed, &resource.api.group);
    known.iter().filter(has_failed).cloned().collect()
}

#[cfg(test)]
mod tests {
    use kube::{api::ApiResource, core::GroupVersionKind};

    use super::*;

    #[test]
    fn a_group_whose_discovery_fails_keeps_its_kinds() {
        let resource = |group: &str, kind: &str| Resource {
            api: ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind)),
            namespaced: true,
            verbs: Vec::new(),
        };
        let known = [
            resource("", "Pod"),
            resource("apps", "Deployment"),
            resource("example.com", "Thing"),
        ];
        let kept = |failed: &str| of_failed(&known, &[failed.to_owned()]);
        assert_eq!(kept("example.com/v2"), known[2..]);
        assert!(kept("other.example.com/v1").is_empty());
    }
}
