//! A controller's worker: takes a key, reconciles it, and requeues it after a failure with backoff.
//! A reconciliation reads informers, decides, and writes; it never assumes to be the first, and may
//! be repeated at any time. [`crate::Builder`] starts controllers.

use std::{fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use client::{Event, Informer, informer::Object};
use futures::{FutureExt, future::BoxFuture};
use kube::Resource;
use lifecycle::Context;
use tracing::{Instrument, debug, info_span, warn};

use crate::{
    Error, Queue,
    builder::{Cache, Skipped},
};

/// Namespace (empty for cluster-scoped objects) and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace, or empty.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// From parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of an object.
    pub fn from_object<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self::new(
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What happens to a key after it was reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing until something changes.
    Done,
    /// Reconcile again after this time.
    After(Duration),
    /// Nothing until something changes, and not before this time: the object is large, and changes that arrive until
    /// then are reconciled together.
    Rest(Duration),
}

/// Reconciles one object towards its spec.
pub trait Controller: Send + Sync + 'static {
    /// The short name for logs.
    fn name(&self) -> &'static str;

    /// Reconciles the object of this key.
    fn reconcile(&self, key: &Key) -> impl Future<Output = Result<Action, Error>> + Send;
}

/// A controller of any type: what runs controllers is compiled once instead of for each of them.
pub(crate) trait Reconciler: Send + Sync + 'static {
    /// See [`Controller::name`].
    fn name(&self) -> &'static str;

    /// See [`Controller::reconcile`].
    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Action, Error>>;
}

impl<C: Controller> Reconciler for C {
    fn name(&self) -> &'static str {
        Controller::name(self)
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Action, Error>> {
        Box::pin(Controller::reconcile(self, key))
    }
}

/// How long a key waits while an informer lacks an earlier write.
const BEHIND: Duration = Duration::from_secs(1);

/// Processes one key. A panic counts as a failure of this key only. While one of `caches` is known
/// to be too old, nothing is decided: the key waits.
pub(crate) async fn work(
    controller: &dyn Reconciler,
    queue: &Queue<Key>,
    caches: &[Arc<dyn Cache>],
    skipped: Option<&Skipped>,
) {
    let mut held = queue.next().await;
    let key = &held.key().clone();
    if let Some(cache) = caches.iter().find(|cache| cache.is_behind()) {
        if let Some(skipped) = skipped {
            let (group, plural) = cache.resource();
            skipped(&group, &plural);
        }
        debug!(controller = controller.name(), %key, "informer cache is behind, requeueing");
        queue.add_after(key.clone(), BEHIND);
        return;
    }
    let span = info_span!("reconcile", controller = controller.name(), %key);
    let reconciled = AssertUnwindSafe(controller.reconcile(key).instrument(span)).catch_unwind();
    match reconciled
        .await
        .unwrap_or_else(|_| Err(Error::Invalid("panicked".to_owned())))
    {
        Ok(action) => {
            queue.forget(key);
            match action {
                Action::Done => {}
                Action::After(delay) => queue.add_after(key.clone(), delay),
                Action::Rest(rest) => held.rest(rest),
            }
        }
        Err(error) => {
            if error.is_conflict() || error.is_not_found() || error.is_namespace_terminating() {
                debug!(controller = controller.name(), %key, %error, "reconcile failed, retrying");
            } else {
                warn!(controller = controller.name(), %key, %error, "reconcile failed, retrying");
            }
            queue.retry(key.clone());
        }
    }
}

/// Enqueues the keys of an informer's events, for the context's run. For kinds known only at run
/// time; [`crate::Builder`] does it for all others.
pub fn follow<K, F>(context: &Context, informer: &Informer<K>, queue: &Queue<Key>, keys: F)
where
    K: Object,
    F: Fn(&Event<K>) -> Vec<Key> + Send + Sync + 'static,
{
    let (mut events, queue) = (informer.subscribe(), queue.clone());
    context.spawn("follow", async move {
        while let Some(event) = events.next().await {
            for key in keys(&event) {
                queue.add(key);
            }
        }
    });
}
