//! Follows the policies and bindings of the store, and compiles what changed. Requests read the newest index without
//! waiting; before the first one is made, no request passes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use lifecycle::Context;
use machinery::{Object, Status, Value};
use stdx::Backoff;
use tokio::sync::{Mutex, Notify};

use super::index::Index;
use crate::{Reader, Stored};

const GROUP: &str = "admissionregistration.k8s.io";
/// How soon the store is read again that could not be read.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);

/// The policies of one kind.
pub(super) struct Source<P> {
    reader: Reader,
    policies: &'static str,
    bindings: &'static str,
    compile: fn(&Value) -> P,
    index: ArcSwap<Index<P>>,
    /// Whether the index shows the store.
    synced: AtomicBool,
    /// One reads at a time, so that an older state never takes the place of a newer one.
    reading: Mutex<()>,
}

impl<P: Send + Sync + 'static> Source<P> {
    pub(super) fn new(
        reader: Reader,
        policies: &'static str,
        bindings: &'static str,
        compile: fn(&Value) -> P,
    ) -> Arc<Self> {
        Arc::new(Self {
            reader,
            policies,
            bindings,
            compile,
            index: ArcSwap::default(),
            synced: AtomicBool::new(false),
            reading: Mutex::new(()),
        })
    }

    /// Whether a policy may be about a resource. True until policies are known.
    #[inline]
    pub(super) fn concerns(&self, resource: &str) -> bool {
        self.index.load().concerns(resource) || !self.synced.load(Ordering::Acquire)
    }

    /// The newest index; reads the store if it was not read yet.
    pub(super) async fn index(&self) -> Result<Arc<Index<P>>, Status> {
        if !self.synced.load(Ordering::Acquire) {
            self.refresh().await?;
        }
        Ok(self.index.load_full())
    }

    async fn refresh(&self) -> Result<(), Status> {
        let _reading = self.reading.lock().await;
        let list = async |kind| {
            let (_, objects) = self.reader.list(GROUP, kind, "").await?;
            Ok::<Vec<Object>, Status>(objects.iter().map(|stored| Stored::parse(stored)).collect())
        };
        // Bindings first: a policy that is found later than its binding is at least as new.
        let bindings = list(self.bindings).await?;
        let policies = list(self.policies).await?;
        let earlier = self.index.load_full();
        let index = Index::read(&policies, &bindings, &earlier, self.compile);
        self.index.store(Arc::new(index));
        self.synced.store(true, Ordering::Release);
        Ok(())
    }

    /// Reads again whenever something has changed; several changes at once count as one.
    async fn follow(self: Arc<Self>, changed: Arc<Notify>) {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        loop {
            changed.notified().await;
            while let Err(error) = self.refresh().await {
                tracing::warn!(%error, policies = self.policies, "admission policies cannot be read");
                tokio::time::sleep(backoff.step()).await;
            }
            backoff.reset();
        }
    }

    pub(super) fn start(self: &Arc<Self>, context: &Context) {
        let changed = Arc::new(Notify::new());
        for kind in [self.policies, self.bindings] {
            let (source, changed) = (self.clone(), changed.clone());
            context.spawn("admission-policy-watch", async move {
                source.reader.tell_of_changes(GROUP, kind, &changed).await;
            });
        }
        context.spawn("admission-policies", self.clone().follow(changed));
    }
}
