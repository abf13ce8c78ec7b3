//! Informers: one list and watch per kind, shared by all readers. Reads are synchronous;
//! subscribers get every change in order, with the previous object.
//!
//! An informer always shows a state that the server had, possibly a little old; one that saves its
//! objects ([`Builder::saved_at`]) starts without a server with those of its last run. In the API
//! server's process it shares the stored objects and decodes those that are read; from another
//! server it keeps them decoded
//! ([decision 17](../../../../docs/decisions/0017-shared-objects.md)). Objects have no
//! `metadata.managedFields`: no component reads them and they take half of the memory.

mod cache;
mod entry;
mod metrics;
mod reflector;
mod saved;
mod shared;
mod slot;
mod subscription;
mod waiters;

use std::{any::Any, fmt::Debug, marker::PhantomData, path::PathBuf, sync::Arc, time::Duration};

use crate::{FromJson, ToJson};
use kube::{Resource, api::ObjectMeta};
use lifecycle::Context;

use cache::{Cache, Keys};
pub use entry::Entry;
use reflector::{Reporter, Source};
use saved::Saved;
use shared::Shared;
use slot::{Decoded, Slot};
use stdx::exposition::Exposition;
pub use subscription::Subscription;
use subscription::Wants;
use waiters::DeletingObject;

/// A type that an informer can hold.
pub trait Object: Resource + FromJson + Debug + Send + Sync + 'static {}
impl<K: Resource + FromJson + Debug + Send + Sync + 'static> Object for K {}

/// A decoded object of any kind. All objects of an informer have the same type; its interface restores it.
trait AnyObject: Any + Send + Sync {
    fn meta(&self) -> &ObjectMeta;
}

impl<K: Object> AnyObject for K {
    fn meta(&self) -> &ObjectMeta {
        Resource::meta(self)
    }
}

/// The object with its type.
fn typed<K: Object>(object: Arc<dyn AnyObject>) -> Arc<K> {
    let object: Arc<dyn Any + Send + Sync> = object;
    // An informer decodes all its objects with the function of its type.
    object.downcast().expect("an object of the informer's type")
}

/// The object with its type, if it is of that type.
fn any<K: Object>(object: &dyn AnyObject) -> Option<&K> {
    let object: &dyn Any = object;
    object.downcast_ref()
}

/// The keys of an object in an index, for objects of any type.
fn erased_keys<K: Object>(keys: IndexFn<K>) -> Keys {
    Box::new(move |object| any(object).map(keys).unwrap_or_default())
}

/// A change, with the objects before and after it.
#[derive(Debug)]
pub enum Event<K> {
    /// The object was added.
    Added(Arc<K>),
    /// The object changed.
    Modified {
        /// Before.
        old: Arc<K>,
        /// After.
        new: Arc<K>,
    },
    /// The object was deleted, or is no longer selected; this is its last known version.
    Deleted(Arc<K>),
}

impl<K> Clone for Event<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Added(new) => Self::Added(new.clone()),
            Self::Modified { old, new } => Self::Modified {
                old: old.clone(),
                new: new.clone(),
            },
            Self::Deleted(old) => Self::Deleted(old.clone()),
        }
    }
}

impl<K> Event<K> {
    /// The newest version of the object.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(new) | Self::Modified { new, .. } | Self::Deleted(new) => new,
        }
    }

    /// The version before a modification.
    pub fn old(&self) -> Option<&Arc<K>> {
        match self {
            Self::Modified { old, .. } => Some(old),
            _ => None,
        }
    }
}

/// Adds the metrics of the informers to a page, under the names of client-go.
pub(crate) fn show_metrics(page: &mut Exposition) {
    metrics::show(page);
}

/// An object whose labels can be read before it is decoded.
pub trait Labelled {
    /// The value of a label.
    fn label(&self, key: &str) -> Option<&str>;
}

/// Returns the keys of an object in an index, e.g. for the index `"node"` the name of its node.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

/// The interval at which decoded objects are dropped that were not read since the last sweep.
const SWEEP: Duration = Duration::from_secs(2);

/// Configures an informer; [`Builder::start`] starts it.
pub struct Builder<K> {
    source: Source,
    cache: Cache,
    kind: PhantomData<fn() -> K>,
}

