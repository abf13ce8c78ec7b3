//! Garbage collection: deletes objects whose owners are all gone. Works for every kind that the API
//! server has, including custom ones, by metadata-only watches.
//!
//! An absent owner is never inferred from the cache alone: before a deletion the API server is
//! asked for the owner with that uid. A reference is valid only if uid, kind, name and namespace
//! match; a namespaced object has owners in its namespace or cluster-scoped ones. Nothing starts
//! before every kind was listed, since orphaning needs all dependents.

mod absent;
mod decide;
mod graph;

use std::{
    collections::{HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use client::Api;
use futures::FutureExt;
use k8s_openapi::{
    api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::api::{
    DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use parking_lot::Mutex;
use reconcile::{Error, Kind, Queue, Recorder};
use serde_json::json;
use tracing::{debug, warn};

use crate::{discovery::discover, shared::Shared};
use absent::AbsentOwners;
use decide::{Owner, Verdict, decide};
use graph::{Graph, Item};

/// The name in [`crate::ALL`].
pub const NAME: &str = "garbage-collector";
const ACCOUNT: &str = "generic-garbage-collector";
/// How often discovery is repeated.
const DISCOVERY: Duration = Duration::from_secs(15);
const WORKERS: usize = 32;
/// How long an owner without dependents waits for such as are not in the caches yet.
const DEPENDENTS_WAIT: Duration = Duration::from_millis(250);
/// How long an owner rests for each dependent after it was found to wait for them: each of their deletions enqueues it.
const REST_PER_DEPENDENT: Duration = Duration::from_micros(50);
/// The maximum number of remembered owners.
const REMEMBERED: usize = 1024;
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Whether an object is being deleted in the foreground.
fn waits(meta: &ObjectMeta) -> bool {
    let mut finalizers = meta.finalizers.iter().flatten();
    meta.deletion_timestamp.is_some() && finalizers.any(|finalizer| finalizer == FOREGROUND)
}

struct Collector {
    client: kube::Client,
    graph: Arc<Graph>,
    queue: Queue<Item>,
    /// Guards since when owners, by uid, have no known dependents.
    alone: Mutex<HashMap<String, Instant>>,
    /// Guards the owners that the API server does not have.
    absent: Mutex<AbsentOwners>,
    recorder: Recorder,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let queue = Queue::with_retry_cap(Duration::from_secs(30));
    shared.measure(NAME, &queue);
    let graph = Arc::new(Graph::new(shared.reader(), queue.clone()));
    let client = shared.client(ACCOUNT);
    let collector = Arc::new(Collector {
        client: client.clone(),
        graph: graph.clone(),
        queue,
        alone: Mutex::default(),
        absent: Mutex::default(),
        recorder: shared.recorder(ACCOUNT, "garbage-collector-controller"),
    });
    let token = shared.context.token();
    let found = graph.clone();
    let metrics = shared.metrics.clone();
    shared.context.spawn("discovery", async move {
        loop {
            match discover(&client).await {
                Ok((resources, failed)) => {
                    metrics.kinds_not_followed.add([], failed.len());
                    for group in &failed {
                        warn!(group, "discovery failed, keeping known kinds");
                    }
                    found.follow(resources, &failed, &token);
                }
                Err(error) => debug!(%error, "discovery failed"),
            }
            // Retry soon at first: the API server may still be adding kinds.
            let pause = if found.size() == 0 {
                Duration::from_millis(200)
            } else {
                DISCOVERY
            };
            tokio::time::sleep(pause).await;
        }
    });
    let (starting, context) = (shared.starting(NAME), shared.context.clone());
    shared.context.spawn(NAME, async move {
        graph.settled().await;
        for _ in 0..WORKERS {
            let collector = collector.clone();
            context.spawn(NAME, async move {
                loop {
                    collector.work().await;
                }
            });
        }
        drop(starting);
    });
}

/// Whether an answer says that the object does not exist. An unknown kind is something else, and no
/// reason to delete dependents.
fn is_absent(status: &kube::core::Status, name: &str) -> bool {
    let details = status.details.as_ref();
    status.code == 404 && details.is_some_and(|details| details.name == name)
}

impl Collector {
    async fn work(&self) {
        let mut held = self.queue.next().await;
        let item = &held.key().clone();
        // A panic counts as a failure of this object and must not end the worker.
        let collected = AssertUnwindSafe(self.collect(item)).catch_unwind().await;
        match collected.unwrap_or_else(|_| Err(Error::Invalid("panicked".to_owned()))) {
            Ok(rest) => {
                self.queue.forget(item);
                held.rest(rest);
            }
            Err(error) => {
                let failures = self.queue.failures(item);
                if failures > 5 && !error.is_conflict() {
                    warn!(?item, %error, "garbage collection failed, retrying");
                }
                self.queue.retry(item.clone());
            }
        }
    }

    /// Returns how long the object rests.
    async fn collect(&self, item: &Item) -> Result<Duration, Error> {
        let Some(meta) = self.graph.get(item) else {
            return Ok(Duration::ZERO);
        };
        let finalizers = meta.finalizers.clone().unwrap_or_default();
        let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
        if meta.deletion_timestamp.is_some() {
            if has(ORPHAN) {
                self.orphan(item, &meta).await?;
            } else if has(FOREGROUND) {
                return self.foreground(item, &meta).await;
            }
            return Ok(Duration::ZERO);
        }
        let mut owners = Vec::new();
        for reference in meta.owner_references.iter().flatten() {
            let state = self.owner(item, &meta, reference).await?;
            owners.push((reference.clone(), state));
        }
        let has_dependents = || {
            let uid = meta.uid.as_deref().unwrap_or_default();
            !self.graph.dependents(uid, &item.namespace).is_empty()
        };
        let collected = match decide(&owners, has_dependents) {
            Verdict::Keep => Ok(()),
            Verdict::Trim(uids) => {
                let mut left = meta.owner_references.clone().unwrap_or_default();
                left.retain(|owner| !uids.contains(&owner.uid));
                self.patch(item, &meta, json!({"ownerReferences": left}))
                    .await
            }
            Verdict::Delete { foreground } => {
                let policy = if has(ORPHAN) {
                    PropagationPolicy::Orphan
                } else if has(FOREGROUND) || foreground {
                    PropagationPolicy::Foreground
                } else {
                    PropagationPolicy::Background
                };
                self.delete(item, &meta, policy).await
            }
        };
        collected.map(|()| Duration::ZERO)
    }

    /// The state of an owner, read from the API server if the cache does not have it.
    async fn owner(
        &self,
        item: &Item,
        meta: &ObjectMeta,
        reference: &OwnerReference,
    ) -> Result<Owner, Error> {
        if let Some((found, owner)) = self.graph.find(reference) {
            let is_near = found.namespace.is_empty() || found.namespace == item.namespace;
            if is_near && self.is_named(reference, &found) {
                return Ok(if waits(&owner) {
                    Owner::WaitsForDependents
                } else {
                    Owner::Solid
                });
            }
            if !is_near {
                self.report_foreign_owner(item, meta, reference);
            }
        }
        let kind = self
            .graph
            .kind(&reference.api_version, &reference.kind)
            .ok_or_else(|| {
                Error::Invalid(format!(
                    "unknown owner kind {}/{}",
                    reference.api_version, reference.kind
                ))
            })?;
        if kind.namespaced && item.namespace.is_empty() {
            // A cluster-scoped object cannot have a namespaced owner: such a reference is ignored.
            return Ok(Owner::Solid);
        }
        // Dependents of one deleted owner come together.
        let namespace = Some(&*item.namespace).filter(|_| kind.namespaced);
        if self.absent.lock().contains(reference, namespace) {
            return Ok(Owner::Absent);
        }
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.api),
            None => Api::all_with(self.client.clone(), &kind.api),
        };
        let found = match api.get_metadata(&reference.name).await {
            Ok(owner) => Some(owner),
            Err(kube::Error::Api(status)) if is_absent(&status, &reference.name) => None,
            Err(error) => return Err(error.into()),
        };
        let there = found.is_some_and(|owner| owner.metadata.uid.as_ref() == Some(&reference.uid));
        if !there {
            self.absent.lock().add(reference, namespace);
        }
        Ok(if there { Owner::Solid } else { Owner::Absent })
    }

    /// Whether a reference matches this object's group, kind and name.
    fn is_named(&self, reference: &OwnerReference, owner: &Item) -> bool {
        let kind = self.graph.kind(&reference.api_version, &reference.kind);
        let identity = (owner.group.clone(), owner.plural.clone());
        kind.is_some_and(|kind| kind.identity() == identity) && reference.name == owner.name
    }

    fn report_foreign_owner(&self, item: &Item, meta: &ObjectMeta, reference: &OwnerReference) {
        let Some(kind) = self.graph.resource(item) else {
            return;
        };
        let about = ObjectReference {
            api_version: Some(kind.api.api_version),
            kind: Some(kind.api.kind),
            namespace: Some(item.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(item.name.clone()),
            uid: meta.uid.clone(),
            ..Default::default()
        };
        let text = format!(
            "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace \"{namespace}\"",
            reference.api_version,
            reference.kind,
            reference.name,
            reference.uid,
            namespace = item.namespace,
        );
        self.recorder
            .event(&about, Kind::Warning, "OwnerRefInvalidNamespace", text);
    }

    /// Foreground deletion: deletes the dependents, and removes the finalizer when no blocking one
    /// is left. Returns how long the object rests.
    async fn foreground(&self, item: &Item, meta: &ObjectMeta) -> Result<Duration, Error> {
        let uid = meta.uid.as_deref().unwrap_or_default();
        let mut blocked = false;
        let dependents = self.graph.dependents(uid, &item.namespace);
        let rest = REST_PER_DEPENDENT * u32::try_from(dependents.len()).unwrap_or(u32::MAX);
        for dependent in dependents {
            let Some(other) = self.graph.get(&dependent) else {
                continue;
            };
            let mut references = other.owner_references.iter().flatten();
            blocked |= references
                .any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true));
            if other.deletion_timestamp.is_none() {
                self.queue.add(dependent);
            }
        }
        if blocked {
            if self.waits_for_itself(uid, &item.namespace) {
                self.unblock_owners(item, meta).await?;
            }
            return Ok(rest);
        }
        if !self.hesitates(item, uid) {
            self.without_finalizer(item, meta, FOREGROUND).await?;
        }
        Ok(Duration::ZERO)
    }

    /// Whether an owner without known dependents must wait, since informers of different kinds are
    /// not in sync. It is checked again.
    fn hesitates(&self, item: &Item, uid: &str) -> bool {
        let left = if self.graph.is_settled() {
            DEPENDENTS_WAIT.saturating_sub(self.waited(uid))
        } else {
            DEPENDENTS_WAIT
        };
        if !left.is_zero() {
            self.queue.add_after(item.clone(), left);
        }
        !left.is_zero()
    }

    /// How long an owner has had no known dependents.
    fn waited(&self, uid: &str) -> Duration {
        let mut alone = self.alone.lock();
        if alone.len() > REMEMBERED {
            alone.retain(|_, since| since.elapsed() < 2 * DEPENDENTS_WAIT);
        }
        alone
            .entry(uid.to_owned())
            .or_insert_with(Instant::now)
            .elapsed()
    }

    /// Whether the blocking dependents wait for this object: a cycle of owners.
    fn waits_for_itself(&self, uid: &str, namespace: &str) -> bool {
        let mut seen = HashSet::new();
        let mut open = vec![(uid.to_owned(), namespace.to_owned())];
        while let Some((owner, namespace)) = open.pop() {
            for dependent in self.graph.dependents(&owner, &namespace) {
                let Some(meta) = self.graph.get(&dependent) else {
                    continue;
                };
                let mut references = meta.owner_references.iter().flatten();
                let blocks = references
                    .any(|own| own.uid == owner && own.block_owner_deletion == Some(true));
                if !blocks || !waits(&meta) {
                    continue;
                }
                let other = meta.uid.unwrap_or_default();
                if other == uid {
                    return true;
                }
                if seen.insert(other.clone()) {
                    open.push((other, dependent.namespace));
                }
            }
        }
        false
    }

    /// Clears blockOwnerDeletion in this object's references.
    async fn unblock_owners(&self, item: &Item, meta: &ObjectMeta) -> Result<(), Error> {
        let mut references = meta.owner_references.clone().unwrap_or_default();
        for owner in &mut references {
            owner.block_owner_deletion = Some(false);
        }
        self.patch(item, meta, json!({"ownerReferences": references}))
            .await
    }

    /// Orphans the dependents of an owner.
    async fn orphan(&self, item: &Item, meta: &ObjectMeta) -> Result<(), Error> {
        let uid = meta.uid.as_deref().unwrap_or_default();
        if self.hesitates(item, uid) {
            return Ok(());
        }
        for dependent in self.graph.dependents(uid, &item.namespace) {
            let Some(other) = self.graph.get(&dependent) else {
                continue;
            };
            let mut left = other.owner_references.clone().unwrap_or_default();
            left.retain(|owner| owner.uid != uid);
            self.patch(&dependent, &other, json!({"ownerReferences": left}))
                .await?;
        }
        self.without_finalizer(item, meta, ORPHAN).await
    }

    async fn without_finalizer(
        &self,
        item: &Item,
        meta: &ObjectMeta,
        name: &str,
    ) -> Result<(), Error> {
        let mut left = meta.finalizers.clone().unwrap_or_default();
        left.retain(|finalizer| finalizer != name);
        self.patch(item, meta, json!({"finalizers": left})).await
    }

    fn api(&self, item: &Item) -> Option<Api<DynamicObject>> {
        let kind = self.graph.resource(item)?;
        Some(if kind.namespaced {
            Api::namespaced_with(self.client.clone(), &item.namespace, &kind.api)
        } else {
            Api::all_with(self.client.clone(), &kind.api)
        })
    }

    /// Patches metadata of exactly this version of the object.
    async fn patch(
        &self,
        item: &Item,
        meta: &ObjectMeta,
        mut change: serde_json::Value,
    ) -> Result<(), Error> {
        let Some(api) = self.api(item) else {
            return Ok(());
        };
        change["uid"] = json!(meta.uid);
        change["resourceVersion"] = json!(meta.resource_version);
        let (params, patch) = (PatchParams::default(), json!({"metadata": change}));
        match api
            .patch_metadata(&item.name, &params, &Patch::Merge(&patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete(
        &self,
        item: &Item,
        meta: &ObjectMeta,
        policy: PropagationPolicy,
    ) -> Result<(), Error> {
        let Some(api) = self.api(item) else {
            return Ok(());
        };
        debug!(?item, ?policy, "deleting object without remaining owners");
        let conditions = Preconditions {
            uid: meta.uid.clone(),
            // Precondition: another owner may be added concurrently.
            resource_version: meta.resource_version.clone(),
        };
        let mut params = DeleteParams::default().preconditions(conditions);
        params.propagation_policy = Some(policy);
        match api.delete(&item.name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
