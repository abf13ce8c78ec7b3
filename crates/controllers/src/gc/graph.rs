//! All objects of all kinds by uid and by owner: one metadata-only informer per kind, started and
//! stopped as kinds appear and disappear.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Event, Informer, informer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource as _,
    api::{DynamicObject, ObjectMeta, PartialObjectMeta},
};
use lifecycle::Context;
use parking_lot::RwLock;
use reconcile::Queue;
use tokio_util::sync::CancellationToken;

use super::waits;
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
        let informer = self.informer(&resource).start(&context);
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

    fn informer(&self, resource: &Resource) -> informer::Builder<Meta> {
        Informer::<Meta>::dynamic(self.client.clone(), &resource.api)
            .index(UID, |object| object.metadata.uid.iter().cloned().collect())
            .index(OWNERS, |object| {
                let owners = object.metadata.owner_references.iter().flatten();
                owners.map(|owner| owner.uid.clone()).collect()
            })
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
            let may_be_alone = || !self.has_solid_owners(meta, &item.namespace);
            if finalizes || (owned && changed && may_be_alone()) {
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
                self.queue_if_waiting(owner);
            }
        }
    }

    /// Whether all owners are known and do not wait for their dependents. When one leaves later, its event enqueues the
    /// object.
    fn has_solid_owners(&self, meta: &ObjectMeta, namespace: &str) -> bool {
        let mut owners = meta.owner_references.iter().flatten();
        owners.all(|reference| {
            let known = self.of_kind(reference, |_, owner| {
                let meta = &owner.metadata;
                let place = meta.namespace.as_deref().unwrap_or_default();
                (place.is_empty() || place == namespace)
                    && meta.name.as_ref() == Some(&reference.name)
                    && !waits(meta)
            });
            known == Some(true)
        })
    }

    fn queue_if_waiting(&self, owner: &OwnerReference) {
        let waiting = |resource: &Resource, owner: &Arc<Meta>| {
            let meta = &owner.metadata;
            let finalizers = meta.finalizers.as_ref();
            let is_waiting = meta.deletion_timestamp.is_some()
                && finalizers.is_some_and(|finalizers| !finalizers.is_empty());
            is_waiting.then(|| item(resource, owner))
        };
        let found = self.of_kind(owner, waiting);
        let found = found.or_else(|| self.with_uid(&owner.uid, waiting));
        if let Some(item) = found.flatten() {
            self.queue.add(item);
        }
    }

    /// Reads the owner of a reference, if there is an object of its kind with its uid.
    fn of_kind<T>(
        &self,
        reference: &OwnerReference,
        read: impl Fn(&Resource, &Arc<Meta>) -> T,
    ) -> Option<T> {
        let group = group(&reference.api_version);
        let kinds = self.kinds.read();
        let mut alike = kinds.values().filter(|watched| {
            let api = &watched.resource.api;
            api.kind == reference.kind && api.group == group
        });
        alike.find_map(|watched| {
            let found = watched.informer.by_index(UID, &reference.uid);
            found.first().map(|owner| read(&watched.resource, owner))
        })
    }

    /// Reads the object of this uid, of any kind and namespace.
    fn with_uid<T>(&self, uid: &str, read: impl Fn(&Resource, &Arc<Meta>) -> T) -> Option<T> {
        self.kinds.read().values().find_map(|watched| {
            let found = watched.informer.by_index(UID, uid);
            found.first().map(|object| read(&watched.resource, object))
        })
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

    /// The object with the uid of a reference, of any kind and namespace; preferably of the kind of the reference.
    pub(super) fn find(&self, reference: &OwnerReference) -> Option<(Item, ObjectMeta)> {
        let read = |resource: &Resource, object: &Arc<Meta>| {
            (item(resource, object), object.metadata.clone())
        };
        let found = self.of_kind(reference, read);
        found.or_else(|| self.with_uid(&reference.uid, read))
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
        let group = group(api_version);
        let known = self.known.read();
        known
            .iter()
            .find(|r| r.api.group == group && r.api.kind == kind && r.can(&["get"]))
            .cloned()
    }
}

/// The group of an apiVersion.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
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

    fn object(name: &str, namespace: &str, change: serde_json::Value) -> Meta {
        let mut metadata = serde_json::json!({"name": name, "namespace": namespace, "uid": name});
        for (field, value) in change.as_object().into_iter().flatten() {
            metadata[field] = value.clone();
        }
        serde_json::from_value(serde_json::json!({"metadata": metadata})).unwrap()
    }

    #[tokio::test]
    async fn an_object_is_enqueued_unless_all_its_owners_are_known_to_stay() {
        let refused = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no server"))
        });
        let queue = Queue::default();
        let graph = Graph::new(client::in_process(refused), queue.clone());
        let resource = Resource {
            api: ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "ReplicaSet")),
            namespaced: true,
            verbs: Vec::new(),
        };
        let informer = graph.informer(&resource).offline();
        let leaving = serde_json::json!({
            "deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"],
        });
        informer.upsert(object("solid", "ns", serde_json::json!({})));
        informer.upsert(object("leaving", "ns", leaving));
        informer.upsert(object("far", "elsewhere", serde_json::json!({})));
        let watched = Watched {
            resource: resource.clone(),
            informer,
            started: Instant::now(),
            stop: CancellationToken::new(),
        };
        graph.kinds.write().insert(resource.identity(), watched);
        let owner = |uid: &str, kind: &str, name: &str| serde_json::json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid});
        let set = |uid: &str| owner(uid, "ReplicaSet", uid);
        for (owners, expected) in [
            (vec![], 0),
            (vec![set("solid")], 0),
            (vec![set("solid"), set("gone")], 1),
            (vec![set("leaving")], 1),
            (vec![set("far")], 1),
            (vec![owner("solid", "ReplicaSet", "another")], 1),
            (vec![owner("solid", "Deployment", "solid")], 1),
        ] {
            let pod = object("p", "ns", serde_json::json!({"ownerReferences": owners}));
            graph.handle(&Event::Added(Arc::new(pod)), "", "pods");
            assert_eq!(queue.depth(), expected, "{owners:?}");
            if expected > 0 {
                queue.next().await;
            }
        }
    }

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