impl<K: Object> Builder<K> {
    /// Only objects of this namespace.
    pub fn namespace(mut self, namespace: &str) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        self.source.path = K::url_path(&(), Some(namespace));
        self
    }

    /// Only objects with these labels.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.source.labels = Some(selector.into());
        self
    }

    /// Only objects with these fields, e.g. `spec.nodeName=a`.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.source.fields = Some(selector.into());
        self
    }

    /// Adds a secondary index, read with [`Informer::by_index`].
    pub fn index(mut self, name: &'static str, keys: IndexFn<K>) -> Self {
        self.cache.add_index(name, erased_keys(keys));
        self
    }

    /// Keeps a summary of each object, which is read without decoding the object ([`Entry::summary`]).
    pub fn summary<S: Send + Sync + 'static>(mut self, summarize: fn(&K) -> S) -> Self {
        self.cache.summarize(entry::erased_summary(summarize));
        self
    }

    /// Saves the objects in this file, and starts with them if no server is reachable then. `None`
    /// saves nothing.
    pub fn saved_at(mut self, path: Option<PathBuf>) -> Self
    where
        K: ToJson,
    {
        self.source.saved = path.map(|path| Arc::new(Saved::new::<K>(path)));
        self
    }

    /// Starts list and watch, which run as long as the context. While the server rejects them, the
    /// context's service is not ready, with the error as the reason.
    pub fn start(self, context: &Context) -> Informer<K> {
        let Self {
            mut source, cache, ..
        } = self;
        let informer = Informer::from_cache(cache);
        source.latency = metrics::add(context.name(), &source.path, &informer.shared);
        let reporter = Reporter::new(context, source.description());
        context.spawn("sweep", sweep(informer.shared.decoded.clone()));
        if let Some(saved) = source.saved.clone() {
            let keep = saved.keep(informer.shared.clone(), context.clone());
            context.spawn_draining("save", keep);
        }
        context.spawn(
            "informer",
            reflector::run(source, informer.shared.clone(), reporter),
        );
        informer
    }

    /// An informer without a server, filled by [`Informer::upsert`] and [`Informer::remove`].
    pub fn offline(self) -> Informer<K> {
        let informer = Informer::from_cache(self.cache);
        informer.shared.synced.send_replace(true);
        informer
    }
}

/// Drops decoded forms that are no longer read.
async fn sweep(decoded: Arc<Decoded>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        decoded.sweep();
    }
}

/// A shared, indexed, read-only cache of a kind's objects. Clones share it.
pub struct Informer<K> {
    shared: Arc<Shared>,
    /// Which changes subscriptions get.
    wants: Option<Wants>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            wants: self.wants.clone(),
            kind: PhantomData,
        }
    }
}

impl<K: Object> Informer<K> {
    /// An informer for all objects of a kind.
    pub fn builder(client: kube::Client) -> Builder<K>
    where
        K: Resource<DynamicType = ()>,
    {
        let path = K::url_path(&(), None);
        Builder {
            source: Source::new(client, path),
            cache: Cache::new::<K>(),
            kind: PhantomData,
        }
    }

    /// An informer for all objects of a kind known only at run time.
    pub fn dynamic(client: kube::Client, kind: &K::DynamicType) -> Builder<K> {
        let mut source = Source::new(client, K::url_path(kind, None));
        source.metadata_only = K::metadata_api();
        Builder {
            source,
            cache: Cache::new::<K>(),
            kind: PhantomData,
        }
    }

    fn from_cache(cache: Cache) -> Self {
        Self {
            shared: Arc::new(Shared::new(cache)),
            wants: None,
            kind: PhantomData,
        }
    }

