//! Builds and starts controllers: what a controller watches, owns and reads, and its number of
//! workers. No event is handled and no worker runs before every informer it reads has synced; from
//! then on the controller counts as started.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use client::{Event, Informer, informer::Object};
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use lifecycle::Context;
use tokio::sync::watch;

use crate::{
    Controller, Key, Queue, QueueMetrics,
    queue::LAST_RETRY,
    runner::{self, Reconciler, follow},
};

/// An informer that a controller reads, of any kind.
pub trait Cache: Send + Sync + 'static {
    /// Resolves when it has synced.
    fn synced(&self) -> BoxFuture<'_, ()>;

    /// Whether its objects are known to be too old to act on.
    fn is_behind(&self) -> bool;

    /// Group and plural of its kind.
    fn resource(&self) -> (Cow<'static, str>, Cow<'static, str>);
}

impl<K: Object + Resource<DynamicType = ()>> Cache for Informer<K> {
    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(Informer::synced(self))
    }

    fn is_behind(&self) -> bool {
        Informer::is_behind(self)
    }

    fn resource(&self) -> (Cow<'static, str>, Cow<'static, str>) {
        (K::group(&()), K::plural(&()))
    }
}

/// Called with the group and plural of the cache because of whose age a key is not reconciled.
pub(crate) type Skipped = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The started controllers that still wait for their informers. Clones share it.
#[derive(Clone, Default)]
pub struct Startup {
    waiting: watch::Sender<BTreeSet<&'static str>>,
}

/// A controller that waits for its informers; dropping it marks it as started.
pub struct Starting {
    startup: Startup,
    name: &'static str,
}

impl Startup {
    /// Registers a starting controller.
    pub fn begin(&self, name: &'static str) -> Starting {
        self.waiting.send_modify(|waiting| {
            waiting.insert(name);
        });
        Starting {
            startup: self.clone(),
            name,
        }
    }

    /// Resolves when every registered controller has started.
    pub async fn finished(&self) {
        let mut waiting = self.waiting.subscribe();
        // The sender is borrowed: the channel cannot close.
        let _ = waiting.wait_for(BTreeSet::is_empty).await;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.startup.waiting.send_modify(|waiting| {
            waiting.remove(self.name);
        });
    }
}

type Follow = Box<dyn FnOnce(&Context, &Queue<Key>) + Send>;

/// Configures a controller; [`Builder::start`] starts it.
#[must_use = "nothing runs before start"]
pub struct Builder {
    context: Context,
    startup: Startup,
    controller: Arc<dyn Reconciler>,
    /// Made of the next two unless the controller has one of its own.
    queue: Option<Queue<Key>>,
    retry_cap: Duration,
    rest: Duration,
    workers: usize,
    caches: Vec<Arc<dyn Cache>>,
    follows: Vec<Follow>,
    metrics: QueueMetrics,
    skipped: Option<Skipped>,
}

impl Builder {
    /// A controller with one worker and no watches.
    pub fn new(context: &Context, startup: &Startup, controller: Arc<impl Controller>) -> Self {
        Self {
            context: context.clone(),
            startup: startup.clone(),
            controller,
            queue: None,
            retry_cap: LAST_RETRY,
            rest: Duration::ZERO,
            workers: 1,
            caches: Vec::new(),
            follows: Vec::new(),
            metrics: QueueMetrics::default(),
            skipped: None,
        }
    }

    /// Watches objects, which are reconciled under their own key.
    pub fn watches<K: Object + Resource<DynamicType = ()>>(self, informer: &Informer<K>) -> Self {
        self.watches_with(informer, |event| vec![Key::from_object(&**event.object())])
    }