    /// The same informer, whose subscriptions leave out changes of objects that `wants` rejects by their summary, before
    /// and after the change. A reader that few objects concern is not woken for the others.
    pub fn only<S: 'static>(&self, wants: fn(&S) -> bool) -> Self {
        let wants: Wants = Arc::new(move |summary| summary.downcast_ref::<S>().is_none_or(wants));
        Self {
            wants: Some(wants),
            ..self.clone()
        }
    }

    /// An object. Cluster-scoped objects have the namespace `""`.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let slot = self.shared.cache.read().get(namespace, name)?;
        Some(typed(slot.read(&self.shared.decoded)))
    }

    /// All objects, ordered by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        let slots = self.shared.cache.read().list();
        self.read(slots)
    }

    /// An object, not decoded.
    pub fn entry(&self, namespace: &str, name: &str) -> Option<Entry<K>> {
        let slot = self.shared.cache.read().get(namespace, name)?;
        Some(Entry::new(slot))
    }

    /// All objects, not decoded, ordered by namespace and name.
    pub fn entries(&self) -> Vec<Entry<K>> {
        let slots = self.shared.cache.read().list();
        slots.into_iter().map(Entry::new).collect()
    }

    /// The objects of a namespace, ordered by name.
    pub fn list_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let slots = self.shared.cache.read().list_in(namespace, |_| true);
        self.read(slots)
    }

    /// Whether a namespace has any object.
    pub fn has_any_in(&self, namespace: &str) -> bool {
        self.shared.cache.read().has_any_in(namespace)
    }

    /// The objects of a namespace whose labels `is_wanted` accepts. Other objects are not decoded.
    pub fn select_in(
        &self,
        namespace: &str,
        is_wanted: impl Fn(&dyn Labelled) -> bool,
    ) -> Vec<Arc<K>> {
        let is_wanted = |slot: &Slot| is_wanted(slot);
        let slots = self.shared.cache.read().list_in(namespace, is_wanted);
        self.read(slots)
    }

    /// The objects under `key` of an index; empty if there is no such index.
    pub fn by_index(&self, index: &str, key: &str) -> Vec<Arc<K>> {
        let slots = self.shared.cache.read().by_index(index, key);
        self.read(slots)
    }

    /// The objects under `key` of an index, not decoded.
    pub fn entries_by_index(&self, index: &str, key: &str) -> Vec<Entry<K>> {
        let slots = self.shared.cache.read().by_index(index, key);
        slots.into_iter().map(Entry::new).collect()
    }

    /// The object of an entry.
    pub fn read_entry(&self, entry: &Entry<K>) -> Arc<K> {
        typed(entry.slot.read(&self.shared.decoded))
    }

    /// The number of objects under `key` of an index.
    pub fn count_by_index(&self, index: &str, key: &str) -> usize {
        self.shared.cache.read().count_by_index(index, key)
    }

    /// The keys of an index, unordered.
    pub fn index_keys(&self, index: &str) -> Vec<String> {
        self.shared.cache.read().index_keys(index)
    }

    fn read(&self, slots: Vec<Arc<Slot>>) -> Vec<Arc<K>> {
        let decoded = &self.shared.decoded;
        let objects = slots.iter().map(|slot| slot.read(decoded));
        objects.map(typed).collect()
    }

    /// A number that every change increments. Objects read after this call are at least as new as the number.
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// The number of objects.
    pub fn count(&self) -> usize {
        self.shared.cache.read().count()
    }

    /// Subscribes: every existing object as `Added`, then every change.
    pub fn subscribe(&self) -> Subscription<K> {
        let decoded = self.shared.decoded.clone();
        let (sender, subscription) = subscription::channel(decoded, self.wants.clone());
        self.shared.cache.write().subscribe(sender);
        subscription
    }

    /// Waits for the first list.
    pub async fn synced(&self) {
        self.shared.synced().await;
    }

    /// Whether the first list was received.
    pub fn has_synced(&self) -> bool {
        self.shared.has_synced()
    }

    /// Waits until the cache contains everything up to `version`, so that a writer reads its own
    /// write. Does not wait for a version that is not a number.
    pub async fn reached(&self, version: &str) {
        self.shared.reached(version).await;
    }

    /// Like [`Informer::reached`], for at most `patience`. After that the cache counts as behind
    /// until it contains the version.
    pub async fn reached_within(&self, version: &str, patience: Duration) -> bool {
        self.shared.reached_within(version, patience).await
    }

    /// Waits until the cache no longer contains this object, or shows that it is being deleted; for
    /// at most `patience`. After that the cache counts as behind until it does.
    pub async fn left_within(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        patience: Duration,
    ) -> bool {
        let departure = DeletingObject {
            key: (namespace.to_owned(), name.to_owned()),
            uid: uid.to_owned(),
        };
        self.shared.left_within(departure, patience).await
    }

    /// Whether a write whose wait timed out is still missing: the cache is too old to act on.
    pub fn is_behind(&self) -> bool {
        self.shared.is_behind()
    }

    /// Stores an object as a watch event would.
    pub fn upsert(&self, object: K) {
        let version = object.meta().resource_version.clone().unwrap_or_default();
        let slot = Slot::typed(Arc::new(object), &self.shared.decoded);
        self.shared.store(slot);
        self.shared.advance(&version);
    }

    /// Removes an object as a watch event would.
    pub fn remove(&self, namespace: &str, name: &str) {
        self.shared.remove(namespace, name);
    }
}