    /// Watches objects whose changes enqueue the keys that `keys` returns.
    pub fn watches_with<K: Object + Resource<DynamicType = ()>>(
        mut self,
        informer: &Informer<K>,
        keys: impl Fn(&Event<K>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        let followed = informer.clone();
        self.follows.push(Box::new(move |context, queue| {
            follow(context, &followed, queue, keys);
        }));
        self.reads(informer)
    }

    /// Watches objects with an owner of `kind`: a change enqueues its current and previous owner. A
    /// change of an orphan enqueues the owners that could adopt it, as `candidates` returns.
    pub fn owns<K: Object + Resource<DynamicType = ()>>(
        self,
        informer: &Informer<K>,
        kind: &'static str,
        candidates: impl Fn(&K) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.owns_if(|_, _| true, informer, kind, candidates)
    }

    /// Like [`Builder::owns`], without the changes that do not concern the owner, by the object before and after them.
    pub fn owns_if<K: Object + Resource<DynamicType = ()>>(
        self,
        concerns: impl Fn(&K, &K) -> bool + Send + Sync + 'static,
        informer: &Informer<K>,
        kind: &'static str,
        candidates: impl Fn(&K) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.watches_with(informer, move |event| {
            let is_deleted = matches!(event, Event::Deleted(_));
            match event.old() {
                Some(old) if !is_deleted && !concerns(old, event.object()) => Vec::new(),
                _ => owner_keys(event, kind, &candidates),
            }
        })
    }

    /// Adds an informer that the controller reads and whose changes enqueue nothing.
    pub fn reads<K: Object + Resource<DynamicType = ()>>(mut self, informer: &Informer<K>) -> Self {
        self.caches.push(Arc::new(informer.clone()));
        self
    }

    /// The number of workers.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// The maximum retry delay of a failing key.
    pub fn retry_cap(mut self, cap: Duration) -> Self {
        self.retry_cap = cap;
        self
    }

    /// How long a key is delayed after it was processed, so that changes in this period are reconciled together.
    pub fn rest(mut self, rest: Duration) -> Self {
        self.rest = rest;
        self
    }

    /// The metrics in which the queue is counted.
    pub fn metrics(mut self, metrics: &QueueMetrics) -> Self {
        self.metrics = metrics.clone();
        self
    }

    /// Calls `skipped` with the group and plural of a cache whenever a key waits because that cache is too old.
    pub fn skips(mut self, skipped: impl Fn(&str, &str) + Send + Sync + 'static) -> Self {
        self.skipped = Some(Arc::new(skipped));
        self
    }

    /// A queue that the controller itself adds keys to; its retry delay and rest period are its own.
    pub fn queue(mut self, queue: &Queue<Key>) -> Self {
        self.queue = Some(queue.clone());
        self
    }

    /// Starts the controller, which runs as long as the context. Returns immediately.
    pub fn start(self) {
        let starting = self.startup.begin(self.controller.name());
        let queue = self
            .queue
            .unwrap_or_else(|| Queue::new(self.retry_cap, self.rest));
        queue.measure(self.controller.name(), &self.metrics);
        let context = self.context.clone();
        self.context.spawn(self.controller.name(), async move {
            for cache in &self.caches {
                cache.synced().await;
            }
            for follow in self.follows {
                follow(&context, &queue);
            }
            let caches: Arc<[_]> = self.caches.into();
            for _ in 0..self.workers {
                let (controller, queue) = (self.controller.clone(), queue.clone());
                let (caches, skipped) = (caches.clone(), self.skipped.clone());
                context.spawn(controller.name(), async move {
                    loop {
                        runner::work(&*controller, &queue, &caches, skipped.as_ref()).await;
                    }
                });
            }
            drop(starting);
        });
    }
}

/// The object's controller reference.
pub fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    let mut owners = object.meta().owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// The owners of `kind` that a change concerns: current and previous ones, and for an orphan those
/// that could adopt it.
fn owner_keys<K: Resource>(
    event: &Event<K>,
    kind: &str,
    candidates: impl Fn(&K) -> Vec<Key>,
) -> Vec<Key> {
    let key = |object: &K| {
        let owner = controller_of(object).filter(|owner| owner.kind == kind)?;
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        Some(Key::new(namespace, owner.name.clone()))
    };
    let new: &K = event.object();
    let mut keys: Vec<Key> = event.old().and_then(|old| key(old)).into_iter().collect();
    keys.extend(key(new).filter(|key| !keys.contains(key)));
    let has_changed = event.old().is_none_or(|old| {
        old.meta().labels != new.meta().labels
            || controller_of(&**old).is_some() != controller_of(new).is_some()
    });
    if controller_of(new).is_none() && has_changed && !matches!(event, Event::Deleted(_)) {
        keys.extend(candidates(new));
    }
    keys
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::ObjectMeta;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{Action, Error};

    fn pod(name: &str, owner: Option<(&str, &str)>) -> Pod {
        let owner = owner.map(|(kind, name)| OwnerReference {
            kind: kind.into(),
            name: name.into(),
            controller: Some(true),
            ..Default::default()
        });
        Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("default".into()),
                resource_version: Some("5".into()),
                owner_references: owner.map(|owner| vec![owner]),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    #[test]
    fn an_owned_object_concerns_the_owners_it_has_and_had_and_an_orphan_its_candidates() {
        let candidates = |_: &Pod| vec![Key::new("default", "candidate")];
        let keys = |old: Option<Pod>, new: Pod| {
            let new = Arc::new(new);
            let event = match old.map(Arc::new) {
                Some(old) => Event::Modified { old, new },
                None => Event::Added(new),
            };
            let keys = owner_keys(&event, "Job", candidates);
            keys.into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        let owned = |owner| pod("p", Some(("Job", owner)));
        assert_eq!(keys(None, owned("a")), ["a"]);
        assert_eq!(keys(Some(owned("a")), owned("b")), ["a", "b"]);
        assert_eq!(keys(Some(owned("a")), pod("p", None)), ["a", "candidate"]);
        assert_eq!(keys(None, pod("p", None)), ["candidate"]);
        assert!(keys(Some(pod("p", None)), pod("p", None)).is_empty());
        assert!(keys(None, pod("p", Some(("ReplicaSet", "a")))).is_empty());
    }

    struct Log(mpsc::UnboundedSender<String>);

    impl Controller for Log {
        fn name(&self) -> &'static str {
            "log"
        }

        async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
            self.0.send(key.name.clone()).unwrap();
            Ok(Action::Done)
        }
    }

    /// A server that withholds its lists until the test releases them.
    fn slow_client() -> (kube::Client, watch::Sender<bool>) {
        let open = watch::Sender::new(false);
        let gate = open.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let mut gate = gate.subscribe();
            async move {
                let _ = gate.wait_for(|open| *open).await;
                if request.uri().query().unwrap_or_default().contains("watch") {
                    std::future::pending::<()>().await;
                }
                let body = r#"{"metadata":{"resourceVersion":"9"},"items":[]}"#;
                let body = kube::client::Body::from(body.as_bytes().to_vec());
                Ok::<_, std::convert::Infallible>(http::Response::new(body))
            }
        });
        (client::in_process(service), open)
    }

    #[tokio::test]
    async fn no_worker_runs_and_the_controller_is_not_started_before_every_cache_has_synced() {
        let (client, open) = slow_client();
        let stop = CancellationToken::new();
        let context = Context::standalone("test", stop.clone());
        let pods = Informer::<Pod>::builder(client.clone()).offline();
        pods.upsert(pod("p", None));
        let slow = Informer::<Pod>::builder(client).start(&context);
        let (sender, mut seen) = mpsc::unbounded_channel();
        let startup = Startup::default();
        Builder::new(&context, &startup, Arc::new(Log(sender)))
            .watches(&pods)
            .reads(&slow)
            .start();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(
            seen.try_recv().is_err(),
            "reconciled before the caches had synced"
        );
        assert!(!startup.waiting.borrow().is_empty());
        open.send_replace(true);
        let finished = tokio::time::timeout(Duration::from_secs(10), startup.finished());
        finished.await.expect("never started");
        let first = tokio::time::timeout(Duration::from_secs(10), seen.recv()).await;
        assert_eq!(first.expect("never reconciled").as_deref(), Some("p"));
        stop.cancel();
    }

    #[tokio::test]
    async fn nothing_is_decided_while_a_cache_does_not_show_a_write() {
        let (client, _open) = slow_client();
        let pods = Informer::<Pod>::builder(client).offline();
        pods.upsert(pod("p", None));
        assert!(!pods.reached_within("7", Duration::from_millis(1)).await);
        let (sender, mut seen) = mpsc::unbounded_channel();
        let (controller, queue) = (Log(sender), Queue::default());
        let caches: [Arc<dyn Cache>; 1] = [Arc::new(pods.clone())];
        queue.add(Key::new("default", "p"));
        let (counter, mut counted) = mpsc::unbounded_channel();
        let skipped: Skipped = Arc::new(move |group, plural| {
            counter.send(format!("{group}/{plural}")).unwrap();
        });
        runner::work(&controller, &queue, &caches, Some(&skipped)).await;
        assert!(seen.try_recv().is_err(), "acted on a cache that is too old");
        assert_eq!(counted.try_recv().unwrap(), "/pods");
        let mut newer = pod("q", None);
        newer.metadata.resource_version = Some("7".into());
        pods.upsert(newer);
        // The key is enqueued again.
        runner::work(&controller, &queue, &caches, Some(&skipped)).await;
        assert_eq!(seen.try_recv().unwrap(), "p");
        assert!(counted.try_recv().is_err());
    }
}
